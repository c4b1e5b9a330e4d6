"""Ports of pods by name and by number, as Kubernetes finds them for whatever refers to one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from servegen.validate.objects import Manifest, Scene, mapping, sequence
from servegen.validate.syntax import is_port, shown


def _named(pod: Manifest, name: object, protocol: object) -> Iterator[tuple[str, Any]]:
    """(container, number) of every port of that name, of every protocol where that is None."""
    for container in pod.containers:
        for port in map(mapping, sequence(container.get("ports"))):
            if port.get("name") == name and protocol in (None, port.get("protocol", "TCP")):
                yield str(container.get("name")), port.get("containerPort")


def first_port(pod: Manifest, name: object, protocol: object = None) -> tuple[str, Any]:
    """Container and number that a name leads to: those of the first container that has a port of it; ("", None) of none."""
    return next(_named(pod, name, protocol), ("", None))


def server_port(pod: Manifest, name: object, protocol: object = None) -> Any:
    """The number of the server's own port of that name, None where it has none."""
    own = str(pod.server.get("name")) if pod.containers else ""
    return next((number for container, number in _named(pod, name, protocol) if container == own), None)


def names_of(pod: Manifest, number: int) -> set[str]:
    """The names that lead to a port."""
    names = {str(p["name"]) for p in pod.ports if p.get("containerPort") == number and "name" in p}
    return {name for name in names if first_port(pod, name)[1] == number}


def require_port(
    scene: Scene, m: Manifest, path: str, target: Any, pods: list[Manifest], key: str, protocol: object = None
) -> None:
    """A port, by its name or number, must be one of every pod that is selected; ``protocol`` None is whichever."""
    if not isinstance(target, str) and not is_port(target):
        scene.add("port", m, path, f"{shown(target)} is no port, 1 to 65535", key)
        return
    field = "name" if isinstance(target, str) else "containerPort"
    for pod in pods:
        if isinstance(target, str):
            _require_first(scene, m, path, target, pod, protocol)
        found = [p.get("protocol", "TCP") for p in pod.ports if p.get(field) == target]
        if not found:
            scene.add("port", m, path, f"{shown(target)} is no port of {pod.name}", key)
        elif protocol is not None and protocol not in found:
            problem = f"{shown(target)} speaks {found[0]} at {pod.name}, not {protocol}"
            scene.add("port", m, path, problem, key)


def _require_first(scene: Scene, m: Manifest, path: str, target: str, pod: Manifest, protocol: object) -> None:
    """A name leads to the first container that has a port of it, and patches put their containers first."""
    container, number = first_port(pod, target, protocol)
    own = server_port(pod, target, protocol)
    if own is not None and number != own:
        problem = f"{shown(target)} leads to port {number} of container {container}, which comes first in {pod.name}"
        scene.add("port", m, path, f"{problem}; the port of the server is {own}", "deploy.overrides.patches")
