"""Facts to physics: one (model, accelerator, engine, precision, parallelism) becomes the coefficients of a step and of memory.

This is the only place where catalogue constants meet formulas. ``ideal`` is the textbook roofline: efficiency 1, no latency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from servegen.catalog.accelerators import arithmetic
from servegen.catalog.engines import attention_of, gemm_of
from servegen.catalog.facts import BYTES_PER_KV, AcceleratorFacts, EngineFacts, LayerGroup, ModelFacts
from servegen.record import record
from servegen.roofline import attention, collectives, compute
from servegen.roofline.speculation import DraftMemory
from servegen.roofline.step import Array, StepTerms, stack

Physics = Literal["ideal", "calibrated"]

#: Share of the bandwidth at which the unembedding is read (docs/physics.md, calibrated form: V*D*2/(n*W*0.75)).
UNEMBEDDING_EFFICIENCY = 0.75
LINEAR_KINDS = frozenset({"attention", "mlp", "expert", "shared_expert", "router", "mixer"})
#: Of them those that belong to a sequence's attention group when attention is data-parallel.
GROUP_KINDS = frozenset({"attention", "mixer"})
#: Tokens of the busiest expert-parallel rank over the mean, for experts are not asked for evenly (docs/physics.md: the
#: literature's default is 1.2 to 1.5; the lower end, as serving engines rebalance).
EXPERT_SKEW = 1.2


@record
class Config:
    """What one row of columns stands for: a replica of ``tp * pp`` devices (design: dp inside tp, ep divides tp).

    ``node`` is how many devices share a scale-up domain, 0 for all of them; beyond it they talk over ``fabric_bytes_per_s``
    (one way, each). ``drafted`` tokens are guessed ahead of each step (``solve/drafting.py``).
    """

    accelerator: AcceleratorFacts
    weights: str
    kv: str
    tp: int
    pp: int = 1
    dp: int = 1
    ep: int = 1
    node: int = 0
    fabric_bytes_per_s: float = 0.0
    drafted: int = 0

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.tp * self.pp

    @property
    def attention_tp(self) -> int:
        """Devices that share the heads of one sequence."""
        return self.tp // self.dp

    def nodes(self, devices: int) -> int:
        """Scale-up domains over which ``devices`` neighbours lie."""
        return -(-devices // self.node) if self.node else 1


@record
class MemoryTerms:
    """Bytes on one device, shape (rows,); ``kv_bytes`` per cached token and group, (rows, groups)."""

    usable_bytes: Array
    weight_bytes: Array
    kv_bytes: Array
    state_bytes: Array
    window: Array
    draft: DraftMemory | None = None

    def sequence_bytes(self, context: Array | float) -> Array:
        """Bytes of one sequence of ``context`` tokens on one device."""
        return np.asarray(np.sum(self.kv_bytes * attention.visible_tokens(context, self.window), axis=-1) + self.state_bytes)

    @property
    def token_bytes(self) -> Array:
        """Bytes that one more token takes on one device while no window is full."""
        return np.asarray(np.sum(self.kv_bytes, axis=-1))


@record
class Lowered:
    """Physics of a list of configurations."""

    configs: tuple[Config, ...]
    terms: StepTerms
    memory: MemoryTerms


def lower(model: ModelFacts, engine: EngineFacts, configs: Sequence[Config], physics: Physics = "calibrated") -> Lowered:
    """Coefficients of every configuration, in order."""
    window = np.array([float(g.attention.window) for g in model.layers])
    rows = [_step(model, engine, c, physics) for c in configs]
    memory = [_memory(model, engine, c, physics) for c in configs]
    names = memory[0] if memory else {}
    columns: dict[str, Any] = {name: np.array([m[name] for m in memory], dtype=np.float64) for name in names}
    return Lowered(tuple(configs), stack(rows, window), MemoryTerms(**columns, window=window))


#: How the linear layers are cut over devices: by attention group, by expert, or by all of TP.
_EXPERTS = frozenset({"expert"})
_REST = LINEAR_KINDS - GROUP_KINDS - _EXPERTS


def _linear_params(model: ModelFacts, kinds: frozenset[str]) -> float:
    """Parameters of these kinds that every token multiplies (active ones)."""
    return float(sum(t.active for t in model.tensors if t.kind in kinds))


def _linear_bytes(model: ModelFacts, precision: str, kinds: frozenset[str]) -> float:
    """Bytes of the matrices of these kinds that a step streams; the vocabulary stands apart."""
    return sum(model.tensor_bytes(t, precision) for t in model.tensors if t.kind in kinds)


def _stage_share(model: ModelFacts, config: Config) -> float:
    """Share of the layers on the fullest stage of a pipeline."""
    return math.ceil(model.num_layers / config.pp) / model.num_layers


def _expert_idle(model: ModelFacts) -> float:
    """1 - k/E of the routed layers, 0 for a dense model."""
    moe = [g for g in model.layers if g.num_experts]
    return 1.0 - moe[0].experts_per_token / moe[0].num_experts if moe else 0.0


def _step(model: ModelFacts, engine: EngineFacts, config: Config, physics: Physics) -> dict[str, Any]:
    """Coefficients of the slowest stage; the unembedding is on the last one, which is taken to be no emptier than others."""
    acc, tp, ideal = config.accelerator, config.tp, physics == "ideal"
    share = _stage_share(model, config)
    math_dtype = arithmetic(acc, config.weights)
    gemm = gemm_of(engine, acc, config.weights)
    stream_share, peak_share = (1.0, 1.0) if ideal else (gemm.ew, gemm.ec)
    kv_share, _ = _attention_shares(engine, config, ideal)
    width, peak = acc.hbm_bytes_per_s, acc.peak_flops[math_dtype]
    vocabulary = model.vocab_size * model.hidden_size * 2.0
    vocabulary_share = 1.0 if ideal else UNEMBEDDING_EFFICIENCY
    skew = EXPERT_SKEW if config.ep > 1 and not ideal else 1.0
    grouped, experts = _linear_params(model, GROUP_KINDS), _linear_params(model, _EXPERTS)
    shared = _linear_params(model, _REST) + skew * experts + (grouped if config.dp == 1 else 0.0)
    reads, pairs = attention_s(model, engine, config, physics)
    state = sum(g.count * g.attention.state_bytes for g in model.layers)
    latency, wire = _collectives(model, engine, config, ideal)
    launch = 0.0 if ideal else engine.step_s.value + share * model.num_layers * engine.layer_s.value
    streamed = _linear_bytes(model, config.weights, _REST) + config.dp * _linear_bytes(model, config.weights, GROUP_KINDS)
    spread = math.sqrt(2.0 * math.log(config.ep) * config.ep / _experts(model)) if config.ep > 1 and not ideal else 0.0
    return {
        "launch_s": launch,
        "prompt_s": 0.0 if ideal else share * model.num_layers * engine.prompt_layer_s.value,
        "latency_s": latency,
        "sequence_s": 0.0 if ideal else engine.sequence_s.value,
        "weight_s": share * compute.stream_s(streamed, tp, width, stream_share)
        + compute.stream_s(vocabulary, tp, width, vocabulary_share),
        "expert_s": share * compute.stream_s(_linear_bytes(model, config.weights, _EXPERTS), tp, width, stream_share),
        "expert_idle": _expert_idle(model),
        "token_flop_s": share * compute.flop_s_per_token(shared, tp, peak, peak_share),
        "token_wire_s": wire,
        "token_read_s": reads,
        # A linear-attention or Mamba state is read and written once per step.
        "state_s": share * 2.0 * state / (config.attention_tp * width * kv_share),
        "pair_s": pairs,
        "stages": float(config.pp),
        "groups": float(config.dp),
        "group_flop_s": share * compute.flop_s_per_token(grouped, config.attention_tp, peak, peak_share)
        if config.dp > 1
        else 0.0,
        "expert_spread": spread,
    }


def _experts(model: ModelFacts) -> int:
    return max(g.num_experts for g in model.layers)


def _collectives(model: ModelFacts, engine: EngineFacts, config: Config, ideal: bool) -> tuple[float, float]:
    """Seconds of latency of a stage's collectives in a step, and of wire time per token.

    Tensor parallelism reduces after attention and after the MLP. With attention groups the first stays inside the group, and
    the tokens of all groups are gathered before the MLP and scattered after it, which moves what an all-reduce moves.
    A pipeline hands the tokens' hidden states on to the next stage.
    """
    layers = _stage_share(model, config) * model.num_layers
    message = model.hidden_size * 2.0
    latency = wire = 0.0
    for devices, gathers in ((config.attention_tp, False), (config.tp, config.dp > 1)):
        if devices == 1:
            continue
        alpha, speed = (0.0, _ideal_speed(config, devices)) if ideal else _allreduce(engine, config, devices, gathers)
        latency += layers * alpha
        wire += layers * collectives.allreduce_wire_bytes(message, devices) / speed
    if config.pp > 1:
        # Each device of a stage sends its part of the hidden states to its peer in the next one.
        across = config.node and config.devices > config.node
        link = config.fabric_bytes_per_s if across else config.accelerator.link_bytes_per_s
        latency += 0.0 if ideal else (collectives.CROSSING.node_s if across else collectives.CROSSING.pair_s)
        wire += message / (config.tp * link)
    return latency, wire


def _ideal_speed(config: Config, devices: int) -> float:
    """Bytes/s of each device in a ring: its link, or the share of the network that the ring passes through."""
    link = config.accelerator.link_bytes_per_s
    return link if config.nodes(devices) == 1 else min(link, config.node * config.fabric_bytes_per_s)


def _allreduce(engine: EngineFacts, config: Config, devices: int, gathers: bool) -> tuple[float, float]:
    """Latency and bytes/s of an all-reduce over ``devices`` neighbours.

    The engine's own kernels reach over one domain and only reduce; the rest is the communication library's.
    """
    acc, nodes = config.accelerator, config.nodes(devices)
    inside = devices // nodes
    # A calibrated fabric is never faster than the link it runs over.
    speed = min(engine.allreduce_bandwidth_factor.value * acc.allreduce_bytes_per_s.get(inside, math.inf), acc.link_bytes_per_s)
    if nodes > 1:
        speed = min(speed, collectives.crossing_bytes_per_s(inside, config.fabric_bytes_per_s))
        return collectives.gather_latency_s(inside, nodes), speed
    own = engine.allreduce_latency_factor.value * acc.allreduce_alpha_s[devices]
    return max(own, collectives.gather_latency_s(devices, 1)) if gathers else own, speed


def _attention_shares(engine: EngineFacts, config: Config, ideal: bool) -> tuple[float, float]:
    """Achieved shares of the bandwidth in reading KV and of the peak in prefill attention."""
    if ideal:
        return 1.0, 1.0
    kv, attends = attention_of(engine, config.accelerator)
    return kv.value * engine.kv_share.get(f"{config.accelerator.id}.{config.kv}", 1.0), attends.value


def attention_s(model: ModelFacts, engine: EngineFacts, config: Config, physics: Physics) -> tuple[list[float], list[float]]:
    """Seconds per cached token of one decoding query, and per prefill pair, of each group of layers on the fullest stage."""
    acc, share = config.accelerator, _stage_share(model, config)
    kv_share, attention_share = _attention_shares(engine, config, physics == "ideal")
    width, flops = kv_share * acc.hbm_bytes_per_s, attention_share * acc.peak_flops["bf16"]
    each = [_group(g, config, width, flops) for g in model.layers]
    return [share * read for read, _ in each], [share * pair for _, pair in each]


def _group(group: LayerGroup, config: Config, bytes_per_s: float, flops: float) -> tuple[float, float]:
    """Seconds per cached token of one decoding query, and per prefill pair, of one group of layers on one device."""
    att, tp = group.attention, config.attention_tp
    element = BYTES_PER_KV[config.kv]
    if att.kind in ("none", "linear", "mamba"):
        return 0.0, 0.0
    pair = attention.flops_per_pair(group.count, att.num_heads, att.head_dim, att.v_head_dim or att.head_dim) / (tp * flops)
    if att.kind == "mla":
        read = attention.mla_bytes_per_token(group.count, att.kv_lora_rank, att.rope_head_dim, element) / bytes_per_s
        work = attention.mla_decode_flops_per_token(group.count, att.num_heads, att.kv_lora_rank, att.rope_head_dim)
        return max(read, work / (tp * flops)), pair
    return _kv_bytes(group, config) / bytes_per_s, pair


def _kv_bytes(group: LayerGroup, config: Config) -> float:
    """Bytes of one cached token on one device."""
    att = group.attention
    element = BYTES_PER_KV[config.kv]
    if att.kind in ("none", "linear", "mamba"):
        return 0.0
    if att.kind == "mla":
        latent = attention.mla_bytes_per_token(group.count, att.kv_lora_rank, att.rope_head_dim, element)
        return latent + attention.index_bytes_per_token(group.count, att.index_head_dim)
    heads = attention.kv_heads_per_device(att.num_kv_heads, config.attention_tp)
    return attention.kv_bytes_per_token(group.count, heads, att.head_dim, att.v_head_dim or att.head_dim, element)


def _memory(model: ModelFacts, engine: EngineFacts, config: Config, physics: Physics) -> dict[str, Any]:
    """Bytes on a device of the fullest stage."""
    share, at = _stage_share(model, config), config.attention_tp
    total = model.weight_bytes(config.weights)
    ends = sum(model.tensor_bytes(t, config.weights) for t in model.tensors if t.kind in ("embedding", "lm_head"))
    layers = total - ends
    if config.pp > 1:  # the embedding is on the first stage and the unembedding on the last; a tied one is on both
        ends = max(model.tensor_bytes(t, config.weights) for t in model.tensors if t.kind in ("embedding", "lm_head"))
    repeated = sum(model.tensor_bytes(t, config.weights) for t in model.tensors if t.kind in GROUP_KINDS) * (config.dp - 1.0)
    # With more ranks than KV heads every rank keeps whole heads: the K and V projections are repeated, not split.
    copies = sum(
        g.count
        * 2.0
        * model.hidden_size
        * g.attention.num_kv_heads
        * g.attention.head_dim
        * max(at / g.attention.num_kv_heads - 1.0, 0.0)
        for g in model.layers
        if g.attention.kind in ("full", "sliding", "chunked") and g.attention.num_kv_heads
    )
    per_param = total / model.params_total
    slack = 1.0 if physics == "ideal" else engine.memory.weights_overhead
    return {
        "usable_bytes": config.accelerator.hbm_bytes if physics == "ideal" else config.accelerator.usable_bytes,
        "weight_bytes": (share * (layers + repeated + config.dp * copies * per_param) + ends) / config.tp * slack,
        "kv_bytes": [share * _kv_bytes(g, config) for g in model.layers],
        "state_bytes": share * sum(g.count * g.attention.state_bytes for g in model.layers) / at,
    }
