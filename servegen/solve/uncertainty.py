"""What the plan would be at the ends of its band, and what is left of it when a replica is missing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

from servegen.rationale import Case, Missing
from servegen.solve.candidate import Candidate, RoleChoice
from servegen.solve.explain import summary
from servegen.solve.predict import Seen, p95, role_points, seen_by_clients
from servegen.solve.problem import Problem
from servegen.solve.routing import spread

ENDS: tuple[Literal["low", "best", "high"], ...] = ("low", "best", "high")


def at_the_ends(problem: Problem, chosen: Candidate, best: Callable[[Problem], Candidate | None]) -> dict[str, Candidate | None]:
    """The best candidate at each end of the band; nothing to ask where no bound depends on a prediction."""
    if not problem.slo.bounds or problem.saturate:
        return {}
    asked = {end: dataclasses.replace(problem, confidence=end) for end in ENDS if end != problem.confidence}
    found = {end: best(other) for end, other in asked.items()}
    return {end: chosen if end == problem.confidence else found[end] for end in ENDS}


def cases(at_ends: dict[str, Candidate | None]) -> tuple[Case, ...]:
    """The candidates of :func:`at_the_ends` as the plan keeps them."""
    out = []
    for end in ENDS:
        if end not in at_ends:
            continue
        c = at_ends[end]
        if c is None:
            out.append(Case(end, "nothing in the pool meets the bounds", {}, 0, math.nan))
        else:
            out.append(Case(end, summary(c), {r.name: r.replicas for r in c.roles}, c.devices, c.cost_per_h))
    return tuple(out)


def missing(problem: Problem, chosen: Candidate) -> tuple[Missing, ...]:
    """Each role with one replica less, spares counted; nothing where the load is whatever the pool carries."""
    if problem.full:
        return ()
    return tuple(_without_one(problem, chosen, i) for i in range(len(chosen.roles)))


def _without_one(problem: Problem, chosen: Candidate, index: int) -> Missing:
    role = chosen.roles[index]
    left = role.replicas + problem.spares - 1
    if chosen.grouped:
        return _shared_out(problem, chosen, index, left)
    if not left:
        return Missing(role.name, 0, math.nan, math.nan, math.nan)
    each = role.load * role.replicas / left
    utilization = each / role.sustained
    if utilization > 1.0:
        return Missing(role.name, left, utilization, math.nan, math.nan)
    roles = tuple(_at(r, each if i == index else r.load) for i, r in enumerate(chosen.roles))
    ttft, itl = p95(Seen.join([seen_by_clients(roles, role_points(problem, roles))]), problem.demand)
    return Missing(role.name, left, utilization, float(ttft[0]), float(itl[0]))


def _shared_out(problem: Problem, chosen: Candidate, index: int, left: int) -> Missing:
    """A replica of a group down: the router shares its requests out over all that are left, of both groups."""
    counts = [r.replicas + problem.spares - (i == index) for i, r in enumerate(chosen.roles)]
    roles = tuple(r for r in spread(chosen.roles, counts) if r.replicas)
    utilization = max(r.load / r.sustained for r in roles)
    if utilization > 1.0:
        return Missing(chosen.roles[index].name, left, utilization, math.nan, math.nan)
    ttft, itl = p95(Seen.join([seen_by_clients(roles, role_points(problem, roles))]), problem.demand)
    return Missing(chosen.roles[index].name, left, utilization, float(ttft[0]), float(itl[0]))


def _at(role: RoleChoice, load: float) -> RoleChoice:
    return dataclasses.replace(role, load=load)
