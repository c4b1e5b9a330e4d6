"""Facts to physics: one (model, accelerator, engine, precision, TP) becomes the coefficients of a step and of memory.

This is the only place where catalogue constants meet formulas. ``ideal`` is the textbook roofline: efficiency 1, no latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from servegen.catalog.accelerators import arithmetic
from servegen.catalog.engines import gemm_of
from servegen.catalog.facts import BYTES_PER_KV, AcceleratorFacts, EngineFacts, LayerGroup, ModelFacts
from servegen.roofline import attention, collectives, compute
from servegen.roofline.step import Array, StepTerms, stack

Physics = Literal["ideal", "calibrated"]

#: Share of the bandwidth at which the unembedding is read (docs/physics.md, calibrated form: V*D*2/(n*W*0.75)).
UNEMBEDDING_EFFICIENCY = 0.75
LINEAR_KINDS = frozenset({"attention", "mlp", "expert", "shared_expert", "router", "mixer"})


@dataclass(frozen=True)
class Config:
    """What one row of columns stands for."""

    accelerator: AcceleratorFacts
    weights: str
    kv: str
    tp: int


@dataclass(frozen=True)
class MemoryTerms:
    """Bytes on one device, shape (rows,); ``kv_bytes`` per cached token and group, (rows, groups)."""

    usable_bytes: Array
    weight_bytes: Array
    kv_bytes: Array
    state_bytes: Array
    window: Array

    def sequence_bytes(self, context: Array | float) -> Array:
        """Bytes of one sequence of ``context`` tokens on one device."""
        return np.asarray(np.sum(self.kv_bytes * attention.visible_tokens(context, self.window), axis=-1) + self.state_bytes)

    @property
    def token_bytes(self) -> Array:
        """Bytes that one more token takes on one device while no window is full."""
        return np.asarray(np.sum(self.kv_bytes, axis=-1))


@dataclass(frozen=True)
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
    columns = {name: np.array([m[name] for m in memory], dtype=np.float64) for name in memory[0]} if memory else {}
    return Lowered(tuple(configs), stack(rows, window), MemoryTerms(**columns, window=window))


def _linear_params(model: ModelFacts, experts: bool) -> float:
    """Parameters that every token multiplies (active ones), routed experts or all the rest."""
    return float(sum(t.active for t in model.tensors if t.kind in LINEAR_KINDS and (t.kind == "expert") == experts))


def _linear_bytes(model: ModelFacts, precision: str, experts: bool) -> float:
    """Bytes of the matrices that a step streams, routed experts or all the rest; the vocabulary stands apart."""
    return sum(
        model.tensor_bytes(t, precision) for t in model.tensors if t.kind in LINEAR_KINDS and (t.kind == "expert") == experts
    )


def _expert_idle(model: ModelFacts) -> float:
    """1 - k/E of the routed layers, 0 for a dense model."""
    moe = [g for g in model.layers if g.num_experts]
    return 1.0 - moe[0].experts_per_token / moe[0].num_experts if moe else 0.0


def _step(model: ModelFacts, engine: EngineFacts, config: Config, physics: Physics) -> dict[str, Any]:
    acc, tp, ideal = config.accelerator, config.tp, physics == "ideal"
    math = arithmetic(acc, config.weights)
    gemm = gemm_of(engine, acc, config.weights)
    stream_share, peak_share = (1.0, 1.0) if ideal else (gemm.ew, gemm.ec)
    kv_share, attention_share = (1.0, 1.0) if ideal else (
        engine.kv_efficiency.value * engine.kv_share.get(f"{acc.id}.{config.kv}", 1.0),
        engine.attention_efficiency.value,
    )
    width = acc.hbm_bytes_per_s
    bf16 = acc.peak_flops["bf16"]
    vocabulary = model.vocab_size * model.hidden_size * 2.0
    vocabulary_share = 1.0 if ideal else UNEMBEDDING_EFFICIENCY
    active = _linear_params(model, experts=False) + _linear_params(model, experts=True)
    reads, pairs = zip(*(_group(g, config, kv_share * width, attention_share * bf16) for g in model.layers), strict=True)
    state = sum(g.count * g.attention.state_bytes for g in model.layers)
    latency, wire = _collectives(model, engine, config, ideal)
    return {
        "launch_s": 0.0 if ideal else engine.step_s.value + model.num_layers * engine.layer_s.value,
        "prompt_s": 0.0 if ideal else model.num_layers * engine.prompt_layer_s.value,
        "latency_s": latency,
        "sequence_s": 0.0 if ideal else engine.sequence_s.value,
        "weight_s": compute.stream_s(_linear_bytes(model, config.weights, experts=False), tp, width, stream_share)
        + compute.stream_s(vocabulary, tp, width, vocabulary_share),
        "expert_s": compute.stream_s(_linear_bytes(model, config.weights, experts=True), tp, width, stream_share),
        "expert_idle": _expert_idle(model),
        "token_flop_s": compute.flop_s_per_token(active, tp, acc.peak_flops[math], peak_share),
        "token_wire_s": wire,
        "token_read_s": reads,
        # A linear-attention or Mamba state is read and written once per step.
        "state_s": 2.0 * state / (tp * width * kv_share),
        "pair_s": pairs,
    }


def _collectives(model: ModelFacts, engine: EngineFacts, config: Config, ideal: bool) -> tuple[float, float]:
    """Seconds of all-reduce latency per step, and of all-reduce wire time per token."""
    acc, tp = config.accelerator, config.tp
    if tp == 1:
        return 0.0, 0.0
    count = collectives.ALLREDUCES_PER_LAYER * model.num_layers
    message = model.hidden_size * 2.0
    if ideal:
        return 0.0, count * collectives.allreduce_wire_bytes(message, tp) / acc.link_bytes_per_s
    alpha = engine.allreduce_latency_factor.value * acc.allreduce_alpha_s[tp]
    # A calibrated fabric is never faster than the link it runs over.
    speed = min(engine.allreduce_bandwidth_factor.value * acc.allreduce_bytes_per_s[tp], acc.link_bytes_per_s)
    return count * alpha, count * collectives.allreduce_wire_bytes(message, tp) / speed


def _group(group: LayerGroup, config: Config, bytes_per_s: float, flops: float) -> tuple[float, float]:
    """Seconds per cached token of one decoding query, and per prefill pair, of one group of layers on one device."""
    att, tp = group.attention, config.tp
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
        return attention.mla_bytes_per_token(group.count, att.kv_lora_rank, att.rope_head_dim, element)
    heads = attention.kv_heads_per_device(att.num_kv_heads, config.tp)
    return attention.kv_bytes_per_token(group.count, heads, att.head_dim, att.v_head_dim or att.head_dim, element)


def _memory(model: ModelFacts, engine: EngineFacts, config: Config, physics: Physics) -> dict[str, Any]:
    tp = config.tp
    total = model.weight_bytes(config.weights)
    # With more ranks than KV heads every rank keeps whole heads: the K and V projections are repeated, not split.
    repeated = sum(
        g.count
        * 2.0
        * model.hidden_size
        * g.attention.num_kv_heads
        * g.attention.head_dim
        * max(tp / g.attention.num_kv_heads - 1.0, 0.0)
        for g in model.layers
        if g.attention.kind in ("full", "sliding", "chunked") and g.attention.num_kv_heads
    )
    per_param = total / model.params_total
    slack = 1.0 if physics == "ideal" else engine.memory.weights_overhead
    return {
        "usable_bytes": config.accelerator.hbm_bytes if physics == "ideal" else config.accelerator.usable_bytes,
        "weight_bytes": (total + repeated * per_param) / tp * slack,
        "kv_bytes": [_kv_bytes(g, config) for g in model.layers],
        "state_bytes": sum(g.count * g.attention.state_bytes for g in model.layers) / tp,
    }
