"""The language ``servegen/v1alpha1`` as models: what may be written, what it defaults to, what excludes what.

After validation durations are seconds, sizes bytes, bandwidths bytes/s, rates 1/s and prices $/h. ``presets`` fills
what a spec leaves silent before these models see it; ``not_yet`` refuses what this version has not built.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, TypeAdapter, model_validator
from pydantic_core import PydanticCustomError

from servegen.spec.base import (
    Checkpoint,
    Count,
    Finding,
    Flag,
    Id,
    RelativePath,
    Section,
    Share,
    SpecName,
    Tokens,
    refuse,
    whole,
)
from servegen.spec.deploy import Deploy
from servegen.spec.hardware import Hardware
from servegen.spec.traffic import Slo, Traffic

API_VERSION = "servegen/v1alpha1"

PresetName = Literal["chat", "api", "batch", "long-context", "edge"]
Precision = Literal["bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4"]
KvPrecision = Literal["bf16", "fp8", "int8"]
EngineName = Literal["sglang", "megatron", "minisgl", "vllm", "jetstream", "sglang-jax"]
Objective = Literal["cost", "throughput", "latency", "energy"]
FleetObjective = Literal["cost", "energy", "unmet"]
#: Each member is searched on its own and has its options in one integer program: beyond this it takes minutes.
MOST_MEMBERS = 1000


def _each_once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for value in values:
        if values.count(value) > 1:
            raise PydanticCustomError(
                "duplicate-value", "{value} is listed twice", {"value": value, "hint": "keep one"}
            )
    return values


class Speculative(Section):
    """Speculative decoding."""

    method: Literal["eagle", "eagle3", "nextn", "standalone", "ngram"] = Field(description="How tokens are drafted.")
    draft: Checkpoint | None = Field(None, description="Draft model; required where the method loads one.")
    draft_config: Annotated[str, RelativePath()] | None = Field(
        None, description="The draft's config.json; needed where neither catalogue nor method says what it costs."
    )
    steps: Annotated[int, whole(1, 64)] = Field(
        description="Tokens drafted ahead, at most; the solver takes as many as pay, or none."
    )
    acceptance: Share = Field(description="Share of drafted tokens that are accepted, if all before them were.")

    @model_validator(mode="after")
    def _rules(self) -> Speculative:
        loads = self.method in ("eagle", "eagle3", "standalone")
        if loads and self.draft is None:
            refuse([Finding("", "missing-key", f"{self.method} loads a draft model", "state draft")])
        if not loads and self.draft is not None:
            refuse([Finding("draft", "conflict", f"{self.method} loads no draft model", "leave draft out")])
        if not loads and self.draft_config is not None:
            refuse([Finding("draftConfig", "conflict", f"{self.method} loads no draft model", "leave draftConfig out")])
        return self


class Model(Section):
    """What is served: exactly one of ``name``, ``config`` and ``architecture``."""

    RESOLVED: ClassVar[frozenset[str]] = frozenset({"context_length", "checkpoints"})

    name: Id | None = Field(None, description="Catalogue id or alias; `servegen catalog list` shows them.")
    config: Annotated[str, RelativePath()] | None = Field(None, description="A Hugging Face config.json.")
    architecture: dict[str, Any] | None = Field(None, description="The fields of a config.json, inline.")
    context_length: Tokens | None = Field(
        None,
        description="Longest prompt and answer together; default: the longest of the traffic, rounded up to 1024.",
    )
    checkpoints: dict[Precision, Checkpoint] | None = Field(
        None, description="What can be loaded, by weight precision; default: the model's own id at its own precision."
    )
    trust_remote_code: Flag = Field(False, description="Let the engine run code that the checkpoint brings.")
    speculative: Speculative | None = Field(None, description="Speculative decoding.")

    @model_validator(mode="after")
    def _rules(self) -> Model:
        stated = [key for key in ("name", "config", "architecture") if getattr(self, key) is not None]
        if not stated:
            refuse([Finding("", "missing-key", "no model is stated", "state name, config or architecture")])
        found = [
            Finding(key, "conflict", f"{key} and {stated[0]} exclude each other", "keep one") for key in stated[1:]
        ]
        if self.architecture is not None and not self.architecture:
            found.append(
                Finding("architecture", "missing-key", "the architecture is empty", "write the fields of a config.json")
            )
        if self.checkpoints is not None and not self.checkpoints:
            found.append(
                Finding("checkpoints", "missing-key", "no checkpoint is stated", "for example bf16: organisation/model")
            )
        refuse(found)
        return self


EachOnce = AfterValidator(_each_once)
Degrees = Annotated[tuple[Annotated[int, whole(1, 4096)], ...], Field(min_length=1), EachOnce]


class Constraints(Section):
    """Limits of the search; a plan outside them is never chosen."""

    RESOLVED: ClassVar[frozenset[str]] = frozenset({"weights"})

    engines: Annotated[tuple[EngineName, ...], Field(min_length=1), EachOnce] = Field(
        ("sglang",), description="Engines to choose from."
    )
    weights: Annotated[tuple[Precision, ...], Field(min_length=1), EachOnce] | None = Field(
        None, description="Allowed weight precisions; default: the checkpoint's own, and fp8 where it is near-lossless."
    )
    kv_cache: Annotated[tuple[KvPrecision, ...], Field(min_length=1), EachOnce] = Field(
        ("bf16",), description="Allowed KV-cache precisions."
    )
    topology: Literal["auto", "aggregated", "disaggregated"] = Field(
        "auto", description="Whether to split prefill and decode."
    )
    tp: Degrees | None = Field(None, description="Allowed tensor-parallel degrees.")
    pp: Degrees | None = Field(None, description="Allowed pipeline-parallel degrees.")
    ep: Degrees | None = Field(None, description="Allowed expert-parallel degrees.")
    dp: Degrees | None = Field(None, description="Allowed attention data-parallel degrees inside tp.")
    max_accelerators: Count | None = Field(None, description="Most accelerators, spares included; default: the pool.")
    utilization: Share = Field(0.85, description="Share of the rate a replica sustains that it is loaded with.")
    spare_replicas: Annotated[int, whole(0, 10_000)] = Field(0, description="Replicas beyond need, per role; N+1 is 1.")
    disaggregation_gain: Annotated[float, Field(strict=True, ge=1, le=100)] = Field(
        1.10, description="Do not split prefill and decode for a smaller gain than this factor."
    )
    confidence: Literal["best", "low"] = Field(
        "best", description="Which end of the prediction band must meet the SLO."
    )


class SpecBody(Section):
    """Model, promises, load and hardware."""

    preset: PresetName | None = Field(None, description="Fills what the spec leaves silent.")
    model: Model = Field(description="What is served.")
    # model_construct: an empty section needs no validator, which would be built beside the one of the whole spec
    slo: Slo = Field(default_factory=Slo.model_construct, description="What latency must be kept.")
    traffic: Traffic = Field(description="What arrives; without a load the pool is saturated.")
    hardware: Hardware = Field(description="What there is to run on.")
    objective: Objective = Field("cost", description="What is best among the plans that meet the SLOs.")
    constraints: Constraints = Field(
        default_factory=Constraints.model_construct, description="What narrows the search."
    )
    deploy: Deploy = Field(
        default_factory=Deploy.model_construct, description="How the plan meets the cluster."
    )


class Metadata(Section):
    """What the document is called."""

    name: SpecName = Field(description="Names every object; an RFC 1123 label of at most 40 characters.")


class ServingSpec(Section, defer_build=False):  # builds the validators of every section below, once
    """One model to serve."""

    api_version: Literal["servegen/v1alpha1"] = Field(description="The version of the language.")
    kind: Literal["ServingSpec"] = Field(description="What this document is.")
    metadata: Metadata = Field(description="What the spec is called.")
    spec: SpecBody = Field(description="The spec itself.")


class Member(Section):
    """A spec of the fleet."""

    spec: Annotated[str, RelativePath((".yaml", ".yml"))] = Field(description="A ServingSpec's file.")
    priority: Annotated[int, whole(0, 1_000_000)] = Field(
        0, description="Whose demand is met first where the pool cannot carry all: the higher one's."
    )


class FleetBody(Section):
    """The pool and who shares it."""

    hardware: Hardware = Field(description="The shared pool; it replaces the specs' own.")
    members: tuple[Member, ...] = Field(min_length=1, description="The specs that share it.")
    objective: FleetObjective = Field(
        "cost", description="cost or energy: the least that carries all members; unmet: the least demand left unmet, by priority."
    )

    @model_validator(mode="after")
    def _rules(self) -> FleetBody:
        if len(self.members) > MOST_MEMBERS:
            message = f"{len(self.members)} members, and a fleet has at most {MOST_MEMBERS}"
            refuse([Finding("members", "out-of-range", message, "split the fleet, and its pool")])
        return self


class Fleet(Section):
    """Several specs on one pool."""

    api_version: Literal["servegen/v1alpha1"] = Field(description="The version of the language.")
    kind: Literal["Fleet"] = Field(description="What this document is.")
    metadata: Metadata = Field(description="What the fleet is called.")
    spec: FleetBody = Field(description="The fleet itself.")


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the whole language, for editors; the rules over several keys are not in it."""
    either: TypeAdapter[Any] = TypeAdapter(Annotated[ServingSpec | Fleet, Field(discriminator="kind")])
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"servegen spec ({API_VERSION})"}
    return {**head, **_for_editors(either.json_schema(mode="validation"))}


def _for_editors(node: Any) -> Any:
    """``node`` without the titles that pydantic makes up, and with null wherever a key may be left out."""
    if isinstance(node, list):
        return [_for_editors(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _for_editors(value) for key, value in node.items()}
    properties = node.get("properties", {})
    for name, schema in properties.items():
        schema.pop("title", None)
        if name not in node.get("required", ()) and {"type": "null"} not in schema.get("anyOf", ()):
            about = {key: schema.pop(key) for key in ("description", "default") if key in schema}
            properties[name] = {**about, "anyOf": [schema, {"type": "null"}]}
    return node
