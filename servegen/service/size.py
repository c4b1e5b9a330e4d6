"""The largest load within the bounds, and the point at which a given load stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.roofline.step import take
from servegen.service import latency
from servegen.service.crossing import Index, Mask, Measure, crossing, excess, searched
from servegen.service.demand import BATCH_GRID, EDGE_WEIGHTS, Demand
from servegen.service.disciplines import Discipline, means_only
from servegen.service.point import Point
from servegen.service.server import Server
from servegen.service.static import static

Array = NDArray[np.float64]
LoadKind = Literal["rate", "concurrency", "users"]

#: Cells of the grid in log level that a largest level is found on: 4e-6 of the way from idle to the highest.
CELLS = 8**6
#: Of these, what is tried first: a replica is seldom bounded to a small part of what it could hold. The least of them that breaks
#: a bound is what counts, even if a higher one does not: all loads below the largest are to be right.
FIRST: Array = np.floor(
    np.array([0.0, 0.5, 0.65, 0.75, 0.8, 0.84, 0.87, 0.895, 0.92, 0.94, 0.96, 0.98, 0.99, 1.0]) * CELLS
)
#: The same of static batching, where a request waits longest when the replica is busy half of the time, beside few others.
FIRST_STATIC: Array = np.floor(np.arange(33.0) / 32.0 * CELLS)
#: Of more rows than that the idle replica is tried first, for many of them break a bound even then.
FEW = 200
#: Cells of the grid in log level on which a load is found, and what is tried first.
LOAD_CELLS = 2**30
FIRST_LOADS: Array = np.floor(np.array([0.0, 0.8, 0.9, 0.95, 0.98, 1.0]) * LOAD_CELLS)
#: Smallest level that is tried: a replica that is almost always idle.
IDLE = 1e-4
#: Chance of finding every slot taken that sizing allows when first tokens are bounded; it is charged to their bound.
SLOT_WAIT = 1e-3


#: Share of what a replica carries with all slots taken from which on its queue grows for ever, and seconds beyond any answer.
FULL = 1.0 - 1e-6
ENDLESS_S = 1e12
#: A chance of waiting for a slot that changes no percentile.
NEXT_TO_NONE = 1e-9

#: How much of its growth a static batch passes on to the next one near full slots.
BENDS = 0.5


@record
class Bound:
    """A latency that must not be exceeded: by its mean, or by more than 1 - ``probability`` of the cases."""

    id: str
    metric: Literal["ttft", "itl", "tpot", "e2e"]
    probability: float  # nan = the mean is bounded
    seconds: float


@record
class Slo:
    """All bounds; ``attainment`` (nan = none) is the share of requests that must meet ``jointly`` all at once."""

    bounds: tuple[Bound, ...]
    attainment: float
    jointly: tuple[Bound, ...]

    @property
    def any(self) -> bool:
        """Whether something is bounded."""
        return bool(self.bounds) or not np.isnan(self.attainment)

    def touches(self, metrics: frozenset[str]) -> Slo:
        """Only the bounds on these metrics (a role of a split answers for its own)."""
        kept = tuple(b for b in self.bounds if b.metric in metrics)
        joint = tuple(b for b in self.jointly if b.metric in metrics)
        return Slo(kept, self.attainment if joint else float("nan"), joint)


def exceeds(metric: str, p: Point, d: Demand, t: Array, guard: float = 1.0) -> Array:
    """Chance that ``metric`` is above ``t``; ``guard`` multiplies the share of stalled gaps."""
    if metric == "ttft":
        return latency.ttft_exceeds(p, t)
    if metric == "itl":
        return latency.itl_exceeds(p, t, guard)
    if metric == "tpot":
        return latency.tpot_exceeds(p, t, d)
    return latency.e2e_exceeds(p, t, d)


def at_replica(d: Demand, replicas: Array, evened: Mask) -> Demand:
    """The demand as each of ``replicas`` (rows,) sees it: dealt out at random, as a Kubernetes Service does (a thinned renewal
    process, exact), or ``evened`` by a router that sends each to the emptier of two: bursts as if they had turns, and what that
    leaves of waiting by :mod:`servegen.service.drawn`.

    That holds for the servers of a split, whose requests in flight are those that wait. A replica that serves holds many more
    than wait for it, and a draw between such is halfway between turns and chance, by replays of both.
    """
    if not d.open_loop and not evened.any():
        return d
    least = np.where(evened, 0.0, 1.0)
    arrival, queue = (least + (cv2 - least) / replicas for cv2 in (d.arrival_cv2, d.queue_cv2))
    drawn, dealt = np.where(evened, replicas, 1.0), np.where(evened, 1.0, replicas)
    return dataclasses.replace(d, arrival_cv2=arrival, queue_cv2=queue, drawn=drawn, dealt=dealt)


def rows_of(d: Demand, index: NDArray[np.int64]) -> Demand:
    """The demand of the replicas of an index, where each sees its own arrivals."""
    if isinstance(d.arrival_cv2, float) and isinstance(d.queue_cv2, float):
        return d
    columns = (d.arrival_cv2, d.queue_cv2, d.drawn, d.dealt)
    arrival, queue, drawn, dealt = (column if isinstance(column, float) else column[index] for column in columns)
    return dataclasses.replace(d, arrival_cv2=arrival, queue_cv2=queue, drawn=drawn, dealt=dealt)


def mean(metric: str, p: Point, d: Demand) -> Array:
    """Mean of ``metric``."""
    if metric == "ttft":
        return latency.ttft_mean(p)
    if metric == "e2e":
        return latency.e2e_mean(p, d)
    return latency.itl_mean(p)


def _bounded(
    p: Point, d: Demand, slo: Slo, pessimism: Mapping[str, float] | Mapping[str, Array]
) -> dict[str, tuple[Array, Array | float]]:
    """By bound what is bounded, shape (rows,), and its limit. ``pessimism`` multiplies predictions, by metric."""
    out: dict[str, tuple[Array, Array | float]] = {}
    for b in slo.bounds:
        limit = np.full(len(p.level), b.seconds / pessimism.get(b.metric, 1.0))
        if np.isnan(b.probability):
            out[b.id] = mean(b.metric, p, d), limit
        else:
            allowed = 1.0 - b.probability - (SLOT_WAIT if b.metric in ("ttft", "e2e") else 0.0)
            out[b.id] = exceeds(b.metric, p, d, limit, latency.STALL_GUARD), allowed
    if not np.isnan(slo.attainment):
        out["attainment"] = 1.0 - attainment(p, d, slo.jointly, pessimism), 1.0 - slo.attainment
    return out


def violations(p: Point, d: Demand, slo: Slo, pessimism: Mapping[str, float] | Mapping[str, Array]) -> dict[str, Mask]:
    """For every bound whether the point breaks it, shape (rows,). ``pessimism`` multiplies predictions, by metric."""
    return {bound: value > limit for bound, (value, limit) in _bounded(p, d, slo, pessimism).items()}


def attainment(p: Point, d: Demand, jointly: Sequence[Bound], pessimism: Mapping[str, float] | Mapping[str, Array]) -> Array:
    """Share of requests that meet all of ``jointly``, at least: 1 minus the sum of the single misses (Boole)."""
    missed = np.zeros_like(p.level)
    for b in jointly:
        missed = missed + exceeds(b.metric, p, d, np.full(len(p.level), b.seconds / pessimism.get(b.metric, 1.0)))
    return np.clip(1.0 - missed, 0.0, 1.0)


def slot_level(limit: Array, peak: Array | float = 1.0) -> Array:
    """Largest mean number of sequences at which at most :data:`SLOT_WAIT` of arrivals find ``limit`` slots taken.

    From the waiting chance of a many-server queue, busy^(sqrt(2(m+1))-1) (Sakasegawa 1977). A number whose variance is ``peak``
    times that of a Poisson count needs slots like one of limit/peak (Hayward; Fredericks 1980).
    """
    slots = limit / np.maximum(peak, 1.0)
    return limit * SLOT_WAIT ** (1.0 / (np.sqrt(2.0 * (slots + 1.0)) - 1.0))


def behind_slots(p: Point, d: Demand, limit: Array, full: Array, varies: Array) -> Point:
    """The point with the wait for one of ``limit`` slots before it; they grow free at the rate ``full`` (requests/s) while all
    are taken. That of a many-server queue, with the chance of :func:`slot_level` and the mean of Allen and Cunneen. The number of
    sequences has ``varies`` times the variance of a Poisson count, bursts aside. Of a queue that grows for ever the wait is
    longer than any time that is asked for. Shapes (rows,).
    """
    mean, square = d.osl_edges @ EDGE_WEIGHTS, d.osl_edges**2 @ EDGE_WEIGHTS
    spread = (np.maximum(np.asarray(d.queue_cv2), 0.0) + square / mean**2 - 1.0) / 2.0
    slots = limit / np.maximum(peak(d, False, limit) * varies, 1.0)
    free = full - p.rate
    endless = free <= full * (1.0 - FULL)
    chance = np.where(endless, 1.0, np.minimum(p.level / limit, 1.0) ** (np.sqrt(2.0 * (slots + 1.0)) - 1.0))
    wait = np.where(endless, ENDLESS_S, spread / np.where(endless, 1.0, free))
    # Both waits together: its chance, and what it is given that there is one. Exponential ones have twice the square of the mean.
    chance = np.where(chance > NEXT_TO_NONE, chance, 0.0)
    some = 1.0 - (1.0 - p.delayed) * (1.0 - chance)
    total = p.delayed * p.wait_s + chance * wait
    squares = p.delayed * (1.0 + p.wait_cv2) * p.wait_s**2 + 2.0 * chance * wait * (wait + p.delayed * p.wait_s)
    waits = chance > 0.0
    each = np.where(waits, total / np.where(waits, some, 1.0), p.wait_s)
    cv2 = np.where(waits, squares / np.where(waits, some * each**2, 1.0) - 1.0, p.wait_cv2)
    return dataclasses.replace(p, delayed=some, wait_s=each, wait_cv2=np.maximum(cv2, 0.0))


def peak(d: Demand, static: bool, limit: Array) -> Array:
    """Variance over mean of the sequences in a replica: 1 for Poisson arrivals, more in bursts.

    A static batch varies with the longest output of the batch before, too, and with its size (by half, :func:`static`).
    """
    bursts = 1.0 + np.maximum(np.asarray(d.arrival_cv2) - 1.0, 0.0) * (1.0 if static else d.overlap)
    if not static:
        return np.broadcast_to(bursts, limit.shape)
    outputs = np.interp(np.log(np.maximum(limit, 1.0)), np.log(BATCH_GRID), d.longest_cv2)
    return np.asarray((bursts + limit * outputs) / (1.0 - BENDS**2))


def largest_level(
    discipline: Discipline, s: Server, d: Demand, slo: Slo, high: Array, pessimism: Mapping[str, float] | Mapping[str, Array]
) -> tuple[Array, dict[str, Mask]]:
    """Largest level up to ``high`` (rows,) that keeps every bound, 0 where none does; and the bounds broken when idle.

    A bound that is broken at some load and kept at a higher one (a prompt waits for others, and shares its step with them) counts
    from the lowest edge of :data:`FIRST` that breaks it.
    """
    if not slo.any:
        return high, {}
    first = FIRST_STATIC if discipline is static else FIRST
    low_t = np.log(np.maximum(np.minimum(IDLE, high), 1e-12))
    cell = (np.log(np.maximum(high, 1e-12)) - low_t) / CELLS
    asked: set[str] = {b.metric for b in (*slo.bounds, *slo.jointly)}
    each: dict[str, Array] = {m: np.broadcast_to(factor, high.shape) for m, factor in pessimism.items() if m in asked}

    def bounded(index: Index) -> Callable[[Array], dict[str, tuple[Array, Array | float]]]:
        several, low, step = take(s, index), low_t[index], cell[index]
        factors = {metric: factor[index] for metric, factor in each.items()}
        return lambda edge: _bounded(discipline(several, d, np.exp(low + step * edge)), d, slo, factors)

    def make(index: Index) -> Measure:
        at = bounded(index)
        return lambda edge: _most_broken(at(edge))

    tried = first if len(high) <= FEW else first[:1]
    found = bounded(np.repeat(np.arange(len(high)), len(tried)))(np.tile(tried, len(high)))
    over, measured = _most_broken(found)
    over, measured = over.reshape(-1, len(tried)), measured.reshape(-1, len(tried))
    if tried is first:
        edge = crossing(make, first, over, measured)
    else:
        edge, rows = np.full(len(high), -1.0), np.flatnonzero(~over[:, 0])
        edge[rows] = searched(lambda index: make(rows[index]), len(rows), first)
    level = np.where(edge < CELLS, np.exp(low_t + cell * edge), high)
    return np.where(edge < 0.0, 0.0, level), {bound: (value > limit)[:: len(tried)] for bound, (value, limit) in found.items()}


def _most_broken(bounded: Mapping[str, tuple[Array, Array | float]]) -> tuple[Mask, Array]:
    """Whether any bound is broken, and the :func:`excess` of the most broken one; shape (rows,)."""
    over = np.logical_or.reduce([value > limit for value, limit in bounded.values()])
    return over, np.maximum.reduce([excess(value, limit) for value, limit in bounded.values()])


def load(kind: LoadKind, p: Point, d: Demand, think_s: float = 0.0) -> Array:
    """The load that a replica at this point carries: requests/s, requests in it, or users of it (Little's law)."""
    if kind == "rate":
        return p.rate
    return p.rate * (latency.e2e_mean(p, d) + (think_s if kind == "users" else 0.0))


def level_at(
    discipline: Discipline, s: Server, d: Demand, kind: LoadKind, target: Array, high: Array, think_s: float = 0.0
) -> Array:
    """Level at which each row carries ``target`` (rows,), which must not exceed what it carries at ``high``."""

    lean, low_t = means_only(s, rates_only=kind == "rate"), np.full_like(high, np.log(IDLE * 1e-4))
    cell = (np.log(np.maximum(high, 1e-12)) - low_t) / LOAD_CELLS

    def make(index: Index) -> Measure:
        some, mine, goal, low, step = take(lean, index), rows_of(d, index), target[index], low_t[index], cell[index]

        def measure(edge: Array) -> tuple[Mask, Array]:
            carried = load(kind, discipline(some, mine, np.exp(low + step * edge)), mine, think_s)
            return carried > goal, excess(carried, goal)

        return measure

    edge = searched(make, len(high), FIRST_LOADS)
    return np.asarray(np.exp(low_t + cell * (np.clip(edge, 0.0, LOAD_CELLS - 1.0) + 1.0)))
