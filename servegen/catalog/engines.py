"""Engines: a name becomes ``EngineFacts``."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import cast, get_args

from servegen.catalog.facts import (
    BYTES_PER_KV,
    PRECISIONS,
    AcceleratorFacts,
    AttentionKind,
    Constant,
    EngineFacts,
    GemmEfficiency,
    MemoryRule,
    Scheduler,
)
from servegen.catalog.loader import ROOT, Sheet, find, ids
from servegen.errors import CatalogError, Diagnostic


def list_engines() -> tuple[str, ...]:
    """The ids of all engines, in order; those with ``predicts_only`` cannot stand in a spec."""
    return ids("engines")


def resolve_engine(name: str) -> EngineFacts:
    """The facts of an engine by id or alias, whatever its case or separators.

    ``engine@version`` leaves only that version in ``versions``. CatalogError when the name is unknown or ambiguous, or
    the catalogue does not know the version.
    """
    base, at, version = name.partition("@")
    facts = _load(find("engines", base))
    if not at:
        return facts
    if version not in facts.versions:
        known = f"known: {', '.join(facts.versions)}" if facts.versions else f"write {facts.id} without a version"
        message = f"the catalogue does not know version {version!r} of {facts.id}"
        raise CatalogError(Diagnostic("engine-version", message, hint=known))
    return replace(facts, versions=(version,))


def engines_on(vendor: str) -> tuple[str, ...]:
    """The engines that a spec may name and that run on accelerators of ``vendor``, in order of their ids."""
    known = (_load(e) for e in list_engines())
    return tuple(f.id for f in known if vendor in f.vendors and not f.predicts_only)


def gemm_of(engine: EngineFacts, accelerator: AcceleratorFacts, precision: str) -> GemmEfficiency:
    """The shares that GEMMs with weights of ``precision`` reach: the engine's own kernels where they are known apart."""
    return engine.kernels.get(f"{accelerator.id}.{precision}", accelerator.gemm[precision])


def attention_of(engine: EngineFacts, accelerator: AcceleratorFacts) -> tuple[Constant, Constant]:
    """The shares that attention reaches: of the bandwidth (reading a bf16 KV cache) and of the bf16 peak (prompts).

    Those measured on the accelerator where there are any, else the engine's.
    """
    return accelerator.kv_efficiency or engine.kv_efficiency, accelerator.attention_efficiency or engine.attention_efficiency


@cache
def _load(name: str) -> EngineFacts:
    sheet = Sheet(ROOT / "engines" / f"{name}.yaml")
    if sheet.text("id") != name:
        sheet.fail("id is not the file's name")
    facts = EngineFacts(
        id=name,
        aliases=sheet.texts("aliases"),
        versions=sheet.texts("versions"),
        schedulers=cast("tuple[Scheduler, ...]", _known(sheet, "schedulers", get_args(Scheduler))),
        step_s=_constant(sheet, "step_s"),
        layer_s=_constant(sheet, "layer_s"),
        prompt_layer_s=_constant(sheet, "prompt_layer_s"),
        sequence_s=_constant(sheet, "sequence_s"),
        request_s=_constant(sheet, "request_s"),
        kv_efficiency=_constant(sheet, "kv_efficiency"),
        attention_efficiency=_constant(sheet, "attention_efficiency"),
        allreduce_latency_factor=_constant(sheet, "allreduce_latency_factor"),
        allreduce_bandwidth_factor=_constant(sheet, "allreduce_bandwidth_factor"),
        token_budget=sheet.count("token_budget"),
        memory=_memory(sheet),
        weights=_known(sheet, "weights", PRECISIONS),
        quantize_on_load=_known(sheet, "quantize_on_load", PRECISIONS),
        kv_cache=_known(sheet, "kv_cache", tuple(BYTES_PER_KV)),
        vendors=_known(sheet, "vendors", ("nvidia", "amd", "intel", "google", "cpu")),
        prefix_cache=sheet.flag("prefix_cache"),
        disaggregation=sheet.flag("disaggregation"),
        equal_tp=cast("tuple[AttentionKind, ...]", _known(sheet, "equal_tp", get_args(AttentionKind)))
        if sheet.has("equal_tp")
        else (),
        multi_node=sheet.flag("multi_node"),
        parallel=sheet.texts("parallel"),
        metrics=sheet.flag("metrics"),
        own_checkpoints=sheet.flag("own_checkpoints"),
        renders=sheet.flag("renders"),
        predicts_only=sheet.flag("predicts_only"),
        kernels=_kernels(sheet),
        drafts=_drafts(sheet),
        drafting_schedulers=cast("tuple[Scheduler, ...]", _known(sheet, "drafting_schedulers", get_args(Scheduler)))
        if sheet.has("drafting_schedulers")
        else (),
        drafting_groups=sheet.texts("drafting_groups") if sheet.has("drafting_groups") else (),
        kv_share=_kv_share(sheet),
        band=_band(sheet),
        images=sheet.labels("images"),
        sources=sheet.sources,
    )
    sheet.done()
    return facts


def _known(sheet: Sheet, key: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    found = sheet.texts(key)
    unknown = [item for item in found if item not in allowed]
    return found if not unknown else sheet.fail(f"{key}: unknown {', '.join(unknown)}")


def _constant(sheet: Sheet, path: str, node: object = None) -> Constant:
    """The constant at a top-level key, or the one in ``node``: a band, which is an error and has none of its own."""
    is_band = node is not None
    node = node if is_band else sheet.section(path)
    figures = sheet.record(path, node, ("value", "rows") if is_band else ("value", "rows", "fit_error"))
    extra = node if isinstance(node, dict) else {}
    origin, date = extra.get("origin"), extra.get("date", "")
    if origin not in {"fitted", "default"} or not isinstance(date, str):
        sheet.fail(f"{path}: unknown origin or a date that is no text")
    error = figures.get("fit_error", math.nan)
    return Constant(figures["value"], error, int(figures["rows"]), sheet.sources[path], date, origin)


def _kernels(sheet: Sheet) -> dict[str, GemmEfficiency]:
    if not sheet.has("kernels"):
        return {}
    return {str(key): sheet.gemm(f"kernels.{key}", node) for key, node in sheet.section("kernels").items()}


def _kv_share(sheet: Sheet) -> dict[str, float]:
    return {str(key): value for key, value in sheet.figures("kv_share").items()} if sheet.has("kv_share") else {}


def _drafts(sheet: Sheet) -> dict[str, float]:
    return {str(key): value for key, value in sheet.figures("drafts").items()} if sheet.has("drafts") else {}


def _band(sheet: Sheet) -> dict[str, Constant]:
    section = sheet.section("band")
    if set(section) != {"ttft", "itl", "throughput"}:
        sheet.fail("band has not exactly ttft, itl and throughput")
    return {str(metric): _constant(sheet, f"band.{metric}", node) for metric, node in section.items()}


def _memory(sheet: Sheet) -> MemoryRule:
    rule = {str(name): value for name, value in sheet.figures("memory").items()}
    names = {
        "context_bytes", "usable_share", "setup_bytes", "setup_parallel_bytes", "handoff_bytes", "per_chunk_token_bytes",
        "least_chunk_tokens",
        "per_device_bytes", "per_graph_sequence_bytes", "per_padded_sequence_bytes", "floor_bytes", "floor_above_bytes",
        "weights_overhead", "kv_reserve_osl",
    }  # fmt: skip
    if rule.keys() != names:
        sheet.fail(f"memory: {', '.join(sorted(rule.keys() ^ names))} is missing or unknown")
    return MemoryRule(**rule, source=sheet.sources["memory.context_bytes"])
