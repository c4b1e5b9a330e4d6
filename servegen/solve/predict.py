"""What clients of a candidate see at the sized load."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servegen.plan import Quantiles
from servegen.roofline.step import take
from servegen.service import latency, size
from servegen.service.demand import Demand
from servegen.service.disciplines import DISCIPLINES, Point
from servegen.service.server import Server
from servegen.solve.candidate import Candidate, RoleChoice
from servegen.solve.problem import Problem
from servegen.solve.split import combine

Array = NDArray[np.float64]

def role_point(problem: Problem, role: RoleChoice) -> Point:
    """The role's replica at the sized load, one row."""
    srv: Server = take(role.block.server, np.array([role.row]))
    discipline = DISCIPLINES[role.block.discipline]
    cap = np.array([role.level_cap])
    kind = problem.load_kind if role.role == "serve" else "rate"
    if role.load >= role.sustained:
        return discipline(srv, problem.demand, cap)
    level = size.level_at(discipline, srv, problem.demand, kind, np.array([role.load]), cap, problem.think_s)
    return discipline(srv, problem.demand, level)


def point(problem: Problem, candidate: Candidate) -> Point:
    """The whole deployment as a client sees it, one row."""
    points = [role_point(problem, r) for r in candidate.roles]
    return points[0] if len(points) == 1 else combine(points[0], points[1])


def stacked(points: Sequence[Point]) -> Point:
    """Several one-row points as one of as many rows."""
    names = [f.name for f in dataclasses.fields(Point)]
    return Point(**{n: np.concatenate([getattr(p, n) for p in points]) for n in names})


def p95(points: Point) -> tuple[Array, Array]:
    """95th percentiles of TTFT and ITL, shape (rows,)."""
    n = len(points.level)
    ttft = latency.quantile(lambda t: latency.ttft_exceeds(points, t), 0.95, n)
    itl = latency.quantile(lambda t: latency.itl_exceeds(points, t), 0.95, n)
    return ttft, itl


def quantiles(metric: str, p: Point, d: Demand) -> Quantiles:
    """Mean and percentiles of a metric of a one-row point."""

    def at(probability: float) -> float:
        return float(latency.quantile(lambda t: size.exceeds(metric, p, d, t), probability, 1)[0])

    return Quantiles(float(size.mean(metric, p, d)[0]), at(0.5), at(0.95), at(0.99))
