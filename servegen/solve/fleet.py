"""Many specs on one pool: each member is searched alone, and one integer program says which of its options each is given."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from servegen.fleet import Fleet, FleetPlan, Member, PoolUse, Use
from servegen.plan import Plan
from servegen.record import record
from servegen.solve.allot import Contender, allot, carried
from servegen.solve.candidate import Candidate
from servegen.solve.highs import require
from servegen.solve.infeasible import LARGEST
from servegen.solve.options import NOTHING, Option, eligible, partial, reduced, scaled, whole
from servegen.solve.packing import least_nodes
from servegen.solve.problem import Kind, Problem
from servegen.solve.search import Searched, explained, search
from servegen.solve.team import ALONE, Team
from servegen.solve.words import money

#: Nodes of one entry up to which a pool is enlarged to see what a member would take if there were enough of them.
MOST_NODES = 20_000

FleetObjective = Literal["cost", "energy", "unmet"]


@record
class Entrant:
    """A member and its problem, whose pool is the fleet's; ``spec`` is the path that the fleet states."""

    spec: str
    priority: int
    problem: Problem


@record
class FleetProblem:
    """Everything that the solution of a fleet needs. The members' own constants may differ, nodes and prices do not."""

    name: str
    objective: FleetObjective
    entrants: tuple[Entrant, ...]
    shown: Mapping[str, Any]
    inputs: Mapping[str, str]

    @property
    def pool(self) -> tuple[Kind, ...]:
        return self.entrants[0].problem.pool


@record
class Seen:
    """What the searches saw: on the pool as it is, and for members that it cannot carry wholly on a larger one."""

    on_pool: tuple[Searched, ...]
    options: tuple[Contender, ...]

    @property
    def searched(self) -> int:
        return sum(s.searched for s in self.on_pool)


def solve_fleet(fleet: FleetProblem, team: Team = ALONE) -> Fleet:
    """The plan of a fleet and of each member, the same whatever the team.

    Raises InfeasibleError if the pool does not carry all members and the objective is not ``unmet``, or if no pool carries one of
    them; NotBuiltError without scipy.
    """
    require()
    seen = look(fleet, team)
    chosen = allot(seen.options, fleet.pool)
    if chosen is None:
        from servegen.solve.shortage import shortage

        if fleet.objective != "unmet":
            raise shortage(fleet, seen, team)
        chosen = allot_part(fleet, seen, team=team)
    return _plans(fleet, seen, chosen, team)


def look(fleet: FleetProblem, team: Team = ALONE) -> Seen:
    """Each member's search on the whole pool, and its options to be carried wholly."""
    on_pool = tuple(team.each(search, [(e.problem,) for e in fleet.entrants]))
    options = [Contender(e.priority, tuple(whole(e.problem, eligible(e.problem, s)))) for e, s in _pairs(fleet, on_pool)]
    return Seen(on_pool, tuple(options))


def allot_part(fleet: FleetProblem, seen: Seen, wide: Sequence[Searched] = (), team: Team = ALONE) -> list[Option]:
    """What each member is given where part of the demand, or all, may stay unmet.

    ``wide`` are the searches of the :func:`roomy` problems, if they were made. Raises InfeasibleError for a member that no pool
    carries.
    """
    safe = carried(seen.options, fleet.pool)
    short = [i for i, wholly in enumerate(safe) if not wholly]
    asked = [(fleet.name, fleet.entrants[i], seen.on_pool[i], wide[i] if wide else None) for i in short]
    parts = dict(zip(short, team.each(_parts, asked), strict=True))
    members = [
        Contender(own.priority, (*own.options, *parts[i])) if i in parts else own for i, own in enumerate(seen.options)
    ]
    chosen = allot(members, fleet.pool)
    if chosen is None:
        raise ValueError("nothing at all for everyone is an allotment, too")
    return chosen


def _parts(fleet: str, entrant: Entrant, seen: Searched, made: Searched | None) -> list[Option]:
    """Options that carry part of the load: of what the pool itself can hold, and of what only a larger one would hold whole."""
    from servegen.solve.shortage import impossible

    problem = entrant.problem
    own = eligible(problem, seen)
    known = {configuration(c) for c in own}
    larger = dataclasses.replace(roomy(problem), max_accelerators=0)
    wide = made if made is not None and not problem.max_accelerators else search(larger)
    if wide.best is None:
        most = max((o.most for o in wide.outcomes), default=0.0)
        if most <= 0.0:
            raise impossible(fleet, entrant, seen)
        larger = dataclasses.replace(larger, load=most * 0.99)
        wide = search(larger)
    others = tuple(c for c in eligible(larger, wide) if configuration(c) not in known)
    return [NOTHING, *partial(problem, own), *partial(problem, others, larger.load)]


def roomy(problem: Problem) -> Problem:
    """The problem on a pool so large that nodes are not what is lacking, and yet no larger than the search can take."""

    def larger(nodes: int) -> int:
        return max(nodes, min(int(nodes * LARGEST), MOST_NODES))

    pool = tuple(dataclasses.replace(k, plan=dataclasses.replace(k.plan, nodes=larger(k.plan.nodes))) for k in problem.pool)
    return dataclasses.replace(problem, pool=pool)


def configuration(c: Candidate) -> tuple[object, ...]:
    """What the search keeps the best of."""
    return (c.engine.facts.id, *c.config, *((r.role, r.block.kind.index, r.tp, r.block.discipline) for r in c.roles))


def _pairs(fleet: FleetProblem, searches: Sequence[Searched]) -> list[tuple[Entrant, Searched]]:
    return list(zip(fleet.entrants, searches, strict=True))


def _plans(fleet: FleetProblem, seen: Seen, chosen: Sequence[Option], team: Team) -> Fleet:
    """The fleet's plan and the members'."""
    asked = [
        (fleet.name, entrant, found, chosen[i], _servers(chosen[:i], chosen[i + 1 :]) if len(chosen) > 1 else None)
        for i, (entrant, found) in enumerate(_pairs(fleet, seen.on_pool))
    ]
    plans = team.each(_plan, asked)
    members = [
        _member(entrant, found, option, plan)
        for (entrant, found), option, plan in zip(_pairs(fleet, seen.on_pool), chosen, plans, strict=True)
    ]
    used = _servers(chosen)
    pool = tuple(_pool_use(kind, used) for kind in fleet.pool)
    cost = sum(m.cost_per_hour for m in members)
    return Fleet(
        FleetPlan(
            name=fleet.name,
            objective=fleet.objective,
            members=tuple(members),
            pool=pool,
            devices=sum(m.devices for m in members),
            cost_per_hour=cost,
            watts=sum(m.watts for m in members),
            searched=seen.searched,
            why=_why(fleet, seen, members, cost),
            spec=fleet.shown,
            inputs=fleet.inputs,
        ),
        tuple(plans),
    )


def _servers(*options: Sequence[Option]) -> dict[tuple[int, int], int]:
    """Servers of all options by (kind, devices)."""
    total: dict[tuple[int, int], int] = {}
    for option in itertools.chain(*options):
        for place, count in option.uses:
            total[place] = total.get(place, 0) + count
    return total


def _pool_use(kind: Kind, used: Mapping[tuple[int, int], int]) -> PoolUse:
    servers = {size: count for (at, size), count in sorted(used.items()) if at == kind.index}
    return PoolUse(
        accelerator=kind.facts.id,
        nodes=kind.plan.nodes,
        per_node=kind.plan.per_node,
        price_per_hour=kind.plan.price_per_hour,
        used=sum(size * count for size, count in servers.items()),
        used_nodes=least_nodes(servers, kind.plan.per_node),
    )


def _plan(
    fleet: str, entrant: Entrant, seen: Searched, option: Option, others: Mapping[tuple[int, int], int] | None
) -> Plan | None:
    """The member's plan, as its own solution would be but for what the ``fleet`` of that name decides.

    ``others`` are the servers of the other members by (kind, devices), None where there are no others.
    """
    if option.candidate is None:
        return None
    problem, found = entrant.problem, seen
    if not option.whole:
        problem = reduced(problem, option.share)
        found = search(problem)
        kept = tuple(c for c in found.candidates if configuration(c) != configuration(option.candidate))
        found = dataclasses.replace(found, candidates=kept)
    chosen = scaled(problem, option)
    own = dataclasses.replace(problem, pool=chosen.kinds, topology=chosen.topology) if others is not None else None
    plan = explained(problem, found, chosen, own)
    better = {c.name for c in eligible(problem, found) if c.key(problem) < chosen.key(problem)}
    taken = f"better for this model alone; the fleet {fleet} has other use for its accelerators"
    return dataclasses.replace(
        plan,
        alternatives=tuple(dataclasses.replace(a, why_lost=taken) if a.name in better else a for a in plan.alternatives),
        pool=tuple(_shared(k, others or {}, p) for k, p in zip(problem.pool, plan.pool, strict=True)),
        # What is left of the pool is no one's: a member grows to what it was sized for at the peak.
        deploy=dataclasses.replace(
            plan.deploy, autoscaling_max={r.name: max(r.total_replicas, 1) for r in plan.choice.roles}
        )
        if others is not None
        else plan.deploy,
        notes=(*plan.notes, *_notes(fleet, option)),
    )


def _shared(kind: Kind, others: Mapping[tuple[int, int], int], plan: Any) -> Any:
    """The entry of the pool with the servers of the other members on it."""
    servers = {str(size): count for (at, size), count in sorted(others.items()) if at == kind.index}
    return dataclasses.replace(plan, others=servers)


def _notes(fleet: str, option: Option) -> tuple[str, ...]:
    notes = [f"hardware.pool is that of the fleet {fleet}, which decided this plan together with its other members"]
    if not option.whole:
        notes.append(f"the pool carries {option.share * 100:.3g} % of this model's load; the plan is sized for that part")
    return tuple(notes)


def _member(entrant: Entrant, seen: Searched, option: Option, plan: Plan | None) -> Member:
    problem = entrant.problem
    share = 1.0 if option.whole else option.share
    note = ""
    if not option.whole:
        note = "the rest of its demand finds no room" if share else "its demand finds no room"
    elif seen.best is not None and option.candidate is not seen.best:
        alone = seen.best
        kinds = " + ".join(k.facts.id for k in alone.kinds)
        note = f"alone it would have {alone.devices} x {kinds} at {money(alone.cost_per_h)}/h"
    return Member(
        name=problem.name,
        spec=entrant.spec,
        priority=entrant.priority,
        load_kind=problem.load_kind,
        asked=problem.load,
        carried=problem.load * share,
        share=share,
        devices=option.devices,
        cost_per_hour=plan.choice.cost_per_hour if plan else 0.0,
        watts=plan.choice.watts if plan else 0.0,
        uses=tuple(Use(kind, size, count) for (kind, size), count in option.uses),
        note=note,
    )


def _why(fleet: FleetProblem, seen: Seen, members: Sequence[Member], cost: float) -> tuple[str, ...]:
    """Sentences that a reviewer can check."""
    short = [m for m in members if m.share < 1.0]
    out = []
    if not short:
        least = "energy" if fleet.objective == "energy" else "cost"
        out.append(f"All {len(members)} members are carried wholly; no combination of their plans that fits has less {least}.")
    else:
        parts = ", ".join(f"{m.name} by {(1.0 - m.share) * 100:.3g} %" for m in short)
        out.append(f"The pool does not carry all: the demand that stays unmet is the least there can be by priority: {parts}.")
    alone = [s.best.cost_per_h for s in seen.on_pool if s.best is not None]
    if not short and len(alone) == len(members):
        extra = cost - sum(alone)
        if extra > 0.005:
            apart = money(sum(alone))
            out.append(f"Each alone on the whole pool, they would cost {apart}/h: sharing it costs {money(extra)}/h more.")
        else:
            out.append("Each has as cheap a plan as it would have alone on the whole pool.")
    return tuple(out)
