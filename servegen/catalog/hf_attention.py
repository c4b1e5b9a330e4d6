"""Token mixers: config fields -> ``Attention`` and the weights of one layer, one function per kind."""

from __future__ import annotations

from typing import Literal

from servegen.catalog.facts import Attention
from servegen.catalog.hf_family import Family, Switch
from servegen.catalog.hf_fields import Fields, shown
from servegen.catalog.hf_tensors import Weight, biased, vector

Mixer = tuple[Attention, tuple[Weight, ...]]

#: Bytes of one element of a recurrent state, by the config's name for its type.
_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: Convolution states stay in the model's own 16 bits.
_CONV_BYTES = 2


def switched(f: Fields, switch: Switch) -> bool:
    """The value of a family's switch: a constant, or the config field of that name."""
    return f.flag(switch) if isinstance(switch, str) else switch


def head_counts(f: Fields) -> tuple[int, int, int]:
    """(query heads, KV heads, head dimension); KV heads default to the query heads, as in every family's own code."""
    heads = f.size("num_attention_heads")
    kv_heads = f.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        f.refuse("num_key_value_heads", f"{kv_heads} does not divide the {heads} attention heads")
    if f.has("head_dim"):
        return heads, kv_heads, f.size("head_dim")
    hidden = f.size("hidden_size")
    if hidden % heads:
        f.refuse("num_attention_heads", f"{heads} does not divide hidden_size {hidden}, and head_dim is missing")
    return heads, kv_heads, hidden // heads


def gqa(
    f: Fields,
    family: Family,
    kind: Literal["full", "sliding", "chunked"] = "full",
    window: int = 0,
    shape: tuple[int, int, int, int] | None = None,
    value_from_key: bool = False,
    output_gate: bool = False,
    prefix: str = "self_attn",
) -> Mixer:
    """Grouped-query attention. ``shape`` = (heads, KV heads, head dim, value head dim) where a layer has its own."""
    hidden = f.size("hidden_size")
    if shape is None:
        heads, kv_heads, dim = head_counts(f)
        shape = (heads, kv_heads, dim, dim)
    heads, kv_heads, dim, v_dim = shape
    q, k, v = heads * dim * (2 if output_gate else 1), kv_heads * dim, 0 if value_from_key else kv_heads * v_dim
    bias = switched(f, family.qkv_bias)
    weights: list[Weight] = []
    if family.fused:
        weights += biased(Weight(f"{prefix}.qkv_proj", "attention", q + k + v, hidden), bias)
    else:
        for name, rows in (("q_proj", q), ("k_proj", k), ("v_proj", v)):
            if rows:
                weights += biased(Weight(f"{prefix}.{name}", "attention", rows, hidden), bias)
    weights += biased(Weight(f"{prefix}.o_proj", "attention", hidden, heads * v_dim), switched(f, family.out_bias))
    if family.qk_norm and (not family.qk_norm_when or f.flag(family.qk_norm_when)):
        q_norm, k_norm = (dim, dim) if family.qk_norm == "head" else (heads * dim, kv_heads * dim)
        each = 2 if family.norm_bias and family.qk_norm == "head" else 1  # Phi's norms have biases
        weights += [vector("q_norm", "norm", each * q_norm), vector("k_norm", "norm", each * k_norm)]
    if family.output_gate:
        rows = heads if family.output_gate == "head" else heads * v_dim
        weights.append(Weight(f"{prefix}.gate_proj", "attention", rows, hidden))
    if family.sinks:
        weights.append(vector(f"{prefix}.sinks", "attention", heads))
    return Attention(kind, heads, kv_heads, dim, v_dim, window), tuple(weights)


def mla(f: Fields, indexer: bool) -> Mixer:
    """Multi-head latent attention (F6b), with DeepSeek's sparse-attention indexer where ``indexer``.

    ``num_kv_heads`` is 1: all heads read the one latent vector that the cache holds per token.
    """
    hidden, heads = f.size("hidden_size"), f.size("num_attention_heads")
    rank, rope = f.size("kv_lora_rank"), f.size("qk_rope_head_dim")
    nope, v_dim = f.size("qk_nope_head_dim"), f.size("v_head_dim")
    bias = f.flag("attention_bias")
    q_rank = f.size("q_lora_rank") if f.has("q_lora_rank") else 0
    query = heads * (nope + rope)

    def weight(name: str, rows: int, cols: int) -> Weight:
        return Weight(f"self_attn.{name}", "attention", rows, cols)

    weights: list[Weight] = []
    if q_rank:
        weights += biased(weight("q_a_proj", q_rank, hidden), bias)
        weights += [vector("self_attn.q_a_layernorm", "norm", q_rank), weight("q_b_proj", query, q_rank)]
    else:
        weights.append(weight("q_proj", query, hidden))
    weights += biased(weight("kv_a_proj_with_mqa", rank + rope, hidden), bias)
    weights += [vector("self_attn.kv_a_layernorm", "norm", rank), weight("kv_b_proj", heads * (nope + v_dim), rank)]
    weights += biased(weight("o_proj", hidden, heads * v_dim), bias)
    if indexer:
        if not q_rank:
            f.refuse("q_lora_rank", "required by the sparse-attention indexer, but missing")
        index_heads, index_dim = f.size("index_n_heads"), f.size("index_head_dim")
        weights += [
            weight("indexer.wq_b", index_heads * index_dim, q_rank),
            weight("indexer.wk", index_dim, hidden),
            vector("self_attn.indexer.k_norm", "norm", 2 * index_dim),
            Weight("self_attn.indexer.weights_proj", "attention", index_heads, hidden, linear=False),
        ]
    index_dim = f.size("index_head_dim") if indexer else 0
    attention = Attention("mla", heads, 1, nope + rope, v_dim, kv_lora_rank=rank, rope_head_dim=rope, index_head_dim=index_dim)
    return attention, tuple(weights)


def gated_delta(f: Fields, split: bool) -> Mixer:
    """Gated delta net (Qwen3-Next, Qwen3.5); ``split`` = the projections are separate tensors.

    State per sequence: value heads x key dim x value dim, and the last kernel - 1 inputs of the convolution.
    """
    hidden, kernel = f.size("hidden_size"), f.size("linear_conv_kernel_dim")
    k_heads, v_heads = f.size("linear_num_key_heads"), f.size("linear_num_value_heads")
    k_dim, v_dim = f.size("linear_key_head_dim"), f.size("linear_value_head_dim")
    keys, values = k_heads * k_dim, v_heads * v_dim
    inputs = (
        (("in_proj_qkv", 2 * keys + values), ("in_proj_z", values), ("in_proj_b", v_heads), ("in_proj_a", v_heads))
        if split
        else (("in_proj_qkvz", 2 * keys + 2 * values), ("in_proj_ba", 2 * v_heads))
    )
    weights = [Weight(f"linear_attn.{name}", "mixer", rows, hidden) for name, rows in inputs]
    weights += [
        vector("linear_attn.conv1d", "mixer", (2 * keys + values) * kernel),
        vector("linear_attn.dt_bias", "mixer", v_heads),
        vector("linear_attn.A_log", "mixer", v_heads),
        vector("linear_attn.norm", "norm", v_dim),
        Weight("linear_attn.out_proj", "mixer", hidden, values),
    ]
    state = v_heads * k_dim * v_dim * state_width(f) + (2 * keys + values) * (kernel - 1) * _CONV_BYTES
    return Attention("linear", v_heads, k_heads, k_dim, v_dim, state_bytes=state), tuple(weights)


def kimi_delta(f: Fields, linear: Fields) -> Mixer:
    """Kimi delta attention (Kimi-Linear): key and value heads of one size, low-rank gates."""
    hidden, heads, dim = f.size("hidden_size"), linear.size("num_heads"), linear.size("head_dim")
    kernel, inner = linear.size("short_conv_kernel_size"), heads * dim
    weights = [Weight(f"self_attn.{name}", "mixer", inner, hidden) for name in ("q_proj", "k_proj", "v_proj")]
    weights += [
        vector("self_attn.conv1d", "mixer", 3 * inner * kernel),
        vector("self_attn.A_log", "mixer", heads),
        vector("self_attn.dt_bias", "mixer", inner),
        Weight("self_attn.f_a_proj", "mixer", dim, hidden),
        Weight("self_attn.f_b_proj", "mixer", inner, dim),
        Weight("self_attn.b_proj", "mixer", heads, hidden),
        Weight("self_attn.g_a_proj", "mixer", dim, hidden),
        Weight("self_attn.g_b_proj", "mixer", inner, dim),
        vector("self_attn.o_norm", "norm", dim),
        Weight("self_attn.o_proj", "mixer", hidden, inner),
    ]
    state = heads * dim * dim * state_width(f) + 3 * inner * (kernel - 1) * _CONV_BYTES
    return Attention("linear", heads, heads, dim, dim, state_bytes=state), tuple(weights)


def short_conv(f: Fields) -> Mixer:
    """A gated short convolution (LFM2), whose state is its last inputs."""
    hidden, kernel = f.size("hidden_size"), f.size("conv_L_cache")
    bias = f.flag("conv_bias")
    weights = (
        *biased(Weight("conv.in_proj", "mixer", 3 * hidden, hidden), bias),
        vector("conv.conv", "mixer", hidden * (kernel + bias)),
        *biased(Weight("conv.out_proj", "mixer", hidden, hidden), bias),
    )
    return Attention("linear", 1, 1, hidden, hidden, state_bytes=hidden * (kernel - 1) * _CONV_BYTES), weights


def lightning(f: Fields) -> Mixer:
    """Lightning attention (MiniMax-Text-01, M1): one dim x dim state per head."""
    hidden, (heads, _, dim) = f.size("hidden_size"), head_counts(f)
    inner = heads * dim
    weights = (
        Weight("self_attn.qkv_proj", "mixer", 3 * inner, hidden),
        Weight("self_attn.output_gate", "mixer", inner, hidden),
        vector("self_attn.norm", "norm", inner),
        Weight("self_attn.out_proj", "mixer", hidden, inner),
    )
    return Attention("linear", heads, heads, dim, dim, state_bytes=inner * dim * state_width(f)), weights


def mamba2(f: Fields, prefix: str = "mixer") -> Mixer:
    """Mamba-2 (Nemotron-H, Granite 4): state heads x head dim x state size, and the convolution's last inputs."""
    hidden, heads, dim = f.size("hidden_size"), f.size("mamba_num_heads"), f.size("mamba_head_dim")
    groups, size, kernel = f.size("n_groups"), f.size("ssm_state_size"), f.size("conv_kernel")
    inner = heads * dim
    channels = inner + 2 * groups * size
    bias = f.flag("use_bias" if prefix == "mixer" else "mamba_proj_bias")
    weights = [
        *biased(Weight(f"{prefix}.in_proj", "mixer", inner + channels + heads, hidden), bias),
        vector(f"{prefix}.conv1d", "mixer", channels * (kernel + (1 if f.flag("use_conv_bias", True) else 0))),
        vector(f"{prefix}.scalars", "mixer", 3 * heads),  # dt_bias, A_log, D
        vector(f"{prefix}.norm", "norm", inner),
        *biased(Weight(f"{prefix}.out_proj", "mixer", hidden, inner), bias),
    ]
    state = inner * size * state_width(f) + channels * (kernel - 1) * _CONV_BYTES
    return Attention("mamba", heads, groups, dim, dim, state_bytes=state), tuple(weights)


def mamba1(f: Fields) -> Mixer:
    """Mamba-1 (Jamba): state inner width x state size, and the convolution's last inputs."""
    hidden, size, kernel = f.size("hidden_size"), f.size("mamba_d_state"), f.size("mamba_d_conv")
    inner = hidden * f.size("mamba_expand")
    rank = (
        f.size("mamba_dt_rank", default=-(-hidden // 16)) if f.find("mamba_dt_rank")[1] != "auto" else -(-hidden // 16)
    )
    bias = f.flag("mamba_proj_bias")
    weights = [
        *biased(Weight("mamba.in_proj", "mixer", 2 * inner, hidden), bias),
        vector("mamba.conv1d", "mixer", inner * (kernel + (1 if f.flag("mamba_conv_bias", True) else 0))),
        Weight("mamba.x_proj", "mixer", rank + 2 * size, inner),
        *biased(Weight("mamba.dt_proj", "mixer", inner, rank), True),
        vector("mamba.A_log", "mixer", inner * size),
        vector("mamba.D", "mixer", inner),
        vector("mamba.layernorms", "norm", rank + 2 * size),
        *biased(Weight("mamba.out_proj", "mixer", hidden, inner), bias),
    ]
    state = inner * size * state_width(f) + inner * (kernel - 1) * _CONV_BYTES
    return Attention("mamba", 1, 1, inner, inner, state_bytes=state), tuple(weights)


def state_width(f: Fields) -> int:
    """Bytes of one element of the recurrent state: fp32 unless the config says otherwise, as engines default to."""
    name = f.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype", default="float32")
    if name not in _STATE_BYTES:
        f.refuse(
            f.find("mamba_ssm_cache_dtype", "mamba_ssm_dtype")[0],
            f"{shown(name)} is not modelled",
            f"modelled: {', '.join(_STATE_BYTES)}",
        )
    return _STATE_BYTES[name]
