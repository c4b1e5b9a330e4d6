"""When a pool does not carry its fleet: which members do not fit, the best that can be had, and what would make all fit."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from servegen.errors import Fix, InfeasibleError
from servegen.solve.allot import Choice, Contender, fits
from servegen.solve.fleet import Entrant, FleetProblem, Seen, allot_part, look, roomy
from servegen.solve.infeasible import infeasible
from servegen.solve.options import eligible, whole
from servegen.solve.search import Searched, search

#: Entries of the pool whose enlargement is verified by solving all anew, the smallest first.
VERIFIED = 3


def impossible(fleet: FleetProblem, entrant: Entrant, seen: Searched) -> InfeasibleError:
    """A member that no number of nodes carries: what binds it, and what it would take, found on the fleet's pool alone."""
    own = infeasible(entrant.problem, seen)
    name = entrant.problem.name
    fixes = tuple(dataclasses.replace(f, key=f"{name}.{f.key}", text=f"{name}: {f.text}") for f in own.fixes)
    message = f"{name} does not fit, even alone on the whole pool: {own.message}"
    return InfeasibleError(fleet.name, f"{name}.{own.bound}", message, own.best, fixes, own.rejected, own.searched)


def shortage(fleet: FleetProblem, seen: Seen) -> InfeasibleError:
    """The error that names the members that do not fit, and the fewest nodes of one entry of the pool that mend it."""
    wide = []
    for entrant, found, own in zip(fleet.entrants, seen.on_pool, seen.options, strict=True):
        larger = roomy(entrant.problem)
        there = eligible(larger, search(larger))
        if not there:
            return impossible(fleet, entrant, found)
        wide.append(Contender(entrant.priority, (*own.options, *whole(larger, there))))
    given = allot_part(fleet, seen)
    short = [(e, o.share) for e, o in zip(fleet.entrants, given, strict=True) if not o.whole]
    names = ", ".join(e.problem.name for e, _ in short)
    alone = [e.problem.name for e, s in zip(fleet.entrants, seen.on_pool, strict=True) if s.best is None]
    message = f"the pool does not carry all {len(fleet.entrants)} members: {names} {'does' if len(short) == 1 else 'do'} not fit"
    if alone:
        message += f" ({', '.join(alone)} not even alone)"
    parts = ", ".join(f"{e.problem.name} {share * 100:.3g} % of its load" for e, share in short)
    count = len(fleet.entrants) - len(short)
    best = f"{count} of {len(fleet.entrants)} members wholly, {parts} (objective: unmet gives that)"
    fixes = tuple(sorted(_larger(fleet, wide), key=lambda f: (f.relative, f.key)))
    rejected: Counter[str] = sum((found.rejected for found in seen.on_pool), Counter())
    return InfeasibleError(fleet.name, "pool", message, best, fixes, dict(sorted(rejected.items())), seen.searched)


def _larger(fleet: FleetProblem, wide: Sequence[Contender]) -> Iterator[Fix]:
    """The fewest nodes to add to one entry of the pool, or the cheapest to several; each verified by solving all anew."""
    single = [(i, found) for i in range(len(fleet.pool)) if (found := _fewest(fleet, wide, (i,))) is not None]
    single.sort(key=lambda f: (f[1][f[0]] / fleet.pool[f[0]].plan.nodes, f[0]))
    worked = False
    for _, added in single[:VERIFIED]:
        if _carries(grown(fleet, added)):
            worked = True
            yield _fix(fleet, added)
    if not worked and len(fleet.pool) > 1:
        added = _fewest(fleet, wide, tuple(range(len(fleet.pool)))) or {}
        if added and _carries(grown(fleet, added)):
            yield _fix(fleet, added)


def _fewest(fleet: FleetProblem, wide: Sequence[Contender], entries: Sequence[int]) -> dict[int, int] | None:
    """Nodes to add by entry, those of least price and then number, None if none are enough."""
    choice = Choice(wide, fleet.pool, entries)
    price = {choice.added[i]: fleet.pool[i].plan.price_per_hour * fleet.pool[i].plan.per_node for i in entries}
    count = dict.fromkeys(price, 1.0)
    values = choice.program.least(price if len(entries) > 1 and any(price.values()) else count)
    return None if values is None else {i: values[choice.added[i]] for i in entries if values[choice.added[i]]}


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


def _carries(fleet: FleetProblem) -> bool:
    return fits(look(fleet).options, fleet.pool)


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
