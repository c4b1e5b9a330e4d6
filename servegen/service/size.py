"""The largest load within the bounds, and the point at which a given load stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servegen.roofline.step import take
from servegen.service import latency
from servegen.service.bisection import halved
from servegen.service.demand import BATCH_GRID, Demand
from servegen.service.disciplines import Discipline, means_only
from servegen.service.point import Point
from servegen.service.server import Server

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
LoadKind = Literal["rate", "concurrency", "users"]

#: Halvings in log level between the bracket's ends.
HALVINGS = 30
#: Levels that are tried at once in search of the largest, and rounds of that: the bracket shrinks by 8^-6, 4e-6.
AT_ONCE = 7
ROUNDS = 6
#: Smallest level that is tried: a replica that is almost always idle.
IDLE = 1e-4
#: Chance of finding every slot taken that sizing allows when first tokens are bounded; it is charged to their bound.
SLOT_WAIT = 1e-3


#: How much of its growth a static batch passes on to the next one near full slots.
BENDS = 0.5


@dataclass(frozen=True)
class Bound:
    """A latency that must not be exceeded: by its mean, or by more than 1 - ``probability`` of the cases."""

    id: str
    metric: Literal["ttft", "itl", "tpot", "e2e"]
    probability: float  # nan = the mean is bounded
    seconds: float


@dataclass(frozen=True)
class Slo:
    """All bounds; ``attainment`` (nan = none) is the share of requests that must meet ``jointly`` all at once."""

    bounds: tuple[Bound, ...]
    attainment: float
    jointly: tuple[Bound, ...]

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
    process, exact), or ``evened`` by a router that sends each to the emptier of two, as if they had turns.

    That holds for the servers of a split, whose requests in flight are those that wait. A replica that serves holds many more
    than wait for it, and a draw between such is halfway between turns and chance, by replays of both.
    """
    if not d.open_loop:
        return d
    least = np.where(evened, 0.0, 1.0)
    arrival, queue = (least + (cv2 - least) / replicas for cv2 in (d.arrival_cv2, d.queue_cv2))
    return dataclasses.replace(d, arrival_cv2=arrival, queue_cv2=queue)


def rows_of(d: Demand, index: NDArray[np.int64]) -> Demand:
    """The demand of the replicas of an index, where each sees its own arrivals."""
    if isinstance(d.arrival_cv2, float) and isinstance(d.queue_cv2, float):
        return d
    arrival, queue = (cv2 if isinstance(cv2, float) else cv2[index] for cv2 in (d.arrival_cv2, d.queue_cv2))
    return dataclasses.replace(d, arrival_cv2=arrival, queue_cv2=queue)


def mean(metric: str, p: Point, d: Demand) -> Array:
    """Mean of ``metric``."""
    if metric == "ttft":
        return latency.ttft_mean(p)
    if metric == "e2e":
        return latency.e2e_mean(p, d)
    return latency.itl_mean(p)


def violations(p: Point, d: Demand, slo: Slo, pessimism: Mapping[str, float] | Mapping[str, Array]) -> dict[str, Mask]:
    """For every bound whether the point breaks it, shape (rows,). ``pessimism`` multiplies predictions, by metric."""
    out: dict[str, Mask] = {}
    for b in slo.bounds:
        limit = np.full(len(p.level), b.seconds / pessimism.get(b.metric, 1.0))
        if np.isnan(b.probability):
            out[b.id] = mean(b.metric, p, d) > limit
        else:
            allowed = 1.0 - b.probability - (SLOT_WAIT if b.metric in ("ttft", "e2e") else 0.0)
            out[b.id] = exceeds(b.metric, p, d, limit, latency.STALL_GUARD) > allowed
    if not np.isnan(slo.attainment):
        out["attainment"] = 1.0 - attainment(p, d, slo.jointly, pessimism) > 1.0 - slo.attainment
    return out


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
    """Largest level up to ``high`` (rows,) that keeps every bound, 0 where none does; and the bounds broken when idle."""

    def broken(server: Server, level: Array, index: NDArray[np.int64]) -> dict[str, Mask]:
        factors = {metric: np.broadcast_to(factor, high.shape)[index] for metric, factor in pessimism.items()}
        return violations(discipline(server, d, level), d, slo, factors)

    if not slo.bounds and np.isnan(slo.attainment):
        return high, {}
    idle, each = np.minimum(np.full_like(high, IDLE), high), np.arange(len(high))
    both = np.concatenate((each, each))
    at_ends = broken(take(s, both), np.concatenate((idle, high)), both)
    at_idle = {bound: over[: len(high)] for bound, over in at_ends.items()}
    at_high = np.logical_or.reduce([over[len(high) :] for over in at_ends.values()])
    never = np.logical_or.reduce(list(at_idle.values()))
    level = np.where(never, 0.0, high)
    # Only rows that break a bound somewhere in between are searched, each at several levels at once.
    rows = np.flatnonzero(at_high & ~never)
    if len(rows):
        index = np.repeat(rows, AT_ONCE)
        several = take(s, index)
        low_t, width = np.log(idle[rows]), np.log(np.maximum(high[rows], 1e-12)) - np.log(idle[rows])
        inner = np.arange(1, AT_ONCE + 1) / (AT_ONCE + 1.0)
        for _ in range(ROUNDS):
            tried = low_t[:, None] + width[:, None] * inner
            found = broken(several, np.exp(tried.ravel()), index)
            over = np.logical_or.reduce(list(found.values())).reshape(tried.shape)
            # The levels below the first that breaks a bound.
            good = np.where(over.any(axis=1), over.argmax(axis=1), AT_ONCE)
            width = width / (AT_ONCE + 1.0)
            low_t = low_t + width * good
        level[rows] = np.exp(low_t)
    return level, at_idle


def load(kind: LoadKind, p: Point, d: Demand, think_s: float = 0.0) -> Array:
    """The load that a replica at this point carries: requests/s, requests in it, or users of it (Little's law)."""
    if kind == "rate":
        return p.rate
    return p.rate * (latency.e2e_mean(p, d) + (think_s if kind == "users" else 0.0))


def level_at(
    discipline: Discipline, s: Server, d: Demand, kind: LoadKind, target: Array, high: Array, think_s: float = 0.0
) -> Array:
    """Level at which each row carries ``target`` (rows,), which must not exceed what it carries at ``high``."""

    def make(index: NDArray[np.int64]) -> Callable[[Array], Mask]:
        some, mine, goal = take(means_only(s), index), rows_of(d, index), target[index]
        return lambda x: np.asarray(load(kind, discipline(some, mine, np.exp(x)), mine, think_s) > goal)

    low_t, high_t = np.full_like(high, np.log(IDLE * 1e-4)), np.log(np.maximum(high, 1e-12))
    return np.exp(halved(make, low_t, high_t, HALVINGS)[1])
