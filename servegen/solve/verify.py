"""A plan is replayed at the load it was sized for, and sized anew with more room until the replay keeps every bound."""

from __future__ import annotations

import dataclasses
import math

from servegen.errors import InfeasibleError
from servegen.plan import Plan
from servegen.simulate.result import Result
from servegen.solve.problem import Problem
from servegen.solve.replay import Traffic, Verdict, of_problem, run, verdicts
from servegen.solve.search import search, solve
from servegen.units import format_duration

#: How the sentences of a replay begin in a plan's notes; PLAN.md gathers them.
MARK = "replay: "
#: How the sentence on a plan that was enlarged begins.
SIZED = f"{MARK}sized anew"
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
        result = run(of_problem(problem, plan), traffic)
        found = verdicts(of_problem(problem, plan), result)
        broken = [v for v in found if not v.met]
        notes.append(MARK + _sentence(plan, result, found))
        if not broken:
            return dataclasses.replace(plan, notes=(*plan.notes, *notes))
        plan, share = _larger(problem, eased, plan, share, broken, first)
        eased = dataclasses.replace(problem, utilization=share)
        notes.append(f"{SIZED}, each replica carrying at most {share * 100:.0f} % of what it sustains")


def eased(problem: Problem, plan: Plan) -> Problem:
    """The problem whose solution ``plan`` is: ``problem`` itself, or at the lower utilisation to which a replay took it."""
    if not any(note.startswith(SIZED) for note in plan.notes):
        return problem
    wanted = [(r.role, r.replicas, r.tp, r.chunked_prefill_size, r.max_running_requests) for r in plan.choice.roles]
    share = problem.utilization
    while share * EASE >= LEAST:
        share *= EASE
        other = dataclasses.replace(problem, utilization=share)
        best = search(other).best
        if best and wanted == [(r.role, r.replicas, r.tp, r.chunk, r.batch_limit) for r in best.roles]:
            return other
    raise ValueError(f"no utilisation gives the plan {plan.name} that was sized anew")


def _larger(problem: Problem, eased: Problem, plan: Plan, share: float, broken: list[Verdict], first: Plan) -> tuple[Plan, float]:
    """The next plan that differs, and the utilisation that gave it."""
    while share * EASE >= LEAST:
        share *= EASE
        try:
            other = solve(dataclasses.replace(eased, utilization=share))
        except InfeasibleError as error:
            raise _refused(problem, plan, broken, error.best) from error
        if other.choice.roles != plan.choice.roles:
            return other, share
    raise _refused(problem, plan, broken, "no larger plan differs" if plan is first else "larger plans break it as well")


def _refused(problem: Problem, plan: Plan, broken: list[Verdict], best: str) -> InfeasibleError:
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
