"""Fields of an object against the schema of the target Kubernetes: unknown, missing, of a wrong type, not there yet.

``schema.json`` is written by ``tests/tools/dump_schema.py``, which explains its notation. It takes part in every build,
so that a typo in a template or a patch of the user's own is found without a cluster: a server would drop it silently.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from servegen.validate.syntax import quantity, shown

Release = tuple[int, int]

OLDEST, NEWEST = (1, 29), (1, 37)
_NOTATION = re.compile(r"([^<>]+)(?:>1\.(\d+))?(?:<1\.(\d+))?")
_INT32 = 2**31
#: Words that the server's validation allows and its schema does not list (k8s.io/api, types.go of each group).
_WORDS: Mapping[tuple[str, str], str] = {
    ("AppArmorProfile", "type"): "RuntimeDefault Localhost Unconfined",
    ("Container", "imagePullPolicy"): "Always IfNotPresent Never",
    ("Container", "restartPolicy"): "Always OnFailure Never",
    ("Container", "terminationMessagePolicy"): "File FallbackToLogsOnError",
    ("ContainerPort", "protocol"): "TCP UDP SCTP",
    ("ContainerResizePolicy", "resourceName"): "cpu memory",
    ("ContainerResizePolicy", "restartPolicy"): "NotRequired RestartContainer",
    ("DeploymentStrategy", "type"): "RollingUpdate Recreate",
    ("EmptyDirVolumeSource", "medium"): "Memory HugePages",
    ("HPAScalingPolicy", "type"): "Pods Percent",
    ("HPAScalingRules", "selectPolicy"): "Max Min Disabled",
    ("HTTPGetAction", "scheme"): "HTTP HTTPS",
    ("ImageVolumeSource", "pullPolicy"): "Always IfNotPresent Never",
    ("LabelSelectorRequirement", "operator"): "In NotIn Exists DoesNotExist",
    ("MetricSpec", "type"): "Resource ContainerResource Pods Object External",
    ("MetricTarget", "type"): "Utilization Value AverageValue",
    ("NetworkPolicyPort", "protocol"): "TCP UDP SCTP",
    ("NetworkPolicySpec", "policyTypes"): "Ingress Egress",
    ("NodeSelectorRequirement", "operator"): "In NotIn Exists DoesNotExist Gt Lt",
    ("PersistentVolumeClaimSpec", "accessModes"): "ReadWriteOnce ReadOnlyMany ReadWriteMany ReadWriteOncePod",
    ("PersistentVolumeClaimSpec", "volumeMode"): "Filesystem Block",
    ("PodDisruptionBudgetSpec", "unhealthyPodEvictionPolicy"): "IfHealthyBudget AlwaysAllow",
    ("PodOS", "name"): "linux windows",
    ("PodSecurityContext", "fsGroupChangePolicy"): "OnRootMismatch Always",
    ("PodSecurityContext", "seLinuxChangePolicy"): "MountOption Recursive",
    ("PodSecurityContext", "supplementalGroupsPolicy"): "Merge Strict",
    ("PodSpec", "dnsPolicy"): "ClusterFirst ClusterFirstWithHostNet Default None",
    ("PodSpec", "preemptionPolicy"): "PreemptLowerPriority Never",
    ("PodSpec", "restartPolicy"): "Always",  # the only one that a Deployment may have
    ("SeccompProfile", "type"): "RuntimeDefault Localhost Unconfined",
    ("SecurityContext", "procMount"): "Default Unmasked",
    ("ServicePort", "protocol"): "TCP UDP SCTP",
    ("ServiceSpec", "externalTrafficPolicy"): "Cluster Local",
    ("ServiceSpec", "internalTrafficPolicy"): "Cluster Local",
    ("ServiceSpec", "ipFamilies"): "IPv4 IPv6",
    ("ServiceSpec", "ipFamilyPolicy"): "SingleStack PreferDualStack RequireDualStack",
    ("ServiceSpec", "sessionAffinity"): "ClientIP None",
    ("ServiceSpec", "type"): "ClusterIP NodePort LoadBalancer ExternalName",
    ("Toleration", "effect"): "NoSchedule PreferNoSchedule NoExecute",
    ("Toleration", "operator"): "Exists Equal",
    ("TopologySpreadConstraint", "nodeAffinityPolicy"): "Honor Ignore",
    ("TopologySpreadConstraint", "nodeTaintsPolicy"): "Honor Ignore",
    ("TopologySpreadConstraint", "whenUnsatisfiable"): "DoNotSchedule ScheduleAnyway",
    ("VolumeMount", "mountPropagation"): "None HostToContainer Bidirectional",
    ("VolumeMount", "recursiveReadOnly"): "Disabled IfPossible Enabled",
}


class _Field:
    """One field in one release."""

    def __init__(self, owner: str, name: str, notation: str) -> None:
        match = _NOTATION.fullmatch(notation)
        if match is None:
            raise ValueError(f"{owner}.{name}: {shown(notation)} is no type")
        self.type, self.required = match[1], name.endswith("!")
        self.since: Release = (1, int(match[2])) if match[2] else (0, 0)
        self.until: Release = (1, int(match[3])) if match[3] else (99, 0)
        self.words = _WORDS.get((owner, name.rstrip("!")), "").split()


def problems(body: Mapping[str, Any], kind: str, release: Release, *, partial: bool = False) -> Iterator[tuple[str, str]]:
    """(path, what is wrong) of every field of ``body`` that the API server of ``release`` would refuse or drop.

    ``kind`` is one that is rendered; of others nothing is known, and nothing is said. ``partial`` is a strategic merge
    patch: what is required may be left out, and its directives (``$patch`` ...) are passed over.
    """
    if kind in _types():
        yield from _object(body, kind, "", min(max(release, OLDEST), NEWEST), partial)


def typed(node: Mapping[str, Any], owner: str, path: str = "") -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(path, type, object) of every object in ``node`` whose type is known, itself first."""
    fields = _types().get(owner)
    if fields is None:
        return
    yield path, owner, node
    for name, value in node.items():
        if isinstance(value, (Mapping, list)) and name in fields:
            yield from _typed_in(value, fields[name][-1].type, f"{path}.{name}" if path else name)


def _typed_in(value: Any, notation: str, path: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    if notation[0] == "[" and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _typed_in(item, notation[1:-1], f"{path}[{index}]")
    elif isinstance(value, Mapping):
        yield from typed(value, notation, path)


def field_type(owner: str, field: str) -> str:
    """The type of a field in the notation of ``schema.json``, "" where nothing is known of it."""
    found = _types().get(owner, {}).get(field)
    return found[-1].type if found else ""


@cache
def _types() -> dict[str, dict[str, list[_Field]]]:
    """Type -> field -> what it is; more than one entry where a release changed it."""
    text = Path(__file__).with_name("schema.json").read_text(encoding="utf-8")
    types: dict[str, dict[str, list[_Field]]] = {}
    for owner, fields in json.loads(text).items():
        for name, notation in fields.items():
            types.setdefault(owner, {}).setdefault(name.rstrip("!"), []).append(_Field(owner, name, notation))
    return types


def _object(node: Mapping[str, Any], owner: str, path: str, release: Release, partial: bool) -> Iterator[tuple[str, str]]:
    fields = _types().get(owner, {})
    for name, value in node.items():
        here = f"{path}.{name}" if path else str(name)
        if partial and str(name).startswith("$"):
            continue
        if name not in fields:
            near = difflib.get_close_matches(str(name), fields, 1)
            yield here, f"there is no such field in {owner.rpartition('.')[2]}" + (f"; did you mean {near[0]}?" if near else "")
            continue
        field = next((f for f in fields[name] if f.since <= release < f.until), None)
        if field is None:
            now = f"{release[0]}.{release[1]}"
            first = max(f.since for f in fields[name])
            gone = f"is gone from Kubernetes {now}" if first <= release else f"needs Kubernetes {first[0]}.{first[1]}"
            yield here, f"{gone}, the target is {now}"
        elif value is not None:
            yield from _value(value, field.type, field.words, here, release, partial)
    if not partial:
        for name, found in fields.items():
            needed = any(f.required and f.since <= release < f.until for f in found)
            if needed and node.get(name) is None:
                yield f"{path}.{name}" if path else name, "is missing, and it is required"


def _value(value: Any, notation: str, words: list[str], path: str, release: Release, partial: bool) -> Iterator[tuple[str, str]]:
    if notation[0] == "[":
        if not isinstance(value, list):
            yield path, f"must be a list, not {_shown(value)}"
            return
        for index, item in enumerate(value):
            yield from _value(item, notation[1:-1], words, f"{path}[{index}]", release, partial)
    elif notation[0] == "{":
        if not isinstance(value, Mapping):
            yield path, f"must be a mapping, not {_shown(value)}"
            return
        for name, item in value.items():
            if not isinstance(name, str):
                yield path, f"the key {shown(name)} must be text"
            if item is not None:
                yield from _value(item, notation[1:-1], words, f"{path}.{name}", release, partial)
    elif notation in _types():
        if not isinstance(value, Mapping):
            yield path, f"must be a mapping, not {_shown(value)}"
            return
        yield from _object(value, notation, path, release, partial)
    else:
        wrong = _scalar(value, notation, words)
        if wrong:
            yield path, wrong


def _scalar(value: Any, notation: str, words: list[str]) -> str:
    """What is wrong with one scalar, "" if nothing is."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if notation == "any":
        return ""
    if notation in ("integer", "int32"):
        if not whole:
            return f"must be a whole number, not {_shown(value)}"
        return "" if notation == "integer" or -_INT32 <= value < _INT32 else f"{value} does not fit 32 bits"
    if notation == "number":
        return "" if whole or isinstance(value, float) else f"must be a number, not {_shown(value)}"
    if notation == "boolean":
        return "" if isinstance(value, bool) else f"must be true or false, not {_shown(value)}"
    if notation == "quantity":
        return "" if quantity(value) is not None else f"{_shown(value)} is no quantity"
    if notation == "word":
        return "" if whole or isinstance(value, str) else f"must be a number or text, not {_shown(value)}"
    if not isinstance(value, str):
        return f"must be text, not {_shown(value)}"
    legal = words or (notation[1:].split("|") if notation[0] == "=" else [])
    if legal and value not in legal and not (legal == ["Memory", "HugePages"] and (not value or value.startswith("HugePages"))):
        near = difflib.get_close_matches(value, legal, 1)
        return f"{shown(value)} is not one of {', '.join(legal)}" + (f"; did you mean {near[0]}?" if near else "")
    return ""


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else shown(value)
