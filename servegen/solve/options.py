"""What one member of a fleet can be given: the candidates of its own search, whole or with fewer replicas, none dominated.

Which of them it may take is its own search's rule: a split only where it gains what the spec asks, over the best aggregated plan
that the whole pool would give the member alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.solve.candidate import Candidate, RoleChoice, first_of
from servegen.solve.packing import Packing
from servegen.solve.pairs import turning
from servegen.solve.predict import role_points
from servegen.solve.problem import Kind, Problem
from servegen.solve.search import Searched, gain_of, worth
from servegen.solve.space import replicas_that_fit
from servegen.units import format_rate

#: How far below the whole a share counts as the whole, as the search itself counts.
WHOLE = 1.0 - 1e-9
#: Numbers of replicas of a configuration that are tried for a part of the load: beyond, one more adds less than 0.4 %.
STEPS = 256

T = TypeVar("T")


@record
class Option:
    """A candidate with these ``counts`` of servers per role, spares left out; it carries ``share`` of the member's load.

    ``uses`` counts servers, spares included, by (index in the pool, devices of a server); ``spent`` is in the unit of the
    objective, $/h or W. ``key`` is the member's total order: more of the load first, then as its search orders candidates.
    ``candidate`` None is nothing at all.
    """

    candidate: Candidate | None
    counts: tuple[int, ...]
    share: float
    uses: tuple[tuple[tuple[int, int], int], ...]
    spent: float
    devices: int
    key: tuple[object, ...]

    @property
    def whole(self) -> bool:
        return self.share >= WHOLE


NOTHING = Option(None, (), 0.0, (), 0.0, 0, (0.0,))


def eligible(problem: Problem, seen: Searched) -> tuple[Candidate, ...]:
    """The candidates that the member may be given: every aggregated one, and the splits that gain enough."""
    together = tuple(c for c in seen.candidates if c.topology == "aggregated")
    best = first_of(problem, together)
    splits = tuple(c for c in seen.candidates if c.topology == "disaggregated")
    if best is None:
        return splits
    return together + tuple(c for c in splits if worth(problem, gain_of(problem, best, c)))


def whole(problem: Problem, candidates: Sequence[Candidate]) -> list[Option]:
    """Each candidate as it is."""
    return [_option(problem, c, tuple(r.replicas for r in c.roles), 1.0) for c in candidates]


def partial(problem: Problem, candidates: Sequence[Candidate], carried: float = 0.0) -> list[Option]:
    """Each candidate with every smaller number of replicas that the pool and maxAccelerators hold (of very many, some).

    ``carried`` is the load that the candidates carry, where that is not the problem's own.
    """
    options = []
    for candidate in candidates:
        for counts, part in _fewer(problem, candidate, carried or problem.load):
            share = part / problem.load
            if not problem.open_loop:  # so many whole requests in flight, or users
                share = math.floor(share * problem.load + 1e-9) / problem.load
            option = _option(problem, candidate, counts, share)
            if 0.0 < share < WHOLE and not 0 < problem.max_accelerators < option.devices:
                options.append(option)
    return options


def _fewer(problem: Problem, candidate: Candidate, carried: float) -> Iterator[tuple[tuple[int, ...], float]]:
    """Smaller counts per role and the load that they carry, no server loaded more than its role allows."""
    if candidate.grouped:  # only a fleet of one has them, and only whole
        return
    most_of = [min(r.replicas, _room(problem, r)) for r in candidate.roles]
    if len(candidate.roles) == 1:
        (role,) = candidate.roles
        for n in _spread([*range(1, most_of[0] + 1)]):
            if n < role.replicas:
                yield (n,), n * problem.utilization * role.sustained
        return
    first, second = candidate.roles
    free = problem.open_loop and math.isnan(problem.slo.attainment) and not any(b.metric == "e2e" for b in problem.slo.bounds)
    # A bound on whole requests was checked at the load of the plan's servers; none may have more than that.
    most = [problem.utilization * r.sustained if free else r.load for r in candidate.roles]
    rate = first.load * first.replicas
    steps = set()
    for x in range(1, most_of[0] + 1):
        steps.add((x, min(math.ceil(x * most[0] / most[1] - 1e-9), most_of[1])))
    for y in range(1, most_of[1] + 1):
        steps.add((min(math.ceil(y * most[1] / most[0] - 1e-9), most_of[0]), y))
    for x, y in _spread(sorted(s for s in steps if min(s) >= 1 and s != (first.replicas, second.replicas))):
        yield (x, y), carried * min(x * most[0], y * most[1]) / rate


def _room(problem: Problem, role: RoleChoice) -> int:
    """Servers of a role that the pool holds when nothing else stands on it."""
    kind = problem.pool[role.block.kind.index]
    return int(replicas_that_fit(kind, np.array(float(role.devices)))) - problem.spares


def _spread(steps: list[T]) -> list[T]:
    """All of them, or :data:`STEPS` evenly chosen ones, the least and the most among them."""
    if len(steps) <= STEPS:
        return steps
    return [steps[i] for i in np.unique(np.round(np.linspace(0, len(steps) - 1, STEPS)).astype(np.int64))]


def _option(problem: Problem, candidate: Candidate, counts: tuple[int, ...], share: float) -> Option:
    uses: dict[tuple[int, int], int] = {}
    for role, count in zip(candidate.roles, counts, strict=True):
        place = (role.block.kind.index, role.devices)
        uses[place] = uses.get(place, 0) + count + problem.spares
    devices = sum(size * count for (_, size), count in uses.items())
    full = counts == tuple(r.replicas for r in candidate.roles)
    spent = candidate.objective[0] if full else _spent(problem, candidate, counts)
    order = candidate.key(problem)[len(candidate.objective) + 1 :]
    return Option(candidate, counts, share, tuple(sorted(uses.items())), spent, devices, (-share, spent, devices, *order))


def _spent(problem: Problem, candidate: Candidate, counts: tuple[int, ...]) -> float:
    """$/h or W of so many servers, spares included."""
    return sum(
        (n + problem.spares) * r.devices * (k.facts.tdp_w if problem.objective == "energy" else k.plan.price_per_hour)
        for r, n in zip(candidate.roles, counts, strict=True)
        for k in (r.block.kind,)
    )


def kept(options: Sequence[Option], packings: dict[int, Packing], pool: Sequence[Kind]) -> list[Option]:
    """The options that fit the pool alone and that no other dominates, in the member's order; exact.

    One dominates another if it takes no more in any row of the packing, spends no more and comes before it in the order:
    wherever the other stands, it can stand instead.
    """
    ordered = sorted(options, key=lambda o: o.key)
    use = np.array([_rows(o, packings) for o in ordered])
    limit = np.concatenate([_capacity(packings[k.index], k.plan.nodes) for k in pool])
    spent = np.array([o.spent for o in ordered])
    share = np.array([o.share for o in ordered])
    left: list[int] = []
    for i, row in enumerate(use):
        if np.any(row > limit):
            continue
        before = np.array(left, dtype=np.int64)
        beaten = np.all(use[before] <= row, axis=1) & (spent[before] <= spent[i]) & (share[before] >= share[i])
        if not beaten.any():
            left.append(i)
    return [ordered[i] for i in left]


def _rows(option: Option, packings: dict[int, Packing]) -> NDArray[np.float64]:
    """What an option takes in every row of every kind; rows of a flow stand for the servers themselves."""
    uses = dict(option.uses)
    found = [
        sum(a * uses.get((kind, size), 0) for size, a in row.servers.items())
        for kind, form in packings.items()
        for row in form.rows
    ]
    return np.array(found, dtype=np.float64)


def _capacity(form: Packing, nodes: int) -> NDArray[np.float64]:
    """What the rows hold; a row that a flow has to cover holds anything here."""
    return np.array([math.inf if row.flow and not row.nodes else row.nodes * nodes for row in form.rows], dtype=np.float64)


def reduced(problem: Problem, share: float) -> Problem:
    """The member as if it asked only for ``share`` of its load."""
    w, load = problem.workload, problem.load * share
    traffic = dict(problem.shown["spec"]["traffic"])
    if problem.load_kind == "rate":
        workload = dataclasses.replace(w, rate_per_s=load, trough_per_s=min(w.trough_per_s, load))
        if "trace" not in traffic:
            traffic["rate"] = format_rate(load)
        if "trough" in traffic:
            traffic["trough"] = format_rate(workload.trough_per_s)
    elif problem.load_kind == "concurrency":
        load = float(round(load))
        workload = dataclasses.replace(w, concurrency=int(load))
        traffic["concurrency"] = int(load)
    else:
        load = float(round(load))
        workload = dataclasses.replace(w, users=int(load))
        traffic["users"] = {**traffic["users"], "active": int(load)}
    shown = {**problem.shown, "spec": {**problem.shown["spec"], "traffic": traffic}}
    return dataclasses.replace(problem, load=load, workload=workload, shown=shown)


def scaled(problem: Problem, option: Option) -> Candidate:
    """The option as a candidate of ``problem``, which is :func:`reduced` to its share."""
    chosen = option.candidate
    if chosen is None:
        raise ValueError("nothing is no candidate")
    if option.whole:
        return chosen
    rate = chosen.roles[0].load * chosen.roles[0].replicas * option.share
    loads = [problem.load / n if len(chosen.roles) == 1 else rate / n for n in option.counts]
    roles = tuple(
        dataclasses.replace(r, replicas=n, load=min(load, r.sustained))
        for r, n, load in zip(chosen.roles, option.counts, loads, strict=True)
    )
    first = role_points(problem, roles)[0]
    priced = dataclasses.replace(problem, objective="cost"), dataclasses.replace(problem, objective="energy")
    cost, watts = (_spent(p, chosen, option.counts) for p in priced)
    fewer = dataclasses.replace(
        chosen,
        roles=roles,
        objective=(option.spent,),
        devices=option.devices,
        cost_per_h=cost,
        watts=watts,
        output_tokens_per_s=roles[0].replicas * float(first.rate[0]) * problem.demand.osl_mean,
        headroom=min(r.replicas * r.sustained for r in roles),
    )
    return turning(problem, [fewer])[0] if len(roles) > 1 and not problem.open_loop else fewer
