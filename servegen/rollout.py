"""Whether a pool has room for one more replica while a rollout goes on."""

from __future__ import annotations

import math
from functools import reduce

from servegen.plan import Plan, Role


def peak_replicas(plan: Plan, role: Role) -> int:
    """The most replicas that may run outside a rollout."""
    if plan.deploy.autoscaling == "none":
        return role.total_replicas
    return max(role.total_replicas, plan.deploy.autoscaling_max.get(role.name, role.total_replicas))


def surge_fits(plan: Plan, role: Role) -> bool:
    """Whether one more replica of ``role`` finds its nodes however the scheduler placed all the others.

    A node is blocked once fewer than a pod's devices are free on it. Pods take multiples of g (the common divisor of
    their sizes), so that blocking a node takes ``ceil((per_node - devices + 1) / g) * g`` accelerators: one pod that has
    as many, or several smaller ones. As many nodes as a replica takes must be open, whatever is in use at the autoscaler's
    maximum. Otherwise a surge pod could wait for ever.
    """
    pool = plan.pool[role.pool]
    users = [r for r in plan.choice.roles if r.pool == role.pool]
    replicas = [(r.devices, peak_replicas(plan, r)) for r in users]
    replicas += [(int(size), count) for size, count in pool.others.items()]
    pods = [(pool.pod_devices(size), pool.nodes_of(size) * count) for size, count in replicas]
    need, over = pool.pod_devices(role.devices), pool.nodes_of(role.devices)
    grain = reduce(math.gcd, (size for size, _ in pods))
    blocking = math.ceil((pool.per_node - need + 1) / grain) * grain
    blocked = sum(n for size, n in pods if size >= blocking) + sum(n * s for s, n in pods if s < blocking) // blocking
    return pool.nodes - blocked >= over
