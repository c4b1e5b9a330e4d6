"""Whether a pool has room for one more replica while a rollout goes on."""

from __future__ import annotations

import math
from functools import reduce

from servegen.plan import Plan, Role


def peak_replicas(plan: Plan, role: Role) -> int:
    """The most replicas that may run outside a rollout."""
    if plan.deploy.autoscaling == "none":
        return role.total_replicas
    return max(role.total_replicas, plan.deploy.autoscaling_max.get(role.role, role.total_replicas))


def surge_fits(plan: Plan, role: Role) -> bool:
    """Whether one more replica of ``role`` finds its nodes however the scheduler placed all the others.

    A node is blocked once fewer than a pod's devices are free on it. Pods take multiples of g (the common divisor of
    their sizes), so that blocking a node takes ``ceil((per_node - devices + 1) / g) * g`` accelerators: one pod that has
    as many, or several smaller ones. As many nodes as a replica takes must be open, whatever is in use at the autoscaler's
    maximum. Otherwise a surge pod could wait for ever.
    """
    pool = plan.pool[role.pool]
    users = [r for r in plan.choice.roles if r.pool == role.pool]
    counts = [(pool.pod_devices(r), plan.nodes(r) * peak_replicas(plan, r)) for r in users]
    grain = reduce(math.gcd, (size for size, _ in counts))
    blocking = math.ceil((pool.per_node - pool.pod_devices(role) + 1) / grain) * grain
    blocked = sum(n for size, n in counts if size >= blocking) + sum(n * s for s, n in counts if s < blocking) // blocking
    return pool.nodes - blocked >= plan.nodes(role)
