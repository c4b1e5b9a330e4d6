"""Matrix multiplications: streaming weights against multiplying."""

from __future__ import annotations


def stream_s(weight_bytes: float, devices: float, bytes_per_s: float, efficiency: float) -> float:
    """Seconds to read ``weight_bytes`` once, sharded over ``devices`` (F9 without KV)."""
    return weight_bytes / (devices * bytes_per_s * efficiency)


def flop_s_per_token(params: float, devices: float, flops: float, efficiency: float) -> float:
    """Seconds that one token's multiplications take at large batch: 2*P/(n*C*eta) (F8)."""
    return 2.0 * params / (devices * flops * efficiency)
