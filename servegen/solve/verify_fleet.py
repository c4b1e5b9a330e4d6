"""The plans of a fleet are replayed, and the fleet solved anew with more room for those that break a bound."""

from __future__ import annotations

import dataclasses

from servegen.fleet import Fleet
from servegen.plan import Plan, dumps
from servegen.solve.fleet import FleetProblem, solve_fleet
from servegen.solve.options import reduced
from servegen.solve.replay import Traffic
from servegen.solve.verify import EASE, LEAST, MARK, refused, replayed


def verified_fleet(fleet: FleetProblem, solved: Fleet, traffic: Traffic = Traffic()) -> Fleet:  # noqa: B008
    """``solved``, or a fleet whose members carry less on each replica, such that every replay keeps its bounds.

    Raises InfeasibleError with the bound that a replay breaks when no more room mends it, or when the pool has no more room.
    """
    eased, notes = fleet, [list[str]() for _ in fleet.entrants]
    known: dict[tuple[int, str], bool] = {}
    while True:
        given = [(i, plan) for i, plan in enumerate(solved.members) if plan is not None]
        broken = [i for i, plan in given if not _keeps(fleet, solved, i, plan, notes[i], known, traffic)]
        if not broken:
            plans = list(solved.members)
            for i, plan in given:
                plans[i] = dataclasses.replace(plan, notes=(*plan.notes, *notes[i]))
            return dataclasses.replace(solved, members=tuple(plans))
        eased = _with_more_room(fleet, eased, solved, broken, notes, traffic)
        solved = solve_fleet(eased)


def _keeps(
    fleet: FleetProblem, solved: Fleet, i: int, plan: Plan, notes: list[str], known: dict[tuple[int, str], bool], traffic: Traffic
) -> bool:
    """Whether member ``i`` keeps its bounds; a plan that was replayed before is not replayed again."""
    key = (i, dumps(plan.choice.roles))
    if key not in known:
        sentence, broken = replayed(reduced(fleet.entrants[i].problem, solved.plan.members[i].share), plan, traffic)
        notes.append(sentence)
        known[key] = not broken
    return known[key]


def _with_more_room(
    fleet: FleetProblem, eased: FleetProblem, solved: Fleet, broken: list[int], notes: list[list[str]], traffic: Traffic
) -> FleetProblem:
    """The fleet with the broken members loading each replica less."""
    entrants = list(eased.entrants)
    for i in broken:
        problem = entrants[i].problem
        share = problem.utilization * EASE
        if share < LEAST:
            plan, own = solved.members[i], fleet.entrants[i].problem
            if plan is None:
                raise ValueError("a member without a plan was replayed")
            _, verdicts = replayed(reduced(own, solved.plan.members[i].share), plan, traffic)
            raise refused(own, plan, verdicts, "larger plans break it as well")
        entrants[i] = dataclasses.replace(entrants[i], problem=dataclasses.replace(problem, utilization=share))
        notes[i].append(f"{MARK}sized anew, each replica carrying at most {share * 100:.0f} % of what it sustains")
    return dataclasses.replace(eased, entrants=tuple(entrants))
