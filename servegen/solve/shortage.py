"""When a pool does not carry its fleet: which members do not fit, the best that can be had, and what would make all fit."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from servegen.errors import Fix, InfeasibleError
from servegen.record import record
from servegen.solve.allot import Choice, Contender, fits
from servegen.solve.fleet import Entrant, FleetProblem, Seen, allot_part, roomy
from servegen.solve.infeasible import infeasible
from servegen.solve.options import Option, eligible, whole
from servegen.solve.problem import Problem
from servegen.solve.search import Searched, search
from servegen.solve.team import Team

#: Entries of the pool whose enlargement is verified by solving all anew, the smallest first.
VERIFIED = 3


def impossible(fleet: str, entrant: Entrant, seen: Searched) -> InfeasibleError:
    """A member of the ``fleet`` of that name that no number of nodes carries: what binds it, and what it would take, found on the
    fleet's pool alone.
    """
    own = infeasible(entrant.problem, seen)
    name = entrant.problem.name
    fixes = tuple(dataclasses.replace(f, key=f"{name}.{f.key}", text=f"{name}: {f.text}") for f in own.fixes)
    message = f"{name} does not fit, even alone on the whole pool: {own.message}"
    return InfeasibleError(fleet, f"{name}.{own.bound}", message, own.best, fixes, own.rejected, own.searched)


def shortage(fleet: FleetProblem, seen: Seen, team: Team) -> InfeasibleError:
    """The error that names the members that do not fit, and the fewest nodes of one entry of the pool that mend it."""
    roomier = [roomy(e.problem) for e in fleet.entrants]
    searches = team.each(_no_blocks, [(larger,) for larger in roomier])
    wide = []
    for i, (entrant, own) in enumerate(zip(fleet.entrants, seen.options, strict=True)):
        there = eligible(roomier[i], searches[i])
        if not there:
            return impossible(fleet.name, entrant, seen.on_pool[i])
        known = {o.uses for o in own.options}
        others = (o for o in whole(roomier[i], there) if o.uses not in known)
        wide.append(Contender(entrant.priority, (*own.options, *others)))
    given = allot_part(fleet, seen, searches, team)
    short = [(e, o.share) for e, o in zip(fleet.entrants, given, strict=True) if not o.whole]
    names = ", ".join(e.problem.name for e, _ in short)
    alone = [e.problem.name for e, s in zip(fleet.entrants, seen.on_pool, strict=True) if s.best is None]
    message = f"the pool does not carry all {len(fleet.entrants)} members: {names} {'does' if len(short) == 1 else 'do'} not fit"
    if alone:
        message += f" ({', '.join(alone)} not even alone)"
    parts = ", ".join(f"{e.problem.name} {share * 100:.3g} % of its load" for e, share in short)
    count = len(fleet.entrants) - len(short)
    best = f"{count} of {len(fleet.entrants)} members wholly, {parts} (objective: unmet gives that)"
    fixes = tuple(sorted(_larger(fleet, seen, wide, team), key=lambda f: (f.relative, f.key)))
    rejected: Counter[str] = sum((found.rejected for found in seen.on_pool), Counter())
    return InfeasibleError(fleet.name, "pool", message, best, fixes, dict(sorted(rejected.items())), seen.searched)


def _no_blocks(problem: Problem) -> Searched:
    """The search without its blocks: nobody asks for them here, and of a large fleet they would be most of what is held."""
    return dataclasses.replace(search(problem), outcomes=())


@record
class Addition:
    """Nodes to add by entry of the pool, and the option of each member that then fits, by its index."""

    nodes: dict[int, int]
    chosen: tuple[int, ...]


def _larger(fleet: FleetProblem, seen: Seen, wide: Sequence[Contender], team: Team) -> Iterator[Fix]:
    """The fewest nodes to add to one entry of the pool, or the cheapest to several; each verified by solving anew."""
    single = [(i, found) for i in range(len(fleet.pool)) if (found := _fewest(fleet, wide, (i,))) is not None]
    single.sort(key=lambda f: (f[1].nodes[f[0]] / fleet.pool[f[0]].plan.nodes, f[0]))
    worked = False
    for _, addition in single[:VERIFIED]:
        if _carries(fleet, seen, wide, addition, team):
            worked = True
            yield _fix(fleet, addition.nodes)
    if not worked and len(fleet.pool) > 1:
        several = _fewest(fleet, wide, tuple(range(len(fleet.pool))))
        if several is not None and _carries(fleet, seen, wide, several, team):
            yield _fix(fleet, several.nodes)


def _fewest(fleet: FleetProblem, wide: Sequence[Contender], entries: Sequence[int]) -> Addition | None:
    """The least to add, by price where several entries may grow, else by number; None if nothing is enough."""
    choice = Choice(wide, fleet.pool, entries)
    price = {choice.added[i]: fleet.pool[i].plan.price_per_hour * fleet.pool[i].plan.per_node for i in entries}
    count = dict.fromkeys(price, 1.0)
    values = choice.program.least(price if len(entries) > 1 and any(price.values()) else count)
    if values is None:
        return None
    nodes = {i: values[choice.added[i]] for i in entries if values[choice.added[i]]}
    return Addition(nodes, tuple(choice.chosen(values)))


def _carries(fleet: FleetProblem, seen: Seen, wide: Sequence[Contender], addition: Addition, team: Team) -> bool:
    """Whether the larger pool carries all.

    Members are searched anew on it, but for those that take an aggregated plan of the pool as it is: more nodes do not change it.
    """
    larger = grown(fleet, addition.nodes)
    options: dict[int, tuple[Option, ...]] = {}
    for i, (own, other, at) in enumerate(zip(seen.options, wide, addition.chosen, strict=True)):
        option = other.options[at]
        if at < len(own.options) and option.candidate is not None and option.candidate.topology == "aggregated":
            options[i] = (option,)
    anew = [i for i in range(len(wide)) if i not in options]
    problems = [larger.entrants[i].problem for i in anew]
    for i, problem, found in zip(anew, problems, team.each(_no_blocks, [(p,) for p in problems]), strict=True):
        options[i] = tuple(whole(problem, eligible(problem, found)))
    return fits([Contender(e.priority, options[i]) for i, e in enumerate(larger.entrants)], larger.pool)


def grown(fleet: FleetProblem, added: dict[int, int]) -> FleetProblem:
    """The fleet with more nodes."""
    entrants = []
    for entrant in fleet.entrants:
        pool = tuple(
            dataclasses.replace(k, plan=dataclasses.replace(k.plan, nodes=k.plan.nodes + added.get(k.index, 0)))
            for k in entrant.problem.pool
        )
        entrants.append(dataclasses.replace(entrant, problem=dataclasses.replace(entrant.problem, pool=pool)))
    return dataclasses.replace(fleet, entrants=tuple(entrants))


def _fix(fleet: FleetProblem, added: dict[int, int]) -> Fix:
    kinds = [(fleet.pool[i], more) for i, more in sorted(added.items())]
    changes = [f"hardware.pool[{k.index}].nodes ({k.facts.id}) from {k.plan.nodes} to {k.plan.nodes + n}" for k, n in kinds]
    return Fix(
        key=", ".join(f"hardware.pool.{k.index}.nodes" for k, _ in kinds),
        old=", ".join(str(k.plan.nodes) for k, _ in kinds),
        new=", ".join(str(k.plan.nodes + n) for k, n in kinds),
        relative=sum(n / k.plan.nodes for k, n in kinds),
        text=f"raise {' and '.join(changes)}",
    )
