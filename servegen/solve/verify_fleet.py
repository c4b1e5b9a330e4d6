"""The plans of a fleet are replayed, and the fleet solved anew with more room for those that break a bound."""

from __future__ import annotations

import dataclasses

from servegen.codec import dumps
from servegen.fleet import Fleet
from servegen.plan import Plan, Verification
from servegen.solve.arrivals import Traffic
from servegen.solve.fleet import FleetProblem, solve_fleet
from servegen.solve.options import reduced
from servegen.solve.team import ALONE, Team
from servegen.solve.verify import EASE, LEAST, Replayed, refused, replayed


def verified_fleet(
    fleet: FleetProblem,
    solved: Fleet,
    traffic: Traffic = Traffic(),  # noqa: B008
    team: Team = ALONE,
) -> Fleet:
    """``solved``, or a fleet whose members carry less on each replica, such that every replay keeps its bounds.

    Raises InfeasibleError with the bound that a replay breaks when no more room mends it, or when the pool has no more room.
    """
    eased, found_out = fleet, [list[str]() for _ in fleet.entrants]
    known: dict[tuple[int, str], Replayed] = {}
    while True:
        given = [(i, plan) for i, plan in enumerate(solved.members) if plan is not None]
        now = {i: _replayed(fleet, solved, i, plan, found_out[i], known, traffic) for i, plan in given}
        broken = [i for i in now if now[i].broken]
        if not broken:
            plans = list(solved.members)
            for i, plan in given:
                share = eased.entrants[i].problem.utilization
                record = Verification(now[i].arrivals, now[i].requests, traffic.seed, share, tuple(found_out[i]))
                plans[i] = dataclasses.replace(plan, verification=record)
            return dataclasses.replace(solved, members=tuple(plans))
        eased = _with_more_room(fleet, eased, solved, {i: now[i] for i in broken}, found_out)
        solved = solve_fleet(eased, team)


def _replayed(
    fleet: FleetProblem,
    solved: Fleet,
    i: int,
    plan: Plan,
    found_out: list[str],
    known: dict[tuple[int, str], Replayed],
    traffic: Traffic,
) -> Replayed:
    """What the replay of member ``i`` finds; a plan that was replayed before is not replayed again."""
    key = (i, dumps(plan.choice.roles))
    if key not in known:
        known[key] = replayed(reduced(fleet.entrants[i].problem, solved.plan.members[i].share), plan, traffic)
        found_out.append(known[key].sentence)
    return known[key]


def _with_more_room(
    fleet: FleetProblem, eased: FleetProblem, solved: Fleet, broken: dict[int, Replayed], found_out: list[list[str]]
) -> FleetProblem:
    """The fleet with the broken members loading each replica less."""
    entrants = list(eased.entrants)
    for i, now in broken.items():
        problem, plan = entrants[i].problem, solved.members[i]
        share = problem.utilization * EASE
        if share < LEAST:
            if plan is None:
                raise ValueError("a member without a plan was replayed")
            raise refused(fleet.entrants[i].problem, plan, now, "larger plans break it as well")
        entrants[i] = dataclasses.replace(entrants[i], problem=dataclasses.replace(problem, utilization=share))
        found_out[i].append(f"sized anew, each replica carrying at most {share * 100:.0f} % of what it sustains")
    return dataclasses.replace(eased, entrants=tuple(entrants))
