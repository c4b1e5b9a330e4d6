"""Where a server starts and how long it may take: one budget for probes, rollouts and the router."""

from __future__ import annotations

import math

from servegen.errors import Diagnostic, NotBuiltError
from servegen.plan import Plan, Role

#: Reads are rarely at the rated bandwidth: other pods, small files, a cold page cache. A budget may be long: it only
#: delays the restart of a server that will never come up, while a short one kills a large model that is loading.
SLACK = 1.5
#: Imports, process groups, memory pools and the capture of CUDA graphs, seconds: the order that engines log at start.
INIT_S = 120.0
#: Where storage states no bandwidth: a network disk, bytes/s.
DEFAULT_STORAGE_BYTES_PER_S = 500e6
#: From the model hub into an empty claim, bytes/s: an assumption, about 1 Gbit/s.
DOWNLOAD_BYTES_PER_S = 125e6


def startup_budget_s(plan: Plan, role: Role) -> float:
    """Seconds that one replica of ``role`` may take until it serves, rounded up to a whole 10 s.

    1.5 x (checkpoint bytes x replicas that read on the same node / storage bandwidth) + 120 s; a claim that servegen
    creates is empty at first, so the download of the checkpoint comes on top.
    """
    pool = plan.pool[role.pool]
    storage = pool.storage_bytes_per_s
    bandwidth = storage if math.isfinite(storage) and storage > 0 else DEFAULT_STORAGE_BYTES_PER_S
    readers = max(1, min(role.total_replicas, pool.per_node // max(1, role.devices)))
    seconds = SLACK * role.checkpoint_bytes * readers / bandwidth + INIT_S
    if plan.deploy.cache.size_bytes > 0:
        seconds += role.checkpoint_bytes / DOWNLOAD_BYTES_PER_S
    return math.ceil(seconds / 10) * 10.0


def require_one_node(plan: Plan, role: Role) -> None:
    """Raises NotBuiltError if a replica of ``role`` does not fit on one node of its pool."""
    per_node = plan.pool[role.pool].per_node
    if role.devices > per_node:
        message = f"{role.name}: a replica of {role.devices} accelerators spans nodes of {per_node}"
        hint = "replicas over several nodes are not built; restrict constraints.tp and constraints.pp"
        raise NotBuiltError(Diagnostic("multi-node", message, hint=hint))
