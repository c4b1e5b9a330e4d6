"""Shapes of a distribution: the quantile function, its inverse and its partial moments.

Three shapes carry everything that a spec or a trace can say: `Samples` (also a fixed number), `Buckets` (a histogram)
and `LogCurve` (a lognormal, or log-quantiles interpolated through stated figures). `Lengths` puts a scale, a shift and
a floor on top of one of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from servegen.record import record

Floats = NDArray[np.float64]

# exp(6 * 3.09) is a p99.9 of 1e8 times the median: figures that ask for more are not request lengths.
MAX_SIGMA = 6.0
# Stands for an infinite z where inf * 0 would be nan.
_FAR = 1e300
_SQRT_HALF = math.sqrt(0.5)

_inv_cdf = np.frompyfunc(NormalDist().inv_cdf, 1, 1)
_erfc = np.frompyfunc(math.erfc, 1, 1)


def normal_quantile(p: Floats) -> Floats:
    """z with P(Z <= z) = p, same shape as ``p``; -1e300 at 0, 1e300 at 1. Relative error about 1e-15 (AS 241)."""
    inner = (p > 0) & (p < 1)
    z = np.asarray(_inv_cdf(np.where(inner, p, 0.5)), dtype=np.float64)
    return np.where(inner, z, np.where(p <= 0, -_FAR, _FAR))


def normal_cdf(z: Floats) -> Floats:
    """P(Z <= z), same shape as ``z``."""
    return np.asarray(_erfc(-z * _SQRT_HALF), dtype=np.float64) / 2


@cache
def _gauss() -> tuple[Floats, Floats]:
    """Nodes and weights on [-1, 1]; 64 of them integrate exp(3 * MAX_SIGMA * z) over a segment to rounding error."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    return np.asarray(nodes, dtype=np.float64), np.asarray(weights, dtype=np.float64)


class Shape(Protocol):
    """What `Lengths` needs of a shape. Arrays of any shape in, the same shape out."""

    @property
    def top(self) -> float:
        """The largest value, or the p99.9 quantile where there is none."""
        ...

    def quantile(self, p: Floats) -> Floats:
        """The smallest x with P(X <= x) >= p."""
        ...

    def cdf(self, x: Floats) -> Floats:
        """P(X <= x)."""
        ...

    def cumulative(self, p: Floats, k: int) -> Floats:
        """Integral of quantile(u)**k over u from 0 to p, k >= 1; at p = 1 the k-th raw moment."""
        ...


@dataclass(frozen=True, eq=False)
class Samples:
    """Observed values, a step function. ``values`` ascend, ``ends`` counts the samples up to each. Built by `of`."""

    values: Floats
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, samples: Any) -> Samples:
        """From an array of at least one finite number; ValueError otherwise."""
        array = np.asarray(samples, dtype=np.float64).ravel()
        if array.size == 0:
            raise ValueError("no samples")
        if not np.isfinite(array).all():
            raise ValueError("a sample is not a finite number")
        values, counts = np.unique(array, return_counts=True)
        return cls(values, np.cumsum(counts).astype(np.int64))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Samples):
            return NotImplemented
        return np.array_equal(self.values, other.values) and np.array_equal(self.ends, other.ends)

    def __hash__(self) -> int:
        return hash((self.values.tobytes(), self.ends.tobytes()))

    @property
    def top(self) -> float:
        return float(self.values[-1])

    def quantile(self, p: Floats) -> Floats:
        # The tolerance keeps quantile(cdf(x)) == x where (count / n) * n rounds up.
        rank = np.ceil(p * self.ends[-1] * (1 - 1e-13))
        found: Floats = self.values[np.searchsorted(self.ends, np.maximum(rank, 1))]
        return found

    def cdf(self, x: Floats) -> Floats:
        # The tolerance keeps a value that went through a scale and back on its own step.
        below = np.searchsorted(self.values, x + 1e-12 * np.abs(x), side="right")
        share: Floats = np.where(below > 0, self.ends[np.maximum(below - 1, 0)], 0) / self.ends[-1]
        return share

    def cumulative(self, p: Floats, k: int) -> Floats:
        ends = np.concatenate([[0], self.ends])
        sums = np.concatenate([[0.0], np.cumsum(np.diff(ends) * self.values**k)])
        part: Floats = np.interp(p * ends[-1], ends, sums) / ends[-1]
        return part


@record
class Buckets:
    """Uniform between ``lows[i]`` and ``highs[i]`` with probability ``weights[i]`` (> 0, sum 1). Build it with `of`."""

    lows: tuple[float, ...]
    highs: tuple[float, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, buckets: Sequence[Sequence[float]]) -> Buckets:
        """From [[upper, weight], ...]; uppers ascend from at least 1, the first bucket begins at 1. ValueError else."""
        if not buckets:
            raise ValueError("a histogram needs at least one [upper, weight]")
        low, rows = 1.0, []
        for number, bucket in enumerate(buckets, 1):
            if len(bucket) != 2:
                raise ValueError(f"bucket {number} of the histogram is not [upper, weight]")
            high, weight = float(bucket[0]), float(bucket[1])
            if not (math.isfinite(high) and (high > low or (number == 1 and high == low))):
                raise ValueError(f"bucket {number} ends at {high:g}: upper ends must ascend and be at least 1")
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(f"bucket {number} has weight {weight:g}: weights must be 0 or more")
            rows.append((low, high, weight))
            low = high
        total = math.fsum(weight for _, _, weight in rows)
        if total <= 0:
            raise ValueError("the weights of the histogram are all 0")
        kept = [(low, high, weight / total) for low, high, weight in rows if weight > 0]
        return cls(*(tuple(column) for column in zip(*kept, strict=True)))

    @cached_property
    def _columns(self) -> tuple[Floats, Floats, Floats, Floats]:
        """lows, highs, weights and the probability below each bucket."""
        low, high, weight = (np.array(column) for column in (self.lows, self.highs, self.weights))
        return low, high, weight, np.concatenate([[0.0], np.cumsum(weight)[:-1]])

    @property
    def top(self) -> float:
        return self.highs[-1]

    def quantile(self, p: Floats) -> Floats:
        low, high, weight, before = self._columns
        i = np.maximum(np.searchsorted(before, p) - 1, 0)
        return low[i] + np.clip((p - before[i]) / weight[i], 0, 1) * (high[i] - low[i])

    def cdf(self, x: Floats) -> Floats:
        low, high, weight, before = self._columns
        i = np.minimum(np.searchsorted(high, x), len(high) - 1)
        width = np.where(high > low, high - low, 1.0)
        inside = np.where(high[i] > low[i], np.clip((x - low[i]) / width[i], 0, 1), x >= high[i])
        return np.where(x >= high[-1], 1.0, before[i] + weight[i] * inside)

    def cumulative(self, p: Floats, k: int) -> Floats:
        low, high, weight, before = self._columns
        whole = np.concatenate([[0.0], np.cumsum(weight * _uniform_moment(low, high, k))[:-1]])
        i = np.maximum(np.searchsorted(before, p) - 1, 0)
        part = np.clip(p - before[i], 0, weight[i])
        return whole[i] + part * _uniform_moment(low[i], self.quantile(p), k)


def _uniform_moment(low: Floats, high: Floats, k: int) -> Floats:
    """Mean of x**k over [low, high]; written as a sum so that an empty interval needs no case of its own."""
    total: Floats = sum((low**j * high ** (k - j) for j in range(k + 1)), np.zeros_like(low)) / (k + 1)
    return total


@record
class LogCurve:
    """log x as a monotone curve of the normal score z: PCHIP between the knots, straight (lognormal tails) outside.

    ``z`` ascends, ``log_x`` does not descend; ``low_sigma`` and ``high_sigma`` are the slopes of the two tails. With
    one knot it is a lognormal. Interior slopes are the harmonic means of Fritsch and Butland (SIAM J. Sci. Stat.
    Comput. 5, 1984), end slopes those of the tails, so that these join smoothly.
    """

    z: tuple[float, ...]
    log_x: tuple[float, ...]
    low_sigma: float
    high_sigma: float

    @classmethod
    def line(cls, mu: float, sigma: float) -> LogCurve:
        """The lognormal of exp(mu + sigma * Z)."""
        return cls((0.0,), (mu,), sigma, sigma)

    @classmethod
    def through(cls, quantiles: Mapping[float, float]) -> LogCurve:
        """Through {probability: value} of at least two; ValueError where the values descend or part too fast.

        The lower tail goes on as the first segment does, the upper one as the last segment or as the line from the
        first figure to the last, whichever is flatter. Context limits end every real tail: a steep last segment that
        goes on for ever puts most of the mean into requests that never come (for the prompts of a reasoning service
        with p50 275, p95 1899, p99 12214 and mean 679 the segment gives a mean of 1095, the line 789).
        """
        probabilities = sorted(quantiles)
        z = normal_quantile(np.array(probabilities))
        y = np.log([quantiles[p] for p in probabilities])
        secants = np.diff(y) / np.diff(z)
        for i in range(len(secants)):
            low, high = (f"p{100 * p:g} = {quantiles[p]:g}" for p in probabilities[i : i + 2])
            if secants[i] < 0:
                raise ValueError(f"{high} is below {low}: a higher percentile cannot be smaller")
            if secants[i] > MAX_SIGMA:
                steep = f"(sigma {secants[i]:.1f}, at most {MAX_SIGMA:g})"
                raise ValueError(f"{high} is too far above {low} for request lengths {steep}")
        overall = float((y[-1] - y[0]) / (z[-1] - z[0]))
        return cls(tuple(z.tolist()), tuple(y.tolist()), float(secants[0]), min(float(secants[-1]), overall))

    @cached_property
    def _columns(self) -> tuple[Floats, Floats, Floats]:
        """Knots z, log x and the slope at each knot."""
        z, y = np.array(self.z), np.array(self.log_x)
        slopes = np.full(len(z), self.low_sigma)
        slopes[-1] = self.high_sigma
        if len(z) > 2:
            h = np.diff(z)
            secant = np.diff(y) / h
            left, right = secant[:-1], secant[1:]
            w_left, w_right = h[:-1] + 2 * h[1:], 2 * h[:-1] + h[1:]
            flat = (left == 0) | (right == 0)
            harmonic = (w_left + w_right) * left * right / np.where(flat, 1.0, w_left * right + w_right * left)
            slopes[1:-1] = np.where(flat, 0.0, harmonic)
        return z, y, slopes

    def _log_at(self, score: Floats) -> Floats:
        z, y, slopes = self._columns
        out: Floats = np.where(
            score < z[0], y[0] + self.low_sigma * (score - z[0]), y[-1] + self.high_sigma * (score - z[-1])
        )
        if len(z) == 1:
            return out
        i = np.clip(np.searchsorted(z, score, side="right") - 1, 0, len(z) - 2)
        h = z[i + 1] - z[i]
        t = np.clip((score - z[i]) / h, 0, 1)
        rise = y[i + 1] - y[i]
        # The Hermite cubic in a form that leaves a flat segment exactly flat.
        curve = y[i] + rise * t * t * (3 - 2 * t) + h * t * (1 - t) * (slopes[i] * (1 - t) - slopes[i + 1] * t)
        return np.where((score >= z[0]) & (score < z[-1]), curve, out)

    def _score_at(self, log_x: Floats) -> Floats:
        """The largest z whose log x is at most ``log_x``."""
        z, y, _ = self._columns
        left = _divide(log_x - y[0], self.low_sigma) + z[0]
        right = _divide(log_x - y[-1], self.high_sigma) + z[-1]
        out: Floats = np.where(log_x < y[0], left, right)
        inside = (log_x >= y[0]) & (log_x < y[-1])
        if not inside.any():
            return out
        target = log_x[inside] + 1e-13
        low, high = np.full(target.shape, z[0]), np.full(target.shape, z[-1])
        # 60 halvings of a span of a few units end below the spacing of doubles.
        for _ in range(60):
            middle = (low + high) / 2
            under = self._log_at(middle) <= target
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        out[inside] = low
        return out

    @property
    def top(self) -> float:
        return float(self.quantile(np.array(0.999)))

    def quantile(self, p: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(self._log_at(normal_quantile(p))), dtype=np.float64)

    def cdf(self, x: Floats) -> Floats:
        positive = np.atleast_1d(x > 0)
        scores = self._score_at(np.log(np.where(positive, np.atleast_1d(x), 1.0)))
        return np.where(positive, normal_cdf(scores), 0.0).reshape(np.shape(x))

    def cumulative(self, p: Floats, k: int) -> Floats:
        z, y, _ = self._columns
        score = normal_quantile(p)
        total = _tail(k, y[0], z[0], self.low_sigma, np.array(-_FAR), np.minimum(score, z[0]))
        total = total + _tail(k, y[-1], z[-1], self.high_sigma, z[-1], np.maximum(score, z[-1]))
        for start, end in pairwise(z.tolist()):
            nodes, weights = _gauss()
            half = (np.clip(score, start, end) - start) / 2
            at = start + half[..., None] * (1 + nodes)
            density = np.exp(k * self._log_at(at) - at * at / 2) / math.sqrt(2 * math.pi)
            total = total + half * (density @ weights)
        return total


def _divide(distance: Floats, slope: float) -> Floats:
    """distance / slope, infinitely far (by sign) where the slope is 0; a distance of 0 counts as beyond."""
    if slope > 0:
        return distance / slope
    return np.where(distance < 0, -_FAR, _FAR)


def _tail(k: int, log_x: float, z: float, sigma: float, start: Floats, end: Floats) -> Floats:
    """Integral of exp(k * (log_x + sigma * (s - z))) over the normal density of s from start to end."""
    area = normal_cdf(end - k * sigma) - normal_cdf(start - k * sigma)
    return math.exp(k * (log_x - sigma * z) + (k * sigma) ** 2 / 2) * area
