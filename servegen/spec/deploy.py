"""How the plan meets the cluster: the section ``deploy``."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, GetCoreSchemaHandler, model_validator
from pydantic_core import PydanticCustomError, core_schema

from servegen.record import record
from servegen.secrecy import secret, secret_value
from servegen.spec.base import (
    AbsolutePath,
    Bytes,
    DataKey,
    DnsLabel,
    DnsName,
    Finding,
    Flag,
    LabelKey,
    LabelValue,
    RelativePath,
    Section,
    Text,
    Version,
    refuse,
)

KubernetesVersion = Literal["1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37"]

_HOST = r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]{1,5})?"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = (
    rf"({_HOST}/)?{_PART}(/{_PART})*(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?P<digest>@sha256:[0-9a-f]{{64}})?"
)


@record
class _Image(Text):
    def check(self, value: object) -> str:
        text = super().check(value)
        match = re.fullmatch(_IMAGE, text, re.ASCII)
        if match is None or not (match["tag"] or match["digest"]):
            hint = "append the tag (:v0.5.23) or the digest (@sha256:...)"
            raise PydanticCustomError("bad-image", "the image has neither a tag nor a digest", {"hint": hint})
        if match["tag"] == ":latest":
            hint = "name the version, or the digest without the tag"
            raise PydanticCustomError("bad-image", "the tag latest changes under a running plan", {"hint": hint})
        return text

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {
            "type": "string",
            "pattern": "^(?!.*:latest(@|$)).*(:[^:/@]+|@sha256:[0-9a-f]{64})$",
            "maxLength": self.longest,
        }


Image = Annotated[
    str, _Image("image", _IMAGE, "registry/name:tag or registry/name@sha256:<64 hex digits>", 512, "bad-image")
]
#: Launch scripts export the variables, and bash ends at an assignment to one that it keeps read-only.
_READ_ONLY = "UID|EUID|PPID|SHELLOPTS|BASHOPTS|BASH_VERSINFO"
EnvName = Annotated[
    str,
    Text(
        "environment variable",
        rf"(?!(?:{_READ_ONLY})$)[A-Za-z_][A-Za-z0-9_]*",
        f"letters, digits and _, no digit first; bash lets nobody set {_READ_ONLY.replace('|', ', ')}",
        256,
    ),
]
FlagName = Annotated[str, Text("flag", "[A-Za-z0-9][A-Za-z0-9_.-]*", "the flag's name without its leading dashes", 128)]


@record
class _Argument:
    """The value of an engine flag: true for a switch, text, a number, or a list of them for a flag that repeats."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        scalar = {"type": ["string", "number", "boolean"]}
        return {"anyOf": [scalar, {"type": "array", "items": scalar, "minItems": 1}]}

    def check(self, value: object) -> Any:
        if isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, list) and value and all(isinstance(v, (bool, int, float, str)) for v in value):
            return tuple(value)
        hint = "write true for a switch, else text, a number or a list of them"
        raise PydanticCustomError("wrong-type", "this is no value of a flag", {"hint": hint})


def _why(value: str, otherwise: str) -> str:
    """Why a value is one that no file may hold; never the value itself."""
    form = secret_value(value)
    return f"holds {form}" if form else otherwise


#: Folders at the root of every node that are on no disk.
_KERNELS = ("dev", "proc", "sys")


class ModelCache(Section):
    """Where weights are kept between starts: one of a claim, a folder of the node, or a claim to create."""

    claim: DnsName | None = Field(None, description="Name of an existing PersistentVolumeClaim.")
    host_path: AbsolutePath | None = Field(None, description="Folder of the node.")
    size: Bytes | None = Field(None, description="Size of a claim that is created.")
    storage_class: DnsName | None = Field(
        None, description="Class of the claim that is created; default: the cluster's."
    )

    @model_validator(mode="after")
    def _rules(self) -> ModelCache:
        stated = [
            key for key, value in (("claim", self.claim), ("hostPath", self.host_path), ("size", self.size)) if value
        ]
        if not stated:
            refuse([Finding("", "missing-key", "the cache is nowhere", "state claim, hostPath or size")])
        found = [
            Finding(key, "conflict", f"{key} and {stated[0]} exclude each other", "keep one") for key in stated[1:]
        ]
        top = os.path.normpath(self.host_path).lstrip("/").split("/")[0] if self.host_path else ""
        if top in _KERNELS:
            hint = "a folder of a disk of the node, like /models"
            found.append(Finding("hostPath", "bad-path", f"/{top} is the kernel's own: it keeps no weights", hint))
        if self.storage_class is not None and self.size is None:
            found.append(
                Finding("storageClass", "conflict", "storageClass belongs to a claim that is created", "state size")
            )
        refuse(found)
        return self


class SecretRef(Section):
    """A key of a Kubernetes secret."""

    name: DnsName = Field(description="Name of the secret.")
    key: DataKey = Field("HF_TOKEN", description="Its key.")


class Expression(Section):
    """A comparison with a label."""

    key: LabelKey = Field(description="The label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How it is compared.")
    values: tuple[LabelValue, ...] | None = Field(None, description="With what, for In and NotIn.")

    @model_validator(mode="after")
    def _rules(self) -> Expression:
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            message = f"operator {self.operator} {'takes no' if self.values else 'needs'} values"
            refuse(
                [Finding("", "conflict", message, "In and NotIn compare with values, Exists and DoesNotExist do not")]
            )
        return self


class Selector(Section):
    """A Kubernetes label selector; an empty one selects everything."""

    match_labels: dict[LabelKey, LabelValue] | None = Field(None, description="Labels that must be there.")
    match_expressions: tuple[Expression, ...] | None = Field(None, description="Comparisons that must hold.")


Cidr = Annotated[str, Text("CIDR", r"[0-9a-fA-F.:]+/[0-9]{1,3}", "like 10.0.0.0/8", 64, "bad-value")]


class IpBlock(Section):
    """A range of addresses."""

    cidr: Cidr = Field(description="The range, like 10.0.0.0/8.")
    except_: tuple[Cidr, ...] | None = Field(None, alias="except", description="Ranges inside it that are left out.")


class Peer(Section):
    """Who may call: pods, namespaces (both together: pods in such namespaces) or addresses."""

    pod_selector: Selector | None = Field(None, description="Pods by their labels.")
    namespace_selector: Selector | None = Field(None, description="Namespaces by their labels.")
    ip_block: IpBlock | None = Field(None, description="Addresses.")

    @model_validator(mode="after")
    def _rules(self) -> Peer:
        selects = self.pod_selector is not None or self.namespace_selector is not None
        if selects and self.ip_block is not None:
            refuse(
                [
                    Finding(
                        "ipBlock", "conflict", "ipBlock excludes podSelector and namespaceSelector", "write two entries"
                    )
                ]
            )
        if not selects and self.ip_block is None:
            refuse([Finding("", "missing-key", "an empty peer", "state podSelector, namespaceSelector or ipBlock")])
        return self

    def manifest(self) -> dict[str, Any]:
        """As Kubernetes writes it."""
        return self.model_dump(by_alias=True, mode="json")


class NetworkPolicy(Section):
    """Cuts the servers off from everyone who is not named."""

    from_: tuple[Peer, ...] = Field(
        alias="from", min_length=1, description="Who may call the servers; everyone else is cut off."
    )


class Overrides(Section):
    """The user's last word, shown in the plan."""

    args: dict[FlagName, Annotated[Any, _Argument()]] | None = Field(
        None, description="Engine flags by name, without dashes."
    )
    env: dict[EnvName, Annotated[str, Field(strict=True, max_length=32_768)]] | None = Field(
        None, description="Environment variables; never a secret's value."
    )
    patches: tuple[Annotated[str, RelativePath((".yaml", ".yml", ".json"))], ...] | None = Field(
        None, description="Kustomize patch files."
    )

    @model_validator(mode="after")
    def _rules(self) -> Overrides:
        hint = "put the value into a Kubernetes secret; for Hugging Face, name it in deploy.hfTokenSecret"
        found = [
            Finding(f"env.{name}", "secret-value", f"{name} {_why(value, 'looks like a secret')}, and specs are committed", hint)
            for name, value in (self.env or {}).items()
            if secret(name, value)
        ]
        found += [
            Finding(f"args.{name}", "secret-value", f"{name} {_why(text, 'shows a secret')}, and specs are committed", hint)
            for name, value in (self.args or {}).items()
            for text in [" ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)]
            if secret(name, text)
        ]
        refuse(found)
        return self


class Deploy(Section):
    """Images, secrets, storage and add-ons of the cluster."""

    RESOLVED: ClassVar[frozenset[str]] = frozenset({"engine_version", "image"})

    engine_version: Version | None = Field(None, description="Default: the newest one there is a contract for.")
    image: Image | None = Field(None, description="Default by engine version; a digest is kept.")
    image_pull_secrets: tuple[DnsName, ...] | None = Field(None, description="Names of secrets that pull the image.")
    namespace: DnsLabel = Field("default", description="Namespace of every object.")
    kubernetes_version: KubernetesVersion = Field("1.34", description="The cluster's version, in quotes.")
    model_cache: ModelCache | None = Field(None, description="Where weights are kept between starts.")
    hf_token_secret: SecretRef | None = Field(None, description="Secret that holds the Hugging Face token.")
    multi_node: Literal["leaderworkerset", "rolebasedgroup"] = Field(
        "leaderworkerset", description="What holds a replica of several nodes."
    )
    autoscaling: Literal["none", "hpa", "keda"] = Field(
        "none", description="Who scales replicas between trough and pool."
    )
    monitoring: Flag = Field(False, description="Write a PodMonitor.")
    network_policy: NetworkPolicy | None = Field(None, description="Who may call the servers.")
    gateway: Literal["none", "inference-extension"] = Field("none", description="What routes requests from outside.")
    priority_class: DnsName | None = Field(None, description="PriorityClass of the pods.")
    runtime_class: DnsName | None = Field(None, description="RuntimeClass of the pods.")
    calibration: Annotated[str, RelativePath((".yaml", ".yml"))] | None = Field(
        None, description="Engine constants of your own, written by `servegen calibrate`."
    )
    overrides: Overrides | None = Field(None, description="The user's last word, shown in the plan.")
