"""Checks of replicas over several nodes: the group of pods that one LeaderWorkerSet makes for each."""

from __future__ import annotations

from servegen.validate.containers import GROUP_VARIABLES
from servegen.validate.nodes import HOST
from servegen.validate.objects import Manifest, Scene, dig, mapping, sequence
from servegen.validate.syntax import shown

_GROUP, _PATCHES = "spec.leaderWorkerTemplate", "deploy.overrides.patches"
#: Annotations by which a replica, or a part of it, has a place of its own (sigs.k8s.io/lws, api v1).
_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
_SUB_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"


def check_groups(scene: Scene) -> None:
    """Every LeaderWorkerSet: its size against the plan, and that leader and workers start, end and restart together."""
    for leader in scene.runners:
        if leader.kind != "LeaderWorkerSet":
            continue
        worker = next(m for m in scene.pods if m.path == leader.path and m.body is leader.body and m.is_worker)
        _check_size(scene, leader)
        _check_policies(scene, leader)
        _check_members(scene, leader, worker)
        _check_subgroups(scene, leader)
        _check_exclusive(scene, leader)
        for m in (leader, worker):
            _check_variables(scene, m)


def _check_size(scene: Scene, m: Manifest) -> None:
    size, role = m.get(f"{_GROUP}.size"), scene.role(m)
    if role is None:
        return
    nodes, world = scene.plan.nodes(role), role.tp * role.pp
    each = scene.plan.pool[role.pool].per_node
    if size != nodes:
        problem = f"is {shown(size)}: {nodes} pods of {each} accelerators are the tp x pp = {world} of a replica"
        scene.add("devices", m, f"{_GROUP}.size", problem, "constraints.tp")


def _check_policies(scene: Scene, m: Manifest) -> None:
    key = "deploy.overrides.patches"
    restart, start = m.get(f"{_GROUP}.restartPolicy"), m.get("spec.startupPolicy")
    if restart not in (None, "RecreateGroupOnPodRestart"):
        problem = f"is {shown(restart)}: a process that starts anew cannot join collectives that are under way"
        scene.add("group", m, f"{_GROUP}.restartPolicy", problem, key)
    if start not in (None, "LeaderCreated"):
        problem = f"is {shown(start)}: the leader is ready when its workers have joined, and they would wait for it"
        scene.add("group", m, "spec.startupPolicy", problem, key)


def _check_members(scene: Scene, leader: Manifest, worker: Manifest) -> None:
    if leader.pod_labels == worker.pod_labels:
        path = f"{worker.template}.metadata.labels"
        scene.add("selector", worker, path, "are the leader's: nothing could select leaders alone", "metadata.name")
    if scene.launch(leader) is not scene.launch(worker):
        path = f"{worker.template}.metadata.labels"
        scene.add("group", worker, path, "name another component than the leader's", "metadata.name")
    drain, grace = (m.pod.get("terminationGracePeriodSeconds") for m in (leader, worker))
    if isinstance(drain, int) and (not isinstance(grace, int) or grace < drain):
        problem = f"is {shown(grace)}, the leader drains for up to {drain} s and needs its workers for that"
        scene.add("grace", worker, f"{worker.pod_path}.terminationGracePeriodSeconds", problem, "traffic.osl")


def _check_subgroups(scene: Scene, m: Manifest) -> None:
    """What the controller's webhook asks of subgroups (sigs.k8s.io/lws, pkg/webhooks/leaderworkerset_webhook.go)."""
    policy = mapping(m.get(f"{_GROUP}.subGroupPolicy"))
    each, size, path = policy.get("subGroupSize"), m.get(f"{_GROUP}.size"), f"{_GROUP}.subGroupPolicy.subGroupSize"
    if not isinstance(each, int) or not isinstance(size, int) or size < 1:
        return
    alone = policy.get("subGroupPolicyType") == "LeaderExcluded"
    what = f"the {size - 1} workers" if alone else f"{size} pods, nor {size - 1} without the leader,"
    if each < 1 or each > size or not (((size % each == 0) and not alone) or (size - 1) % each == 0):
        scene.add("group", m, path, f"is {each}, and {what} do not come in groups of it: it is refused", _PATCHES)


def _check_exclusive(scene: Scene, m: Manifest) -> None:
    """Pods that must all be in one place, which nobody else may share: it must hold them."""
    notes, role, size = mapping(m.get("metadata.annotations")), scene.role(m), m.get(f"{_GROUP}.size")
    if role is None or not isinstance(size, int):
        return
    pool, sub = scene.plan.pool[role.pool], m.get(f"{_GROUP}.subGroupPolicy.subGroupSize")
    for name, pods in ((_EXCLUSIVE, size), (_SUB_EXCLUSIVE, sub if isinstance(sub, int) else 0)):
        needed = pods * pool.pod_devices(role.devices)
        if notes.get(name) == HOST and needed > pool.per_node:
            problem = f"{name} is {HOST}: {pods} pods and {needed} accelerators never fit one node of {pool.per_node}; "
            scene.add("placement", m, "metadata.annotations", problem + "name a label of racks, or of blocks of nodes", _PATCHES)


def _check_variables(scene: Scene, m: Manifest) -> None:
    names = {str(mapping(e).get("name")) for c in m.containers for e in sequence(dig(c, "env"))}
    for name in sorted(names & set(GROUP_VARIABLES)):
        scene.add("env", m, f"{m.pod_path}.containers[].env", f"{name} is the controller's to set", "deploy.overrides.env")
