"""A plan is replayed at the load it was sized for, and sized anew with more room until the replay keeps every bound."""

from __future__ import annotations

import dataclasses
import math

from servegen.errors import InfeasibleError
from servegen.plan import Plan
from servegen.simulate.result import Result
from servegen.solve.problem import Problem
from servegen.solve.replay import Traffic, Verdict, of_problem, run, verdicts
from servegen.solve.search import solve
from servegen.units import format_duration

#: How the sentences of a replay begin in a plan's notes; PLAN.md gathers them.
MARK = "replay: "
#: What the utilisation is multiplied by until the plan grows.
EASE = 0.9
#: Least utilisation that is tried: a plan four times too large says that the bound itself cannot be kept.
LEAST = 0.25


def verified(problem: Problem, plan: Plan, traffic: Traffic = Traffic()) -> Plan:  # noqa: B008
    """``plan``, or a larger one, that keeps its bounds in a replay; its notes say what the replay found.

    Raises InfeasibleError with the bound that the replay breaks when no larger plan keeps it.
    """
    share, eased, notes = problem.utilization, problem, list[str]()
    first: Plan = plan
    while True:
        sentence, broken = replayed(problem, plan, traffic)
        notes.append(sentence)
        if not broken:
            return dataclasses.replace(plan, notes=(*plan.notes, *notes))
        plan, share = _larger(problem, eased, plan, share, broken, first)
        eased = dataclasses.replace(problem, utilization=share)
        notes.append(f"{MARK}sized anew, each replica carrying at most {share * 100:.0f} % of what it sustains")


def replayed(problem: Problem, plan: Plan, traffic: Traffic) -> tuple[str, list[Verdict]]:
    """What a replay of the plan found, as a note, and the bounds that it broke."""
    subject = of_problem(problem, plan)
    result = run(subject, traffic)
    found = verdicts(subject, result)
    return MARK + _sentence(plan, result, found), [v for v in found if not v.met]


def _larger(problem: Problem, eased: Problem, plan: Plan, share: float, broken: list[Verdict], first: Plan) -> tuple[Plan, float]:
    """The next plan that differs, and the utilisation that gave it."""
    while share * EASE >= LEAST:
        share *= EASE
        try:
            other = solve(dataclasses.replace(eased, utilization=share))
        except InfeasibleError as error:
            raise refused(problem, plan, broken, error.best) from error
        if other.choice.roles != plan.choice.roles:
            return other, share
    raise refused(problem, plan, broken, "no larger plan differs" if plan is first else "larger plans break it as well")


def refused(problem: Problem, plan: Plan, broken: list[Verdict], best: str) -> InfeasibleError:
    worst = max(broken, key=lambda v: v.found / v.allowed if v.allowed and v.bound != "attainment" else math.inf)
    found = f"{worst.found * 100:.1f} %" if worst.bound == "attainment" else _shown(worst.found)
    message = f"a replay of {plan.choice.ratio} on {plan.choice.devices} accelerators breaks {worst.bound}: {found}"
    return InfeasibleError(problem.name, worst.bound, message, best, (), dict(plan.rejected), plan.searched)


def _sentence(plan: Plan, result: Result, found: tuple[Verdict, ...]) -> str:
    """One sentence on one replay."""
    figures = []
    for v in found:
        kept = "kept" if v.met else "BROKEN"
        if v.bound == "attainment":
            figures.append(f"attainment {v.found * 100:.1f} % of at least {v.allowed * 100:.1f} % ({kept})")
        else:
            figures.append(f"{v.bound} {_shown(v.found)} of at most {format_duration(v.allowed)} ({kept})")
    load = f"{result.requests:,} requests at {result.sent_rate:.3g}/s through {plan.choice.ratio}"
    return f"{load}: {', '.join(figures) if figures else 'no bound is stated'}"


def _shown(value: float) -> str:
    return format_duration(value, 3) if math.isfinite(value) else "unbounded"
