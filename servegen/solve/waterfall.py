"""Where a predicted latency comes from: the chosen replicas computed again, one effect after the other switched on.

The order is that of :data:`EFFECTS`. Each stage is a whole :class:`Point`, so every metric is read off in the same way, and
the last stage is the prediction itself. An effect is what its stage adds to the one before it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from servegen.plan import Prediction, Quantiles
from servegen.rationale import Effect, Waterfall
from servegen.roofline.step import Array, StepTerms, take
from servegen.service.burst import per_token
from servegen.service.disciplines import DISCIPLINES
from servegen.service.point import Point
from servegen.service.server import Server, server
from servegen.service.size import Bound
from servegen.solve.candidate import Candidate, RoleChoice
from servegen.solve.drafting import lower_drafting
from servegen.solve.predict import Seen, seen_by_clients, statistics
from servegen.solve.problem import Problem
from servegen.solve.split import combine

#: Terms of the step that stand for an effect of their own; all others are what efficiency below peak costs.
LAUNCH = ("launch_s", "sequence_s", "prompt_s")
COMMUNICATION = ("latency_s", "token_wire_s")
#: The same of drafting, whose launches bring the latency of their collectives.
DRAFT_LAUNCH = ("launch_s", "sequence_s", "chunk_launch_s")
DRAFT_COMMUNICATION = ("wire_s", "chunk_wire_s")
#: What is switched on, in order, above the ideal roofline of the same step and prompt.
EFFECTS = ("efficiency", "launch", "communication", "request", "handoff", "batch", "interference", "queueing")


def waterfalls(problem: Problem, chosen: Candidate, points: Sequence[Point], prediction: Prediction) -> tuple[Waterfall, ...]:
    """Of TTFT and ITL, and of e2e and tpot where they are bounded; ``points`` are the roles' at the sized load."""
    rows = _rows(problem, chosen, points)
    bounds = {}
    for metric in ("ttft", "itl", "tpot", "e2e"):
        stated = [b for b in problem.slo.bounds if b.metric == metric]
        tight = min(stated, key=lambda b: (b.seconds / prediction.bounds[b.id], b.id), default=None)
        if tight is not None or metric in ("ttft", "itl"):
            bounds[metric] = tight or Bound(f"{metric}.p95", metric, 0.95, math.inf)
    return tuple(_waterfall(b, statistics(b, rows, problem.demand), prediction) for b in bounds.values())


def _rows(problem: Problem, chosen: Candidate, points: Sequence[Point]) -> Seen:
    """The deployment after each stage; of groups each stage is the mixture of theirs."""
    if not chosen.grouped:
        return Seen.join([(p, (1.0,)) for p in stages(problem, chosen.roles, points)])
    each = [stages(problem, (r,), (p,)) for r, p in zip(chosen.roles, points, strict=True)]
    return Seen.join([seen_by_clients(chosen.roles, parts) for parts in zip(*each, strict=True)])


def _waterfall(bound: Bound, seen: Array, prediction: Prediction) -> Waterfall:
    """``seen`` is the bounded statistic after every stage, seconds, shape (stages,)."""
    statistic = bound.id.partition(".")[2]
    known: Quantiles | None = getattr(prediction, bound.metric, None)
    total = prediction.bounds.get(bound.id, getattr(known, statistic, math.nan))
    # A quantile is found on a grid: what an absent effect seems to add or take is that rounding.
    rising = np.minimum(np.maximum.accumulate(seen), total)
    rising[-1] = total
    adds = tuple(Effect(name, float(a)) for name, a in zip(EFFECTS, np.diff(rising), strict=True))
    return Waterfall(bound.metric, statistic, float(rising[0]), adds, float(total))


def stages(problem: Problem, roles: Sequence[RoleChoice], points: Sequence[Point]) -> list[Point]:
    """The deployment as a client sees it after each stage: the floor, then each of :data:`EFFECTS`; one row each."""
    first, last = roles[0], roles[-1]
    whole = points[0] if len(points) == 1 else combine(points[0], points[-1])
    none = np.zeros_like(whole.level)
    quiet = dataclasses.replace(
        whole,
        const_s=none,
        rest_s=none,
        busy=none,
        delayed=none,
        wait_s=none,
        gap_sd_s=none,
        gap_skew=none,
        stall_share=none,
        stall_low_s=np.zeros_like(whole.stall_low_s),
        stall_high_s=np.zeros_like(whole.stall_high_s),
    )
    out = []
    for terms, decode in zip(_terms(problem, first), _terms(problem, last), strict=True):
        alone = _alone(problem, first, terms)
        gap = decode.decode_s(points[-1].seen, decode.kv_s(problem.demand.held_mean))
        out.append(
            dataclasses.replace(
                quiet,
                service_edges_s=alone.service_edges_s,
                service_mean_s=alone.service_mean_s,
                gap_s=gap,
                gap_mean_s=per_token(whole.burst, gap),
            )
        )
    request_s = first.block.server.request_s[[first.row]]
    taken = dataclasses.replace(out[-1], const_s=request_s)
    srv, own = take(first.block.server, np.array([first.row])), _server(problem, first, _terms(problem, first)[-1])
    # What the way to the first token adds beyond the later stages of a pipeline is the hand-off.
    handoff = (srv.first_edges_s - srv.prefill_edges_s) - (own.first_edges_s - own.prefill_edges_s)
    handed = dataclasses.replace(
        taken,
        service_edges_s=taken.service_edges_s + handoff,
        service_mean_s=taken.service_mean_s + srv.extra_mean_s - own.extra_mean_s,
    )
    varied = dataclasses.replace(handed, gap_sd_s=whole.gap_sd_s, gap_skew=whole.gap_skew)
    disturbed = dataclasses.replace(whole, busy=none, delayed=none, wait_s=none)
    return [*out, taken, handed, varied, disturbed, whole]


def _terms(problem: Problem, role: RoleChoice) -> tuple[StepTerms, ...]:
    """The role's step: ideal, then with efficiencies, then with launches and overheads, then with all of its communication."""
    rows = role.block.rows
    config = rows.lowered.configs[int(rows.config[role.row])]
    ideal = lower_drafting(problem.model, role.block.engine.facts, [config], problem.speculation, "ideal").terms
    full = take(rows.terms, np.array([role.row]))
    free: dict[str, Any] = {name: getattr(ideal, name) for name in (*LAUNCH, *COMMUNICATION)}
    alone: dict[str, Any] = {name: getattr(ideal, name) for name in COMMUNICATION}
    if full.rounds is not None and ideal.rounds is not None:
        wires = {name: getattr(ideal.rounds, name) for name in DRAFT_COMMUNICATION}
        launches = {name: getattr(ideal.rounds, name) for name in DRAFT_LAUNCH}
        free["rounds"] = dataclasses.replace(full.rounds, **launches, **wires)
        alone["rounds"] = dataclasses.replace(full.rounds, **wires)
    return ideal, dataclasses.replace(full, **free), dataclasses.replace(full, **alone), full


def _alone(problem: Problem, role: RoleChoice, terms: StepTerms) -> Point:
    """What a prompt sees of a replica that holds nothing else and hands nothing over."""
    return DISCIPLINES[role.block.discipline](_server(problem, role, terms), problem.demand, np.zeros(1))


def _server(problem: Problem, role: RoleChoice, terms: StepTerms) -> Server:
    return server(terms, np.array([float(role.chunk)]), 0.0, problem.demand)
