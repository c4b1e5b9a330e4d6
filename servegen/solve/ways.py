"""Ways to serve with a pair of configurations: which candidate of each role, and how many servers of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from servegen.record import record
from servegen.solve.candidate import three_digits
from servegen.solve.counts import fewest, fill, spans, spread
from servegen.solve.pair import Pair
from servegen.solve.problem import Problem
from servegen.solve.split import Array, Index, Mask

#: Counts of each role that are compared when latency is the objective: between more of them it differs by less than it is known.
SPREAD = 16
#: Counts of each role, from the least on, that are looked at first; then twice as many, until there are no more.
BOX = 4
#: Any decode candidate that is enough.
ANY = -1
#: Share by which rounding may leave servers short of a load.
NEARLY = 1e-9


@record
class Ways:
    """Ways to serve with one pair, flat, shape (n,): ``x`` servers of prefill candidate ``i`` and ``y`` of decode candidate ``j``
    (:data:`ANY` until it is chosen) at ``load`` requests/s. ``objective`` is what is minimised, 0 where that is the latency; of
    equals ``devices`` decide and then ``headroom``, to three digits. Beside as many of the other role ``most_x`` prefill and
    ``most_y`` decode servers are to be on time, too.
    """

    i: Index
    j: Index
    x: Array
    y: Array
    load: Array
    objective: Array
    devices: Array
    headroom: Array
    most_x: Array
    most_y: Array

    def __len__(self) -> int:
        return len(self.i)


def filling(pair: Pair, below: float = math.inf) -> Ways:
    """Of every prefill with every decode candidate that carries the load the way that gets the most out of the pool, with no more
    servers than that takes; of those that yield less than ``below`` requests/s."""
    problem = pair.problem
    rate_p, rate_d = pair.rates
    # Batch limits beyond what the bounds allow change nothing.
    kept = np.flatnonzero(np.diff(rate_d[0], prepend=0.0))
    rate_d = rate_d[:, kept]
    x, y = fewest(*fill(pair.front, rate_p, rate_d), rate_p, rate_d)
    carried = np.minimum(x * rate_p, y * rate_d)
    load = problem.utilization * carried
    i, k = np.nonzero((load >= pair.load * (1.0 - NEARLY)) & (load < below))
    x, y, carried, load = (a[i, k] for a in (x, y, carried, load))
    figures = objective_of(pair, x, y, load), np.add(*pair.devices(x, y)), headroom_of(problem, carried)
    return Ways(i, kept[k], x, y, load, *figures, x, y)


def objective_of(pair: Pair, x: Array, y: Array, load: Array) -> Array:
    """What is minimised of so many servers that are loaded with all they yield; 0 where that is the latency."""
    problem, output = pair.problem, load * pair.problem.demand.osl_mean
    if problem.objective == "throughput":
        return -three_digits(output)
    if problem.objective == "latency":
        return np.zeros_like(load)
    cost, watts = pair.price(x, y)
    return three_digits((cost if problem.objective == "cost" else watts) / output)


@record
class Needs:
    """Servers of each candidate that carry the ``load`` (p, 1): ``x`` of a prefill one, shape (p, 1), and ``y`` of a decode one,
    (p, q) or, where that is the same beside all prefill candidates, (1, q).

    ``xs`` and ``ys`` are the counts of each role that the pool holds beside the other's least; ``can_x`` and ``can_y``, shape
    (p, counts), whether so many servers can do for a prefill candidate.
    """

    pair: Pair
    load: Array
    x: Array
    y: Array
    xs: Array
    ys: Array
    can_x: Mask
    can_y: Mask

    @classmethod
    def of(cls, pair: Pair, load: Array) -> Needs:
        used, (rate_p, rate_d) = pair.problem.utilization, pair.rates
        alike = load[:1] if bool((load == load[0]).all()) else load
        x, y = (np.maximum(np.ceil(total / (used * rate) - 1e-9), 1.0) for total, rate in ((load, rate_p), (alike, rate_d)))
        xs, ys = spans(pair.front, float(x.min()), float(y.min()))
        least = np.broadcast_to(y.min(axis=1, keepdims=True), x.shape)  # of the fastest, which is enough where any is
        most_x, most_y = pair.front.beside(xs, ys)
        return cls(pair, load, x, y, xs, ys, (xs >= x) & (most_y >= least), (ys >= least) & (most_x >= x))

    @property
    def held(self) -> int:
        """Candidates whose servers the pool holds."""
        return int(np.sum(np.broadcast_to(self.pair.front.holds(self.x, self.y), (len(self.pair.p), len(self.pair.q)))))

    def edges(self) -> Ways:
        """Of each prefill candidate every count of a role with the most servers of the other that the pool holds beside it, those
        of prefill servers first: where that is late, so is every way with that count."""
        most_x, most_y = self.pair.front.beside(self.xs, self.ys)
        (i, a), (j, b) = np.nonzero(self.can_x), np.nonzero(self.can_y)
        x, y = np.concatenate((self.xs[a], most_x[b])), np.concatenate((most_y[a], self.ys[b]))
        return self._counted(np.concatenate((i, j)), x, y)

    def within(self, on_time: Mask) -> Needs:
        """The same without the counts whose :meth:`edges` are not ``on_time``."""
        can_x, can_y = self.can_x.copy(), self.can_y.copy()
        many = int(np.count_nonzero(can_x))
        can_x[can_x], can_y[can_y] = on_time[:many], on_time[many:]
        return dataclasses.replace(self, can_x=can_x, can_y=can_y)

    def ways(self) -> Iterator[Ways]:
        """Every way that the pool holds, in parts: what is in one is better than what is in the next, by the objective and the
        accelerators it takes. Of latency, which neither says, some counts in one; only where none of them will do, the others.
        """
        some_x, some_y = (np.asarray(can.any(axis=0)) for can in (self.can_x, self.can_y))
        if self.fastest:
            few_x, few_y = np.isin(self.xs, spread(self.xs, SPREAD)), np.isin(self.ys, spread(self.ys, SPREAD))
            yield from self._among(some_x & few_x, some_y & few_y, SPREAD)
            if few_x.all() and few_y.all():
                return
        yield from self._among(some_x, some_y, BOX)

    @property
    def fastest(self) -> bool:
        """Whether latencies decide, and not what the servers take."""
        return self.pair.problem.objective == "latency" and not self.pair.problem.full

    def _among(self, some_x: Mask, some_y: Mask, side: int) -> Iterator[Ways]:
        """The ways with some of the counts; the first part is of ``side`` counts of each role."""
        xs, ys, can_x, can_y = self.xs[some_x], self.ys[some_y], self.can_x[:, some_x], self.can_y[:, some_y]
        if not len(xs) or not len(ys):
            return
        before = (-math.inf, -math.inf)
        while True:
            x, y = xs[:side, None], ys[None, :side]
            spent, devices = self._spent(x, y)
            # Nothing beyond the box is better than its two nearest corners.
            corners = [(xs[side], ys[0])] if side < len(xs) else []
            corners += [(xs[0], ys[side])] if side < len(ys) else []
            until = min(((float(s), float(n)) for s, n in (self._spent(*c) for c in corners)), default=(math.inf, math.inf))
            a, b = np.nonzero(~_less(spent, devices, before) & _less(spent, devices, until) & self.pair.front.holds(x, y))
            i, k = np.nonzero(can_x[:, a] & can_y[:, b])
            yield self._counted(i, xs[a[k]], ys[b[k]])
            if math.isinf(until[1]):
                return
            side, before = 2 * side, until

    def _counted(self, i: Index, x: Array, y: Array) -> Ways:
        """Ways with so many servers, by any decode candidate that is enough."""
        rate_p, rate_d = self.pair.rates
        headroom = headroom_of(self.pair.problem, np.minimum(x * rate_p[i, 0], y * float(rate_d.max())))
        most = self.pair.front.beside(x, y)
        return Ways(i, np.full_like(i, ANY), x, y, self.load[i, 0], *self._spent(x, y), headroom, *most)

    def _spent(self, x: Array, y: Array) -> tuple[Array, Array]:
        """What is minimised, 0 where that is the latency, and the accelerators of so many servers."""
        cost, watts = self.pair.price(x, y)
        objective = self.pair.problem.objective
        spent = cost if objective == "cost" else watts if objective == "energy" else np.zeros_like(cost)
        return spent, np.add(*self.pair.devices(x, y))

    def decode(self, i: int, x: float, y: float, headroom: float) -> int:
        """The first decode candidate that is enough for prefill candidate ``i`` and has the ``headroom``."""
        rate_p, rate_d = self.pair.rates
        enough = self.y[i if len(self.y) > 1 else 0] <= y
        return int(np.argmax(enough & (headroom_of(self.pair.problem, np.minimum(x * rate_p[i, 0], y * rate_d[0])) >= headroom)))


def headroom_of(problem: Problem, carried: Array) -> Array:
    """What decides between equals; a closed loop has none to spare."""
    return three_digits(carried) if problem.open_loop else np.ones_like(carried)


def _less(first: Array, second: Array, than: tuple[float, float]) -> Mask:
    """Where (first, second) comes before ``than``."""
    return np.asarray((first < than[0]) | ((first == than[0]) & (second < than[1])))
