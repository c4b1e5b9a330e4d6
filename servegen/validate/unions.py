"""What the API server asks of several fields of one object: of which one may be there, and which goes only with another.

``values.py`` holds the rules of single fields. ``check_rules`` walks every object by the types of ``schema.json`` and asks
both; it comes last, and is silent where a check that knows the plan has found the same field wrong, whoever wrote it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from servegen.validate.manifests import governing
from servegen.validate.objects import ON_PURPOSE, Scene, dig, mapping, sequence
from servegen.validate.schema import NEWEST, Release, typed
from servegen.validate.syntax import minor_version, quantity, shown
from servegen.validate.values import LINUX_ONLY, value_problems

Node = Mapping[str, Any]
Found = Iterator[tuple[str, str]]

_HANDLERS = "exec httpGet tcpSocket"
#: type -> its alternatives, of which exactly one must be there; fields joined by a plus are one of them.
_ONE_OF: Mapping[str, str] = {
    "EnvVarSource": "fieldRef resourceFieldRef configMapKeyRef secretKeyRef fileKeyRef",
    "EnvFromSource": "configMapRef secretRef",
    "DownwardAPIVolumeFile": "fieldRef resourceFieldRef",
    "Probe": f"{_HANDLERS} grpc",
    "LifecycleHandler": f"{_HANDLERS} sleep",
    "NetworkPolicyPeer": "ipBlock podSelector+namespaceSelector",
    "MetricTarget": "value averageValue averageUtilization",
    "MetricSpec": "resource containerResource pods object external",
    "PodResourceClaim": "resourceClaimName resourceClaimTemplateName source",
}
#: The same where none is as good as one.
_AT_MOST_ONE: Mapping[str, str] = {
    "EnvVar": "value valueFrom",
    "VolumeMount": "subPath subPathExpr",
    "VolumeProjection": "clusterTrustBundle configMap downwardAPI secret serviceAccountToken podCertificate",
}

_REACHED = ("NodePort", "LoadBalancer")
#: (type, field) -> the other field and those of its values that the field goes with.
_ONLY_WITH: Mapping[tuple[str, str], tuple[str, tuple[str, ...]]] = {
    ("Toleration", "tolerationSeconds"): ("effect", ("NoExecute",)),
    ("TopologySpreadConstraint", "minDomains"): ("whenUnsatisfiable", ("DoNotSchedule",)),
    ("ServiceSpec", "sessionAffinityConfig"): ("sessionAffinity", ("ClientIP",)),
    ("ServiceSpec", "allocateLoadBalancerNodePorts"): ("type", ("LoadBalancer",)),
    ("ServiceSpec", "loadBalancerClass"): ("type", ("LoadBalancer",)),
    ("SeccompProfile", "localhostProfile"): ("type", ("Localhost",)),
    ("AppArmorProfile", "localhostProfile"): ("type", ("Localhost",)),
    ("LabelSelectorRequirement", "values"): ("operator", ("In", "NotIn")),
    ("NodeSelectorRequirement", "values"): ("operator", ("In", "NotIn", "Gt", "Lt")),
}
#: Those that must be there then.
_THEN_NEEDED = frozenset({"localhostProfile", "values"})

_ENV_FIELDS = re.compile(
    r"metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])|spec\.(nodeName|serviceAccountName)|status\.(host|pod)IPs?"
)
_ENV_RESOURCES = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-\S+)")
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
#: Of containers that run before the others and end, nothing may be asked.
_LASTING = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")
#: Ways of a Service to prefer near pods, and the first Kubernetes that takes them unasked (KEP-3015).
_NEAR, _NEAR_SINCE = ("PreferSameZone", "PreferSameNode"), (1, 34)
_ALLOWS_RESTARTS: Release = (1, 34)  # from here on, a container may have a policy of its own


def check_rules(scene: Scene) -> None:
    """Every object of the bundle against the rules that hold for its type, wherever in a manifest it stands."""
    release = minor_version(scene.plan.deploy.kubernetes_version) or NEWEST
    wrong = (d for d in scene.found if d.severity == "error" and d.code not in ON_PURPOSE)
    said = {tuple(d.message.split(": ", 2)[:2]) for d in wrong}
    for m in scene.manifests:
        for path, owner, node in typed(m.body, m.kind):
            for code, problems in (("value", value_problems(owner, node, path)), ("union", _together(owner, node, release))):
                for field, problem in problems:
                    here = ".".join(step for step in (path, field) if step)
                    if (f"{m.kind}/{m.name}", here) not in said:
                        scene.add(code, m, here, problem, governing(here, problem))


def _together(owner: str, node: Node, release: Release) -> Found:
    if owner in _ONE_OF:
        yield from _alternatives(node, _ONE_OF[owner].split(), True)
    elif owner in _AT_MOST_ONE:
        yield from _alternatives(node, _AT_MOST_ONE[owner].split(), False)
    elif owner == "Volume":
        yield from _alternatives(node, sorted({*map(str, node), "emptyDir"} - {"name"}), True)
    for field, other, allowed in _DEPENDENT.get(owner, ()):
        fits, there = node.get(other) in allowed, node.get(field) not in (None, [], "")
        if there and not fits:
            yield field, f"goes only with {other} {' or '.join(allowed)}, which is {shown(node.get(other))}"
        elif fits and not there and field in _THEN_NEEDED:
            yield field, f"is missing, and {other} {node.get(other)} needs it"
    if owner in _FURTHER:
        yield from _FURTHER[owner](node, release)


_DEPENDENT: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {}
for (_owner, _field), (_other, _values) in _ONLY_WITH.items():
    _DEPENDENT.setdefault(_owner, []).append((_field, _other, _values))


def _alternatives(node: Node, fields: list[str], needed: bool) -> Found:
    there = [[f for f in group.split("+") if node.get(f) not in (None, "")] for group in fields]
    found = [" and ".join(names) for names in there if names]
    if len(found) > 1:
        yield "", f"has {' and '.join(found)} at once, of which one may be there"
    elif needed and not found:
        yield "", f"has none of {', '.join(fields).replace('+', ', ')}, one is needed"


def _env_source(node: Node, _: Release) -> Found:
    for path, form in (("fieldRef.fieldPath", _ENV_FIELDS), ("resourceFieldRef.resource", _ENV_RESOURCES)):
        field = dig(node, path)
        if isinstance(field, str) and not form.fullmatch(field):
            yield path, f"{shown(field)} is nothing that a variable can hold"


def _toleration(node: Node, _: Release) -> Found:
    if not node.get("key") and node.get("operator") != "Exists":
        yield "key", "is missing, and only the operator Exists needs none"


def _deployment(node: Node, _: Release) -> Found:
    ready, deadline = node.get("minReadySeconds"), node.get("progressDeadlineSeconds", 600)
    if isinstance(ready, int) and isinstance(deadline, int) and ready >= deadline:
        yield "minReadySeconds", f"is {ready}, must be below progressDeadlineSeconds, which is {deadline}"


def _service(node: Node, release: Release) -> Found:
    kind = node.get("type") or "ClusterIP"
    families = [str(family) for family in sequence(node.get("ipFamilies"))]
    if len(set(families)) < len(families):
        yield "ipFamilies", "has one twice"
    elif len(families) > 1 and node.get("ipFamilyPolicy") == "SingleStack":
        yield "ipFamilies", "are two, and ipFamilyPolicy is 'SingleStack'; PreferDualStack takes two"
    near = node.get("trafficDistribution")
    known = ("PreferClose", *(_NEAR if release >= _NEAR_SINCE else ()))
    if isinstance(near, str) and near not in known:
        young = f"; it needs Kubernetes {_NEAR_SINCE[0]}.{_NEAR_SINCE[1]}, the target is {release[0]}.{release[1]}"
        yield "trafficDistribution", f"{shown(near)} is not one of {', '.join(known)}{young if near in _NEAR else ''}"
    if kind in _REACHED:
        return
    if node.get("externalTrafficPolicy") and not sequence(node.get("externalIPs")):
        yield "externalTrafficPolicy", f"goes only with type {' or '.join(_REACHED)}, which is {shown(kind)}"
    for i, port in enumerate(sequence(node.get("ports"))):
        if mapping(port).get("nodePort"):
            yield f"ports[{i}].nodePort", f"goes only with type {' or '.join(_REACHED)}, which is {shown(kind)}"


def _policy(node: Node, _: Release) -> Found:
    if len(sequence(node.get("policyTypes"))) > 2:
        yield "policyTypes", "has more than two, and there are Ingress and Egress"


def _exec(node: Node, _: Release) -> Found:
    if not node.get("command"):
        yield "command", "is empty, and something is needed"


def _block(node: Node, _: Release) -> Found:
    try:
        whole = ipaddress.ip_network(str(node.get("cidr")), strict=False)
        parts = [(cidr, ipaddress.ip_network(str(cidr), strict=False)) for cidr in sequence(node.get("except"))]
    except ValueError:
        return  # that it is none is found elsewhere
    for cidr, part in parts:
        if part.version != whole.version or part == whole or not part.subnet_of(whole):  # type: ignore[arg-type]
            yield "except", f"{cidr} is no part of {whole}"


def _resources(node: Node, _: Release) -> Found:
    requests, limits = mapping(node.get("requests")), mapping(node.get("limits"))
    for side, values in (("requests", requests), ("limits", limits)):
        for name, value in values.items():
            huge = str(name).startswith("hugepages-")
            if "/" not in str(name) and name not in _RESOURCES and not huge:
                yield f"{side}.{name}", f"is no resource of a container: {', '.join(_RESOURCES)}, or a name with a domain"
            number = quantity(value)
            if "/" in str(name) and number is not None and number.denominator != 1:
                yield f"{side}.{name}", f"is {value}, and only whole ones are given out"
            if huge and side == "requests" and number != quantity(limits.get(name)):
                yield f"{side}.{name}", f"is {value}, must be the limit, which is {limits.get(name)}"


def _claim_resources(node: Node, _: Release) -> Found:
    requests, limits = mapping(node.get("requests")), mapping(node.get("limits"))
    for side, name in [*(("requests", x) for x in requests), *(("limits", x) for x in limits)]:
        if name != "storage":
            yield f"{side}.{name}", "is nothing that a volume has: storage"
    asked, most = quantity(requests.get("storage")), quantity(limits.get("storage"))
    if asked is not None and most is not None and asked > most:
        yield "limits.storage", f"is {limits['storage']}, less than the {requests['storage']} requested"


def _claim(node: Node, _: Release) -> Found:
    modes = sequence(node.get("accessModes"))
    if not modes:
        yield "accessModes", "is empty, and one is needed"
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        yield "accessModes", "has ReadWriteOncePod, which goes with no other"
    if not quantity(dig(node, "resources.requests.storage")):
        yield "resources.requests.storage", "is missing or 0, and it is required"


def _data_source(node: Node, _: Release) -> Found:
    if not node.get("apiGroup") and node.get("kind") != "PersistentVolumeClaim":
        yield "kind", f"is {shown(node.get('kind'))}, which needs its apiGroup"


def _subject(node: Node, _: Release) -> Found:
    if node.get("kind") == "ServiceAccount" and node.get("apiGroup"):
        yield "apiGroup", f"is {shown(node['apiGroup'])}, a ServiceAccount has none"


def _container(node: Node, _: Release) -> Found:
    for probe in ("livenessProbe", "startupProbe"):
        if mapping(node.get(probe)).get("successThreshold", 1) != 1:
            yield f"{probe}.successThreshold", "must be 1"
    if dig(node, "readinessProbe.terminationGracePeriodSeconds") is not None:
        yield "readinessProbe.terminationGracePeriodSeconds", "may not be set: this probe ends no container"
    for i, mount in enumerate(sequence(node.get("volumeMounts"))):
        if mapping(mount).get("mountPropagation") == "Bidirectional" and not dig(node, "securityContext.privileged"):
            yield f"volumeMounts[{i}].mountPropagation", "is Bidirectional, which only a privileged container may"


def _devices(node: Node) -> Found:
    """Raw devices: only a claim has one, and what is a device to a container is no folder of it."""
    volumes = {str(v.get("name")): v for v in map(mapping, sequence(node.get("volumes")))}
    for field in ("initContainers", "containers"):
        for i, container in enumerate(map(mapping, sequence(node.get(field)))):
            mounts = [mapping(x) for x in sequence(container.get("volumeMounts"))]
            names, paths = {str(x.get("name")) for x in mounts}, {str(x.get("mountPath")) for x in mounts}
            for k, device in enumerate(map(mapping, sequence(container.get("volumeDevices")))):
                name, here = str(device.get("name")), f"{field}[{i}].volumeDevices[{k}]"
                if name in names:
                    yield f"{here}.name", f"{shown(name)} is mounted as well, and is either a device or a folder"
                if str(device.get("devicePath")) in paths:
                    yield f"{here}.devicePath", f"{shown(device.get('devicePath'))} is the path of a mount, too"
                if name in volumes and not {"persistentVolumeClaim", "ephemeral"} & volumes[name].keys():
                    yield f"{here}.name", f"{shown(name)} is no claim, and nothing else is a raw device"


def _claimed(node: Node) -> Found:
    """Devices that a container asks for by the name of a claim of its pod."""
    names = {str(mapping(claim).get("name")) for claim in sequence(node.get("resourceClaims"))}
    for field in ("initContainers", "containers"):
        for i, container in enumerate(sequence(node.get(field))):
            for k, claim in enumerate(sequence(dig(container, "resources.claims"))):
                if str(mapping(claim).get("name")) not in names:
                    problem = f"{shown(mapping(claim).get('name'))} is none of the pod's resourceClaims"
                    yield f"{field}[{i}].resources.claims[{k}].name", problem


def _pod(node: Node, release: Release) -> Found:
    yield from _devices(node)
    yield from _claimed(node)
    system = dig(node, "os.name")
    for i, container in enumerate(sequence(node.get("containers"))):
        if mapping(container).get("restartPolicy") and release < _ALLOWS_RESTARTS:
            yield f"containers[{i}].restartPolicy", "may not be set: until Kubernetes 1.34 it is the pod's alone"
    for i, container in enumerate(mapping(c) for c in sequence(node.get("initContainers"))):
        for field in _LASTING if container.get("restartPolicy") != "Always" else ():
            if container.get(field) is not None:
                yield f"initContainers[{i}].{field}", "may not be set without restartPolicy Always"
    for path, security in _securities(node):
        if security.get("procMount") == "Unmasked" and node.get("hostUsers") is not False:
            yield f"{path}.procMount", "is Unmasked, which needs hostUsers: false"
        if dig(security, "windowsOptions.hostProcess") and not node.get("hostNetwork"):
            yield f"{path}.windowsOptions.hostProcess", "needs hostNetwork: true"
        for field in {"windows": LINUX_ONLY, "linux": ("windowsOptions",)}.get(str(system), ()):
            if security.get(field) is not None:
                yield f"{path}.{field}", f"may not be set where os.name is {system}"


def _securities(pod: Node) -> Iterator[tuple[str, Node]]:
    yield "securityContext", mapping(pod.get("securityContext"))
    for field in ("initContainers", "containers"):
        for i, container in enumerate(sequence(pod.get(field))):
            yield f"{field}[{i}].securityContext", mapping(mapping(container).get("securityContext"))


_FURTHER: Mapping[str, Callable[[Node, Release], Found]] = {
    "EnvVarSource": _env_source,
    "Toleration": _toleration,
    "DeploymentSpec": _deployment,
    "ServiceSpec": _service,
    "NetworkPolicySpec": _policy,
    "ExecAction": _exec,
    "IPBlock": _block,
    "ResourceRequirements": _resources,
    "VolumeResourceRequirements": _claim_resources,
    "PersistentVolumeClaimSpec": _claim,
    "TypedLocalObjectReference": _data_source,
    "Subject": _subject,
    "Container": _container,
    "PodSpec": _pod,
}
