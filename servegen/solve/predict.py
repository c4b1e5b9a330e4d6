"""What clients of a candidate see at the sized load."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from servegen.plan import Quantiles
from servegen.record import record
from servegen.roofline.step import join, take
from servegen.service import latency, size, turns
from servegen.service.demand import Demand
from servegen.service.disciplines import DISCIPLINES, means_only
from servegen.service.point import Point, stacked
from servegen.service.server import Server
from servegen.solve.candidate import Candidate, RoleChoice
from servegen.solve.problem import Problem
from servegen.solve.split import BUSIEST, combine

Array = NDArray[np.float64]

#: Disciplines in which a request takes a slot as soon as one is free.
BATCHING = ("prefill-first", "mixed")


def role_points(problem: Problem, roles: Sequence[RoleChoice], routed: bool = True) -> list[Point]:
    """Each role's replica at the sized load, one row each; roles of one discipline and one demand are solved together.

    Each of several replicas (``routed``) sees less of a burst: its share, evened by a split's router, at random else.
    Sizing does not count on that. Where nothing bounds first tokens, requests may wait for slots.
    """
    points: dict[int, Point] = {}
    together: dict[tuple[str, int], list[int]] = {}
    for i, r in enumerate(roles):
        together.setdefault((r.block.discipline, id(r.block.problem.demand)), []).append(i)
    for (name, _), index in together.items():
        some = [roles[i] for i in index]
        both = _standing(problem, name, some, routed)
        points |= {i: take(both, np.array([row])) for row, i in enumerate(index)}
    return [points[i] for i in range(len(roles))]


def _standing(problem: Problem, name: str, some: Sequence[RoleChoice], routed: bool) -> Point:
    """The replicas of roles of one discipline ``name`` and one demand at the sized load, a row each."""
    d, step = problem.arriving(some[0].block.problem.demand), DISCIPLINES[name]
    if routed:
        routers = np.array([r.role != "serve" for r in some])  # the draw of two between unequal groups evens less
        d = size.at_replica(d, np.array([max(r.replicas, 1) for r in some]), evened=routers)
    srv: Server = join([take(r.block.server, np.array([r.row])) for r in some])
    cap, target = np.array([r.level_cap for r in some]), np.array([r.load for r in some])
    full = target >= np.array([r.sustained for r in some])
    if name == "prefill" and routed:  # fewer share a step than where bursts come undivided: it takes more time for the same
        cap, full = np.maximum(cap, BUSIEST), np.zeros_like(full)
    kind = problem.load_kind if some[0].role == "serve" else "rate"

    def standing(d: Demand) -> Point:
        level = size.level_at(step, srv, d, kind, target, cap, problem.think_s)
        # Of another load than a rate a replica at its most may hold more requests than it has slots.
        return step(srv, d, np.where(full, cap, level) if kind == "rate" else level)

    both = standing(d)
    if routed and name in BATCHING and kind == "concurrency" and not d.turns:
        replicas = np.array([1.0 if r.grouped else float(r.replicas) for r in some])
        cv2 = turns.dealt(d, both, srv.prefill_cv2, name == "prefill-first", replicas)
        if (cv2 != 1.0).any():
            both = standing(dataclasses.replace(d, arrival_cv2=cv2, queue_cv2=cv2))
    if name in BATCHING and problem.open_loop and not problem.saturate and not problem.bounded_start:  # else slots are free
        limit, one = np.array([float(r.batch_limit) for r in some]), np.ones(len(some))
        most = step(means_only(srv, rates_only=True), d, limit).rate
        both = size.behind_slots(both, d, limit, most, both.gap_s / srv.terms.decode_s(one, srv.kv_s))
    return both


@record
class Seen:
    """Deployments as their clients see them. A deployment is one row of ``point`` or, of groups, several of which each answers
    its ``share`` of the requests: row i belongs to deployment ``of[i]`` of ``count``. Shapes (rows,).
    """

    point: Point
    of: NDArray[np.int64]
    share: Array
    count: int

    @classmethod
    def join(cls, parts: Sequence[tuple[Point, Sequence[float]]]) -> Seen:
        """Deployments from their rows and the shares of these."""
        of = np.repeat(np.arange(len(parts)), [len(shares) for _, shares in parts])
        share = np.array([s for _, shares in parts for s in shares], dtype=np.float64)
        return cls(stacked([p for p, _ in parts]), of, share, len(parts))

    def exceeds(self, metric: str, d: Demand, t: Array) -> Array:
        """Chance that ``metric`` of a request, or of a gap, is above ``t``; both shape (deployments,)."""
        return self._mixed(size.exceeds(metric, self.point, d, t[self.of]))

    def pace_exceeds(self, d: Demand, t: Array) -> Array:
        """The same of the pace at which tokens come, in bursts or one by one."""
        return self._mixed(latency.pace_exceeds(self.point, t[self.of], d))

    def mean(self, metric: str, d: Demand) -> Array:
        """Mean of ``metric``, shape (deployments,); nan of what has no end."""
        return _ending(self._mixed(size.mean(metric, self.point, d)))

    def attainment(self, d: Demand, jointly: Sequence[size.Bound], pessimism: Mapping[str, float]) -> Array:
        """Share of requests that meet all of ``jointly``, shape (deployments,)."""
        return self._mixed(size.attainment(self.point, d, jointly, pessimism))

    def quantile(self, chance: Callable[[Seen, Array], Array], probability: float | Array) -> Array:
        """The time that is exceeded with chance 1 - ``probability``, shape (deployments,); as
        :func:`servegen.service.latency.quantile_of`, nan of what has no end. ``chance`` is that of being above a time, of some of
        the deployments."""

        def make(index: NDArray[np.int64]) -> Callable[[Array], Array]:
            several = self._repeated(index)
            return lambda t: chance(several, t)

        return _ending(latency.quantile_of(make, probability, self.count))

    def _repeated(self, index: NDArray[np.int64]) -> Seen:
        """The deployments of an index."""
        rows = [np.flatnonzero(self.of == i) for i in range(self.count)]
        of = np.repeat(np.arange(len(index)), [len(rows[i]) for i in index])
        every = np.concatenate([rows[i] for i in index])
        return Seen(take(self.point, every), of, self.share[every], len(index))

    def _mixed(self, values: Array) -> Array:
        # Requests have the same lengths whoever answers them, so gaps are shared out as requests are.
        return np.asarray(np.bincount(self.of, self.share * values, minlength=self.count), dtype=np.float64)


def _ending(seconds: Array) -> Array:
    """The same, nan where it is beyond what percentiles are looked for: in a queue that grows for ever."""
    return np.where(seconds < latency.LONGEST_S * (1.0 - 1e-6), seconds, np.nan)


def seen_by_clients(roles: Sequence[RoleChoice], points: Sequence[Point]) -> tuple[Point, tuple[float, ...]]:
    """A deployment from its roles' points: its rows and their shares of the requests."""
    if roles[0].grouped:
        return stacked(points), tuple(r.share for r in roles)
    return points[0] if len(points) == 1 else combine(points[0], points[1]), (1.0,)


def candidate_points(problem: Problem, candidates: Sequence[Candidate], routed: bool = True) -> Seen:
    """Each candidate's deployment as a client sees it."""
    flat = role_points(problem, [r for c in candidates for r in c.roles], routed)
    out = []
    for c in candidates:
        mine, flat = flat[: len(c.roles)], flat[len(c.roles) :]
        out.append(seen_by_clients(c.roles, mine))
    return Seen.join(out)


def p95(seen: Seen, d: Demand) -> tuple[Array, Array]:
    """95th percentiles of TTFT and ITL, shape (deployments,)."""
    return percentile("ttft", seen, d, 0.95), percentile("itl", seen, d, 0.95)


def percentile(metric: str, seen: Seen, d: Demand, probability: float | Array) -> Array:
    """A percentile of ``metric``, shape (deployments,)."""
    return seen.quantile(lambda some, t: some.exceeds(metric, d, t), probability)


def pace(seen: Seen, itl: Array, d: Demand) -> Array:
    """95th percentile of ITL, which is ``itl``, or of TPOT where tokens may come in bursts, shape (deployments,)."""
    if seen.point.burst is None:
        return itl
    return seen.quantile(lambda some, t: some.pace_exceeds(d, t), 0.95)


def quantiles(metric: str, seen: Seen, d: Demand) -> Quantiles:
    """Mean and percentiles of a metric of one deployment."""
    n = len(seen.share)
    thrice = Seen(join([seen.point] * 3), np.repeat(np.arange(3), n), np.tile(seen.share, 3), 3)
    found = percentile(metric, thrice, d, np.array([0.5, 0.95, 0.99]))
    return Quantiles(float(seen.mean(metric, d)[0]), *(float(v) for v in found))


def statistics(bound: size.Bound, seen: Seen, d: Demand) -> Array:
    """The statistic that a bound limits, shape (deployments,)."""
    if bound.probability != bound.probability:
        return seen.mean(bound.metric, d)
    return percentile(bound.metric, seen, d, bound.probability)


def bounded(bound: size.Bound, seen: Seen, d: Demand) -> float:
    """The same of one deployment."""
    return float(statistics(bound, seen, d)[0])
