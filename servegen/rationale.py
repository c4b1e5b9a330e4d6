"""Why a choice is what it is: where its latencies come from, what came next, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from servegen.codec import Signed, Unsure
from servegen.record import record

Topology = Literal["aggregated", "disaggregated"]


@record
class Effect:
    """One step of a :class:`Waterfall`: what an effect adds, seconds."""

    name: str
    adds_s: Signed


@record
class Waterfall:
    """From the ideal roofline to a predicted latency; ``floor_s`` and what the effects add sum to ``total_s``."""

    metric: str
    statistic: str
    floor_s: float
    effects: tuple[Effect, ...]
    total_s: float


@record
class Alternative:
    """Another candidate. ``why_lost`` says in words what the chosen one has over it."""

    name: str
    topology: Topology
    summary: str
    devices: int
    cost_per_hour: Unsure
    ttft_p95_s: Unsure
    itl_p95_s: Unsure
    output_tokens_per_second: Unsure
    why_lost: str


@record
class ParetoPoint:
    name: str
    devices: int
    cost_per_hour: float
    ttft_p95_s: Unsure
    itl_p95_s: Unsure
    output_tokens_per_second: Unsure


@record
class Flip:
    """A parameter whose change alters the decision: ``text`` is a sentence for PLAN.md."""

    parameter: str
    text: str


@record
class Case:
    """The best plan where every prediction lies at one ``end`` of its band; no replicas where nothing meets the bounds then."""

    end: Literal["low", "best", "high"]
    summary: str
    replicas: Mapping[str, int]  # by the role's name, spares left out
    devices: int
    cost_per_hour: Unsure


@record
class Missing:
    """One replica of ``role`` down, as by a failed node or a rolling update without room for another: what the rest does."""

    role: str
    left: int  # spares counted
    utilization: Unsure  # of what they sustain within the bounds; nan where nobody is left to take the load
    ttft_p95_s: Unsure  # nan beyond what they sustain
    itl_p95_s: Unsure

    @property
    def bounds_hold(self) -> bool:
        """Whether those who are left, if any are, sustain the load within every bound."""
        return self.utilization <= 1.0
