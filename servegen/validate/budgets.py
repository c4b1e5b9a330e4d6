"""Checks of disruption budgets: what they cover, and that a drain can still move its pods one by one."""

from __future__ import annotations

import math
from typing import Any

from servegen.validate.objects import Manifest, Scene, admits, require_pods
from servegen.validate.syntax import shown, whole

_KEY = "constraints.spareReplicas"


def check_budgets(scene: Scene) -> None:
    """Every budget by itself, and that no pod is under two of them."""
    for m in scene.of_kind("PodDisruptionBudget"):
        _check_budget(scene, m)
    _check_cover(scene)


def _check_budget(scene: Scene, m: Manifest) -> None:
    covered = require_pods(scene, m, "spec.selector.matchLabels")
    fields = [f for f in ("minAvailable", "maxUnavailable") if m.get(f"spec.{f}") is not None]
    if len(fields) != 1:
        problem = f"has {' and '.join(fields) or 'neither of minAvailable and maxUnavailable'}: exactly one is needed"
        scene.add("budget", m, "spec", problem, _KEY)
        return
    path, count = f"spec.{fields[0]}", m.get(f"spec.{fields[0]}")
    if isinstance(count, str) and (not count.endswith("%") or whole(count[:-1]) is None):
        problem = f"{shown(count)} is no share such as 25%; a number of pods has no quotes"
        scene.add("budget", m, path, problem, _KEY)
    planned = [r.total_replicas * scene.plan.nodes(r) for d in covered if (r := scene.role(d))]
    most = m.get("spec.maxUnavailable")
    if most == "100%" or (isinstance(most, int) and any(most >= n > 1 for n in planned)):
        problem = "every pod may be evicted at once: it protects nothing"
        scene.add("budget", m, "spec.maxUnavailable", problem, _KEY)
    if most in (0, "0", "0%") or m.get("spec.minAvailable") == "100%":
        scene.add("budget", m, path, "no pod could ever be evicted: every node drain would hang", _KEY)
    elif fields == ["minAvailable"]:
        _check_least(scene, m, count, covered)


def _check_least(scene: Scene, m: Manifest, least: Any, covered: list[Manifest]) -> None:
    """What must stay, counted as the budget's controller does: a share of the pods that should be there, rounded up."""
    share = whole(least[:-1]) if isinstance(least, str) and least.endswith("%") else None
    for what, pods in (("", sum(_pods(scene, d) for d in covered)), ("few", sum(_fewest(scene, d) for d in covered))):
        kept = math.ceil(share * pods / 100) if share is not None else least
        if not pods or not isinstance(kept, int) or kept < pods:
            continue
        problem = "no pod could ever be evicted: every node drain would hang"
        if what:
            problem = f"is {shown(least)}, and the autoscaler goes down to {pods}: no pod could be evicted then, and drains hang"
            problem += "; maxUnavailable: 1 lets them move one by one"
        scene.add("budget", m, "spec.minAvailable", problem, _KEY)
        return


def _pods(scene: Scene, pod: Manifest) -> int:
    """Pods of one template at the peak that was planned for."""
    role = scene.role(pod)
    replicas = role.total_replicas if role is not None else pod.get("spec.replicas")
    return (replicas if isinstance(replicas, int) else 1) * _of_replica(scene, pod)


def _fewest(scene: Scene, pod: Manifest) -> int:
    """The same when its autoscaler has gone as far down as it may with any pod left."""
    bounds = scene.bounds(pod)
    return _pods(scene, pod) if bounds is None else max(bounds[0], 1) * _of_replica(scene, pod)


def _of_replica(scene: Scene, pod: Manifest) -> int:
    """How many pods of this template one replica has."""
    role = scene.role(pod)
    return scene.plan.nodes(role) - 1 if role is not None and pod.is_worker else 1


def _check_cover(scene: Scene) -> None:
    """A pod under two budgets cannot be evicted at all (the eviction API refuses it); under none, its replica goes with it."""
    for budget in scene.of_kind("PodDisruptionBudget"):
        covered = {(d.name, d.is_worker) for d in scene.pods if admits(budget.get("spec.selector"), d.pod_labels)}
        for d in scene.pods:
            if d.is_worker and (d.name, False) in covered and (d.name, True) not in covered:
                problem = f"leaves out the workers of {d.name}: who evicts one ends its replica"
                scene.add("budget", budget, "spec.selector", problem, "metadata.name")
    for d in scene.pods:
        over = [b for b in scene.of_kind("PodDisruptionBudget") if admits(b.get("spec.selector"), d.pod_labels)]
        for budget in over[1:]:
            problem = f"covers the pods of {d.name}, which {over[0].name} does already: neither lets them be evicted"
            scene.add("budget", budget, "spec.selector", problem, "metadata.name")
