"""Whether a pool has room for one more pod while a rollout goes on."""

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
    """Whether one more replica of ``role`` finds a node however the scheduler placed all the others.

    A node is blocked once fewer than ``role.devices`` are free on it. Pods take multiples of g (the common divisor of
    their sizes), so that blocking all nodes takes ``nodes * ceil((per_node - devices + 1) / g) * g`` accelerators; with
    fewer in use, at the autoscaler's maximum, one node is always open. Otherwise a surge pod could wait for ever.
    """
    pool = plan.pool[role.pool]
    users = [r for r in plan.choice.roles if r.pool == role.pool]
    others = {int(size): count for size, count in pool.others.items()}
    used = sum(r.devices * peak_replicas(plan, r) for r in users) + sum(size * count for size, count in others.items())
    grain = reduce(math.gcd, (*(r.devices for r in users), *others))
    blocking = math.ceil(max(pool.per_node - role.devices + 1, 0) / grain) * grain
    return used < pool.nodes * blocking
