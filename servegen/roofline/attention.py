"""Attention: how many bytes of KV a token costs and how much work a prompt is, by kind of attention.

A *group* is a run of layers of one shape; arrays with a group axis have it last, shape (rows, groups).
Windows are shape (groups,), 0 for layers that see the whole context.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def kv_heads_per_device(num_kv_heads: float, tp: float) -> float:
    """KV heads that one device holds: sharded up to one head each, replicated beyond (F6)."""
    return num_kv_heads / min(tp, num_kv_heads) if num_kv_heads else 0.0


def kv_bytes_per_token(layers: float, kv_heads: float, head_dim: float, v_head_dim: float, kv_bytes: float) -> float:
    """Bytes of K and V that one token adds over ``layers`` layers with ``kv_heads`` heads (F6: 2*L*K*H*b)."""
    return layers * kv_heads * (head_dim + v_head_dim) * kv_bytes


def mla_bytes_per_token(layers: float, kv_lora_rank: float, rope_head_dim: float, kv_bytes: float) -> float:
    """Bytes of compressed KV per token (F6b); every TP rank holds all of it."""
    return layers * (kv_lora_rank + rope_head_dim) * kv_bytes


def index_bytes_per_token(layers: float, index_head_dim: float) -> float:
    """Bytes of the sparse-attention indexer's keys per token: fp8 with an fp32 scale per 128, on every TP rank (F6b).

    Source: the pool of sgl-project/sglang (NSATokenToKVPool), whatever the KV cache's own precision.
    """
    return layers * (index_head_dim + 4.0 * index_head_dim / 128.0)


def visible_tokens(context: Array | float, windows: Array) -> Array:
    """Tokens that a decoding query reads per group, shape (..., groups): the context, at most the window (F6c)."""
    context = np.asarray(context, dtype=np.float64)[..., None]
    return np.where(windows > 0, np.minimum(context, windows), context)


def causal_pairs(total: Array, cached: Array, windows: Array) -> Array:
    """Twice the (query, key) pairs of a prompt whose first ``cached`` of ``total`` tokens need no work, per group.

    F8b: total^2 - cached^2 for full attention; inside a window w the square turns into 2*w*x - w^2.
    Shape: (..., groups).
    """

    def area(x: Array) -> Array:
        x = np.asarray(x, dtype=np.float64)[..., None]
        return np.where((windows > 0) & (x > windows), windows * (2.0 * x - windows), x * x)

    return area(total) - area(cached)


def flops_per_pair(layers: float, num_heads: float, head_dim: float, v_head_dim: float) -> float:
    """FLOPs per unit of :func:`causal_pairs` over ``layers`` layers: 2*L*N*H when both head sizes are H (F8b)."""
    return layers * num_heads * (head_dim + v_head_dim)


def mla_decode_flops_per_token(layers: float, num_heads: float, kv_lora_rank: float, rope_head_dim: float) -> float:
    """FLOPs per cached token and query of absorbed MLA decode: scores over rank + rope, values over rank, 2 FLOPs each."""
    return layers * num_heads * 2.0 * (2.0 * kv_lora_rank + rope_head_dim)
