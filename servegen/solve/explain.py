"""Why this one: the binding constraint, the runners-up and what they lost by, the frontier."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from servegen.plan import Role
from servegen.rationale import Alternative, ParetoPoint
from servegen.record import record
from servegen.roofline.memory import largest_batch
from servegen.roofline.step import take
from servegen.service import size
from servegen.service.disciplines import DISCIPLINES
from servegen.service.point import Point
from servegen.solve.bands import pessimism
from servegen.solve.candidate import Candidate, RoleChoice, first_of, leading
from servegen.solve.drafting import lower_drafting
from servegen.solve.kept import level_cap, running
from servegen.solve.predict import candidate_points, p95, pace
from servegen.solve.problem import Problem
from servegen.solve.reuse import reuse_words
from servegen.solve.space import BATCH_LIMITS, KV_SLACK, occupancy, replicas_that_fit
from servegen.solve.split import GAPS, START
from servegen.solve.words import duration, load, money

if TYPE_CHECKING:
    from servegen.solve.search import Searched

#: Runners-up that a plan shows, the best of the other topology beside them.
SHOWN = 5
#: Candidates whose latencies are computed for the frontier, the best first.
COMPARED = 24
ROUTED = (
    "The router sends each request {how}, so every replica holds about as many requests, a faster one answers more of them, and "
    "the shares follow without being set anywhere."
)
BY_LOAD = "to the emptier of two replicas that it draws"
BY_CACHE = "to where its prefix is cached, or to the emptiest once loads differ"
#: How far past the sustained level the broken bound is looked for.
NUDGE = 1.02


@record
class Comparison:
    """The chosen one among the others; ``gain`` is what splitting improves the objective by, nan if one topology is missing.

    ``rival`` is the best that does not draft if the chosen one does, and the other way round; None if there is none.
    """

    alternatives: tuple[Alternative, ...]
    pareto: tuple[ParetoPoint, ...]
    gain: float
    rival: Candidate | None = None


def compare(problem: Problem, chosen: Candidate, others: Sequence[Candidate], gain: float) -> Comparison:
    """Runners-up in the total order, and the Pareto frontier of cost, latency and output over the best candidates. The best one
    of the other topology is among both, however many of the chosen one's own topology come before it."""
    rest = leading(problem, (c for c in others if c is not chosen), COMPARED - 1)
    other = first_of(problem, (c for c in others if c.topology != chosen.topology))
    if other is not None and not any(c is other for c in rest):
        rest.append(other)
    ranked = [chosen, *rest]
    seen = candidate_points(problem, ranked)
    ttft, itl = p95(seen, problem.demand)
    paces = pace(seen, itl, problem.demand)
    alternatives = tuple(
        Alternative(
            name=c.name,
            topology=c.topology,
            summary=summary(c),
            devices=c.devices,
            cost_per_hour=c.cost_per_h,
            ttft_p95_s=float(ttft[i]),
            itl_p95_s=float(itl[i]),
            output_tokens_per_second=c.output_tokens_per_s,
            why_lost=why_lost(problem, chosen, c, gain),
        )
        for i, c in enumerate(ranked)
        if 1 <= i <= SHOWN or c is other
    )
    worth = np.array([[c.cost_per_h, ttft[i], paces[i], -c.output_tokens_per_s] for i, c in enumerate(ranked)])
    worth = np.array([[float(f"{v:.4g}") for v in row] for row in worth])
    points = []
    for i, c in enumerate(ranked):
        beaten = np.all(worth <= worth[i], axis=1) & np.any(worth < worth[i], axis=1)
        twin = np.all(worth[:i] == worth[i], axis=1)
        if not beaten.any() and not twin.any():
            points.append(ParetoPoint(c.name, c.devices, c.cost_per_h, float(ttft[i]), float(itl[i]), c.output_tokens_per_s))
    points.sort(key=lambda q: (q.cost_per_hour, q.itl_p95_s, q.name))
    rivals = [c for c in others if bool(c.drafted) != bool(chosen.drafted)]
    return Comparison(alternatives, tuple(points), gain, first_of(problem, rivals))


def absent(problem: Problem, chosen: Candidate, seen: Searched) -> str:
    """Why there is nothing of the other topology to hold the choice against, where it was searched; "" if there is something."""
    if problem.topology != "auto" or any(c.topology != chosen.topology for c in seen.candidates):
        return ""
    split = chosen.topology == "aggregated"
    what = "split" if split else "aggregated"
    outcomes = tuple(o for o in seen.outcomes if (o.sides if split else o.frame) is not None)
    if not outcomes:
        reasons = {r.partition(": ")[2]: n for r, n in seen.rejected.items() if r.startswith(("split: ", "stages: "))}
        reason = max(sorted(reasons), key=lambda r: reasons[r]) if split and reasons else "no configuration can exist"
        if split and problem.pps and 1 not in problem.pps:
            reason = "a role of a split is not cut into stages, as constraints.pp asks"
        return f"There is no {what} plan to compare with: {reason}."
    from servegen.solve.infeasible import diagnosis  # few plans need it

    alone = dataclasses.replace(problem, groups=problem.groups and not split)
    _, message, _ = diagnosis(alone, dataclasses.replace(seen, outcomes=outcomes))
    return f"No {what} plan meets the spec, so there is none to compare with: {message}."


def summary(c: Candidate) -> str:
    """A candidate in a few words."""
    weights, kv = c.config
    parts = []
    for r in c.roles:
        where = f" {r.block.kind.facts.id}" if len(c.kinds) > 1 else ""
        mixed = " mixed" if r.block.discipline == "mixed" else ""
        parts.append(f"{r.replicas} {r.name} x {r.shape.words}{where} (batch {r.batch_limit}, chunk {r.chunk}{mixed})")
    roles = " + ".join(parts) + (f", {c.drafted} drafted" if c.drafted else "")
    return f"{c.engine.facts.id} on {' and '.join(k.facts.id for k in c.kinds)}, {weights} weights, {kv} KV: {roles}"


def why_lost(problem: Problem, chosen: Candidate, other: Candidate, gain: float) -> str:
    """What the chosen one has over another, by the first criterion of the total order in which they differ."""
    if other.topology == "disaggregated" and chosen.topology == "aggregated" and other.objective < chosen.objective:
        return f"splitting gains a factor of {gain:.2f}, less than the {problem.gain:.2f} that disaggregationGain asks for"
    if other.objective != chosen.objective:
        a, b = next((x, y) for x, y in zip(chosen.objective, other.objective, strict=True) if x != y)
        if problem.objective == "throughput":
            return f"yields {other.output_tokens_per_s:,.0f} instead of {chosen.output_tokens_per_s:,.0f} output tokens/s"
        if problem.objective == "latency":
            return f"p95 latency of {duration(b)} instead of {duration(a)}"
        if problem.objective == "energy":
            return (
                f"draws {other.watts:,.0f} W instead of {chosen.watts:,.0f} W"
                if not problem.saturate
                else "more energy per token"
            )
        if problem.saturate and a > 0.0:
            return f"costs {(b / a - 1.0) * 100.0:.0f} % more per token"
        return f"costs {money(other.cost_per_h)}/h instead of {money(chosen.cost_per_h)}/h"
    if other.devices != chosen.devices:
        return f"needs {other.devices} accelerators instead of {chosen.devices}"
    if other.hands_over_cut and len({r.tp for r in other.roles}) > len({r.tp for r in chosen.roles}):
        return "same cost with roles of unlike TP, between which the KV cache is cut anew"
    if max(r.tp for r in other.roles) != max(r.tp for r in chosen.roles):
        return "same cost with a higher TP"
    if other.config != chosen.config:
        return f"same cost with {other.config[0]} weights and {other.config[1]} KV, further from the checkpoint's own precision"
    if f"{other.headroom:.3g}" != f"{chosen.headroom:.3g}":
        return f"same cost with less headroom ({other.headroom:.3g} instead of {chosen.headroom:.3g})"
    return "equal in every figure that decides; the first by name is taken"


def binding(problem: Problem, chosen: Candidate) -> tuple[str, ...]:
    """Ids of what limits the load of a replica, and of the pool if it is full."""
    out: list[str] = []
    least = min(r.replicas * r.sustained for r in chosen.roles)
    for role in chosen.roles:
        if role.held or (not chosen.grouped and role.replicas * role.sustained > least * NUDGE):
            continue  # the other role holds the pair back
        prefix = f"{role.name}: " if len(chosen.roles) > 1 else ""
        out += [prefix + limit for limit in limits_of(problem, role) if prefix + limit not in out]
    if chosen.topology == "aggregated" and all(
        r.replicas + problem.spares >= int(replicas_that_fit(r.block.kind, np.array(float(r.devices)))) for r in chosen.roles
    ):
        out.append("pool")
    if problem.max_accelerators and chosen.devices + min(r.devices for r in chosen.roles) > problem.max_accelerators:
        out.append("maxAccelerators")
    return tuple(out)


def limits_of(problem: Problem, role: RoleChoice) -> list[str]:
    block = role.block
    srv = take(block.server, np.array([role.row]))
    metrics = {"prefill": START, "decode": GAPS}.get(role.role)
    slo = problem.slo.touches(metrics) if metrics else problem.slo
    ceiling = 1.0 - 1e-6 if role.role == "prefill" else math.inf
    level = np.array([min(role.level_cap * NUDGE, ceiling)])
    factors = pessimism(problem, block.engine.facts, block.kind.facts, role.is_cut)
    d = block.problem.demand
    broken = size.violations(DISCIPLINES[block.discipline](srv, d, level), d, slo, factors)
    found = [bound for bound, flags in broken.items() if flags[0]]
    if found:
        return found
    if role.role != "serve":
        at_cap = DISCIPLINES[block.discipline](srv, d, np.array([role.level_cap]))
        if float(at_cap.rate[0]) > role.sustained * NUDGE:
            return ["fabric"]
    if role.role == "prefill":
        return ["stability"]
    pool = role.budget.pool
    if role.level_cap * NUDGE >= level_cap(block.problem, role.rows, pool)[0, role.limit]:
        return ["memory.prefix"]
    last = role.limit + 1 >= len(BATCH_LIMITS) or pool[0, min(role.limit + 1, len(BATCH_LIMITS) - 1)] <= 0
    return ["memory.kv" if not last and _full(problem, role) else "maxRunningRequests"]


def _full(problem: Problem, role: RoleChoice) -> bool:
    """Whether the next larger batch limit would not fit the KV pool."""
    rows, pool = role.rows, role.budget.pool[:, role.limit + 1]
    if role.role == "serve":
        pool, mean, std = running(role.block.problem, rows, pool)
    else:
        mean, std, _ = occupancy(problem, rows)
    return bool(BATCH_LIMITS[role.limit + 1] > largest_batch(pool, mean, std, KV_SLACK)[0])


def why(
    problem: Problem,
    chosen: Candidate,
    roles: Sequence[Role],
    floors: Sequence[Mapping[str, float]],
    bound_by: Sequence[str],
    comparison: Comparison,
) -> tuple[str, ...]:
    """Sentences that a reviewer can check."""
    out = [f"{summary(chosen)}."]
    for choice, role, floor in zip(chosen.roles, roles, floors, strict=True):
        what = "replica" if role.role == "serve" else f"{role.role} server"
        what += f" of {role.name}" if role.grouped else ""
        kind = problem.load_kind if role.role == "serve" else "rate"
        limits = [
            b.split(": ")[-1]
            for b in bound_by
            if b.startswith(f"{role.name}:") or (":" not in b and b not in ("pool", "maxAccelerators"))
        ]
        by = f" (bound by {' and '.join(limits)})" if limits else ""
        by = " (with no more requests in it than one of the other group may hold)" if choice.held else by
        out.append(
            f"One {what} sustains {load(kind, choice.sustained)}{by}; "
            f"{role.replicas} of them at {role.utilization * 100:.0f} % of that carry the load."
        )
        if role.role != "prefill":
            share = role.breakdown_s[role.bound] / role.step_time_s
            ideal = floor["step_time_s"]
            out.append(
                f"With {role.running_requests:.1f} requests running a decode step takes {duration(role.step_time_s)}, "
                f"{share * 100:.0f} % of it {role.bound}; the ideal roofline of the same step is {duration(ideal)}."
            )
        if role.grouped:
            out.append(f"{role.name} answers {role.share * 100:.0f} % of the requests.")
        if role.role != "decode":
            out.append(f"The mean prompt prefills in {duration(role.prefill_time_s)} when nothing waits.")
    if chosen.grouped:
        out.append(ROUTED.format(how=BY_CACHE if problem.workload.hit_share() > 0 else BY_LOAD))
    out += _drafting(problem, chosen, roles, comparison)
    out += reuse_words(chosen)
    trough = problem.workload.trough_per_s
    if trough and problem.load:
        needs = " + ".join(
            f"{math.ceil(trough * (r.share if r.grouped else 1.0) / (problem.utilization * r.sustained) - 1e-9)} {r.name}"
            for r in chosen.roles
        )
        out.append(f"At the trough of {load('rate', trough)} {needs} would do.")
    if not math.isnan(comparison.gain):
        verdict = "splitting is worth it" if chosen.topology == "disaggregated" else "so prefill and decode stay together"
        asked = f"; disaggregationGain asks for {problem.gain:.2f}" if problem.topology == "auto" else ""
        out.append(
            f"The best split is better by a factor of {comparison.gain:.2f} than the best aggregated plan{asked}: {verdict}."
        )
    return tuple(out)


def floor_of(problem: Problem, choice: RoleChoice, role: Role, point: Point) -> dict[str, float]:
    """The ideal roofline of a role's prefill of the mean prompt and of its decode step, seconds, as far as it has them."""
    config = choice.block.rows.lowered.configs[int(choice.block.rows.config[choice.row])]
    d, out = problem.demand, {}
    ideal = lower_drafting(problem.model, choice.block.engine.facts, [config], problem.speculation, "ideal").terms
    if role.role != "decode":
        prefill = ideal.prefill_s(
            np.array([d.uncached_mean]), np.array([d.total_mean]), np.array([float(role.chunked_prefill_size)])
        )
        out["prefill_time_s"] = float(prefill[0, 0])
    if role.role != "prefill":
        out["step_time_s"] = float(ideal.decode_s(point.seen, ideal.kv_s(d.held_mean))[0])
    return out


def _drafting(problem: Problem, chosen: Candidate, roles: Sequence[Role], comparison: Comparison) -> list[str]:
    """Whether to draft, and what it does to a step."""
    asked = problem.speculation
    if asked is None:
        return []
    rival = comparison.rival
    lost = f"{summary(rival)}: {why_lost(problem, chosen, rival, comparison.gain)}" if rival else ""
    if not chosen.drafted:
        best = f"does not pay; the best plan that drafts: {lost}" if rival else "meets the bounds in no plan"
        return [f"Drafting with {asked.method} {best}."]
    decoding = next(r for r in chosen.roles if r.role != "prefill")
    rounds = decoding.block.rows.terms.rounds
    assert rounds is not None  # a candidate that drafts has rounds
    role = next(r for r in roles if r.role != "prefill")
    return [
        f"Each decode step drafts {chosen.drafted} tokens with {asked.method} and verifies them: it yields "
        f"{float(rounds.tokens[decoding.row]):.2f} tokens of a sequence at an acceptance of {asked.acceptance:g}, and drafting "
        f"takes {role.breakdown_s['draft'] / role.step_time_s * 100:.0f} % of it.",
        f"The best plan without drafting: {lost}." if rival else "Without drafting no plan meets the bounds.",
    ]
