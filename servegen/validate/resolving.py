"""Checks of whom a pod asks for names: those that the cluster gives, and those of the world."""

from __future__ import annotations

from servegen.errors import Severity
from servegen.validate.objects import Manifest, Scene, dig, mapping, sequence
from servegen.validate.syntax import is_loopback, shown

_KEY = "deploy.overrides.patches"


def check_resolving(scene: Scene) -> None:
    """Every pod of a launch."""
    for m in scene.pods:
        if scene.launch(m) is not None:
            _check_policy(scene, m)
            _check_servers(scene, m)


def _check_policy(scene: Scene, m: Manifest) -> None:
    """Who asks the node's servers alone is told nothing of the cluster's own names.

    The pods of a replica over several nodes meet at the name of their leader. Others are found by their addresses, so that
    of them it is not certain that they ask for a name of the cluster's.
    """
    policy, hosted = m.pod.get("dnsPolicy"), m.pod.get("hostNetwork") is True
    group, split = m.kind == "LeaderWorkerSet", scene.plan.choice.topology == "disaggregated"
    of_node = policy == "Default" or (hosted and policy in (None, "ClusterFirst"))
    if not group and not (policy == "Default" and (split or scene.role(m) is None)):
        return
    right = "ClusterFirstWithHostNet" if hosted else "ClusterFirst"
    others = sequence(dig(m.pod, "dnsConfig.nameservers"))
    knows = "which do not know the leader's name, at which a replica's pods meet" if group else "which know no Service"
    if of_node:
        how = "" if policy == "Default" else " on the node's network"
        problem = f"is {shown(policy)}{how}: the pod asks the node's servers, {knows}; it must be {right}"
        severity: Severity = "error" if group and not others else "warning"
        scene.add("resolving", m, f"{m.pod_path}.dnsPolicy", problem, _KEY, severity)
    elif policy == "None" and not sequence(dig(m.pod, "dnsConfig.searches")):
        problem = "is None, and dnsConfig has no searches: the leader's name is <pod>.<service>.<namespace>, "
        problem += f"and lacks svc.cluster.local for most servers; {right} has it"
        scene.add("resolving", m, f"{m.pod_path}.dnsPolicy", problem, _KEY, "warning")


def _check_servers(scene: Scene, m: Manifest) -> None:
    """A server of names at loopback is the pod itself, in which nobody answers unless a container beside does."""
    servers = [str(server) for server in sequence(dig(m.pod, "dnsConfig.nameservers"))]
    if m.pod.get("dnsPolicy") != "None" or not servers or not all(is_loopback(server) for server in servers):
        return
    role = scene.role(m)
    beside = len(m.containers) > 1 or any(
        mapping(c).get("restartPolicy") == "Always" for c in sequence(m.pod.get("initContainers"))
    )
    asks = m.kind == "LeaderWorkerSet" or (role is not None and not role.load.startswith("/"))
    problem = f"are {', '.join(map(shown, servers))}: that is the pod itself, which answers for no name"
    severity: Severity = "error" if asks and not beside and m.pod.get("hostNetwork") is not True else "warning"
    scene.add("resolving", m, f"{m.pod_path}.dnsConfig.nameservers", problem, _KEY, severity)
