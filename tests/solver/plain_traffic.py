"""Lengths and arrivals of a load, and the gamma renewal stream that they come in, as plain arithmetic."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from servegen.solve.problem import Problem

EDGES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0)
WIDTHS = tuple(b - a for a, b in itertools.pairwise(EDGES))
EDGE_WEIGHTS = tuple(((WIDTHS[i - 1] if i else 0.0) + (WIDTHS[i] if i < len(WIDTHS) else 0.0)) / 2.0 for i in range(len(EDGES)))


@dataclass
class Traffic:
    """Lengths as plain floats: at the edges, and the mean of each bin between them."""

    new: list[float]
    whole: list[float]
    new_bins: list[float]
    whole_bins: list[float]
    bin_weights: list[float]
    fine: list[tuple[float, float, float]]  # tokens to compute and of the whole prompt, and their weight, finer in the tail
    places: list[float]  # tokens before one of all tokens
    new_mean: float
    new_cv2: float
    new_third: float
    outputs: list[float]
    output_mean: float
    output_sd: float
    output_bins: list[float]
    gaps: float
    held: float
    held_std: float
    arrival_cv2: float
    queue_cv2: float
    overlap: float
    own: float
    turns: bool
    open_loop: bool
    age_sd: float  # of what a running request has put out
    longest: list[tuple[float, float, float]]  # of a batch: the log of its size, the mean and the variation of the longest output

    def longest_of(self, size: float) -> tuple[float, float]:
        """Mean and variation of the longest output of a batch, on a line over the logs of the sizes that are tabulated."""
        at = math.log(size)
        for (a, *low), (b, *high) in itertools.pairwise(self.longest):
            if at <= b:
                x, y = (v + (w - v) * (at - a) / (b - a) for v, w in zip(low, high, strict=True))
                return x, y
        return self.longest[-1][1:]


def traffic(problem: Problem) -> Traffic:
    d = problem.demand
    some = [float(v) for v in problem.workload.osl.quantile((np.arange(200) + 0.5) / 200)]
    moments = [statistics.fmean(v**k for v in some) for k in (1, 2, 3)]
    return Traffic(
        [float(v) for v in d.uncached_edges],
        [float(v) for v in d.total_edges],
        [float(v) for v in d.uncached_nodes],
        [float(v) for v in d.total_nodes],
        [float(v) for v in d.node_weights],
        [(float(v), float(w), float(p)) for v, w, p in zip(d.uncached_fine, d.total_fine, d.fine_weights, strict=True)],
        [float(v) for v in d.places],
        float(d.uncached_mean),
        float(d.uncached_cv2),
        float(d.uncached_third),
        [float(v) for v in d.osl_edges],
        float(d.osl_mean),
        statistics.pstdev(some),
        [float(v) for v in d.osl_nodes],
        float(d.gaps),
        float(d.held_mean),
        float(d.held_std),
        float(d.arrival_cv2),
        float(d.queue_cv2),
        float(d.overlap),
        float(d.own),
        bool(d.turns),
        bool(d.open_loop),
        math.sqrt(max(moments[2] / (3 * moments[0]) - (moments[1] / (2 * moments[0])) ** 2, 0.0)),
        [_longest(problem, 2**i) for i in range(11)],
    )


def _longest(problem: Problem, size: int) -> tuple[float, float, float]:
    """Of a batch: the log of its size, the mean of its longest output, and that one's squared coefficient of variation."""
    osl = problem.workload.osl
    each = [float(osl.quantile(((i + 0.5) / 200) ** (1 / size))) for i in range(200)]
    mean = float(osl.mean) if size == 1 else statistics.fmean(each)
    return math.log(size), mean, max(statistics.fmean(v * v for v in each) / mean**2 - 1, 0.0)


# ---- a gamma renewal stream, times in mean gaps -------------------------------------------------------------------------


def _lower(shape: float, x: float) -> float:
    """Regularised lower incomplete gamma function by its series."""
    if x <= 0.0:
        return 0.0
    term = total = 1.0 / shape
    for j in range(1, 400):
        term *= x / (shape + j)
        total += term
    return min(total * math.exp(shape * math.log(x) - x - math.lgamma(shape)), 1.0)


def none_after(x: float, cv2: float) -> float:
    return math.exp(-x) if cv2 == 1.0 else 1.0 - _lower(1 / cv2, min(x / cv2, 100.0))


def some_in(x: float, cv2: float) -> float:
    if cv2 == 1.0:
        return -math.expm1(-x)
    return min(x * none_after(x, cv2) + _lower(1 / cv2 + 1, min(x / cv2, 100.0)), 1.0)


def company(x: float, cv2: float) -> float:
    excess = (cv2 - 1) / 2
    if excess <= 0.0:
        return excess * min(x, 1.0)
    none = max(none_after(x, cv2), 1e-12)
    soon = max((1 - none) / none - x, 0.0)
    return soon / math.hypot(1, soon / excess)


def waiting(busy: float, cv2: float, service_cv2: float) -> float:
    """Chance of a wait."""
    if cv2 == 1.0:
        return busy
    b = min(max(busy, 1e-9), 1 - 1e-12)
    if cv2 < 1.0:
        h = (1 + cv2 + b * service_cv2) / (1 + b * (service_cv2 - 1) + b * b * (4 * cv2 + service_cv2))
        return max(b - (1 - cv2) * b * (1 - b) * min(h, 1 / (1 - b)), 0.0)
    low, high = 1e-15, 1.0 - b  # of the chance not to wait, which bisection finds as well as any other way
    for _ in range(200):
        middle = (low + high) / 2
        above = cv2 * math.log1p(-middle) + math.log1p(middle * cv2 / b) > 0
        low, high = (middle, high) if above else (low, middle)
    return 1 - low


def alike(found: float, cv2: float, service_cv2: float) -> float:
    """The chance of a wait that exponential services were found to have, of services that are alike: arrivals cluster."""
    k = 1 / max(cv2, 1.0)
    return found * (1 + 0.53 * k * (1 - k) * max(1 - service_cv2, 0.0) * (1 - found))


def overflow(prompts: float, whole: float, cv2: float) -> float:
    """Steps that a geometric number of prompts takes beyond one step, where several fit one."""
    if whole >= 1:
        return 0.0
    return whole * prompts * (1 - 1 / prompts) ** (1 / whole) * (1 - 1 / max(cv2, 1.0))


def two_tails(t: float, cv2: float) -> float:
    often = 0.5 + 0.5 * math.sqrt((cv2 - 1) / (cv2 + 1))
    return often * math.exp(-2 * often * t) + (1 - often) * math.exp(-2 * (1 - often) * t)


def steady_tail(t: float, cv2: float) -> float:
    """Also for what varies less than exponential: a generalised Pareto tail."""
    if cv2 >= 0.999:
        return two_tails(t, max(cv2, 1.0))
    k = (1 / cv2 - 1) / 2
    return max(1 - k / (1 + k) * t, 0.0) ** (1 / k)


def rank(lengths: Sequence[float], value: float) -> float:
    """Chance of a length up to ``value``, linear between the edges."""
    if value >= lengths[-1]:
        return 1.0
    if value < lengths[0]:
        return 0.0
    i = max(k for k, v in enumerate(lengths) if v <= value)
    return EDGES[i] + (EDGES[i + 1] - EDGES[i]) * (value - lengths[i]) / (lengths[i + 1] - lengths[i])


#: Standard normal quantiles at the edges; the ends are cut.
NORMAL = (-3.3, -0.6745, 0.0, 0.6745, 1.2816, 1.6449, 2.0537, 2.3263, 2.5758, 3.3)


def rest(cv2: float, busy: float) -> list[float]:
    """What is left of a batch of mean 1 at each edge: of a lognormal one, met with chance ``busy`` and by its length."""
    sigma = math.sqrt(math.log1p(cv2))
    at = [0.0] + [math.exp(sigma * z - sigma**2 / 2) for z in NORMAL]
    bins = [((a + b) / 2, w) for a, b, w in zip(at[1:], at[2:], WIDTHS, strict=False)]
    over = [sum(w * max(b - v, 0.0) for b, w in bins) / sum(w * b for b, w in bins) for v in at]
    out: list[float] = []
    for edge in EDGES:
        chance = min((1 - edge + 1e-12) / max(busy, 1e-12), 1.0)
        i = min(max(sum(v > chance for v in over), 1), len(at) - 1)
        share = min(max((over[i - 1] - chance) / max(over[i - 1] - over[i], 1e-12), 0.0), 1.0)
        out.append(max(at[i - 1] + share * (at[i] - at[i - 1]), out[-1] if out else 0.0))
    return out
