"""Checks of network policies: what they let in and out, and that the pods of one deployment still reach each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from servegen.validate.objects import Manifest, Scene, admits, dig, mapping, sequence
from servegen.validate.ports import names_of, require_port
from servegen.validate.syntax import is_port, is_port_name, shown
from servegen.validate.volumes import offline

_KEY = "deploy.networkPolicy"
#: The variable that says that the hub is not where it usually is.
_ELSEWHERE = "HF_ENDPOINT"
_DNS, _HTTPS, _API_SERVER = 53, 443, 6443


def check_network(scene: Scene) -> None:
    """Every NetworkPolicy by itself, the router's way to its servers, and between the pods of one replica."""
    for m in scene.of_kind("NetworkPolicy"):
        _check_policy(scene, m)
        _check_peers(scene, m)
    _check_way(scene)
    _check_group(scene)
    _check_handoff(scene)


def selected(scene: Scene, selector: Any) -> list[Manifest]:
    """The pods that a label selector selects."""
    return [d for d in scene.pods if admits(selector, d.pod_labels)]


def _rules(m: Manifest, field: str) -> list[Mapping[str, Any]]:
    return [mapping(rule) for rule in sequence(m.get(f"spec.{field}"))]


def _check_policy(scene: Scene, m: Manifest) -> None:
    pods = selected(scene, m.get("spec.podSelector"))
    if not pods:
        scene.add("reference", m, "spec.podSelector.matchLabels", "selects no pods of this bundle", "metadata.name")
    types = [str(t) for t in sequence(m.get("spec.policyTypes"))]
    for field in ("ingress", "egress"):
        if m.get(f"spec.{field}") is not None and field.capitalize() not in types:
            problem = f"{field.capitalize()} is left out, so that the rules of spec.{field} mean nothing"
            scene.add("network", m, "spec.policyTypes", problem, _KEY)
        for rule in _rules(m, field):
            for port in (mapping(p) for p in sequence(rule.get("ports"))):
                _check_port(scene, m, field, port, pods)
    if "Egress" in types:
        _check_out(scene, m, pods)
    _check_scraped(scene, m, pods)


def _check_out(scene: Scene, m: Manifest, pods: list[Manifest]) -> None:
    """What every pod must reach outside: names, and what its process fetches."""
    rules = _rules(m, "egress")
    if not any(_opens(rule, _DNS, set(), "UDP") for rule in rules):
        scene.add("network", m, "spec.egress", "port 53 is closed for UDP: the pods resolve no name", _KEY)
    afar = [rule for rule in rules if any("podSelector" not in mapping(p) for p in sequence(rule.get("to")) or [{}])]
    if any(_opens(rule, port, set()) for rule in afar for port in (_HTTPS, _API_SERVER)):
        return
    for pod in pods:
        role, launch = scene.role(pod), scene.launch(pod)
        if launch is not None and launch.role is None:
            problem = f"port {_HTTPS} is closed: {pod.name} cannot ask the Kubernetes API for its servers"
            scene.add("network", m, "spec.egress", problem, _KEY)
        elif role is not None and launch is not None and _asks_the_hub(role.load, launch.env):
            problem = f"port {_HTTPS} is closed: {pod.name} cannot fetch {role.load}"
            scene.add("network", m, "spec.egress", problem, _KEY)
        else:
            continue
        return


def _asks_the_hub(load: str, env: Mapping[str, str]) -> bool:
    """Whether weights are fetched from where they usually are."""
    return not load.startswith("/") and offline(env) is None and _ELSEWHERE not in env


def _check_scraped(scene: Scene, m: Manifest, pods: list[Manifest]) -> None:
    """Where pods are watched, whoever collects their metrics must be let in; it runs in a namespace of its own."""
    for pod in pods:
        launch = scene.launch(pod)
        watched = any(admits(x.get("spec.selector"), pod.pod_labels) for x in scene.of_kind("PodMonitor"))
        if launch is None or not watched or "Ingress" not in sequence(m.get("spec.policyTypes")):
            continue
        port = launch.metrics_port or launch.port
        names = names_of(pod, port)
        afar = [r for r in _rules(m, "ingress") if _from_afar(sequence(r.get("from")))]
        if not any(_opens(rule, port, names) for rule in afar):
            problem = f"nobody from another namespace reaches port {port} of {pod.name}, and its monitor collects nothing"
            scene.add("network", m, "spec.ingress", problem, "deploy.monitoring")
            return


def _from_afar(peers: list[Any]) -> bool:
    """Whether a rule lets in somebody of another namespace, or of no namespace."""
    return not peers or any("namespaceSelector" in mapping(p) or "ipBlock" in mapping(p) for p in peers)


def _check_port(scene: Scene, m: Manifest, field: str, port: Mapping[str, Any], pods: list[Manifest]) -> None:
    number, end = port.get("port"), port.get("endPort")
    path = f"spec.{field}.ports"
    if not is_port(number) and not (isinstance(number, str) and is_port_name(number)):
        scene.add("port", m, path, f"{shown(number)} is no port", _KEY)
        return
    if end is not None and not (is_port(number) and is_port(end) and end >= number):
        scene.add("port", m, path, f"the range {number} to {end} is none", _KEY)
    if field == "ingress" and end is None:
        require_port(scene, m, path, number, [pod for pod in pods if not pod.is_worker], _KEY)


def _check_peers(scene: Scene, m: Manifest) -> None:
    planned = [dict(peer) for peer in scene.plan.deploy.network_policy_from or ()]
    path = "spec.ingress.from"
    for rule in _rules(m, "ingress"):
        peers = sequence(rule.get("from"))
        if not peers:
            scene.add("network", m, path, "an empty list lets everybody in", f"{_KEY}.from")
        elif not sequence(rule.get("ports")) and any(peer in planned for peer in peers):
            scene.add("network", m, "spec.ingress.ports", "no port is named, so the spec's peers reach all of them", _KEY)
        for peer in peers:
            if peer not in planned and _anybody(mapping(peer)):
                scene.add("network", m, path, f"{peer} lets everybody in, which the spec does not", f"{_KEY}.from")
    for field, side in (("ingress", "from"), ("egress", "to")):
        for block in (mapping(mapping(p).get("ipBlock")) for rule in _rules(m, field) for p in sequence(rule.get(side))):
            for cidr in [block[k] for k in ("cidr",) if k in block] + sequence(block.get("except")):
                if not _is_cidr(cidr):
                    scene.add("network", m, f"spec.{field}.{side}.ipBlock", f"{shown(cidr)} is no CIDR", f"{_KEY}.from")
    entry = next((x for x in scene.launches if x.role is None), scene.launches[0])
    doors = [d for d in selected(scene, m.get("spec.podSelector")) if scene.launch(d) is entry]
    names = {name for door in doors for name in names_of(door, entry.port)}
    if planned and doors and not any(
        all(peer in sequence(rule.get("from")) for peer in planned) and _opens(rule, entry.port, names)
        for rule in _rules(m, "ingress")
    ):
        scene.add("network", m, path, f"the spec's peers do not reach port {entry.port}", f"{_KEY}.from")


def _anybody(peer: Mapping[str, Any]) -> bool:
    block = dig(peer, "ipBlock.cidr")
    if block is not None:
        return str(block).endswith("/0")
    everywhere = "namespaceSelector" in peer and not mapping(peer["namespaceSelector"])
    return everywhere and not mapping(peer.get("podSelector"))


def _is_cidr(text: Any) -> bool:
    try:
        ipaddress.ip_network(text if isinstance(text, str) else "", strict=False)
    except ValueError:
        return False
    return True


def _opens(rule: Mapping[str, Any], number: int, names: set[str], protocol: str = "TCP") -> bool:
    """Whether a rule lets a port through; one without ports lets all through."""
    every = [mapping(p) for p in sequence(rule.get("ports"))]
    ports = [p for p in every if (p.get("protocol") or "TCP") == protocol]
    return not every or any(
        p.get("port") in (None, number, *names) or (is_port(p.get("port")) and p["port"] <= number <= (p.get("endPort") or 0))
        for p in ports
    )


def _check_way(scene: Scene) -> None:
    """A router that is not let out, or servers that do not let it in, serve nobody."""
    router = next((d for d in scene.runners if (x := scene.launch(d)) is not None and x.role is None), None)
    if router is None:
        return
    for server in scene.runners:
        launch = scene.launch(server)
        if launch is None or launch.role is None:
            continue
        names = names_of(server, launch.port)
        for field, here, there in (("ingress", server, router), ("egress", router, server)):
            if (shut := _shut(scene, field, here, there, launch.port, names)) is not None:
                way = f"{router.name} may not reach port {launch.port} of {server.name}"
                scene.add("network", shut, f"spec.{field}", way, _KEY)


def _check_handoff(scene: Scene) -> None:
    """Prefill and decode servers hand over KV caches on ports that they choose, and each may ask the other."""
    if scene.plan.choice.topology != "disaggregated":
        return
    servers = [pod for pod in scene.runners if (x := scene.launch(pod)) is not None and x.role is not None]
    for here, there in ((a, b) for a in servers for b in servers if scene.launch(a) is not scene.launch(b)):
        for field in ("ingress", "egress"):
            if (shut := _shut(scene, field, here, there, None, set())) is not None:
                way = f"{here.name} and {there.name} may not reach each other on every port, and hand over no KV cache"
                scene.add("network", shut, f"spec.{field}", way, _KEY)
                return


def _check_group(scene: Scene) -> None:
    """The processes of a replica over several nodes meet at one port, and then talk over ports that they choose."""
    pods = [m for m in scene.pods if m.kind == "LeaderWorkerSet"]
    for here, there in ((a, b) for a in pods for b in pods if a.path == b.path):
        for field in ("ingress", "egress"):
            if (shut := _shut(scene, field, here, there, None, set())) is not None:
                way = f"the pods of a replica of {here.name} may not reach each other on every port"
                scene.add("network", shut, f"spec.{field}", way, _KEY)
                return


def _shut(
    scene: Scene, field: str, here: Manifest, there: Manifest, port: int | None, names: set[str]
) -> Manifest | None:
    """The policy of the pod ``here`` that keeps it from ``there``, None if none does; ``port`` None means every one."""
    policies = [
        m
        for m in scene.of_kind("NetworkPolicy")
        if admits(m.get("spec.podSelector"), here.pod_labels)
        and field.capitalize() in sequence(m.get("spec.policyTypes"))
    ]
    side = "from" if field == "ingress" else "to"
    for rule in (rule for m in policies for rule in _rules(m, field)):
        through = not sequence(rule.get("ports")) if port is None else _opens(rule, port, names)
        if through and _reaches(sequence(rule.get(side)), there):
            return None
    return policies[0] if policies else None


def _reaches(peers: list[Any], pod: Manifest) -> bool:
    """Whether one of the peers is ``pod``, in the policy's own namespace; no peers at all are everybody."""
    return not peers or any(
        "ipBlock" not in mapping(p) and admits(mapping(p).get("podSelector", {}), pod.pod_labels) for p in peers
    )
