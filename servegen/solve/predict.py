"""What clients of a candidate see at the sized load."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servegen.plan import Quantiles
from servegen.roofline.step import join, take
from servegen.service import latency, size
from servegen.service.demand import Demand
from servegen.service.disciplines import DISCIPLINES
from servegen.service.point import Point
from servegen.service.server import Server
from servegen.solve.candidate import Candidate, RoleChoice
from servegen.solve.problem import Problem
from servegen.solve.split import combine

Array = NDArray[np.float64]


def role_points(problem: Problem, roles: Sequence[RoleChoice], routed: bool = True) -> list[Point]:
    """Each role's replica at the sized load, one row each; roles of one discipline and one demand are solved together.

    Each of several replicas (``routed``) sees less of a burst: its turns behind a split's router, some at random behind a
    Service. Sizing does not count on that.
    """
    points: dict[int, Point] = {}
    together: dict[tuple[str, int], list[int]] = {}
    for i, r in enumerate(roles):
        together.setdefault((r.block.discipline, id(r.block.problem.demand)), []).append(i)
    for (name, _), index in together.items():
        some = [roles[i] for i in index]
        d = some[0].block.problem.demand
        if routed:
            d = size.at_replica(d, np.array([r.replicas for r in some]), evened=some[0].role != "serve")
        srv: Server = join([take(r.block.server, np.array([r.row])) for r in some])
        cap = np.array([r.level_cap for r in some])
        kind = problem.load_kind if some[0].role == "serve" else "rate"
        target = np.array([r.load for r in some])
        level = size.level_at(DISCIPLINES[name], srv, d, kind, target, cap, problem.think_s)
        level = np.where(target >= np.array([r.sustained for r in some]), cap, level)
        both = DISCIPLINES[name](srv, d, level)
        points |= {i: take(both, np.array([row])) for row, i in enumerate(index)}
    return [points[i] for i in range(len(roles))]


def candidate_points(problem: Problem, candidates: Sequence[Candidate], routed: bool = True) -> Point:
    """Each candidate's deployment as a client sees it, one row each."""
    flat = role_points(problem, [r for c in candidates for r in c.roles], routed)
    out = []
    for c in candidates:
        mine, flat = flat[: len(c.roles)], flat[len(c.roles) :]
        out.append(mine[0] if len(mine) == 1 else combine(mine[0], mine[1]))
    return join(out)


def p95(points: Point) -> tuple[Array, Array]:
    """95th percentiles of TTFT and ITL, shape (rows,)."""
    n = len(points.level)
    ttft = latency.quantile(lambda t: latency.ttft_exceeds(points, t), 0.95, n)
    itl = latency.quantile(lambda t: latency.itl_exceeds(points, t), 0.95, n)
    return ttft, itl


def pace(points: Point, itl: Array, d: Demand) -> Array:
    """95th percentile of ITL, which is ``itl``, or of TPOT where tokens may come in bursts, shape (rows,)."""
    if points.burst is None:
        return itl
    return latency.quantile(lambda t: latency.pace_exceeds(points, t, d), 0.95, len(points.level))


def quantiles(metric: str, p: Point, d: Demand) -> Quantiles:
    """Mean and percentiles of a metric of a one-row point."""

    thrice = join([p, p, p])
    found = latency.quantile(lambda t: size.exceeds(metric, thrice, d, t), np.array([0.5, 0.95, 0.99]), 3)
    return Quantiles(float(size.mean(metric, p, d)[0]), *(float(v) for v in found))


def statistics(bound: size.Bound, p: Point, d: Demand) -> Array:
    """The statistic that a bound limits, of every row, shape (rows,)."""
    if bound.probability != bound.probability:
        return size.mean(bound.metric, p, d)
    return latency.quantile(lambda t: size.exceeds(bound.metric, p, d, t), bound.probability, len(p.level))


def bounded(bound: size.Bound, p: Point, d: Demand) -> float:
    """The same of a one-row point."""
    return float(statistics(bound, p, d)[0])
