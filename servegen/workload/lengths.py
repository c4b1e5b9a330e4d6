"""Token counts of a request: one distribution, however it was stated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from servegen.record import record
from servegen.workload.shapes import Buckets, Floats, LogCurve, Samples, Shape, normal_quantile

# Finer towards the tail, because that is where latency bounds bite.
NODE_EDGES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0)
_MEDIAN_BIN = NODE_EDGES.index(0.5)


@record
class Lengths:
    """A distribution of token counts, X = max(floor, scale * S - shift) of a shape S; never below 1 token.

    Build it with `fixed`, `lognormal`, `interpolated`, `stated`, `histogram` or `empirical`. Counts are treated as real
    numbers; only `sample` and `longest` round. Equal by value, so it can be a key.
    """

    shape: Shape
    scale: float = 1.0
    shift: float = 0.0
    floor: float = 1.0

    @classmethod
    def fixed(cls, tokens: float) -> Lengths:
        """Every request has ``tokens`` (>= 1) tokens. ValueError otherwise."""
        return cls(Samples.of([_count("a length", tokens)]))

    @classmethod
    def lognormal(cls, mean: float, *, p: float, q: float) -> Lengths:
        """The lognormal with that mean whose ``p``-quantile is ``q``; of two solutions the one with the smaller sigma.

        ln(q / mean) = z * sigma - sigma**2 / 2 with z the normal quantile of p, hence q / mean <= exp(z**2 / 2). Where
        lengths below 1 token would carry weight they are raised to 1, and sigma is solved so that the mean still holds.
        ValueError where there is no solution, with the limit.
        """
        mean, q = _count("mean", mean), _count(_name(p), q)
        z = float(normal_quantile(np.array(_probability(p))))
        if q == mean:
            return cls.fixed(mean)
        if z <= 0 and q > mean:
            raise ValueError(f"{_name(p)} = {q:g} is above mean = {mean:g}: no lognormal has such figures")
        if z > 0 and q < mean:
            # A lognormal with a sigma beyond 2z has such figures, but no service has such lengths: a typing error.
            raise ValueError(
                f"{_name(p)} = {q:g} is below mean = {mean:g}: that is too heavy a tail for request lengths"
            )
        spread = z * z - 2 * math.log(q / mean)
        limit = math.exp(z * z / 2)
        if spread < 0:
            raise ValueError(
                f"{_name(p)} = {q:g} is {q / mean:.2f} times mean = {mean:g}: a lognormal has at most {limit:.2f} "
                "times, exp(z^2 / 2); state a third figure or a histogram for a heavier tail"
            )
        low = z - math.sqrt(spread) if z > 0 else z + math.sqrt(spread)

        def candidate(sigma: float) -> Lengths:
            return cls(LogCurve.line(math.log(q) - z * sigma, sigma))

        def excess(sigma: float) -> float:
            return candidate(sigma).mean - mean

        tolerance = 1e-12 * mean
        if excess(low) <= tolerance:
            return candidate(low)
        # The floor of 1 token lifts the mean. For p above one half the mean falls with sigma up to a turning point, and
        # the smaller sigma lies before it; at or below one half it rises with sigma throughout, from q at 0.
        far = 0.0 if z <= 0 else _lowest(excess, low, z)
        if excess(far) > 1e-6 * mean:
            raise ValueError(
                f"{_name(p)} = {q:g} with mean = {mean:g} has no lognormal whose lengths are at least 1 token; "
                "state a histogram"
            )
        return candidate(_root(excess, low, far, tolerance) if excess(far) < 0 else far)

    @classmethod
    def interpolated(cls, quantiles: Mapping[float, float], mean: float | None = None) -> Lengths:
        """Through {probability: tokens} of at least two: PCHIP of log tokens over the normal score, lognormal tails.

        With ``mean`` the whole distribution is then scaled to it, which moves the quantiles by the same factor. Two
        quantiles without a mean are the lognormal through both. ValueError where the figures descend, or where no
        distribution with these quantiles has a mean so small.
        """
        if len(quantiles) < 2:
            raise ValueError("interpolation needs at least two percentiles")
        for p, q in quantiles.items():
            _probability(p)
            _count(_name(p), q)
        curve = cls(LogCurve.through(quantiles))
        if mean is None:
            return curve
        mean = _count("mean", mean)
        edges = [0.0, *sorted(quantiles), 1.0]
        values = [1.0, *(quantiles[p] for p in edges[1:-1])]
        least = math.fsum(q * (edges[i + 1] - edges[i]) for i, q in enumerate(values))
        if mean < least * (1 - 1e-9):
            figures = ", ".join(f"{_name(p)} = {quantiles[p]:g}" for p in edges[1:-1])
            raise ValueError(f"mean = {mean:g} is too small: with {figures} it is at least {least:.4g}")
        factor = mean / float(curve.shape.cumulative(np.array(1.0), 1))

        def candidate(scale: float) -> Lengths:
            return replace(curve, scale=scale)

        def excess(scale: float) -> float:
            return candidate(scale).mean - mean

        tolerance = 1e-12 * mean
        if excess(factor) <= tolerance:
            return candidate(factor)
        return candidate(_root(excess, factor, factor * 1e-9, tolerance))

    @classmethod
    def stated(
        cls, *, mean: float | None = None, p50: float | None = None, p95: float | None = None, p99: float | None = None
    ) -> Lengths:
        """From the figures of a spec, whichever are given.

        mean alone: fixed. mean and one percentile: `lognormal`. Two percentiles or more: `interpolated`. ValueError
        where they do not determine a distribution or contradict each other.
        """
        given = {p: q for p, q in ((0.5, p50), (0.95, p95), (0.99, p99)) if q is not None}
        if len(given) >= 2:
            return cls.interpolated(given, mean)
        if mean is None:
            raise ValueError("state mean, or at least two of p50, p95 and p99")
        for p, q in given.items():
            return cls.lognormal(mean, p=p, q=q)
        return cls.fixed(mean)

    @classmethod
    def histogram(cls, buckets: Sequence[Sequence[float]]) -> Lengths:
        """From [[upper, weight], ...], uniform inside a bucket; the first begins at 1. ValueError as `Buckets.of`."""
        return cls(Buckets.of(buckets))

    @classmethod
    def empirical(cls, samples: ArrayLike) -> Lengths:
        """The distribution of an array of observed counts, each at least 1. ValueError otherwise."""
        shape = Samples.of(samples)
        _count("the smallest sample", float(shape.values[0]))
        return cls(shape)

    @cached_property
    def mean(self) -> float:
        """Mean number of tokens."""
        return self.moment(1)

    @property
    def variance(self) -> float:
        """Variance in tokens squared."""
        return max(0.0, self.moment(2) - self.mean**2)

    @cached_property
    def longest(self) -> int:
        """The length to provide for, rounded up: the largest value; of a lognormal or interpolated one the p99.9."""
        top = max(self.floor, self.scale * self.shape.top - self.shift)
        # Without the tolerance a scale of 0.1 * 10 would ask for one token more.
        return math.ceil(top * (1 - 1e-12))

    def moment(self, k: int) -> float:
        """E[X**k] for k of 1, 2 or 3; exact, or integrated to a relative error below 1e-9 (`interpolated`)."""
        if k not in (1, 2, 3):
            raise ValueError(f"moment {k} is not provided; k is 1, 2 or 3")
        return float(self._cumulative(np.array(1.0), k))

    def quantile(self, p: ArrayLike) -> Floats:
        """Tokens at probability ``p`` in [0, 1], same shape; inf at 1 for a lognormal. ValueError outside [0, 1]."""
        probability = np.asarray(p, dtype=np.float64)
        if not ((probability >= 0) & (probability <= 1)).all():
            raise ValueError("a probability lies between 0 and 1")
        tokens: Floats = np.maximum(self.floor, self.scale * self.shape.quantile(probability) - self.shift)
        return tokens

    def cdf(self, x: ArrayLike) -> Floats:
        """P(X <= x), same shape as ``x``."""
        tokens = np.asarray(x, dtype=np.float64)
        return np.where(tokens < self.floor, 0.0, self.shape.cdf((tokens + self.shift) / self.scale))

    def nodes(self, upper: bool) -> tuple[Floats, Floats]:
        """Nine values and their weights (sum 1), one for each bin between `NODE_EDGES`, ascending.

        ``upper`` false: the mean of each bin, so that the weighted sum is the mean. ``upper`` true: from the median on
        the upper end of the bin (the last: `longest`), so that percentiles read from it err to the safe side.
        """
        edges = np.array(NODE_EDGES)
        values = self.means(edges)
        if upper:
            ends = self.quantile(edges[1:-1])
            # The mean beyond p99.5 of a very heavy tail can pass p99.9.
            values[_MEDIAN_BIN:] = np.maximum(values[_MEDIAN_BIN:], np.append(ends, self.longest)[_MEDIAN_BIN:])
        return values, np.diff(edges)

    def means(self, edges: Floats) -> Floats:
        """Mean of each bin between two of these probabilities, ascending from 0 to 1. Shapes (n+1,) -> (n,)."""
        ends = self.quantile(edges)
        # Clipped because the difference of two integrals may leave its bin by a rounding error.
        return np.clip(np.diff(self._cumulative(edges, 1)) / np.diff(edges), ends[:-1], ends[1:])

    def scaled(self, factor: float) -> Lengths:
        """max(1, factor * X). ValueError unless ``factor`` is positive."""
        if not (math.isfinite(factor) and factor > 0):
            raise ValueError(f"a factor must be positive, not {factor:g}")
        return Lengths(self.shape, factor * self.scale, factor * self.shift, max(1.0, factor * self.floor))

    def minus(self, tokens: float) -> Lengths:
        """max(1, X - tokens): what remains of a prompt whose first ``tokens`` are shared. ValueError if negative."""
        if not (math.isfinite(tokens) and tokens >= 0):
            raise ValueError(f"shared tokens must be 0 or more, not {tokens:g}")
        return Lengths(self.shape, self.scale, self.shift + tokens, max(1.0, self.floor - tokens))

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """``n`` independent counts, rounded to whole tokens. Shape: (n,)."""
        # Doubles count exactly up to 2**53; beyond it a heavy tail would overflow the integer.
        return np.rint(np.minimum(self.quantile(rng.random(n)), 2.0**53)).astype(np.int64)

    def _cumulative(self, p: Floats, k: int) -> Floats:
        """Integral of quantile(u)**k over u from 0 to p, by the binomial expansion above the floor."""
        p_floor = self.shape.cdf(np.array((self.floor + self.shift) / self.scale))
        below = np.minimum(p, p_floor)
        total = self.floor**k * below
        for j in range(k + 1):
            factor = math.comb(k, j) * self.scale**j * (-self.shift) ** (k - j)
            if factor != 0:
                part = p - below if j == 0 else self.shape.cumulative(p, j) - self.shape.cumulative(below, j)
                total = total + factor * part
        return np.asarray(total, dtype=np.float64)


def held_tokens(isl: Lengths, osl: Lengths) -> tuple[float, float]:
    """Mean (tokens) and variance (tokens squared) of the context that a running request holds during its decode.

    At a random time a request is found running in proportion to its output O, and at a uniform point U of it: the
    context is I + U * O with O weighted by its length. Hence mean = E[I] + E[O^2] / (2 E[O]) and variance =
    Var(I) + E[O^3] / (3 E[O]) - (E[O^2] / (2 E[O]))^2. Takes I and O as independent: in the public Azure 2023 and
    Mooncake traces their correlation lies between -0.37 and 0.07.
    """
    generated = osl.moment(2) / (2 * osl.mean)
    return isl.mean + generated, isl.variance + max(0.0, osl.moment(3) / (3 * osl.mean) - generated**2)


def _name(p: float) -> str:
    return f"p{100 * p:g}"


def _count(name: str, tokens: Any) -> float:
    value = float(tokens)
    if not (math.isfinite(value) and value >= 1):
        raise ValueError(f"{name} must be at least 1 token, not {value:g}")
    return value


def _probability(p: float) -> float:
    if not 0 < p < 1:
        raise ValueError(f"a percentile's probability lies between 0 and 1, not {p:g}")
    return p


def _root(f: Callable[[float], float], high: float, low: float, tolerance: float) -> float:
    """Where f, positive at ``high`` and not positive at ``low``, is within ``tolerance`` of 0 (Illinois method)."""
    f_high, f_low = f(high), f(low)
    middle, value, moved = low, f_low, ""
    for _ in range(200):
        if abs(value) <= tolerance:
            break
        middle = (high * f_low - low * f_high) / (f_low - f_high)
        value = f(middle)
        # Halving the value at an end that stayed twice keeps the secant from creeping up on it.
        if value > 0:
            high, f_high = middle, value
            f_low, moved = (f_low / 2 if moved == "high" else f_low), "high"
        else:
            low, f_low = middle, value
            f_high, moved = (f_high / 2 if moved == "low" else f_high), "low"
    return middle


def _lowest(f: Callable[[float], float], low: float, high: float) -> float:
    """Argument of the minimum of a function with one valley between low and high, by thirds."""
    for _ in range(45):
        third = (high - low) / 3
        if f(low + third) > f(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2
