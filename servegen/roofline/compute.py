"""Matrix multiplications: streaming weights against multiplying."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def stream_s(weight_bytes: float, devices: float, bytes_per_s: float, efficiency: float) -> float:
    """Seconds to read ``weight_bytes`` once, sharded over ``devices`` (F9 without KV)."""
    return weight_bytes / (devices * bytes_per_s * efficiency)


def flop_s_per_token(params: float, devices: float, flops: float, efficiency: float) -> float:
    """Seconds that one token's multiplications take at large batch: 2*P/(n*C*eta) (F8)."""
    return 2.0 * params / (devices * flops * efficiency)


def gemm_s(weight_s: Array, expert_s: Array, expert_idle: Array, token_flop_s: Array, tokens: Array) -> Array:
    """max(streaming, multiplying) of ``tokens`` tokens, shape (rows,) or (rows, k); columns of shape (rows,) (F10, F43)."""
    if tokens.ndim > 1:
        weight_s, expert_s, token_flop_s = weight_s[:, None], expert_s[:, None], token_flop_s[:, None]
        expert_idle = expert_idle[:, None]
    if not expert_s.any():  # a dense model has no experts to wake; the power below is the costliest operation here
        return np.maximum(weight_s, token_flop_s * tokens)
    return np.maximum(weight_s + expert_s * (1.0 - expert_idle**tokens), token_flop_s * tokens)
