"""Percentiles of what a client sees, from a :class:`Point`: chances of exceeding a bound, and their inverse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from servegen.roofline.step import take
from servegen.service.crossing import NARROW, Index, Mask, Measure, excess, searched
from servegen.service.demand import EDGE_WEIGHTS, WIDTHS, Demand
from servegen.service.point import Point

Array = NDArray[np.float64]

#: Far below any time.
TINY = 1e-300
#: Slope of the logistic that stands for the normal tail: 1/(1+exp(1.702 z)) is within 0.01 of it everywhere.
LOGISTIC = 1.702
#: Factor on the share of gaps that a prefill stalls, where a bound on gaps limits the load: a percentile jumps from a step to a
#: stall where the share passes it, and a replay finds the share within a tenth of what is predicted (docs/accuracy.md).
STALL_GUARD = 1.1
#: Squared coefficient of variation of what is even between 0 and its most: a wait never varies less.
EVEN_CV2 = 1.0 / 3.0
#: From this one on up a wait is taken as exponential.
NEARLY_EXPONENTIAL = 0.999
#: Cells of the grid in log time, from 0.1 us to a day, on which a quantile is found (6e-9 each), and what is tried first.
SHORTEST_S, LONGEST_S = 1e-7, 1e5
CELLS = 2**32
FIRST: Array = np.floor(np.array([0.0, 0.25, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.75, 1.0]) * CELLS)
#: Of more rows than that a chance costs more by its rows than by its call, and fewer times are tried at once.
FEW = 200
FIRST_OF_MANY: Array = FIRST[[0, 3, 5, 7, 10]]


def _shares(low: Array, high: Array, t: Array) -> Array:
    """Of each bin from ``low`` to ``high`` the share that is at most ``t`` (linear in between). Shapes (rows, k), (rows,)."""
    # Beside any other number the tiny one is nothing, but a bin of no width is passed at its edge.
    share = (t[:, None] - low + TINY) / np.maximum(high - low, TINY)
    return np.minimum(np.maximum(share, 0.0), 1.0)


def _normal_tail(z: Array) -> Array:
    return 1.0 / (1.0 + np.exp(np.minimum(np.maximum(LOGISTIC * z, -60.0), 60.0)))


def _skewed(z: Array, skew: Array) -> Array:
    """Deviations of a normal value that are exceeded as often as ``z`` of one with this skewness (a gamma distribution's, by
    Wilson and Hilferty 1931)."""
    if not skew.any():
        return z
    k = np.maximum(skew, 1e-12)
    cube = np.log1p(np.maximum(k * z / 2.0, 1e-15 - 1.0))
    return np.where(skew > 0.0, 6.0 / k * np.expm1(cube / 3.0) + k / 6.0, z)


def _tail(t: Array, cv2: Array) -> Array:
    """Chance that a positive value of mean 1 and squared coefficient of variation ``cv2``, at least 1, is above ``t``: two
    exponentials of balanced means."""
    often = 0.5 + 0.5 * np.sqrt((cv2 - 1.0) / (cv2 + 1.0))
    seldom = 1.0 - often
    return np.asarray(often * np.exp(-2.0 * often * t) + seldom * np.exp(-2.0 * seldom * t))


def _steadier_tail(t: Array, cv2: Array) -> Array:
    """As :func:`_tail`, also for values that vary less: (1 - k*t/(1 + k))^(1/k), a generalised Pareto tail of cv2 = 1/(1 + 2k).

    It is exponential for k = 0 and uniform for k = 1. ``t`` is (rows, k), ``cv2`` (rows,).
    """
    steadier = cv2 < NEARLY_EXPONENTIAL
    rows = np.flatnonzero(steadier)
    if not len(rows):
        return _tail(t, np.maximum(cv2, 1.0)[:, None])
    k = ((1.0 / cv2[rows] - 1.0) / 2.0)[:, None]
    steady = np.maximum(1.0 - k / (1.0 + k) * t.take(rows, axis=0), 0.0) ** (1.0 / k)
    if len(rows) == len(t):
        return np.asarray(steady)
    others = np.flatnonzero(~steadier)
    out = np.empty_like(t)
    out[rows], out[others] = steady, _tail(t.take(others, axis=0), np.maximum(cv2[others], 1.0)[:, None])
    return out


def ttft_exceeds(p: Point, t: Array) -> Array:
    """Chance that the first token comes later than ``t`` seconds after arrival."""
    return _late(p)(t)


def _late(p: Point) -> Callable[[Array], Array]:
    """:func:`ttft_exceeds` as a function of ``t``, which can be asked several times."""
    edges, rest = p.service_edges_s, p.rest_s[:, None]
    low, high = edges[:, :-1], edges[:, 1:]
    # Prompts of a bin and the rest of a step are even; their sum is taken as even, too, as wide as its variance asks for.
    width, middle = np.maximum(np.sqrt((high - low) ** 2 + rest * rest), 1e-12), (low + high + rest) / 2.0
    mean = np.maximum(p.rest_s / 2.0 + p.wait_s, 1e-12)
    cv2 = np.maximum((p.rest_s**2 / 12.0 + p.wait_cv2 * p.wait_s**2) / mean**2, EVEN_CV2)
    soon, each = 1.0 - p.delayed, mean[:, None]

    def late(t: Array) -> Array:
        left = (t - p.const_s)[:, None]
        alone = np.minimum(np.maximum((middle - left) / width + 0.5, 0.0), 1.0) @ WIDTHS
        # Those who wait: the tail of what is left, averaged over each bin of prompts (convex, so from above).
        waiting = _steadier_tail(np.maximum(left - edges, 0.0) / each, cv2) @ EDGE_WEIGHTS
        return np.asarray(soon * alone + p.delayed * waiting)

    return late


def ttft_mean(p: Point) -> Array:
    """Mean time to first token."""
    return p.const_s + p.rest_s / 2.0 + p.delayed * p.wait_s + p.service_mean_s


def itl_exceeds(p: Point, t: Array, guard: float = 1.0) -> Array:
    """Chance that a gap between two output tokens is longer than ``t``, over all gaps of all requests.

    Sizing takes the share of stalled gaps with a ``guard`` (:data:`STALL_GUARD`). Tokens of a burst follow the first one at
    once, so that only one gap of each burst can be longer than anything.
    """
    share = np.minimum(guard * p.stall_share, 1.0)
    late = t - p.gap_s
    plain = _normal_tail(_skewed(late / np.maximum(p.gap_sd_s, 1e-9), p.gap_skew))
    longer = 1.0 - _shares(p.stall_low_s, p.stall_high_s, late)
    if p.joined.any():
        mine = (p.stall_low_s + p.stall_high_s) / 2.0
        slack = np.maximum(late[:, None] - mine - p.joined_least_s, 0.0) / np.maximum(p.joined_s, 1e-12)
        longer = (1.0 - p.joined) * longer + p.joined * _tail(slack, p.joined_cv2)
    stalled = np.einsum("ij,ij->i", longer, p.stall_weights) * (late < p.stall_most_s)
    over = np.asarray((1.0 - share) * plain + share * np.maximum(stalled, plain))
    return over if p.burst is None else over / p.burst.tokens


def itl_mean(p: Point) -> Array:
    """Mean gap."""
    return p.gap_mean_s


def _tpot(p: Point, d: Demand) -> tuple[Array, Array]:
    """Mean and spread of the mean gap of a request by the length of its answer, (rows, lengths).

    Stalls, and what the rounds of a burst yield, differ from gap to gap and average out. How many sequences run changes only as
    fast as they end, so that an answer sees much the same number throughout. The last round of a burst yields tokens that an
    answer has no use for, which costs a short one most (renewal theory).
    """
    middle = (p.stall_low_s + p.stall_high_s) / 2.0
    least, more = p.joined_least_s, p.joined_s
    joined = p.joined * (2.0 * middle * (least + more) + least**2 + 2.0 * least * more + (1.0 + p.joined_cv2) * more**2)
    each = p.stall_share * np.sum(p.stall_weights * (middle**2 + joined), axis=1)
    steady, past = p.gap_sd_s**2, np.zeros_like(p.gap_s)
    if p.burst is not None:
        each = (each + p.burst.variance * p.gap_mean_s**2) / p.burst.tokens
        steady, past = steady / p.burst.tokens**2, p.burst.past
    gaps = np.maximum(d.osl_nodes - 1.0, 1.0)
    mean = p.gap_mean_s[:, None] * (1.0 + past[:, None] / gaps) / (1.0 + past / d.gaps)[:, None]
    return mean, np.maximum(np.sqrt(each[:, None] / gaps + steady[:, None]), 1e-9)


def _any_tpot_exceeds(t: Array, mean: Array, spread: Array) -> Array:
    return np.asarray(_normal_tail((t[:, None] - mean) / spread) @ WIDTHS)


def tpot_exceeds(p: Point, t: Array, d: Demand) -> Array:
    """Chance that the mean gap of a request is longer than ``t``, over answers of every length, each nearly normal."""
    return _any_tpot_exceeds(t, *_tpot(p, d))


def pace_exceeds(p: Point, t: Array, d: Demand) -> Array:
    """Chance that tokens come slower than one in ``t``: over all gaps, or over requests where tokens come in bursts."""
    return itl_exceeds(p, t) if p.burst is None else tpot_exceeds(p, t, d)


def e2e_exceeds(p: Point, t: Array, d: Demand) -> Array:
    """Chance that a whole request takes longer than ``t``: first token plus gaps, prompt and output lengths independent (F38)."""
    late, gaps = _late(p), [max(o - 1.0, 0.0) for o in d.osl_edges]
    weights = {g: sum(w for w, other in zip(EDGE_WEIGHTS, gaps, strict=True) if other == g) for g in dict.fromkeys(gaps)}
    return np.asarray(sum(w * late(t - g * p.gap_mean_s) for g, w in weights.items()))


def e2e_mean(p: Point, d: Demand) -> Array:
    """Mean duration of a request."""
    return ttft_mean(p) + max(d.osl_mean - 1.0, 0.0) * p.gap_mean_s  # none of one token, whose ``gaps`` are not quite none


def quantile_of(make: Callable[[Index], Callable[[Array], Array]], probability: float | Array, rows: int) -> Array:
    """The time that each row exceeds with chance 1 - ``probability`` (one for all, or one each), on a grid in log time.

    ``make`` takes an index of rows, which repeats some, and returns their chances of being above times.
    """
    allowed = np.broadcast_to(1.0 - np.asarray(probability), rows)
    low = np.log(SHORTEST_S)
    cell = (np.log(LONGEST_S) - low) / CELLS

    def reached(index: Index) -> Measure:
        chance, mine = make(index), allowed[index]

        def measure(edge: Array) -> tuple[Mask, Array]:
            above = chance(np.exp(low + cell * edge))
            return above <= mine, -excess(above, mine)

        return measure

    edge = searched(reached, rows, FIRST) if rows <= FEW else searched(reached, rows, FIRST_OF_MANY, NARROW)
    return np.asarray(np.exp(low + cell * (np.clip(edge, 0.0, CELLS - 1.0) + 1.0)))


def percentile_of(chance: Callable[[Point, Array], Array], probability: float, p: Point) -> Array:
    """The time of each row of a point that is exceeded with 1 - ``probability``, by its ``chance`` of being above a time."""

    def make(index: Index) -> Callable[[Array], Array]:
        some = take(p, index)
        return lambda t: chance(some, t)

    return quantile_of(make, probability, len(p.level))


def ttft_percentile(probability: float, p: Point) -> Array:
    """The same of the first token."""
    return quantile_of(lambda index: _late(take(p, index)), probability, len(p.level))


def pace_percentile(probability: float, p: Point, d: Demand) -> Array:
    """The same of the pace at which tokens come (:func:`pace_exceeds`)."""
    if p.burst is None:
        return percentile_of(itl_exceeds, probability, p)
    mean, spread = _tpot(p, d)

    def make(index: Index) -> Callable[[Array], Array]:
        m, s = mean.take(index, axis=0), spread.take(index, axis=0)
        return lambda t: _any_tpot_exceeds(t, m, s)

    return quantile_of(make, probability, len(p.level))
