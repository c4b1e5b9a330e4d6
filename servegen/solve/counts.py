"""How many servers of two sizes the nodes of a pool hold together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.solve.problem import Kind
from servegen.solve.space import beside, replicas_that_fit

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@record
class Frontier:
    """The largest pairs of counts, spares left out: ``x`` prefill servers falling, ``y`` decode servers rising."""

    tp_p: int
    tp_d: int
    x: Array
    y: Array

    @property
    def any(self) -> bool:
        return len(self.x) > 0

    def holds(self, x: Array, y: Array) -> Mask:
        """Whether the pool holds ``x`` and ``y`` servers."""
        # y rises along the frontier: the first point with enough decode servers has the most prefill servers beside them.
        at = np.searchsorted(self.y, y)
        inside = at < len(self.y)
        return np.asarray(inside & (self.x[np.minimum(at, len(self.x) - 1)] >= x))

    def beside(self, x: Array, y: Array) -> tuple[Array, Array]:
        """The most prefill servers that the pool holds beside ``y``, and the most decode servers beside ``x``; 0 where it does
        not hold as many."""
        most_x = np.append(self.x, 0.0)[np.searchsorted(self.y, y)]
        most_y = np.append(self.y[::-1], 0.0)[np.searchsorted(self.x[::-1], x)]
        return most_x, most_y


def frontier(kinds: tuple[Kind, Kind], tp_p: int, tp_d: int, spares: int, most: int) -> Frontier:
    """Counts that fill the pool, or ``most`` accelerators if that is not 0; each role keeps ``spares`` besides.

    Servers of one kind share its nodes; those of two kinds stand apart and only ``most`` binds them together.
    """
    kind = kinds[0]
    if kinds[1] is not kind:
        y = np.arange(1.0, float(replicas_that_fit(kinds[1], np.array(float(tp_d)))) + 1.0)
        x = np.full_like(y, float(replicas_that_fit(kind, np.array(float(tp_p)))))
        return _kept(tp_p, tp_d, np.minimum(x, np.floor((most - y * tp_d) / tp_p)) if most else x, y, spares)
    big, small = max(tp_p, tp_d), min(tp_p, tp_d)
    count = np.arange(1.0, float(replicas_that_fit(kind, np.array(float(big)))) + 1.0)
    left = beside(kind, float(big), count, float(small))
    if most:
        left = np.minimum(left, np.floor((most - count * big) / small))
    x, y = (count, left) if tp_p >= tp_d else (left, count)
    return _kept(tp_p, tp_d, x, y, spares)


def _kept(tp_p: int, tp_d: int, x: Array, y: Array, spares: int) -> Frontier:
    """The points with at least one server of each role beyond its spares, in order, and none that another has more than of one
    role and no less of the other."""
    x, y = x - spares, y - spares
    keep = (x >= 1) & (y >= 1)
    x, y = x[keep], y[keep]
    order = np.lexsort((x, y))
    x, y = x[order], y[order]
    largest = x > np.append(np.maximum.accumulate(x[::-1])[::-1][1:], 0.0)
    return Frontier(tp_p, tp_d, x[largest], y[largest])


def fill(front: Frontier, rate_p: Array, rate_d: Array) -> tuple[Array, Array]:
    """Counts that carry the most: where prefill falls below decode along the frontier, or just before."""
    # x*rate_p falls and y*rate_d rises, so the best is beside the point where they cross.
    at = np.searchsorted(front.y / front.x, rate_p / rate_d)
    right, left = np.clip(at, 0, len(front.x) - 1), np.clip(at - 1, 0, len(front.x) - 1)
    carried = [np.minimum(front.x[i] * rate_p, front.y[i] * rate_d) for i in (left, right)]
    best = np.where(carried[0] >= carried[1], left, right)
    return front.x[best], front.y[best]


def fewest(x: Array, y: Array, rate_p: Array, rate_d: Array) -> tuple[Array, Array]:
    """The fewest servers that carry as much as ``x`` and ``y`` do, one of each at the least."""
    carried = np.minimum(x * rate_p, y * rate_d)
    return np.maximum(np.ceil(carried / rate_p - 1e-9), 1.0), np.maximum(np.ceil(carried / rate_d - 1e-9), 1.0)


def spans(front: Frontier, least_x: float, least_y: float) -> tuple[Array, Array]:
    """Counts of each role from the least on that the pool holds beside the other's least; empty where there are none."""
    beside_x, beside_y = front.y >= least_y, front.x >= least_x
    most_x = float(front.x[beside_x].max()) if beside_x.any() else 0.0
    most_y = float(front.y[beside_y].max()) if beside_y.any() else 0.0
    return np.arange(least_x, most_x + 1.0), np.arange(least_y, most_y + 1.0)


def spread(counts: Array, many: int) -> Array:
    """So many of the ``counts``, evenly chosen, the least and the most among them; all where there are no more."""
    if len(counts) <= many:
        return counts
    return counts[np.round(np.linspace(0.0, len(counts) - 1.0, many)).astype(np.int64)]
