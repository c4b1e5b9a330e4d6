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
#: Pulling an engine image (10-20 GB) on a node that lacks it.
IMAGE_PULL_S = 900
#: Where storage states no bandwidth: a network disk, bytes/s.
DEFAULT_STORAGE_BYTES_PER_S = 500e6
#: From the model hub into an empty claim, bytes/s: an assumption, about 1 Gbit/s.
DOWNLOAD_BYTES_PER_S = 125e6

#: Python, CUDA contexts and pinned buffers of one process per accelerator, beside the weights that pass through.
PROCESS_BYTES = 4.0 * 2**30
#: What such a process holds once it has imported its libraries and opened its accelerator: with less it is killed then.
LEAST_PROCESS_BYTES = 2.0 * 2**30


def startup_budget_s(plan: Plan, role: Role) -> float:
    """Seconds that one replica of ``role`` may take until it serves, rounded up to a whole 10 s.

    1.5 x (checkpoint bytes x replicas that read on the same node / storage bandwidth) + 120 s; a claim that servegen
    creates is empty at first, so the download of the checkpoint comes on top. Over several nodes each reads the whole
    checkpoint (a rank opens every file, and keeps its part), and the leader may be up while others still pull the image.
    """
    pool = plan.pool[role.pool]
    storage = pool.storage_bytes_per_s
    bandwidth = storage if math.isfinite(storage) and storage > 0 else DEFAULT_STORAGE_BYTES_PER_S
    readers = max(1, min(role.total_replicas, pool.per_node // max(1, role.devices)))
    seconds = SLACK * role.checkpoint_bytes * readers / bandwidth + INIT_S
    if plan.deploy.cache.size_bytes > 0:
        seconds += role.checkpoint_bytes / DOWNLOAD_BYTES_PER_S
    if plan.nodes(role) > 1:
        seconds += IMAGE_PULL_S
    return math.ceil(seconds / 10) * 10.0


def require_one_node(plan: Plan, role: Role) -> None:
    """Raises NotBuiltError if a replica of ``role`` does not fit on one node of its pool."""
    if plan.nodes(role) > 1:
        hint = f"{plan.choice.engine} over several nodes is not built; restrict constraints.tp and constraints.pp"
        raise _spans(plan, role, hint)


def require_whole_nodes(plan: Plan, role: Role) -> None:
    """Raises NotBuiltError if a replica of ``role`` leaves a part of its last node to others."""
    if plan.nodes(role) > 1 and role.devices % plan.pool[role.pool].per_node:
        raise _spans(plan, role, "a replica of several nodes takes whole ones; restrict constraints.tp and constraints.pp")


def _spans(plan: Plan, role: Role, hint: str) -> NotBuiltError:
    message = f"{role.name}: a replica of {role.devices} accelerators spans nodes of {plan.pool[role.pool].per_node}"
    return NotBuiltError(Diagnostic("multi-node", message, hint=hint))
