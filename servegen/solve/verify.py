"""A plan is replayed at the load it was sized for, and sized anew with more room until the replay keeps every bound."""

from __future__ import annotations

import dataclasses
import math

from servegen.errors import InfeasibleError
from servegen.plan import Plan, Verification
from servegen.record import record
from servegen.simulate.result import Result
from servegen.solve.arrivals import Sent, Traffic
from servegen.solve.problem import Problem
from servegen.solve.replay import Verdict, of_problem, requests, run, verdicts
from servegen.solve.search import solve
from servegen.units import format_duration

#: What the utilisation is multiplied by until the plan grows.
EASE = 0.9
#: Least utilisation that is tried: a plan four times too large says that the bound itself cannot be kept.
LEAST = 0.25


def verified(problem: Problem, plan: Plan, traffic: Traffic = Traffic()) -> Plan:  # noqa: B008
    """``plan``, or a larger one, that keeps its bounds in a replay, with what the replays found. A trace is replayed as it was
    recorded where it is the traffic; else requests are drawn at the load that the plan was sized for.

    Raises InfeasibleError with the bound that the replay breaks when no larger plan keeps it.
    """
    share, eased, found_out = problem.utilization, problem, list[str]()
    first: Plan = plan
    while True:
        now = replayed(problem, plan, traffic)
        found_out.append(now.sentence)
        if not now.broken:
            record = Verification(now.arrivals, now.requests, traffic.seed, share, tuple(found_out))
            return dataclasses.replace(plan, verification=record)
        plan, share = _larger(problem, eased, plan, share, now, first)
        eased = dataclasses.replace(problem, utilization=share)
        found_out.append(f"sized anew, each replica carrying at most {share * 100:.0f} % of what it sustains")


def enlarged(plan: Plan) -> bool:
    """Whether a replay had to size the plan anew."""
    return plan.verification is not None and len(plan.verification.found) > 1


def sized(problem: Problem, plan: Plan) -> Problem:
    """The problem whose solution ``plan`` is: ``problem`` itself, or at the lower utilisation to which a replay took it."""
    return dataclasses.replace(problem, utilization=plan.verification.utilization) if plan.verification else problem


@record
class Replayed:
    """What one replay of a plan found: a sentence, what was sent, how many were never answered, and the bounds that it broke."""

    sentence: str
    arrivals: str
    requests: int
    missing: int
    broken: tuple[Verdict, ...]


def replayed(problem: Problem, plan: Plan, traffic: Traffic) -> Replayed:
    """One replay of the plan."""
    subject = of_problem(problem, plan)
    given = requests(subject, traffic)
    result = run(subject, given, traffic.seed)
    found = verdicts(subject, result)
    sentence = _sentence(plan, given, result, found)
    missing = result.requests - result.completed
    return Replayed(sentence, given.kind, result.requests, missing, tuple(v for v in found if not v.met))


def _larger(problem: Problem, eased: Problem, plan: Plan, share: float, now: Replayed, first: Plan) -> tuple[Plan, float]:
    """The next plan that differs, and the utilisation that gave it."""
    while share * EASE >= LEAST:
        share *= EASE
        try:
            other = solve(dataclasses.replace(eased, utilization=share))
        except InfeasibleError as error:
            raise refused(problem, plan, now, error.best) from error
        if other.choice.roles != plan.choice.roles:
            return other, share
    raise refused(problem, plan, now, "no larger plan differs" if plan is first else "larger plans break it as well")


def refused(problem: Problem, plan: Plan, now: Replayed, best: str) -> InfeasibleError:
    """The error that names the bound which the replay broke the most."""
    worst = max(now.broken, key=lambda v: v.found / v.allowed if v.allowed and v.bound != "attainment" else math.inf)
    found = f"{worst.found * 100:.1f} %" if worst.bound == "attainment" else _shown(worst.found)
    message = f"a replay of {plan.choice.ratio} on {plan.choice.devices} accelerators breaks {worst.bound}: {found}"
    if now.missing:
        message += f"; {now.missing:,} of the requests not answered"
    return InfeasibleError(problem.name, worst.bound, message, best, (), dict(plan.rejected), plan.searched)


def _sentence(plan: Plan, given: Sent, result: Result, found: tuple[Verdict, ...]) -> str:
    """One sentence on one replay."""
    figures = []
    for v in found:
        kept = "kept" if v.met else "BROKEN"
        if v.bound == "attainment":
            figures.append(f"attainment {v.found * 100:.1f} % of at least {v.allowed * 100:.1f} % ({kept})")
        else:
            figures.append(f"{v.bound} {_shown(v.found)} of at most {format_duration(v.allowed)} ({kept})")
    load = f"{given.words}, at {result.sent_rate:.3g}/s through {plan.choice.ratio} on {plan.choice.devices} accelerators"
    missing = result.requests - result.completed
    if missing:  # no larger plan mends a request that is longer than the context or the KV pool
        figures.append(f"{missing:,} of the requests not answered")
    return f"{load}: {', '.join(figures) if figures else 'no bound is stated'}"


def _shown(value: float) -> str:
    return format_duration(value, 3) if math.isfinite(value) else "unbounded"
