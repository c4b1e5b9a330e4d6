"""Memory before latency: what fits on a device, and the KV pool that is left (F19, F20)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: What a CUDA or ROCm process takes besides weights and KV, at the least: 2.3 GiB and 5 % of the weights on each device
#: (KAITO's overhead model, kaito-project/kaito pkg/sku and inference memory estimate).
RUNTIME_BYTES = 2.3 * 2.0**30
RUNTIME_SHARE_OF_WEIGHTS = 0.05
#: Steps in which an engine takes its memory fraction; rounding down keeps the reserve whole.
FRACTION_STEP = 1e-3


def activation_bytes(tokens: Array, hidden: float, intermediate: float, tp: Array, element_bytes: float = 2.0) -> Array:
    """Working activations of one forward pass of ``tokens`` tokens on one device: c*(D + 2F/tp)*b (F19b)."""
    return tokens * (hidden + 2.0 * intermediate / tp) * element_bytes


def logits_bytes(sequences: Array, vocab: float, tp: Array) -> Array:
    """fp32 logits of ``sequences`` sequences on one device (F19b)."""
    return sequences * vocab * 4.0 / tp


def runtime_bytes(weight_bytes: Array) -> Array:
    """Least reserve of a device that holds ``weight_bytes`` of weights."""
    return RUNTIME_BYTES + RUNTIME_SHARE_OF_WEIGHTS * weight_bytes


def static_fraction(share: Array) -> Array:
    """Share of a device for weights and KV, rounded down to what an engine's flag takes; 0 if none is left."""
    return np.maximum(np.floor(share / FRACTION_STEP + 1e-9) * FRACTION_STEP, 0.0)


def pool_bytes(usable_bytes: Array, fraction: Array, weight_bytes: Array) -> Array:
    """KV pool of one device: fraction*M - weights; negative when the weights alone do not fit (F19)."""
    return fraction * usable_bytes - weight_bytes


def largest_batch(pool: Array, held_mean: Array, held_std: Array, z: float) -> Array:
    """Largest number B of sequences whose KV fits with ``z`` standard deviations to spare (real, >= 0).

    Solves B*mean + z*sqrt(B)*std = pool for sqrt(B). Arguments in one unit (bytes or tokens).
    """
    pool = np.maximum(pool, 0.0)
    root = (-z * held_std + np.sqrt((z * held_std) ** 2 + 4.0 * held_mean * pool)) / (2.0 * held_mean)
    return root * root
