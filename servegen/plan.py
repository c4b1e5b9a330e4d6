"""The IR: everything that rendering needs and a reviewer asks for, frozen, with a JSON round trip and a content hash.

A plan holds no clock, host, path of this machine or secret value. Seconds, bytes, tokens; dollars per hour.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Literal

from servegen.codec import Unsure, dumps, parsed, read_as
from servegen.rationale import Alternative, Case, Flip, Missing, ParetoPoint, Topology, Waterfall
from servegen.record import record

RoleName = Literal["serve", "prefill", "decode"]


@record
class Quantiles:
    """Of one latency, seconds."""

    mean: Unsure
    p50: Unsure
    p95: Unsure
    p99: Unsure


@record
class MemoryPlan:
    """Bytes on one device, by what they are for. ``kv_tokens`` is the pool of one replica, in tokens."""

    usable_bytes: float
    weight_bytes: float
    kv_pool_bytes: float
    activation_bytes: float
    graph_bytes: float
    collective_bytes: float
    runtime_bytes: float
    kv_bytes_per_token: float
    kv_tokens: int
    draft_bytes: float = 0.0  # the model that drafts, and its graphs


@record
class Role:
    """One kind of server. ``devices`` counts one replica's accelerators (tp x pp); ``pool`` indexes the spec's pool.
    ``share`` is the part of the requests that pass through it: all of them, unless it is ``grouped``: one of two groups of
    replicas, each on its own entry of the pool.

    ``load`` is what the engine is told to load (a Hugging Face id or path), ``quantization`` the method that it applies
    while loading ("" = as the checkpoint is stored). ``checkpoint_bytes`` are the files' bytes, read once per replica.
    """

    role: RoleName
    accelerator: str
    pool: int
    weights: str
    kv: str
    tp: int
    pp: int
    dp: int
    ep: int
    replicas: int
    spares: int
    devices: int
    max_running_requests: int
    chunked_prefill_size: int
    mixed_chunk: bool
    mem_fraction_static: float
    context_length: int
    load: str
    quantization: str
    checkpoint_bytes: float
    memory: MemoryPlan
    utilization: float
    running_requests: float  # mean decode batch at the sized load
    step_time_s: float  # decode step that a token waits for then
    prefill_time_s: float  # prefill of the mean prompt, alone
    breakdown_s: Mapping[str, float]  # of that decode step: weights kv compute attention collectives overhead
    bound: str  # what that step is bound by
    grouped: bool = False
    share: float = 1.0

    @property
    def name(self) -> str:
        """Unique in a plan: the role, and of groups the entry of the pool as well (``serve-1``)."""
        return f"{self.role}-{self.pool}" if self.grouped else self.role

    @property
    def total_replicas(self) -> int:
        return self.replicas + self.spares

    @property
    def total_devices(self) -> int:
        return self.devices * self.total_replicas


@record
class SpeculativePlan:
    """Speculative decoding as the spec allows it and as the plan uses it: ``drafted`` tokens ahead of every step, 0 = not at all.

    ``draft`` is what the engine is told to load for it, "" where nothing or the target's own checkpoint drafts;
    ``tokens_per_step`` what a decode step yields of each sequence.
    """

    method: str
    draft: str
    acceptance: float
    drafted: int
    tokens_per_step: float


@record
class Choice:
    engine: str
    engine_version: str
    topology: Topology
    roles: tuple[Role, ...]
    devices: int  # spares included
    cost_per_hour: float
    cost_per_million_output_tokens: Unsure
    watts: Unsure

    @property
    def balance(self) -> tuple[int, float] | None:
        """Of two groups: how many requests in flight, and what factor, replicas may differ by while the router follows its cache.

        The groups were sized for equal numbers in flight, so the router's own wide defaults will not do. None without groups.
        """
        if not any(r.grouped for r in self.roles):
            return None
        return max(1, round(UNEVEN * min(r.running_requests for r in self.roles))), 1.0 + UNEVEN

    @property
    def ratio(self) -> str:
        """``2P3D`` for a split plan, ``4x`` for an aggregated one, ``4x+3x`` for one of two groups."""
        counts = {r.role: r.replicas for r in self.roles}
        if "serve" in counts:
            return "+".join(f"{r.replicas}x" for r in self.roles)
        return f"{counts.get('prefill', 0)}P{counts.get('decode', 0)}D"


#: Share of the requests in flight by which a replica of two groups may exceed another before its load outweighs its cache.
UNEVEN = 0.1


@record
class Band:
    """Low and high end of a prediction as factors on it (0.92, 1.09)."""

    low: float
    high: float


@record
class Prediction:
    """At the sized load. ``slo_attainment`` is the share of requests that meet every bound; ``band`` by metric."""

    ttft: Quantiles
    itl: Quantiles
    e2e: Quantiles
    output_tokens_per_second: Unsure
    utilization: Unsure
    slo_attainment: Unsure
    sustained_rate: Unsure  # requests/s that the whole deployment carries at utilisation 1
    load_rate: float  # requests/s it was sized for
    band: Mapping[str, Band]
    floor: Mapping[str, Unsure]  # ideal roofline: prefill_time_s, step_time_s
    extrapolated: tuple[str, ...]  # constants without a fit of their own, by the rule that gave them
    tpot: Quantiles | None = None  # where tokens come in bursts, whose single gaps say little
    bounds: Mapping[str, Unsure] = field(default_factory=dict)  # what each bound of the SLO is predicted to come to


@record
class PoolPlan:
    """One entry of the spec's pool, resolved: what rendering must know of the hardware."""

    accelerator: str
    name: str
    vendor: str
    nodes: int
    per_node: int
    price_per_hour: float
    price_source: str
    node_cpus: int
    node_memory_bytes: float
    resource: str
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    fabric_bytes_per_s: float  # one way, per accelerator; 0 = none stated
    rdma: bool
    rdma_resource: str
    storage_bytes_per_s: float
    others: Mapping[str, int] = field(default_factory=dict)  # in a fleet: accelerators of a server -> other members' servers

    def nodes_of(self, devices: int) -> int:
        """Nodes that a replica of ``devices`` lies on: whole ones if it is more than one."""
        return -(-devices // max(1, self.per_node))

    def pod_devices(self, devices: int) -> int:
        """Accelerators of one pod of such a replica: all of them, or a whole node's."""
        return min(devices, max(1, self.per_node))


@record
class CachePlan:
    """Where weights live: exactly one of ``claim``, ``host_path`` or ``size_bytes`` (a claim is created) is set."""

    claim: str = ""
    host_path: str = ""
    size_bytes: float = 0.0
    storage_class: str = ""


@record
class DeployPlan:
    """The spec's ``deploy`` section, every default applied."""

    image: str
    namespace: str
    kubernetes_version: str
    image_pull_secrets: tuple[str, ...]
    cache: CachePlan
    hf_token_secret: tuple[str, str] | None  # (name, key)
    autoscaling: Literal["none", "hpa", "keda"]
    autoscaling_min: Mapping[str, int]  # by the role's name, from the trough
    autoscaling_max: Mapping[str, int]  # likewise, from the pool
    autoscaling_queue: Mapping[str, float]  # waiting requests per replica that call for another
    monitoring: bool
    network_policy_from: tuple[Mapping[str, Any], ...] | None
    priority_class: str
    runtime_class: str
    args: Mapping[str, Any]
    env: Mapping[str, str]
    patches: tuple[tuple[str, str], ...]  # (file name, content)
    autoscaling_kv: Mapping[str, float] = field(default_factory=dict)  # share of the KV pool in use that calls for another


@record
class ModelPlan:
    """What launch commands must know of the model; ``hf_config`` holds the fields that Megatron's architecture flags need."""

    id: str
    served_name: str
    architecture: str
    params_total: int
    params_active: int
    trust_remote_code: bool
    context_length: int
    max_context: int
    hf_config: Mapping[str, Any]


@record
class TrafficPlan:
    """What the plan was sized for. ``longest_output`` bounds the drain time of a pod."""

    rate: float  # requests/s, 0 = saturate
    trough: float
    concurrency: float
    isl_mean: float
    osl_mean: float
    isl_p95: float
    osl_p95: float
    longest_output: int
    prefix_hit: float
    burstiness: float
    objective: str
    prefix_source: str = ""  # what the hits rest on: trace, shared or hitRate; "" = none
    prefix_unbounded: float = 0.0  # share that one cache of any size would find
    prefix_spread: float = 0.0  # share that as many caches as are planned would find if the KV pool did not bound them
    prefix_kept_tokens: float = 0.0  # what each cache must keep for the hits, prompts in work included
    prefix_caches: int = 0


@record
class Verification:
    """That the plan was replayed and kept every bound: with how many requests, how they arrived and of which seed, and what
    share of its sustained load a replica was left with; ``found`` has a sentence for each replay, the last one of this plan.

    It stands in the lock, so that a tree is checked as it was built.
    """

    arrivals: str
    requests: int
    seed: int
    utilization: float
    found: tuple[str, ...]


@record
class Plan:
    name: str
    feasible: bool
    model: ModelPlan
    traffic: TrafficPlan
    slo: Mapping[str, float]  # bound id ("ttft.p95") -> seconds
    choice: Choice
    prediction: Prediction
    binding: tuple[str, ...]
    why: tuple[str, ...]
    flips: tuple[Flip, ...]
    cases: tuple[Case, ...]
    missing: tuple[Missing, ...]
    alternatives: tuple[Alternative, ...]
    pareto: tuple[ParetoPoint, ...]
    searched: int
    rejected: Mapping[str, int]
    pool: tuple[PoolPlan, ...]
    deploy: DeployPlan
    spec: Mapping[str, Any]  # the spec with every default applied
    inputs: Mapping[str, str]  # name of an input -> sha256 of its content
    facts: Mapping[str, Any]  # the constants that the prediction used, with their sources
    notes: tuple[str, ...] = field(default=())
    verification: Verification | None = None
    speculative: SpeculativePlan | None = None
    waterfalls: tuple[Waterfall, ...] = field(default=())  # TTFT and ITL, and what else is bounded
    made_by: str = ""  # version of servegen; no input, so that a locked plan outlives it

    def role(self, name: str) -> Role:
        """The role of that name; KeyError if the plan has none."""
        for role in self.choice.roles:
            if role.name == name:
                return role
        raise KeyError(name)

    def nodes(self, role: Role) -> int:
        """Nodes that one replica of ``role`` lies on."""
        return self.pool[role.pool].nodes_of(role.devices)

    @property
    def content_hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical JSON, whichever version of servegen made the plan."""
        return hashlib.sha256(dumps(replace(self, made_by=""), indent=None).encode()).hexdigest()[:16]


def loads(text: str) -> Plan:
    """The inverse of :func:`dumps`. Raises ValueError, KeyError or TypeError on anything that is not a plan."""
    return parsed(Plan, text)


def read(text: str) -> Plan:
    """The plan in a file that anybody may have edited: as :func:`loads`, and ValueError where it contradicts itself."""
    plan = read_as(lambda edited: parsed(Plan, edited, edited=True), text)
    roles = plan.choice.roles
    wanted = ("prefill", "decode") if plan.choice.topology == "disaggregated" else ("serve",)
    groups = len(roles) == 2 and all(r.grouped and r.role == "serve" for r in roles) and roles[0].pool != roles[1].pool
    if tuple(r.role for r in roles) != wanted and not (wanted == ("serve",) and groups):
        raise ValueError(f"{plan.choice.topology} serving has the roles {', '.join(wanted)}")
    if any(r.grouped for r in roles) and not groups:
        raise ValueError("groups of replicas are two serve roles, each on an entry of the pool of its own")
    for r in roles:
        if not 0 <= r.pool < len(plan.pool) or plan.pool[r.pool].accelerator != r.accelerator:
            raise ValueError(f"the {r.role} role stands on no entry of the pool")
        counts = (r.tp, r.pp, r.dp, r.ep, r.replicas, r.max_running_requests, r.chunked_prefill_size, r.context_length)
        if min(counts) < 1 or r.spares < 0 or r.devices != r.tp * r.pp:
            raise ValueError(f"the counts of the {r.role} role are none: at least 1 each, and devices = tp x pp")
    if plan.choice.devices != sum(r.total_devices for r in roles):
        raise ValueError("devices is not the sum of the roles'")
    if {m.role for m in plan.missing} - {r.name for r in roles}:
        raise ValueError("a replica is missing of a role that the plan does not have")
    return plan
