"""What would change the decision: more load, a prediction that is as wrong as its band allows, another price."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from servegen.rationale import Flip
from servegen.record import record
from servegen.solve.bands import METRICS, far_end
from servegen.solve.candidate import Candidate, first_of
from servegen.solve.explain import Comparison, summary
from servegen.solve.problem import Problem
from servegen.solve.words import load


def flips(
    problem: Problem, chosen: Candidate, comparison: Comparison, others: Sequence[Candidate], pessimistic: Flip | None
) -> tuple[Flip, ...]:
    """What would change the decision, the nearest first."""
    out: list[Flip] = []
    if problem.load:
        loads = [r.replicas * r.sustained for r in chosen.roles]
        room = problem.utilization * (sum(loads) if chosen.grouped else min(loads))
        if chosen.topology == "aggregated" or problem.load_kind == "rate":
            out.append(Flip("traffic", f"A load above {load(problem.load_kind, room)} needs another replica."))
    if pessimistic is not None:
        out.append(pessimistic)
    if comparison.gain > 1.0 and problem.topology == "auto":
        word = "aggregated" if chosen.topology == "disaggregated" else "disaggregated"
        out.append(
            Flip(
                "constraints.disaggregationGain",
                f"The choice turns {word} when disaggregationGain crosses {comparison.gain:.2f}.",
            )
        )
    elsewhere = first_of(problem, (c for c in others if _elsewhere(c, chosen)))
    if elsewhere is not None and problem.objective == "cost" and elsewhere.objective[0] > 0:
        drop = (1.0 - chosen.objective[0] / elsewhere.objective[0]) * 100.0
        if drop > 0:
            out.append(
                Flip(
                    "hardware.pool.price",
                    f"{summary(elsewhere)} wins if its hardware gets {drop:.0f} % cheaper.",
                )
            )
    return tuple(out)


def _elsewhere(c: Candidate, chosen: Candidate) -> bool:
    """Whether a lower price of the hardware of ``c`` favours it over the chosen one; groups share theirs with others."""
    mine, its = ({k.index for k in x.kinds} for x in (chosen, c))
    return not mine & its if chosen.grouped or c.grouped else mine != its


@record
class Pessimistic:
    """What becomes of the choice at the pessimistic end of the band: a ``flip``, or a ``sentence`` that there is none."""

    flip: Flip | None = None
    sentence: str = ""


def under_the_band(
    problem: Problem,
    chosen: Candidate,
    best: Candidate | None,
    alone: Callable[[str], Candidate | None],
    where: str = "in the pool",
) -> Pessimistic:
    """What is chosen (``best``) of what there is ``where`` when every prediction is as wrong as its band allows, and the band
    that does it. ``alone`` says what is chosen when the predictions of one metric are; it is asked only where it matters."""
    drafting = problem.speculation is not None
    ends = [
        far_end(problem.model, chosen.engine.facts, r.block.kind.facts, problem.allowed_weights, drafting, r.is_cut)
        for r in chosen.roles
    ]
    factors = ", ".join(f"{metric.upper()} x {max(end[metric] for end in ends):.2f}" for metric in METRICS)
    case = f"At the pessimistic end of the band ({factors})"
    if _same(best, chosen):
        return Pessimistic(sentence=f"{case} the choice stays the same.")
    if best is None:
        change = f"nothing {where} meets the bounds"
    else:
        devices = f"{best.devices} instead of {chosen.devices}" if best.devices != chosen.devices else "as many"
        change = f"the best plan is {summary(best)}: {devices} accelerators"
    parameter, which = _culprit(problem, chosen, alone)
    return Pessimistic(Flip(parameter, f"{case} {change}. {which}"))


def _same(best: Candidate | None, chosen: Candidate) -> bool:
    return best is not None and best.name == chosen.name and best.devices == chosen.devices


def _culprit(problem: Problem, chosen: Candidate, alone: Callable[[str], Candidate | None]) -> tuple[str, str]:
    """The parameter whose band turns the choice, and a sentence that says so."""
    bounded = {b.metric for b in (*problem.slo.bounds, *problem.slo.jointly)}
    felt = [metric for metric, moved in METRICS.items() if bounded & {*moved}]
    if len(felt) == 1:
        other = next(metric for metric in METRICS if metric not in felt)
        return f"band.{felt[0]}", f"The {felt[0].upper()} band does it: no bound depends on {other.upper()}."
    turning = [metric for metric in felt if not _same(alone(metric), chosen)]
    if len(turning) == 1:
        return f"band.{turning[0]}", f"Of these the {turning[0].upper()} band alone turns it."
    return "band", "Either of these alone turns it." if turning else "Neither of these alone turns it, only both together."
