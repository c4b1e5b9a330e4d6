"""Checks between objects: what one names or selects must be there in another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from servegen.validate.objects import Manifest, Scene, mapping, matched, require_pods, sequence
from servegen.validate.ports import first_port, require_port, server_port
from servegen.validate.syntax import is_port, is_port_name, shown

_INSTANCE = "app.kubernetes.io/instance"
#: Where each kind selects pods by their labels.
_SELECTORS: Mapping[str, str] = {
    "Deployment": "spec.selector.matchLabels",
    "Service": "spec.selector",
    "PodDisruptionBudget": "spec.selector.matchLabels",
    "PodMonitor": "spec.selector.matchLabels",
    "NetworkPolicy": "spec.podSelector.matchLabels",
}
#: A duration as Prometheus reads it.
_DURATION = re.compile(r"(?:[0-9]+y)?(?:[0-9]+w)?(?:[0-9]+d)?(?:[0-9]+h)?(?:[0-9]+m)?(?:[0-9]+s)?(?:[0-9]+ms)?(?<!^)")


def check_references(scene: Scene) -> None:
    """Every Service and monitor, the door of the deployment, and the router's labels."""
    checks = {
        "Service": _check_service,
        "PodMonitor": _check_monitor,
    }
    for m in scene.manifests:
        if m.kind in checks:
            checks[m.kind](scene, m)
        if m.kind in _SELECTORS:
            _check_own(scene, m)
    _check_entry(scene)
    _check_discovery(scene)


def _check_own(scene: Scene, m: Manifest) -> None:
    """A selector without this plan's own label takes the pods of every other plan in the namespace, too."""
    path = _SELECTORS[m.kind]
    if mapping(m.get(path)).get(_INSTANCE) != scene.plan.name:
        problem = f"does not name {_INSTANCE}: {scene.plan.name}, and takes the pods of other deployments in {m.namespace}, too"
        scene.add("selector", m, path, problem, "metadata.name")


def _require_serving(scene: Scene, m: Manifest, path: str) -> list[Manifest]:
    """The pods that are selected, which must be such as answer requests."""
    pods = require_pods(scene, m, path)
    for pod in pods:
        if pod.is_worker:
            problem = f"selects pods of {pod.name} that only help their leader: nothing answers there"
            scene.add("selector", m, path, problem, "metadata.name")
    return [pod for pod in pods if not pod.is_worker]


def _check_service(scene: Scene, m: Manifest) -> None:
    pods = _require_serving(scene, m, "spec.selector")
    if m.name in [g.name for g in scene.of_kind("LeaderWorkerSet")]:
        problem = f"the controller of LeaderWorkerSet {m.name} makes a headless Service of this name, by which its pods meet"
        scene.add("name", m, "metadata.name", problem, "metadata.name")
    ports = [mapping(p) for p in sequence(m.get("spec.ports"))]
    if not ports:
        scene.add("port", m, "spec.ports", "there is none", "deploy.overrides.args")
    if m.get("spec.publishNotReadyAddresses") is True:
        problem = "requests go to servers that still load their weights"
        scene.add("entry", m, "spec.publishNotReadyAddresses", problem, "metadata.name")
    if m.get("spec.internalTrafficPolicy") == "Local":
        problem = "is Local: clients on nodes without a pod of it get no answer; Cluster reaches all pods"
        scene.add("localtraffic", m, "spec.internalTrafficPolicy", problem, "deploy.overrides.patches")
    kind = m.get("spec.type") or "ClusterIP"
    if kind == "ExternalName":
        scene.add("reference", m, "spec.type", "ExternalName leads out of the cluster, not to the pods", "metadata.name")
    for field in ("name", "port"):
        seen = [f"{p.get(field)} {p.get('protocol', 'TCP') if field == 'port' else ''}" for p in ports]
        if len(set(seen)) < len(seen):
            scene.add("port", m, f"spec.ports.{field}", "one is there twice", "deploy.overrides.args")
    for port in ports:
        if kind == "ClusterIP" and port.get("nodePort"):
            scene.add("port", m, "spec.ports.nodePort", "belongs to the types NodePort and LoadBalancer", "deploy.overrides.args")
        if not is_port(port.get("port")):
            scene.add("port", m, "spec.ports", f"{shown(port.get('port'))} is no port, 1 to 65535", "deploy.overrides.args")
        if (len(ports) > 1 or "name" in port) and not is_port_name(str(port.get("name"))):
            scene.add("port", m, "spec.ports", f"{shown(port.get('name'))} is no port name", "deploy.overrides.args")
        target = port.get("targetPort", port.get("port"))
        require_port(scene, m, "spec.ports.targetPort", target, pods, "deploy.overrides.args", port.get("protocol", "TCP"))


def _check_monitor(scene: Scene, m: Manifest) -> None:
    pods = _require_serving(scene, m, "spec.selector.matchLabels")
    endpoints = [mapping(e) for e in sequence(m.get("spec.podMetricsEndpoints"))]
    if not endpoints:
        scene.add("port", m, "spec.podMetricsEndpoints", "there is none", "deploy.monitoring")
    where = mapping(m.get("spec.namespaceSelector"))
    if where and not where.get("any") and m.namespace not in sequence(where.get("matchNames")):
        problem = f"looks elsewhere than in {m.namespace}, where the pods are"
        scene.add("reference", m, "spec.namespaceSelector", problem, "deploy.namespace")
    for endpoint in endpoints:
        _check_endpoint(scene, m, endpoint, pods)
        require_port(scene, m, "spec.podMetricsEndpoints.port", str(endpoint.get("port")), pods, "deploy.overrides.args", "TCP")


def _check_endpoint(scene: Scene, m: Manifest, endpoint: Mapping[str, Any], pods: list[Manifest]) -> None:
    """Metrics are asked for where the process gives them, at an interval that Prometheus can read."""
    path = "spec.podMetricsEndpoints"
    for field in ("interval", "scrapeTimeout"):
        if field in endpoint and _DURATION.fullmatch(str(endpoint[field])) is None:
            problem = f"{shown(endpoint[field])} is no duration, as 15s is"
            scene.add("quantity", m, f"{path}.{field}", problem, "deploy.monitoring")
    for pod in pods:
        launch = scene.launch(pod)
        if launch is None:
            continue
        name = endpoint.get("port")
        asked = (server_port(pod, name) or first_port(pod, name)[1], endpoint.get("path", "/metrics"))
        gives = (launch.metrics_port or launch.port, launch.metrics_path)
        if asked[0] is not None and asked != gives:
            problem = f"asks {pod.name} for {asked[1]} on port {asked[0]}, it gives {gives[1]} on {gives[0]}"
            scene.add("port", m, path, problem, "deploy.monitoring")


def _check_entry(scene: Scene) -> None:
    """Clients are promised one Service under the plan's own name."""
    entry = next((launch for launch in scene.launches if launch.role is None), scene.launches[0])
    for service in scene.of_kind("Service"):
        if service.name == scene.plan.name:
            runs = {
                x.name
                for d in matched(scene, mapping(service.get("spec.selector")))
                if (x := scene.launch(d)) is not None
            }
            if runs != {entry.name}:
                problem = (
                    f"the door of the deployment leads to {', '.join(sorted(runs)) or 'nothing'}, not to {entry.name}"
                )
                scene.add("entry", service, "spec.selector", problem, "metadata.name")
            return
    scene.add_file(
        "entry", f"kubernetes/service-{entry.name}.yaml", f"no Service is named {shown(scene.plan.name)}", "metadata.name"
    )


def _check_discovery(scene: Scene) -> None:
    """The labels that a router looks for must select the pods of that role, in the namespace where they are."""
    router = next((launch for launch in scene.launches if launch.role is None), None)
    if router is None:
        return
    home = next((d for d in scene.runners if scene.launch(d) is router), None)
    if home is None:
        return
    for arg in router.args:
        if arg.flag in ("--prefill-selector", "--decode-selector", "--selector"):
            wanted = dict(word.partition("=")[::2] for word in arg.values)
            pods = matched(scene, wanted)
            found = {x.name for d in pods if (x := scene.launch(d)) is not None}
            if arg.flag == "--selector":
                right = found == {x.name for x in scene.launches if x.role is not None}
            else:
                right = arg.flag.removeprefix("--").removesuffix("-selector") in found
            if not right:
                problem = f"{arg.flag} selects {', '.join(sorted(found)) or 'no pods'}"
                scene.add("discovery", home, f"{home.server_path}.args", problem, "metadata.name")
            if any(pod.is_worker for pod in pods):
                problem = f"{arg.flag} finds pods that only help their leader: requests sent there are lost"
                scene.add("discovery", home, f"{home.server_path}.args", problem, "metadata.name")
        elif arg.flag == "--service-discovery-namespace" and arg.values != (home.namespace,):
            problem = f"the router looks for servers in {shown(' '.join(arg.values))}, they are in {shown(home.namespace)}"
            scene.add("discovery", home, f"{home.server_path}.args", problem, "deploy.namespace")
    if not home.pod.get("automountServiceAccountToken"):
        problem = "the router cannot ask the Kubernetes API for its servers"
        scene.add("discovery", home, "spec.template.spec.automountServiceAccountToken", problem, "constraints.topology")
