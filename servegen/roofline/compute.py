"""Matrix multiplications: streaming weights against multiplying, and how many experts a batch wakes."""

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


def experts_touched(num_experts: Array | float, per_token: Array | float, tokens: Array | float) -> Array:
    """Distinct experts that ``tokens`` wake under uniform routing: E*(1-(1-k/E)^B) (F43)."""
    experts = np.asarray(num_experts, dtype=np.float64)
    return np.asarray(experts * (1.0 - (1.0 - np.asarray(per_token) / experts) ** np.asarray(tokens)))


def critical_batch(bytes_per_weight: float, flops: float, bytes_per_s: float) -> float:
    """Tokens at which multiplying takes as long as streaming the weights (F12)."""
    return bytes_per_weight / 2.0 * flops / bytes_per_s
