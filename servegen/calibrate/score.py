"""How wrong predictions are: by engine, accelerator, model, precision and concurrency, and whether they order pairs rightly."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from servegen.calibrate.rows import METRICS, Metric, Row
from servegen.record import record

Predicted = Mapping[Metric, float]
Pair = tuple[Row, Predicted]

#: How rows are grouped for a table, by name.
GROUPS: Mapping[str, Callable[[Row], str]] = {
    "all": lambda r: "all",
    "engine": lambda r: r.engine,
    "accelerator": lambda r: r.accelerator,
    "model": lambda r: r.model,
    "weights": lambda r: r.weights or "as stored",
    "concurrency": lambda r: r.concurrency_band,
    "group": lambda r: " / ".join(r.group),
}
#: Pairs whose measurements differ by less than this are not asked to be ordered.
CLEARLY = 0.10


@record
class Score:
    """Absolute relative errors of one metric over ``rows`` rows, and the mean signed one (``bias``)."""

    group: str
    metric: Metric
    rows: int
    mean: float
    median: float
    p90: float
    bias: float


@record
class Ordering:
    """Pairs that differ in one thing and clearly in their measurement, and how many of them are ordered rightly."""

    what: str
    metric: Metric
    pairs: int
    right: int


def errors(pairs: Sequence[Pair], metric: Metric) -> list[float]:
    """Signed relative errors, predicted over measured minus one, of the rows that have both."""
    return [
        p[metric] / r.measured[metric] - 1.0
        for r, p in pairs
        if metric in r.measured and metric in p and math.isfinite(p[metric])
    ]


def score(pairs: Sequence[Pair], by: str = "all") -> list[Score]:
    """One score per group and metric, in the order of the groups' names. ``by`` is a key of :data:`GROUPS`."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(GROUPS[by](pair[0]), []).append(pair)
    out = []
    for group, some in sorted(found.items()):
        for metric in METRICS:
            signed = errors(some, metric)
            if signed:
                size = sorted(abs(e) for e in signed)
                out.append(
                    Score(
                        group,
                        metric,
                        len(size),
                        sum(size) / len(size),
                        quantile(size, 0.5),
                        quantile(size, 0.9),
                        sum(signed) / len(signed),
                    )
                )
    return out


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear between the values of an ordered list."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def half_width(pairs: Sequence[Pair], metric: Metric, share: float = 0.9) -> float:
    """The factor, less one, within which ``share`` of unseen measurements lie: the conformal quantile of |log error|.

    The rank is that of one more row than there are, which makes the promise hold for a row not yet seen. nan without rows.
    """
    sizes = sorted(
        abs(math.log(p[metric] / r.measured[metric]))
        for r, p in pairs
        if metric in r.measured and math.isfinite(p.get(metric, math.nan)) and p[metric] > 0
    )
    if not sizes:
        return math.nan
    rank = min(math.ceil(share * (len(sizes) + 1)), len(sizes))
    return math.expm1(sizes[rank - 1])


def crossed(pairs: Sequence[Pair], metric: Metric, share: float = 0.9) -> dict[str, tuple[int, int]]:
    """How many measurements of each group lie inside a band whose width comes from the residuals of the *other* groups only,
    and of how many, by group. ``pairs`` are left-out predictions: so neither the constants nor the band had seen the group.
    """
    known = [(r, p) for r, p in pairs if metric in r.measured and math.isfinite(p.get(metric, math.nan))]
    out = {}
    for group in sorted({r.group for r, _ in known}):
        width = half_width([pair for pair in known if pair[0].group != group], metric, share)
        own = [pair for pair in known if pair[0].group == group]
        out[" / ".join(group)] = covered(own, metric, lambda _, w=width: (1.0 / (1.0 + w), 1.0 + w))  # type: ignore[misc]
    return out


def covered(pairs: Sequence[Pair], metric: Metric, width: Callable[[Row], tuple[float, float]]) -> tuple[int, int]:
    """How many measurements lie inside the band ``width(row)`` = (low, high) around the prediction, and of how many."""
    inside = count = 0
    for r, p in pairs:
        if metric in r.measured and math.isfinite(p.get(metric, math.nan)):
            low, high = width(r)
            count += 1
            inside += low * p[metric] <= r.measured[metric] <= high * p[metric]
    return inside, count


def orderings(pairs: Sequence[Pair], metric: Metric) -> list[Ordering]:
    """Of pairs that differ only in TP, weights or concurrency, how many the prediction puts the same way round."""
    keys: Mapping[str, Callable[[Row], tuple[object, ...]]] = {
        "tp": lambda r: (r.group, r.weights, r.concurrency, r.isl, r.osl, r.version),
        "weights": lambda r: (r.group, r.tp, r.concurrency, r.isl, r.osl, r.version),
        "concurrency": lambda r: (r.group, r.weights, r.tp, r.isl, r.osl, r.version),
    }
    out = []
    for what, key in keys.items():
        found: dict[tuple[object, ...], list[Pair]] = {}
        for pair in pairs:
            if metric in pair[0].measured and math.isfinite(pair[1].get(metric, math.nan)):
                found.setdefault(key(pair[0]), []).append(pair)
        total = right = 0
        for some in found.values():
            for i, (r1, p1) in enumerate(some):
                for r2, p2 in some[i + 1 :]:
                    if getattr(r1, what) == getattr(r2, what):
                        continue
                    measured = math.log(r1.measured[metric] / r2.measured[metric])
                    if abs(measured) > math.log1p(CLEARLY):
                        total += 1
                        right += (p1[metric] > p2[metric]) == (measured > 0)
        out.append(Ordering(what, metric, total, right))
    return out
