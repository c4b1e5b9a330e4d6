"""What the API server asks of one field by itself, where its schema only names a type: ranges, forms, lists that hold something.

A row a rule, keyed by the type that owns the field (``schema.json``) and the field. The rules are those of the API reference
(https://kubernetes.io/docs/reference/kubernetes-api/); what only a controller or an operator dislikes is not here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from servegen.validate.syntax import is_label_key, is_label_value, is_name, is_subdomain, shown

_INT32 = 2**31 - 1
_ANNOTATIONS_BYTES = 256 * 2**10  # of all annotations of an object together

_PROBE = ("timeoutSeconds", "periodSeconds", "failureThreshold", "successThreshold", "terminationGracePeriodSeconds")
_FILES = ("SecretVolumeSource", "ConfigMapVolumeSource", "DownwardAPIVolumeSource", "ProjectedVolumeSource")
_ROLLED = ("RollingUpdateDeployment", "LeaderWorkerSet.spec.rolloutStrategy.rollingUpdateConfiguration")
_HPA = "ScaledObject.spec.advanced.horizontalPodAutoscalerConfig"
#: (type, field) -> the least and the greatest number.
_RANGES: Mapping[tuple[str, str], tuple[int, int]] = {
    **{("Probe", field): (1, _INT32) for field in _PROBE},
    ("Probe", "initialDelaySeconds"): (0, _INT32),
    **{("DeploymentSpec", f): (0, _INT32) for f in ("replicas", "revisionHistoryLimit", "minReadySeconds")},
    **{(o, f): (0, _INT32) for o in ("PodSecurityContext", "SecurityContext") for f in ("runAsUser", "runAsGroup")},
    **{(o, field): (0, _INT32) for o in _ROLLED for field in ("maxSurge", "maxUnavailable")},
    **{("PodDisruptionBudgetSpec", field): (0, _INT32) for field in ("minAvailable", "maxUnavailable")},
    ("PodSecurityContext", "fsGroup"): (0, _INT32),
    ("PodSecurityContext", "supplementalGroups"): (0, _INT32),
    **{(o, "defaultMode"): (0, 0o777) for o in _FILES},
    **{(o, "mode"): (0, 0o777) for o in ("KeyToPath", "DownwardAPIVolumeFile")},
    **{(o, "weight"): (1, 100) for o in ("PreferredSchedulingTerm", "WeightedPodAffinityTerm")},
    ("TopologySpreadConstraint", "maxSkew"): (1, _INT32),
    ("TopologySpreadConstraint", "minDomains"): (1, _INT32),
    ("ClientIPConfig", "timeoutSeconds"): (1, 86400),
    ("ServiceAccountTokenProjection", "expirationSeconds"): (600, 2**32),
    ("GRPCAction", "port"): (1, 65535),
    ("MetricTarget", "averageUtilization"): (1, _INT32),
}

_HEADER = re.compile(r"[-A-Za-z0-9]+")
_SYSCTL = re.compile(r"(?=.{1,253}$)([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_SHARE = re.compile(r"[0-9]+%")



def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_outside(text: str) -> bool:
    """Whether an address is one that a Service may be reached at (validation.ValidateNonSpecialIP)."""
    if not _is_ip(text):
        return False
    address = ipaddress.ip_address(text)
    return not (address.is_unspecified or address.is_loopback or address.is_link_local or address.is_multicast)


Form = tuple[Callable[[str], bool], str]
_LABEL: Form = (is_name, "no RFC 1123 label of at most 63 characters")
_NAME: Form = (is_subdomain, "no RFC 1123 subdomain, as names of objects are")
_QUALIFIED: Form = (is_label_key, "no qualified name, such as example.com/name")
_DATA_KEY: Form = (lambda text: _KEY.fullmatch(text) is not None, "no key that a ConfigMap or a Secret can hold")
#: A text that stands for a count of pods; whole numbers are no texts.
_PERCENT: Form = (lambda text: _SHARE.fullmatch(text) is not None, "neither a whole number nor a share such as '25%'")
_INSIDE: Form = (lambda text: not text.startswith("/") and ".." not in text.split("/"), "no relative path without '..'")
#: (type, field) -> what the text, or every text of the list, must be. An empty text is one that was left out.
_FORMS: Mapping[tuple[str, str], Form] = {
    **{("PodSpec", field): _LABEL for field in ("hostname", "subdomain")},
    **{("PodSpec", f): _NAME for f in ("serviceAccountName", "priorityClassName", "runtimeClassName", "nodeName")},
    ("HostAlias", "hostnames"): _NAME,
    ("PersistentVolumeClaimVolumeSource", "claimName"): _NAME,
    ("SecretVolumeSource", "secretName"): _NAME,
    **{(f"{kind}{use}", "name"): _NAME for kind in ("Secret", "ConfigMap") for use in ("KeySelector", "EnvSource", "Projection")},
    ("ConfigMapVolumeSource", "name"): _NAME,
    ("LocalObjectReference", "name"): _NAME,
    (_HPA, "name"): _NAME,
    **{(o, "key"): _DATA_KEY for o in ("SecretKeySelector", "ConfigMapKeySelector", "KeyToPath")},
    ("HTTPHeader", "name"): (lambda text: _HEADER.fullmatch(text) is not None, "no name of an HTTP header"),
    ("Sysctl", "name"): (lambda text: _SYSCTL.fullmatch(text) is not None, "no name of a sysctl"),
    **{(o, "key"): _QUALIFIED for o in ("Toleration", "LabelSelectorRequirement", "NodeSelectorRequirement")},
    **{(o, "topologyKey"): _QUALIFIED for o in ("TopologySpreadConstraint", "PodAffinityTerm")},
    ("LabelSelectorRequirement", "values"): (is_label_value, "no legal label value"),
    ("Toleration", "value"): (is_label_value, "no legal label value"),
    ("PodReadinessGate", "conditionType"): _QUALIFIED,
    ("PodSchedulingGate", "name"): _QUALIFIED,
    ("ServicePort", "appProtocol"): _QUALIFIED,
    ("VolumeMount", "mountPath"): (lambda text: ":" not in text, "a path with ':', which separates paths"),
    **{("VolumeMount", field): _INSIDE for field in ("subPath", "subPathExpr")},
    **{(o, field): _PERCENT for o in _ROLLED for field in ("maxSurge", "maxUnavailable")},
    **{("PodDisruptionBudgetSpec", field): _PERCENT for field in ("minAvailable", "maxUnavailable")},
    **{(o, "path"): _INSIDE for o in ("KeyToPath", "DownwardAPIVolumeFile")},
    ("ServiceSpec", "externalIPs"): (_is_outside, "no IP address that leads to a node from outside"),
    ("PodDNSConfig", "nameservers"): (_is_ip, "no IP address"),
    ("Container", "workingDir"): (lambda text: text.startswith("/"), "no absolute path, and the runtime starts nothing there"),
    ("HostPathVolumeSource", "path"): (lambda text: ".." not in text.split("/"), "a path with '..'"),
}

#: (type, field) of lists that must hold something, and of texts that must say something.
_FILLED: frozenset[tuple[str, str]] = frozenset(
    {
        ("NodeSelector", "nodeSelectorTerms"),
        ("PolicyRule", "verbs"),
        ("OwnerReference", "uid"),
        ("OwnerReference", "name"),
        ("PodAffinityTerm", "topologyKey"),
        ("TopologySpreadConstraint", "topologyKey"),
        ("VolumeMount", "mountPath"),
    }
)

#: (type, field) -> why no manifest may hold it.
_REFUSED: Mapping[tuple[str, str], str] = {
    ("PodSpec", "ephemeralContainers"): "a pod's template takes none; kubectl debug adds them to a pod that runs",
    ("PodSpec", "activeDeadlineSeconds"): "pods that are to run for ever have no deadline",
    ("PodSpec", "overhead"): "the server takes it from the RuntimeClass, and refuses a pod that brings its own",
    ("PodSpec", "priority"): "the server takes it from priorityClassName, and refuses a pod that brings its own",
    ("PolicyRule", "nonResourceURLs"): "only a ClusterRole may open URLs",
}
#: The same of an object's own metadata; what a template says there is read by nobody.
_OF_THE_SERVER = ("resourceVersion", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")

#: What no Windows has of the security of a pod or a container.
LINUX_ONLY = (
    "seLinuxOptions", "seccompProfile", "appArmorProfile", "capabilities", "allowPrivilegeEscalation", "privileged",
    "procMount", "readOnlyRootFilesystem", "runAsUser", "runAsGroup", "fsGroup", "sysctls", "supplementalGroups",
)  # fmt: skip


def value_problems(owner: str, node: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """(field, what is wrong with it) of one object of a known type."""
    for field, value in node.items():
        key = (owner, field)
        if value is None or key not in _RULED:
            continue
        if key in _FILLED and value in ([], ""):
            yield field, "is empty, and something is needed"
        if key in _REFUSED and value not in ([], {}):
            yield field, f"may not be set: {_REFUSED[key]}"
        for item in value if isinstance(value, list) else [value]:
            if key in _RANGES and isinstance(item, int) and not _RANGES[key][0] <= item <= _RANGES[key][1]:
                low, high = _RANGES[key]
                yield field, f"is {item}, must be {low} to {high}" if high < _INT32 else f"is {item}, must be at least {low}"
            if key in _FORMS and item and isinstance(item, str) and not _FORMS[key][0](item):
                yield field, f"{shown(item)} is {_FORMS[key][1]}"
    if owner == "ObjectMeta":
        yield from _metadata(node, path)


_RULED = frozenset({*_RANGES, *_FORMS, *_FILLED, *_REFUSED})


def _metadata(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    notes = node.get("annotations")
    if isinstance(notes, Mapping):
        size = sum(len(str(text).encode("utf-8", "replace")) for note in notes.items() for text in note)
        if size > _ANNOTATIONS_BYTES:
            yield "annotations", f"are {size} bytes together, {_ANNOTATIONS_BYTES} are the most"
    if path != "metadata":
        return
    for field in _OF_THE_SERVER:
        if node.get(field) is not None:
            yield field, "may not be set: only the server writes it"
    if node.get("name") and node.get("generateName"):
        yield "generateName", "may not be set beside name, which it would only make up"
