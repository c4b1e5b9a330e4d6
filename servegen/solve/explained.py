"""The decision walked through: waterfalls, what binds and how much is left, one replica less, the next-best of each dimension."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from servegen.explanation import Binding, Explanation, Fewer
from servegen.plan import Plan
from servegen.roofline.step import take
from servegen.service import size
from servegen.service.disciplines import DISCIPLINES
from servegen.solve.bands import pessimism
from servegen.solve.candidate import Candidate, RoleChoice
from servegen.solve.explain import limits_of
from servegen.solve.nextbest import next_best, one_more
from servegen.solve.pair import turn_s
from servegen.solve.predict import Seen, bounded, role_points, seen_by_clients
from servegen.solve.problem import Problem
from servegen.solve.reuse import as_found
from servegen.solve.routing import spread
from servegen.solve.search import search
from servegen.solve.split import BUSIEST
from servegen.solve.verify import sized
from servegen.solve.words import duration, load


def explained(problem: Problem, plan: Plan) -> Explanation:
    """What led to ``plan``, which solving ``problem`` gave (or sizing it anew after a replay)."""
    asked = sized(problem, plan)
    seen = search(asked)
    if seen.best is None:
        raise ValueError("the plan does not belong to this problem")
    chosen = seen.best
    own = as_found(asked, chosen)
    return Explanation(
        waterfalls=plan.waterfalls,
        binding=tuple(_binding(own, chosen, plan, name) for name in plan.binding),
        utilization=tuple((r.name, r.utilization) for r in plan.choice.roles),
        fewer=tuple(_fewer(own, chosen, i) for i in range(len(chosen.roles))),
        next_best=(*next_best(asked, chosen, seen), *one_more(own, chosen)),
    )


def _binding(problem: Problem, chosen: Candidate, plan: Plan, name: str) -> Binding:
    """A binding constraint with what is left of it at the sized load."""
    role_name, _, limit = name.rpartition(": ")
    role = next((r for r in plan.choice.roles if r.name == role_name), plan.choice.roles[0])
    choice = next((r for r in chosen.roles if r.name == role.name), chosen.roles[0])
    if limit in plan.slo:
        return _bound(problem, plan, name, limit, choice)
    if limit in ("pool", "maxAccelerators"):
        held = problem.max_accelerators if limit == "maxAccelerators" else sum(k.devices for k in chosen.kinds)
        left = float(held - plan.choice.devices)
        text = f"{plan.choice.devices} of {held} accelerators are taken: there is no room for another replica of {role.devices}"
        return Binding(name, float(held), float(plan.choice.devices), left, "accelerators", text)
    if limit == "memory.kv":
        d = problem.demand
        held_tokens = role.max_running_requests * d.held_mean
        text = (
            f"{role.max_running_requests} requests of {d.held_mean:,.0f} tokens on average and how they vary fill the pool of "
            f"{role.memory.kv_tokens:,} tokens: the next larger batch limit does not fit"
        )
        return Binding(name, float(role.memory.kv_tokens), held_tokens, role.memory.kv_tokens - held_tokens, "tokens", text)
    if limit == "maxRunningRequests":
        last = choice.limit + 1 == len(choice.block.limits)
        why = "no larger limit is tried" if last else "a larger limit would fit, but the whole would carry no more"
        text = f"at most {role.max_running_requests} requests run at a time; {why}"
        return Binding(name, float(role.max_running_requests), role.running_requests, math.nan, "requests", text)
    return Binding(name, math.nan, math.nan, math.nan, "", _WORDS.get(limit, limit))


_WORDS = {
    "fabric": "the hand-over of KV caches takes all that the declared fabric carries",
    "memory.prefix": "more running requests would take the room in which the prefix cache keeps what it is to find",
    "stability": "a prefill server cannot be busy for more than all of the time",
}


def _bound(problem: Problem, plan: Plan, name: str, limit: str, choice: RoleChoice) -> Binding:
    allowed = plan.slo[limit]
    reach = choice.sustained / choice.load if choice.load else math.inf
    grows = f"a replica reaches the bound at {reach:.2f} times its load"
    if limit == "attainment":
        found = plan.prediction.slo_attainment
        text = f"{found * 100:.1f} % of the requests meet every bound, at least {allowed * 100:.4g} % must; {grows}"
        return Binding(name, allowed, found, found - allowed, "share", text)
    factors = pessimism(problem, choice.block.engine.facts, choice.block.kind.facts, choice.is_cut)
    found = plan.prediction.bounds[limit] * factors.get(limit.partition(".")[0], 1.0)
    slack = allowed - found
    where = "at the sized load" if not factors else "at the sized load and the high end of the band"
    text = f"{duration(found)} of at most {duration(allowed)} {where}, {slack / allowed * 100:.0f} % left; {grows}"
    return Binding(name, allowed, found, slack, "s", text)


def _fewer(problem: Problem, chosen: Candidate, index: int) -> Fewer:
    """The plan with one replica less of a role: what the others would then carry, and what breaks."""
    role = chosen.roles[index]
    n = role.replicas - 1
    word = "server" if role.role != "serve" else "replica"
    if chosen.grouped:
        return _fewer_of_group(problem, chosen, index)
    if n == 0:
        return Fewer(role.name, 0, math.nan, ("load",), f"it is the only {word}")
    if problem.full:
        output = chosen.output_tokens_per_s
        rates = [r.sustained * (n if i == index else r.replicas) for i, r in enumerate(chosen.roles)]
        share = min(rates) / min(r.sustained * r.replicas for r in chosen.roles)
        text = f"{n} would yield {output * share:,.0f} instead of {output:,.0f} output tokens/s"
        return Fewer(role.name, n, role.load / role.sustained, ("output",) if share < 1.0 else (), text)
    carried = dataclasses.replace(role, replicas=n, load=_sized_for(problem, chosen, role) / n)
    share = carried.load / role.sustained
    kind = problem.load_kind if role.role == "serve" else "rate"
    every = " each" if n > 1 else ""
    each = f"{n} would carry {load(kind, carried.load)}{every}, {share * 100:.0f} % of what one sustains"
    if share > 1.0 + 1e-9:
        breaks, why = _broken(problem, chosen, index, carried)
        return Fewer(role.name, n, share, breaks, f"{each}: {why}")
    if share > problem.utilization * (1.0 + 1e-9):
        why = f"every bound holds, but constraints.utilization allows at most {problem.utilization * 100:.0f} %"
        return Fewer(role.name, n, share, ("utilization",), f"{each}: {why}")
    breaks, why = _broken(problem, chosen, index, carried)
    why = why if breaks else f"they would do, but the {problem.objective} gets better with more"
    return Fewer(role.name, n, share, breaks, f"{each}: {why}")


def _fewer_of_group(problem: Problem, chosen: Candidate, index: int) -> Fewer:
    """The plan with one replica less of a group: what all that are left of both would then carry."""
    name = chosen.roles[index].name
    counts = [r.replicas - (i == index) for i, r in enumerate(chosen.roles)]
    n = counts[index]
    roles = spread(chosen.roles, counts)
    share = max(r.load / r.sustained for r in roles)
    whole = f"{n} beside {counts[1 - index]} of the other group"
    if problem.full:
        output = chosen.output_tokens_per_s
        left = sum(k * r.sustained for k, r in zip(counts, chosen.roles, strict=True))
        left /= sum(r.replicas * r.sustained for r in chosen.roles)
        text = f"{whole} would yield {output * left:,.0f} instead of {output:,.0f} output tokens/s"
        return Fewer(name, n, max(r.load / r.sustained for r in chosen.roles), ("output",), text)
    each = f"{whole} would carry {share * 100:.0f} % of what they sustain"
    if share > 1.0 + 1e-9:
        caps = [dataclasses.replace(r, level_cap=float(r.batch_limit), sustained=math.inf) for r in roles]
        for r in caps:
            kind, srv = problem.load_kind, take(r.block.server, np.array([r.row]))
            full = DISCIPLINES[r.block.discipline](srv, problem.demand, np.array([r.level_cap]))
            limit = float(size.load(kind, full, problem.demand, problem.think_s)[0])
            if r.load > limit:
                text = f"{each}: there is no steady state, one of {r.name} carries at most {load(kind, limit)}"
                return Fewer(name, n, share, ("load",), text)
        breaks, why = _breaks(problem, chosen, caps)
        breaks = breaks or ("load",)
        return Fewer(name, n, share, breaks, f"{each}: {why or 'too often no slot would be free when a request comes'}")
    if share > problem.utilization * (1.0 + 1e-9):
        why = f"every bound holds, but constraints.utilization allows at most {problem.utilization * 100:.0f} %"
        return Fewer(name, n, share, ("utilization",), f"{each}: {why}")
    return Fewer(name, n, share, (), f"{each}: they would do, but the {problem.objective} gets better with more")


def _sized_for(problem: Problem, chosen: Candidate, role: RoleChoice) -> float:
    """Load of all replicas of a role; a split is sized for the fastest that its closed loop could turn."""
    if chosen.topology == "aggregated" or problem.open_loop:
        return role.load * role.replicas
    pre, dec = (take(r.block.server, np.array([r.row])) for r in chosen.roles)
    return problem.load / float(turn_s(problem, pre, dec)[0])


def _broken(problem: Problem, chosen: Candidate, index: int, role: RoleChoice) -> tuple[tuple[str, ...], str]:
    """Bounds that the deployment breaks with ``role`` in place of the one at ``index``; and in words."""
    block = role.block
    cap = BUSIEST if role.role == "prefill" else float(role.batch_limit)
    kind = problem.load_kind if role.role == "serve" else "rate"
    full = DISCIPLINES[block.discipline](take(block.server, np.array([role.row])), problem.demand, np.array([cap]))
    most = float(size.load(kind, full, problem.demand, problem.think_s)[0])
    if role.load > most:
        return ("load",), f"there is no steady state, one carries at most {load(kind, most)}"
    roles = list(chosen.roles)
    roles[index] = dataclasses.replace(role, level_cap=cap, sustained=math.inf)
    broken, words = _breaks(problem, chosen, roles)
    if broken:
        return broken, words
    if role.load <= chosen.roles[index].sustained:
        return (), "no bound breaks"
    limits = tuple(limits_of(problem, chosen.roles[index]))
    if "fabric" in limits:
        return limits, "the fabric cannot hand that many over"
    return limits, f"too often none of its {role.batch_limit} slots would be free when a request comes"


def _breaks(problem: Problem, chosen: Candidate, roles: Sequence[RoleChoice]) -> tuple[tuple[str, ...], str]:
    """Bounds that a deployment of ``roles`` breaks, of groups those that either does; and in words."""
    d = problem.demand
    p, shares = seen_by_clients(roles, role_points(problem, roles))
    ends = [pessimism(problem, r.block.engine.facts, r.block.kind.facts, r.is_cut) for r in chosen.roles]
    factors = {metric: max(end[metric] for end in ends) for metric in ends[0]}
    broken = tuple(name for name, flags in size.violations(p, d, problem.slo, factors).items() if flags.any())
    worst = [Seen.join([(take(p, np.array([i])), (1.0,))]) for i in range(len(shares))]
    parts = []
    for bound in problem.slo.bounds:
        if bound.id in broken:
            found = max(bounded(bound, one, d) for one in worst) * factors.get(bound.metric, 1.0)
            parts.append(f"{bound.id} would be {duration(found)} of at most {duration(bound.seconds)}")
    if "attainment" in broken:
        share = float(size.attainment(p, d, problem.slo.jointly, factors).min())
        parts.append(f"{share * 100:.1f} % would meet every bound, at least {problem.slo.attainment * 100:.4g} % must")
    return broken, ", ".join(parts)
