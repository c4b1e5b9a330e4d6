"""An estimate made by hand, in the shape that the estimate's stable keys promise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class ModelPart:
    params_total: int = 70_553_706_496
    params_active: int = 70_553_706_496


@dataclass(frozen=True)
class MemoryPart:
    weight_bytes_per_device: float = 17.6e9
    kv_bytes_per_token: float = 40960.0
    kv_pool_bytes: float = 50e9
    max_running_requests: int = 256
    fits: bool = True


def _terms() -> dict[str, float]:
    terms = ("weights", "kv", "compute", "attention", "collectives", "overhead")
    return dict(zip(terms, (0.006, 0.004, 0.001, 0.002, 0.003, 0.005), strict=True))


@dataclass(frozen=True)
class PrefillPart:
    time_s: float = 0.18
    bound: str = "compute"
    breakdown_s: dict[str, float] = field(default_factory=_terms)


@dataclass(frozen=True)
class DecodePart:
    step_time_s: float = 0.021
    bound: str = "weights"
    breakdown_s: dict[str, float] = field(default_factory=_terms)


@dataclass(frozen=True)
class ServingPart:
    ttft_s: float = 0.2
    tpot_s: float = 0.0214
    output_tokens_per_s: float = 2900.0
    output_tokens_per_s_per_device: float = 362.5


@dataclass(frozen=True)
class BandPart:
    low: dict[str, float] = field(default_factory=lambda: {"ttft_s": 0.17})
    high: dict[str, float] = field(default_factory=lambda: {"ttft_s": 0.25})


@dataclass(frozen=True)
class FakeEstimate:
    model: ModelPart = field(default_factory=ModelPart)
    memory: MemoryPart = field(default_factory=MemoryPart)
    prefill: PrefillPart = field(default_factory=PrefillPart)
    decode: DecodePart = field(default_factory=DecodePart)
    serving: ServingPart = field(default_factory=ServingPart)
    band: BandPart = field(default_factory=BandPart)


def make_estimate(**serving: Any) -> FakeEstimate:
    """The estimate, with figures of its serving part replaced."""
    return FakeEstimate(serving=replace(ServingPart(), **serving))
