"""Checks of what a pod asks of its node and of its neighbours: that the nodes of the plan can give it, all at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from servegen.errors import Severity
from servegen.plan import Role
from servegen.validate.nodes import HOST, contradictions, misspelt, named_nodes, required_terms
from servegen.validate.objects import Manifest, Scene, admits, dig, mapping, sequence
from servegen.validate.rollouts import lost_in_rollout

_KEY = "deploy.overrides.patches"
_INSTANCE = "app.kubernetes.io/instance"
_REQUIRED, _PREFERRED = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
#: A label that the pods of a rollout's two sides have in different values.
_REVISIONS = frozenset({"pod-template-hash", "controller-revision-hash"})


def check_affinity(scene: Scene) -> None:
    """Every pod."""
    for m in scene.pods:
        _check_node(scene, m)
        _check_labels(scene, m)
        role = scene.role(m)
        if role is not None:
            _check_apart(scene, m, role)
            _check_together(scene, m, role)
            _check_named(scene, m, role)


def _check_node(scene: Scene, m: Manifest) -> None:
    if why := contradictions(m.pod):
        path = f"{m.pod_path}.affinity.nodeAffinity.{_REQUIRED}"
        problem = f"no node can ever meet it: {'; or '.join(dict.fromkeys(why))}; one term at least must be one that a node meets"
        scene.add("placement", m, path, problem, _of_nodes(scene, m))


def _check_labels(scene: Scene, m: Manifest) -> None:
    """Labels of nodes with a typo: where one must be there no pod is placed, where it is a wish nothing comes of it."""
    for path, label, severity, key in _labels(scene, m):
        if meant := misspelt(label):
            does = "no pod is placed as it asks" if severity == "error" else "nothing comes of it"
            problem = f"no node has the label {label}, and {does}; did you mean {meant}?"
            scene.add("placement", m, f"{m.pod_path}.{path}", problem, key, severity)


def _labels(scene: Scene, m: Manifest) -> Iterator[tuple[str, object, Severity, str]]:
    """(path, label, how bad it is where no node has it, key of the spec) of all labels of nodes that a pod counts on."""
    for label in mapping(m.pod.get("nodeSelector")):
        yield "nodeSelector", label, "error", _of_nodes(scene, m)
    for term in required_terms(m.pod) or ():
        for expression in map(mapping, sequence(term.get("matchExpressions"))):
            if expression.get("operator") in ("In", "Exists", "Gt", "Lt"):
                yield f"affinity.nodeAffinity.{_REQUIRED}", expression.get("key"), "error", _KEY
    for i, spread in enumerate(map(mapping, sequence(m.pod.get("topologySpreadConstraints")))):
        hard = spread.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
        yield f"topologySpreadConstraints[{i}].topologyKey", spread.get("topologyKey"), "error" if hard else "warning", _KEY
    for kind in ("podAffinity", "podAntiAffinity"):
        for i, term in enumerate(_terms(m, kind, _REQUIRED)):
            yield f"affinity.{kind}.{_REQUIRED}[{i}].topologyKey", term.get("topologyKey"), "error", _KEY
        for i, term in enumerate(_terms(m, kind, _PREFERRED)):
            at = f"affinity.{kind}.{_PREFERRED}[{i}].podAffinityTerm.topologyKey"
            yield at, dig(term, "podAffinityTerm.topologyKey"), "warning", _KEY


def _of_nodes(scene: Scene, m: Manifest) -> str:
    """The key that says what nodes a pod goes to: that of its pool, which a router has not."""
    return _KEY if scene.role(m) is None else "hardware.pool[].nodeSelector"


def _terms(m: Manifest, kind: str, how: str) -> list[Mapping[str, Any]]:
    return [mapping(term) for term in sequence(dig(m.pod, f"affinity.{kind}.{how}"))]


def _check_apart(scene: Scene, m: Manifest, role: Role) -> None:
    """Pods of which no two may share a node take as many nodes as there are pods; what they keep off takes others besides."""
    pool, mine = scene.plan.pool[role.pool], _of_replica(scene, m, role)
    for i, term in enumerate(_terms(m, "podAntiAffinity", _REQUIRED)):
        if term.get("topologyKey") != HOST or not _meets(term, m, m.pod_labels):
            continue
        kept_off = _nodes_of_others(scene, m, role, term)
        path = f"{m.pod_path}.affinity.podAntiAffinity.{_REQUIRED}[{i}]"
        besides = f", {kept_off} of which go to the other pods that it keeps off" if kept_off else ""
        nodes = f"the pool has {pool.nodes} nodes{besides}"
        most = (scene.bounds(m) or (0, 0))[1]
        counts = (("the plan has", role.total_replicas), ("the autoscaler may go up to", most))
        severities: tuple[Severity, ...] = ("error", "warning")
        for severity, (what, replicas) in zip(severities, counts, strict=True):
            if replicas * mine + kept_off > pool.nodes:
                problem = f"lets no two of these pods share a node; {what} {replicas * mine} of them, {nodes}: some never start"
                problem += "; as a preference it spreads them as far as they go"
                scene.add("placement", m, path, problem, "hardware.pool[].nodes", severity)
                break
        else:
            full = role.total_replicas * mine + kept_off == pool.nodes
            if full and m.kind == "Deployment" and lost_in_rollout(m, role.total_replicas) == 0 and not _apart_by_revision(term):
                problem = f"keeps the new pods of a rollout off the old ones, which are on all {pool.nodes} nodes and must stay"
                problem += ": it would wait for ever; matchLabelKeys: [pod-template-hash], or maxUnavailable: 1, lets it move"
                scene.add("rollout", m, path, problem, "hardware.pool[].nodes")


def _check_together(scene: Scene, m: Manifest, role: Role) -> None:
    """Pods that must all be where another of them is fit one node, or some never start."""
    pool, labels = scene.plan.pool[role.pool], {_INSTANCE: scene.plan.name}
    needed = pool.pod_devices(role.devices) * _of_replica(scene, m, role) * role.total_replicas
    for i, term in enumerate(_terms(m, "podAffinity", _REQUIRED)):
        # Only of this plan's own pods is it known where they are, and only of one kind of them that they are all together.
        known = mapping(dig(term, "labelSelector.matchLabels")).items() >= labels.items()
        others = any(_meets(term, other, other.pod_labels) for other in scene.pods if other != m)
        if term.get("topologyKey") == HOST and known and not others and _meets(term, m, m.pod_labels) and needed > pool.per_node:
            problem = f"puts all of these pods, and {needed} accelerators, on one node of {pool.per_node}: some never start"
            path = f"{m.pod_path}.affinity.podAffinity.{_REQUIRED}[{i}]"
            scene.add("placement", m, path, problem, "hardware.pool[].perNode")


def _check_named(scene: Scene, m: Manifest, role: Role) -> None:
    """Nodes that a pod asks for by their names must hold all the pods that ask for them."""
    pool, names = scene.plan.pool[role.pool], named_nodes(m.pod)
    needed = pool.pod_devices(role.devices) * _of_replica(scene, m, role) * role.total_replicas
    if names is not None and needed > len(names) * pool.per_node:
        hold = f"{len(names)} of the pool's nodes by name, which hold {len(names) * pool.per_node} accelerators"
        path = "nodeSelector" if HOST in mapping(m.pod.get("nodeSelector")) else "affinity.nodeAffinity"
        problem = f"asks for {hold}; the {role.total_replicas} replicas take {needed}: some never start"
        scene.add("placement", m, f"{m.pod_path}.{path}", problem, "hardware.pool[].nodes")


def _meets(term: Mapping[str, Any], m: Manifest, labels: Mapping[str, Any]) -> bool:
    """Whether a term means pods of these labels for certain: in their own namespace, and whatever the cluster adds to them."""
    spaces, selector = sequence(term.get("namespaces")), term.get("namespaceSelector")
    here = m.namespace in spaces or (not spaces and selector is None) or selector == {}
    return here and not sequence(term.get("mismatchLabelKeys")) and admits(term.get("labelSelector"), labels)


def _apart_by_revision(term: Mapping[str, Any]) -> bool:
    return bool(_REVISIONS & {str(key) for key in sequence(term.get("matchLabelKeys"))})


def _of_replica(scene: Scene, m: Manifest, role: Role) -> int:
    """Pods of this template that one replica has."""
    return scene.plan.nodes(role) - 1 if m.is_worker else 1


def _nodes_of_others(scene: Scene, m: Manifest, role: Role, term: Mapping[str, Any]) -> int:
    """The fewest nodes of the same pool that the other pods take which a term keeps off; they may share them."""
    pool, devices = scene.plan.pool[role.pool], 0
    if sequence(term.get("matchLabelKeys")):
        return 0  # whose labels of those names may differ
    for other in scene.pods:
        its = scene.role(other)
        if its is not None and its.pool == role.pool and other != m and _meets(term, m, other.pod_labels):
            devices += pool.pod_devices(its.devices) * _of_replica(scene, other, its) * its.total_replicas
    return math.ceil(devices / max(1, pool.per_node))
