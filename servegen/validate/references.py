"""Checks between objects: what one names or selects must be there in another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servegen.validate.objects import Manifest, Scene, dig, mapping, selects, sequence
from servegen.validate.pods import is_port
from servegen.validate.syntax import is_port_name, quantity


def check_references(scene: Scene) -> None:
    """Every selector, port name and reference of every object that is no Deployment."""
    checks = {
        "Service": _check_service,
        "PodDisruptionBudget": _check_budget,
        "PodMonitor": _check_monitor,
        "NetworkPolicy": _check_policy,
        "RoleBinding": _check_binding,
        "PersistentVolumeClaim": _check_claim,
        "HorizontalPodAutoscaler": _check_scaler,
        "ScaledObject": _check_scaler,
    }
    for m in scene.manifests:
        if m.kind in checks:
            checks[m.kind](scene, m)
    _check_entry(scene)
    _check_discovery(scene)
    targets = [
        dig(s.body, "spec.scaleTargetRef.name") for s in scene.of_kind("HorizontalPodAutoscaler", "ScaledObject")
    ]
    for m in scene.deployments:
        if targets.count(m.name) > 1:
            scene.add("scaling", m, "spec.replicas", "two autoscalers own the count", "deploy.autoscaling")


def _selected(scene: Scene, selector: Mapping[str, Any]) -> list[Manifest]:
    return [d for d in scene.deployments if selects(selector, d.pod_labels)]


def _require_pods(scene: Scene, m: Manifest, path: str) -> list[Manifest]:
    pods = _selected(scene, mapping(m.get(path)))
    if not pods:
        scene.add("reference", m, path, "selects no pods of this bundle", "metadata.name")
    return pods


def _check_service(scene: Scene, m: Manifest) -> None:
    pods = _require_pods(scene, m, "spec.selector")
    ports = [mapping(p) for p in sequence(m.get("spec.ports"))]
    if not ports:
        scene.add("port", m, "spec.ports", "there is none", "deploy.overrides.args")
    for port in ports:
        if not is_port(port.get("port")):
            scene.add("port", m, "spec.ports", f"{port.get('port')!r} is no port, 1 to 65535", "deploy.overrides.args")
        if not is_port_name(str(port.get("name"))):
            scene.add("port", m, "spec.ports", f"{port.get('name')!r} is no port name", "deploy.overrides.args")
        target = port.get("targetPort", port.get("port"))
        _require_port(scene, m, "spec.ports.targetPort", target, pods)


def _require_port(scene: Scene, m: Manifest, path: str, target: Any, pods: list[Manifest]) -> None:
    """A named port must be in every pod that is selected; a number only has to be one."""
    if isinstance(target, str):
        missing = [p.name for p in pods if target not in p.port_names()]
        if missing:
            scene.add("port", m, path, f"{target!r} is no port of {', '.join(missing)}", "deploy.overrides.args")
    elif not is_port(target):
        scene.add("port", m, path, f"{target!r} is no port, 1 to 65535", "deploy.overrides.args")


def _check_budget(scene: Scene, m: Manifest) -> None:
    _require_pods(scene, m, "spec.selector.matchLabels")
    fields = [f for f in ("minAvailable", "maxUnavailable") if m.get(f"spec.{f}") is not None]
    if len(fields) != 1:
        problem = f"has {' and '.join(fields) or 'neither of minAvailable and maxUnavailable'}: exactly one is needed"
        scene.add("budget", m, "spec", problem, "constraints.spareReplicas")
    elif m.get("spec.maxUnavailable") in (0, "0", "0%") or m.get("spec.minAvailable") == "100%":
        scene.add(
            "budget",
            m,
            f"spec.{fields[0]}",
            "no pod could ever be evicted: every node drain would hang",
            "constraints.spareReplicas",
        )


def _check_monitor(scene: Scene, m: Manifest) -> None:
    pods = _require_pods(scene, m, "spec.selector.matchLabels")
    endpoints = [mapping(e) for e in sequence(m.get("spec.podMetricsEndpoints"))]
    if not endpoints:
        scene.add("port", m, "spec.podMetricsEndpoints", "there is none", "deploy.monitoring")
    for endpoint in endpoints:
        _require_port(scene, m, "spec.podMetricsEndpoints.port", str(endpoint.get("port")), pods)
        if not str(endpoint.get("path", "/metrics")).startswith("/"):
            scene.add("port", m, "spec.podMetricsEndpoints.path", "must start with '/'", "deploy.monitoring")


def _check_policy(scene: Scene, m: Manifest) -> None:
    _require_pods(scene, m, "spec.podSelector.matchLabels")
    for field in ("ingress", "egress"):
        for rule in sequence(m.get(f"spec.{field}")):
            for port in sequence(mapping(rule).get("ports")):
                number = mapping(port).get("port")
                if not is_port(number) and not (isinstance(number, str) and is_port_name(number)):
                    scene.add("port", m, f"spec.{field}.ports", f"{number!r} is no port", "deploy.networkPolicy")
    for rule in sequence(m.get("spec.ingress")):
        if not sequence(mapping(rule).get("from")):
            scene.add("network", m, "spec.ingress.from", "an empty list lets everybody in", "deploy.networkPolicy.from")


def _check_binding(scene: Scene, m: Manifest) -> None:
    role = dig(m.body, "roleRef.name")
    if role not in [r.name for r in scene.of_kind("Role")]:
        scene.add("reference", m, "roleRef.name", f"there is no Role {role!r}", "metadata.name")
    accounts = {(a.name, a.namespace) for a in scene.of_kind("ServiceAccount")}
    for subject in sequence(m.get("subjects")):
        who = (str(mapping(subject).get("name")), str(mapping(subject).get("namespace")))
        if who not in accounts:
            scene.add(
                "reference",
                m,
                "subjects",
                f"there is no ServiceAccount {who[0]!r} in namespace {who[1]!r}",
                "deploy.namespace",
            )


def _check_claim(scene: Scene, m: Manifest) -> None:
    size = m.get("spec.resources.requests.storage")
    held = quantity(size)
    if held is None:
        scene.add(
            "quantity", m, "spec.resources.requests.storage", f"{size!r} is no quantity", "deploy.modelCache.size"
        )
        return
    needed = sum({r.load: r.checkpoint_bytes for r in scene.plan.choice.roles}.values())
    if held < needed:
        problem = f"{size} is less than the {needed / 1e9:.0f} GB of weights"
        scene.add("claim", m, "spec.resources.requests.storage", problem, "deploy.modelCache.size")


def _check_scaler(scene: Scene, m: Manifest) -> None:
    hpa = m.kind == "HorizontalPodAutoscaler"
    names = ("minReplicas", "maxReplicas") if hpa else ("minReplicaCount", "maxReplicaCount")
    low, high = (m.get(f"spec.{n}") for n in names)
    target = m.get("spec.scaleTargetRef.name")
    deployment = next((d for d in scene.deployments if d.name == target), None)
    if deployment is None or m.get("spec.scaleTargetRef.kind") not in (None, "Deployment"):
        scene.add("reference", m, "spec.scaleTargetRef", f"there is no Deployment {target!r}", "deploy.autoscaling")
    if not isinstance(low, int) or not isinstance(high, int) or not 1 <= low <= high:
        problem = f"min {low!r}, max {high!r}: 1 <= min <= max is needed"
        scene.add("scaling", m, f"spec.{names[0]}", problem, "traffic.trough")
    elif deployment is not None and (role := scene.role(deployment)) is not None:
        pool = scene.plan.pool[role.pool]
        most = pool.nodes * (pool.per_node // max(role.devices, 1))
        if high > most:
            problem = f"is {high}, the pool holds {most} replicas of {role.devices} accelerators"
            scene.add("scaling", m, f"spec.{names[1]}", problem, "hardware.pool")
    for trigger in sequence(m.get("spec.triggers")):
        threshold = quantity(dig(trigger, "metadata.threshold"))
        if threshold is None or threshold <= 0:
            scene.add(
                "scaling",
                m,
                "spec.triggers.metadata.threshold",
                "must be a positive number in quotes",
                "deploy.autoscaling",
            )
    for metric in sequence(m.get("spec.metrics")):
        value = quantity(dig(metric, "pods.target.averageValue"))
        if value is None or value <= 0:
            scene.add(
                "quantity",
                m,
                "spec.metrics.pods.target.averageValue",
                "must be a positive quantity",
                "deploy.autoscaling",
            )


def _check_entry(scene: Scene) -> None:
    """Clients are promised one Service under the plan's own name."""
    entry = next((launch for launch in scene.launches if launch.role is None), scene.launches[0])
    for service in scene.of_kind("Service"):
        if service.name == scene.plan.name:
            runs = {
                x.name
                for d in _selected(scene, mapping(service.get("spec.selector")))
                if (x := scene.launch(d)) is not None
            }
            if runs != {entry.name}:
                problem = (
                    f"the door of the deployment leads to {', '.join(sorted(runs)) or 'nothing'}, not to {entry.name}"
                )
                scene.add("entry", service, "spec.selector", problem, "metadata.name")
            return
    scene.add_file(
        "entry", f"kubernetes/service-{entry.name}.yaml", f"no Service is named {scene.plan.name!r}", "metadata.name"
    )


def _check_discovery(scene: Scene) -> None:
    """The labels that a router looks for must select the pods of that role, in the namespace where they are."""
    router = next((launch for launch in scene.launches if launch.role is None), None)
    if router is None:
        return
    home = next((d for d in scene.deployments if scene.launch(d) is router), None)
    if home is None:
        return
    for arg in router.args:
        if arg.flag in ("--prefill-selector", "--decode-selector", "--selector"):
            wanted = dict(word.partition("=")[::2] for word in arg.values)
            found = {x.name for d in _selected(scene, wanted) if (x := scene.launch(d)) is not None}
            if arg.flag == "--selector":
                right = found == {x.name for x in scene.launches if x.role is not None}
            else:
                right = arg.flag.removeprefix("--").removesuffix("-selector") in found
            if not right:
                problem = f"{arg.flag} selects {', '.join(sorted(found)) or 'no pods'}"
                scene.add("discovery", home, "spec.template.spec.containers[0].args", problem, "metadata.name")
        elif arg.flag == "--service-discovery-namespace" and arg.values != (home.namespace,):
            problem = f"the router looks for servers in {' '.join(arg.values)!r}, they are in {home.namespace!r}"
            scene.add("discovery", home, "spec.template.spec.containers[0].args", problem, "deploy.namespace")
    if not home.pod.get("automountServiceAccountToken"):
        problem = "the router cannot ask the Kubernetes API for its servers"
        scene.add("discovery", home, "spec.template.spec.automountServiceAccountToken", problem, "constraints.topology")
