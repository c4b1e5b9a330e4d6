"""What clients of one replica see, as plain arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tests.solver.plain_traffic import EDGE_WEIGHTS, WIDTHS, Traffic, steady_tail, two_tails


@dataclass
class Stall:
    """One bin of the stalls: a prompt's own between two times, and what others add."""

    low: float
    high: float
    weight: float
    joined: float = 0.0
    least: float = 0.0
    more: float = 1e-9
    cv2: float = 1.0


@dataclass
class Seen:
    """What clients of one replica see at one level."""

    rate: float
    start: float  # before all else
    rest: float  # the most that is left of the step in progress
    delayed: float
    wait: float
    wait_cv2: float
    service: list[float]
    service_mean: float
    gap: float
    gap_spread: tuple[float, float]  # deviation and skewness
    stalled: float
    stalls: list[Stall]
    longest: float
    gap_mean: float
    burst: tuple[float, float, float] | None = None  # tokens of a round, their variance, what the last one has too many

    def ttft_over(self, t: float) -> float:
        left = t - self.start
        late = waiting = 0.0
        for low, high, w in zip(self.service, self.service[1:], WIDTHS, strict=False):
            width = max(math.hypot(high - low, self.rest), 1e-12)
            late += w * min(max(((low + high + self.rest) / 2 - left) / width + 0.5, 0.0), 1.0)
        mean = max(self.rest / 2 + self.wait, 1e-12)
        cv2 = max((self.rest**2 / 12 + self.wait_cv2 * self.wait**2) / mean**2, 1 / 3)
        for s, w in zip(self.service, EDGE_WEIGHTS, strict=True):
            waiting += w * steady_tail(max(left - s, 0.0) / mean, cv2)
        return (1.0 - self.delayed) * late + self.delayed * waiting

    def itl_over(self, t: float, guard: float = 1.0) -> float:
        late = t - self.gap
        sd, skew = self.gap_spread
        plain = _tail(_unskewed(late / max(sd, 1e-9), skew))
        longer = 0.0
        for s in self.stalls:
            share = min(max((late - s.low) / (s.high - s.low), 0.0), 1.0) if s.high > s.low else float(late >= s.high)
            slack = max(late - (s.low + s.high) / 2 - s.least, 0.0) / max(s.more, 1e-12)
            longer += s.weight * ((1 - s.joined) * (1 - share) + s.joined * two_tails(slack, s.cv2))
        longer *= float(late < self.longest)
        share = min(guard * self.stalled, 1.0)
        over = (1.0 - share) * plain + share * max(longer, plain)
        return over / self.burst[0] if self.burst else over

    def pace_over(self, t: float, load: Traffic) -> float:
        return self.tpot_over(t, load) if self.burst else self.itl_over(t)

    def tpot_over(self, t: float, load: Traffic) -> float:
        square = 0.0
        for s in self.stalls:
            mine = (s.low + s.high) / 2
            others = 2 * mine * (s.least + s.more) + s.least**2 + 2 * s.least * s.more + (1 + s.cv2) * s.more**2
            square += s.weight * (mine**2 + s.joined * others)
        tokens, variance, past = self.burst or (1.0, 0.0, 0.0)
        each = (self.stalled * square + variance * self.gap_mean**2) / tokens
        total = 0.0
        for weight, output in zip(WIDTHS, load.output_bins, strict=True):
            n = max(output - 1.0, 1.0)
            mean = self.gap_mean * (1 + past / n) / (1 + past / load.gaps)
            total += weight * _tail((t - mean) / max(math.sqrt(each / n + (self.gap_spread[0] / tokens) ** 2), 1e-9))
        return total

    def e2e_over(self, t: float, outputs: Sequence[float]) -> float:
        return sum(w * self.ttft_over(t - max(o - 1.0, 0.0) * self.gap_mean) for w, o in zip(EDGE_WEIGHTS, outputs, strict=True))

    def ttft_mean(self) -> float:
        return self.start + self.rest / 2 + self.delayed * self.wait + self.service_mean

    def over(self, metric: str, t: float, load: Traffic, guard: float = 1.0) -> float:
        if metric == "ttft":
            return self.ttft_over(t)
        if metric == "itl":
            return self.itl_over(t, guard)
        return self.tpot_over(t, load) if metric == "tpot" else self.e2e_over(t, load.outputs)

    def mean(self, metric: str, load: Traffic) -> float:
        if metric == "ttft":
            return self.ttft_mean()
        return self.ttft_mean() + max(load.output_mean - 1.0, 0.0) * self.gap_mean if metric == "e2e" else self.gap_mean


def _unskewed(z: float, skew: float) -> float:
    """The normal deviation that is exceeded as often as ``z`` of a gamma distribution of this skewness, nearly."""
    if not skew:
        return z
    k = max(skew, 1e-12)
    return 6 / k * math.expm1(math.log1p(max(k * z / 2, 1e-15 - 1)) / 3) + k / 6


def _tail(z: float) -> float:
    return 1.0 / (1.0 + math.exp(min(max(1.702 * z, -60.0), 60.0)))
