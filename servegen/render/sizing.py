"""Numbers of a pod: CPU, memory, time limits and rollouts, in bytes and seconds."""

from __future__ import annotations

import math

from servegen.engines.startup import PROCESS_BYTES
from servegen.plan import Plan, PoolPlan, Role
from servegen.record import record
from servegen.units import format_gib

GIB = 2**30

#: Share of a node that pods may claim; the rest is for the kubelet, the system and daemons (drivers, network, logs).
NODE_SHARE = 0.9
#: Per accelerator, where the host is unknown: what published SGLang deployments ask for (2.5-8 CPUs, 30-40 GiB).
FALLBACK_CPUS = 4.0
FALLBACK_MEMORY_BYTES = 32.0 * GIB
#: NCCL and the tensor-parallel workers exchange through /dev/shm, whose default is 64 MiB (llm-d's SGLang pods: 16Gi).
SHM_BYTES = 16 * GIB
#: What a server needs for each accelerator, where the node has it.
CPUS_PER_DEVICE = 8.0
MEMORY_PER_DEVICE = 48.0 * GIB
#: Removal from all endpoints takes seconds; until then requests still arrive (kserve, llm-d: 15 s).
PRE_STOP_S = 15
MIN_GRACE_S = 60
MAX_GRACE_S = 3600
PROBE_PERIOD_S = 10
#: The router: proxying is I/O on a few threads, its prefix tree a few hundred megabytes.
ROUTER_CPU = "2"
ROUTER_MEMORY = "4Gi"
#: It starts in seconds; the rest is patience with a slow node.
ROUTER_STARTUP_S = 120
#: A drained node must not take the only door with it.
ROUTER_REPLICAS = 2


@record
class PodSize:
    """What one pod asks of its node. ``shm_bytes`` 0 = the default /dev/shm is enough."""

    cpu: str
    memory_bytes: int
    shm_bytes: int


def gib(size_bytes: float) -> str:
    """A Kubernetes quantity of at least ``size_bytes``, in whole Gi."""
    return format_gib(max(size_bytes, 1.0))


def mib(size_bytes: int) -> str:
    """A Kubernetes quantity of a whole number of mebibytes, as ``Gi`` where that is exact."""
    whole = size_bytes // 2**20
    return f"{whole // 1024}Gi" if whole % 1024 == 0 else f"{whole}Mi"


def pod_size(role: Role, pool: PoolPlan) -> PodSize:
    """CPU and memory of one pod: what serving needs, at most its accelerators' share of the node.

    Published deployments ask for 2.5 to 8 CPUs and 30 to 40 GiB for each GPU (LLM-serving charts of OME and llm-d); more
    would only tie the pod to one cloud's hosts. Memory is raised to what loading the weights takes, as far as the node's
    other replicas leave room: the files are mapped and their pages can be reclaimed, so less makes a start slower, not
    impossible.
    """
    per_node, devices = max(pool.per_node, 1), pool.pod_devices(role.devices)
    share = devices / per_node * NODE_SHARE
    cpus = pool.node_cpus * share if pool.node_cpus else FALLBACK_CPUS * devices * NODE_SHARE
    cpus = min(cpus, CPUS_PER_DEVICE * devices)
    node_bytes = pool.node_memory_bytes or FALLBACK_MEMORY_BYTES * per_node
    shm = SHM_BYTES if devices > 1 else 0
    needed = role.checkpoint_bytes + PROCESS_BYTES * devices + shm
    room = node_bytes * NODE_SHARE / max(per_node // max(devices, 1), 1)
    memory = _whole(min(room, max(min(node_bytes * share, MEMORY_PER_DEVICE * devices), needed)))
    # /dev/shm is charged to the pod's memory, so it never gets more than half of it.
    return PodSize(_cpu(cpus), memory, min(shm, memory // 2) // 2**20 * 2**20)


def _whole(size_bytes: float) -> int:
    """Rounded down to whole GiB, to 256 MiB below 8 GiB."""
    grain = GIB if size_bytes >= 8 * GIB else GIB // 4
    return int(size_bytes) // grain * grain


def _cpu(cpus: float) -> str:
    """Whole CPUs where there is at least one (the static CPU manager pins only those), else thousandths."""
    return str(math.floor(cpus)) if cpus >= 1 else f"{max(100, math.floor(cpus * 10) * 100)}m"


def longest_decode_s(plan: Plan) -> float:
    """Seconds that the longest output of the traffic takes at the 99th percentile of ITL."""
    return plan.traffic.longest_output * plan.prediction.itl.p99


def grace_s(plan: Plan, role: Role | None) -> int:
    """terminationGracePeriodSeconds: the preStop sleep, then first token and longest decode of the last request.

    A prefill server ends with the prompt. ``role`` None is the router, which holds a request to its end. Between a
    minute and an hour: a pod that takes longer is stuck. In doublings of a minute, so that a refit of the predictions
    rarely changes the pod template and with it restarts every pod; a pod that has drained ends at once anyway.
    """
    drain = plan.prediction.ttft.p99
    if role is None or role.role != "prefill":
        drain += longest_decode_s(plan)
    if not math.isfinite(drain):
        return MAX_GRACE_S
    doublings = max(0, math.ceil(math.log2(max(PRE_STOP_S + drain, 1.0) / MIN_GRACE_S)))
    return int(min(MAX_GRACE_S, MIN_GRACE_S * 2**doublings))


def startup_failures(budget_s: float) -> int:
    """failureThreshold of a startup probe that gives ``budget_s`` at one probe per period."""
    return max(1, math.ceil(budget_s / PROBE_PERIOD_S))
