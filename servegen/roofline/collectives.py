"""What devices tell each other: all-reduces inside a replica, and the KV hand-off from prefill to decode."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servegen.record import record

Array = NDArray[np.float64]


def allreduce_wire_bytes(message_bytes: float, devices: float) -> float:
    """Bytes that each device sends and receives in a ring all-reduce: 2*V*(n-1)/n (F24)."""
    return 2.0 * message_bytes * (devices - 1.0) / devices


@record
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


@record
class Crossing:
    """What collectives cost that an engine's own kernels do not do: those of several nodes, and those that gather.

    An all-reduce of few bytes takes ``pair_s`` between two devices of a node, ``doubling_s`` more with every doubling inside
    the node and ``node_s`` more with every doubling of nodes; many bytes pass at ``nic_share`` of the network's rate.
    """

    pair_s: float
    doubling_s: float
    node_s: float
    nic_share: float
    source: str


CROSSING = Crossing(
    pair_s=7.3e-6,
    doubling_s=5.9e-6,
    node_s=27e-6,
    nic_share=0.92,
    source="NCCL inside a node of H100: 7.3, 11 to 13 and 19 us at 2, 4 and 8 devices (aiconfigurator-core 0.12.0, nccl "
    "2.29.2 tables); two nodes of 8 on NDR InfiniBand: 46 us (NVIDIA/nccl issue 1244); 46 of 50 GB/s for each NIC "
    "(NVIDIA/nccl-tests issue 290). That each further doubling of nodes adds as much as the first is inferred",
)


def gather_latency_s(devices: float, nodes: float, crossing: Crossing = CROSSING) -> float:
    """Seconds of an all-reduce, or of an all-gather and a reduce-scatter, of few bytes by the communication library.

    ``devices`` per node; 0 for a single device.
    """
    inside = crossing.pair_s + crossing.doubling_s * (np.log2(devices) - 1.0) if devices > 1 else 0.0
    return float(inside + crossing.node_s * np.log2(nodes))


def crossing_bytes_per_s(devices: float, fabric_bytes_per_s: float, crossing: Crossing = CROSSING) -> float:
    """Rate at which the ring of an all-reduce passes between nodes of ``devices``, each with a NIC of the fabric's rate."""
    return devices * fabric_bytes_per_s * crossing.nic_share
