"""Checks of how new pods take the place of old ones: that a rollout can move at all, and leaves somebody to answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from servegen.validate.objects import Manifest, Scene
from servegen.validate.syntax import shown, whole

_ROLLOUT = {
    "Deployment": "spec.strategy.rollingUpdate",
    "LeaderWorkerSet": "spec.rolloutStrategy.rollingUpdateConfiguration",
}


def check_rollouts(scene: Scene) -> None:
    """Everything that runs a launch."""
    for m in scene.runners:
        _check_rollout(scene, m)


def lost_in_rollout(m: Manifest, replicas: int) -> int | None:
    """Replicas that may be gone while a rollout goes on, None where the manifest does not say."""
    return _pods(m.get(f"{_ROLLOUT.get(m.kind, '')}.maxUnavailable"), replicas, math.floor)


def _check_rollout(scene: Scene, m: Manifest) -> None:
    path, key = _ROLLOUT.get(m.kind, ""), "hardware.pool"
    if scene.role(m) is None and m.get("spec.replicas") == 0:
        scene.add("replicas", m, "spec.replicas", "is 0: nobody answers at the door", "deploy.overrides.patches")
    if m.get("spec.paused"):
        scene.add("rollout", m, "spec.paused", "no rollout would ever begin", "deploy.overrides.patches")
    if m.get("spec.strategy.type") == "Recreate":
        if m.get(path) is not None:
            scene.add("rollout", m, path, "belongs to the type RollingUpdate", "deploy.overrides.patches")
        return
    role = scene.role(m)
    replicas = role.total_replicas if role is not None else 1
    for name in ("maxSurge", "maxUnavailable"):
        value = m.get(f"{path}.{name}")
        if isinstance(value, (str, int)) and _pods(value, replicas, math.ceil) is None:
            scene.add("rollout", m, f"{path}.{name}", f"{shown(value)} is no number of pods and no share such as 25%", key)
    surge = _pods(m.get(f"{path}.maxSurge"), replicas, math.ceil)
    lost = lost_in_rollout(m, replicas)
    if surge == 0 and lost == 0:
        scene.add("rollout", m, path, "neither surge nor loss is allowed: no rollout can move", key)
    if lost is not None and replicas > 1 and lost >= replicas:
        scene.add("rollout", m, path, f"all {replicas} replicas may be gone at once", "constraints.spareReplicas")
    if role is None:
        return
    pool = scene.plan.pool[role.pool]
    used = sum(r.total_devices for r in scene.plan.choice.roles if r.pool == role.pool)
    if m.get(f"{path}.partition"):
        scene.add("rollout", m, f"{path}.partition", "keeps replicas below it on the old plan", "deploy.overrides.patches")
    if lost == 0 and pool.nodes * pool.per_node - used < role.devices:
        problem = f"the pool has no {role.devices} accelerators left for a surge pod: the rollout would wait for ever"
        scene.add("rollout", m, path, problem, key)


def _pods(value: Any, replicas: int, rounded: Callable[[float], int]) -> int | None:
    """Pods that a count or a share such as ``25%`` stands for, None if it is neither; a count in quotes is none."""
    if isinstance(value, str) and value.endswith("%"):
        share = whole(value[:-1])
        return None if share is None else rounded(share * replicas / 100)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
