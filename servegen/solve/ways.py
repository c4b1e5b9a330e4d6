"""Ways to serve with a pair of configurations: which candidate of each role, and how many servers of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from servegen.record import record
from servegen.solve.candidate import three_digits
from servegen.solve.counts import fewest, fill, spans
from servegen.solve.pair import Pair
from servegen.solve.split import Array, Index, Mask

#: Counts of each role that are compared when latency is the objective: between more of them it differs by less than it is known.
SPREAD = 16
#: Counts of each role, from the least on, that are looked at first; then twice as many, until there are no more.
BOX = 4
#: Any decode candidate that is enough.
ANY = -1


@record
class Ways:
    """Ways to serve with one pair, flat, shape (n,): ``x`` servers of prefill candidate ``i`` and ``y`` of decode candidate ``j``
    (:data:`ANY` until it is chosen) at ``load`` requests/s. ``objective`` is what is minimised, 0 where that is the latency; of
    equals ``devices`` decide and then ``headroom``, to three digits. Each stands for so many candidates that differ in nothing.
    """

    i: Index
    j: Index
    x: Array
    y: Array
    load: Array
    objective: Array
    devices: Array
    headroom: Array
    candidates: Index

    def __len__(self) -> int:
        return len(self.i)


def filling(pair: Pair) -> Ways:
    """Of every prefill with every decode candidate that carries the load the way that gets the most out of the pool, with no more
    servers than that takes."""
    problem = pair.problem
    rate_p, rate_d = pair.rates
    # Batch limits beyond what the bounds allow change nothing.
    kept = np.flatnonzero(np.diff(rate_d[0], prepend=0.0))
    copies, rate_d = np.diff(kept, append=len(pair.q)), rate_d[:, kept]
    x, y = fewest(*fill(pair.front, rate_p, rate_d), rate_p, rate_d)
    carried = np.minimum(x * rate_p, y * rate_d)
    load = problem.utilization * carried
    i, k = np.nonzero(load >= pair.load * (1.0 - 1e-9))
    x, y, carried, load = (a[i, k] for a in (x, y, carried, load))
    cost, watts = pair.price(x, y)
    output = load * problem.demand.osl_mean
    if problem.objective == "throughput":
        objective = -three_digits(output)
    elif problem.objective == "latency":
        objective = np.zeros_like(load)
    else:
        spent = cost if problem.objective == "cost" else watts
        objective = three_digits(spent / output) if problem.saturate else spent
    return Ways(i, kept[k], x, y, load, objective, np.add(*pair.devices(x, y)), _headroom(pair, carried), copies[k])


@record
class Needs:
    """Servers of each candidate that carry the load: ``x`` of a prefill one, shape (p, 1), and ``y`` of a decode one, (p, q) or,
    where that is the same beside all prefill candidates, (1, q)."""

    pair: Pair
    x: Array
    y: Array

    @classmethod
    def of(cls, pair: Pair) -> Needs:
        used, (rate_p, rate_d) = pair.problem.utilization, pair.rates
        load = pair.load[:1] if pair.problem.open_loop else pair.load
        x, y = (np.maximum(np.ceil(total / (used * rate) - 1e-9), 1.0) for total, rate in ((pair.load, rate_p), (load, rate_d)))
        return cls(pair, x, y)

    @property
    def held(self) -> int:
        """Candidates whose servers the pool holds."""
        return int(np.sum(np.broadcast_to(self.pair.front.holds(self.x, self.y), (len(self.pair.p), len(self.pair.q)))))

    def ways(self) -> Iterator[Ways]:
        """Every way that the pool holds, in parts: what is in one is better than what is in the next, by the objective and the
        accelerators it takes. Of latency, which neither says, some counts in one; only where none of them will do, the others.
        """
        least = float(self.x.min()), float(self.y.min())
        every = spans(self.pair.front, *least)
        if self.pair.problem.objective == "latency":
            some = spans(self.pair.front, *least, SPREAD)
            yield from self._among(*some, SPREAD)
            if sum(map(len, some)) == sum(map(len, every)):
                return
        yield from self._among(*every, BOX)

    def _among(self, xs: Array, ys: Array, side: int) -> Iterator[Ways]:
        """The ways with these counts; the first part is of ``side`` counts of each role."""
        pair = self.pair
        if not len(xs) or not len(ys):
            return
        least = self.y.min(axis=1, keepdims=True)  # of the fastest, which is enough where any is
        before = (-math.inf, -math.inf)
        while True:
            x, y = xs[:side, None], ys[None, :side]
            spent, devices = self._spent(x, y)
            # Nothing beyond the box is better than its two nearest corners.
            corners = [(xs[side], ys[0])] if side < len(xs) else []
            corners += [(xs[0], ys[side])] if side < len(ys) else []
            until = min(((float(s), float(n)) for s, n in (self._spent(*c) for c in corners)), default=(math.inf, math.inf))
            a, b = np.nonzero(~_less(spent, devices, before) & _less(spent, devices, until) & pair.front.holds(x, y))
            i, k = np.nonzero((x[a, 0] >= self.x) & (y[0, b] >= least))
            yield self._of(i, a[k], b[k], xs, ys, spent, devices)
            if math.isinf(until[1]):
                return
            side, before = 2 * side, until

    def _of(self, i: Index, a: Index, b: Index, xs: Array, ys: Array, spent: Array, devices: Array) -> Ways:
        rate_p, rate_d = self.pair.rates
        x, y = xs[a], ys[b]
        headroom = _headroom(self.pair, np.minimum(x * rate_p[i, 0], y * float(rate_d.max())))
        each = np.full_like(i, ANY), np.ones_like(i)
        return Ways(i, each[0], x, y, self.pair.load[i, 0], spent[a, b], devices[a, b], headroom, each[1])

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
        return int(np.argmax(enough & (_headroom(self.pair, np.minimum(x * rate_p[i, 0], y * rate_d[0])) >= headroom)))


def _headroom(pair: Pair, carried: Array) -> Array:
    """What decides between equals; a closed loop has none to spare."""
    return three_digits(carried) if pair.problem.open_loop else np.ones_like(carried)


def _less(first: Array, second: Array, than: tuple[float, float]) -> Mask:
    """Where (first, second) comes before ``than``."""
    return np.asarray((first < than[0]) | ((first == than[0]) & (second < than[1])))
