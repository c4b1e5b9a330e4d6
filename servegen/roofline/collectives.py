"""What devices tell each other: all-reduces inside a replica, and the KV hand-off from prefill to decode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: All-reduces of one transformer layer under tensor parallelism: after the attention and after the MLP.
ALLREDUCES_PER_LAYER = 2.0


def allreduce_wire_bytes(message_bytes: float, devices: float) -> float:
    """Bytes that each device sends and receives in a ring all-reduce: 2*V*(n-1)/n (F24)."""
    return 2.0 * message_bytes * (devices - 1.0) / devices


@dataclass(frozen=True)
class HandoffCurve:
    """Share of the fabric that a KV transfer reaches: ``peak_share * V / (V + half_bytes)``.

    ``half_bytes`` counts all bytes of the transfer over all of its links.
    """

    peak_share: float
    half_bytes: float
    source: str


#: Two published points of one setup fix the curve: 20 MB at 18 % and 4.50 GB at 71 % of about 200 GB/s.
HANDOFF = HandoffCurve(
    peak_share=0.72,
    half_bytes=60e6,
    source="Mooncake prefill/decode disaggregation document, Qwen3-8B TP8 on H800: 0.54 ms for 20 MB, 31.65 ms for 4.50 GB",
)


def handoff_s(kv_bytes: Array, link_bytes_per_s: Array, curve: HandoffCurve = HANDOFF) -> Array:
    """Seconds to move ``kv_bytes`` over links that sum to ``link_bytes_per_s`` (F28 with a size-dependent share)."""
    return (np.asarray(kv_bytes) + curve.half_bytes) / (curve.peak_share * np.asarray(link_bytes_per_s))
