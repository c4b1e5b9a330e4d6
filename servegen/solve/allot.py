"""One option for each member of a fleet, the best that the pool holds: integer programs, one objective after the other.

Where demand may stay unmet, the least of it comes first, the highest priority before the others: the sum over its members of the
share that is not carried. Then the least spent ($/h or W), then the fewest accelerators, then member by member, the highest
priority first and the document's order next, what the member's own order prefers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from servegen.record import record
from servegen.solve.highs import SCALE, Program
from servegen.solve.options import Option, kept
from servegen.solve.packing import Packing, packing
from servegen.solve.problem import Kind


@record
class Contender:
    """One member with what it can be given."""

    priority: int
    options: tuple[Option, ...]


def packings(members: Sequence[Contender], pool: Sequence[Kind]) -> dict[int, Packing]:
    """The rows of every kind, for the sizes that some option uses."""
    sizes: dict[int, set[int]] = {kind.index: set() for kind in pool}
    for member in members:
        for option in member.options:
            for (kind, size), _ in option.uses:
                sizes[kind].add(size)
    return {kind.index: packing(frozenset(sizes[kind.index]), kind.plan.per_node) for kind in pool}


class Choice:
    """The program of a choice: a column for each option, one of each member's is 1, and what is chosen fits the pool.

    ``grow`` names kinds to which nodes may be added, ``added`` their columns.
    """

    def __init__(self, members: Sequence[Contender], pool: Sequence[Kind], grow: Sequence[int] = ()) -> None:
        self.members = members
        self.program = Program()
        self.columns = [[self.program.column(most=1.0) for _ in member.options] for member in members]
        for columns in self.columns:
            self.program.exactly(dict.fromkeys(columns, 1.0), 1.0)
        self.added = {kind: self.program.column() for kind in grow}
        for kind, form in packings(members, pool).items():
            self._pack(form, pool[kind])

    def _pack(self, form: Packing, kind: Kind) -> None:
        flow = {arc: self.program.column() for arc in form.arcs}
        for row in form.rows:
            left = {flow[arc]: float(a) for arc, a in row.flow.items()}
            for column, option in self._all():
                taken = sum(row.servers.get(size, 0) * count for (at, size), count in option.uses if at == kind.index)
                if taken:
                    left[column] = float(taken)
            if kind.index in self.added:
                left[self.added[kind.index]] = -float(row.nodes)
            if left:
                self.program.at_most(left, float(row.nodes * kind.plan.nodes))

    def _all(self) -> Iterator[tuple[int, Option]]:
        for member, columns in zip(self.members, self.columns, strict=True):
            yield from zip(columns, member.options, strict=True)

    def chosen(self, values: Sequence[int]) -> list[int]:
        """The index of each member's option."""
        return [next(i for i, column in enumerate(columns) if values[column]) for columns in self.columns]

    def unmet(self, priority: int) -> dict[int, float]:
        """The share of their load that the members of a priority do not carry."""
        return {
            column: SCALE * (1.0 - option.share)
            for member, columns in zip(self.members, self.columns, strict=True)
            if member.priority == priority
            for column, option in zip(columns, member.options, strict=True)
            if not option.whole
        }

    def spent(self) -> dict[int, float]:
        """What is spent, of what could be spent at the most."""
        most = sum(max(option.spent for option in member.options) for member in self.members)
        return {column: SCALE * option.spent / most for column, option in self._all() if option.spent} if most else {}

    def devices(self) -> dict[int, float]:
        return {column: float(option.devices) for column, option in self._all() if option.devices}


def fits(members: Sequence[Contender], pool: Sequence[Kind]) -> bool:
    """Whether the pool holds an option of every member."""
    return all(m.options for m in members) and Choice(members, pool).program.least({}) is not None


def allot(members: Sequence[Contender], pool: Sequence[Kind]) -> list[Option] | None:
    """The best option of each member by the order above; None where the pool does not hold one of each."""
    members = _without_dominated(members, pool)
    if not all(m.options for m in members):
        return None
    members = _wholly_carried(members, pool)
    choice = Choice(members, pool)
    values: list[int] | None = None
    for priority in _priorities(members):
        values = _settle(choice, choice.unmet(priority), values)
    for objective in (choice.spent(), choice.devices()):
        values = _settle(choice, objective, values)
    return [m.options[i] for m, i in zip(members, _ranked(choice, values), strict=True)] if values is not None else None


def _without_dominated(members: Sequence[Contender], pool: Sequence[Kind]) -> list[Contender]:
    forms = packings(members, pool)
    return [Contender(m.priority, tuple(kept(m.options, forms, pool))) for m in members]


def _wholly_carried(members: Sequence[Contender], pool: Sequence[Kind]) -> list[Contender]:
    """The members with only their whole options, from the highest priority down to where the pool cannot carry all."""
    found = list(members)
    for priority in _priorities(members):
        strict = [Contender(m.priority, tuple(o for o in m.options if o.whole or m.priority < priority)) for m in members]
        if not fits(strict, pool):
            break
        found = strict
    return found


def carried(members: Sequence[Contender], pool: Sequence[Kind]) -> list[bool]:
    """For members with only whole options, which priorities the pool carries wholly, from the highest one down to the first it
    does not."""
    least = math.inf
    for priority in _priorities(members):
        if not fits([m for m in members if m.priority >= priority], pool):
            break
        least = priority
    return [m.priority >= least for m in members]


def _priorities(members: Sequence[Contender]) -> list[int]:
    """The highest first."""
    return sorted({m.priority for m in members}, reverse=True)


def _settle(choice: Choice, objective: Mapping[int, float], values: list[int] | None) -> list[int] | None:
    """The least of one objective, which later ones must keep."""
    if not objective:
        return values if values is not None else choice.program.least({})
    found = choice.program.least(objective)
    if found is not None:
        choice.program.keep(objective, sum(weight * found[column] for column, weight in objective.items()))
    return found


def _ranked(choice: Choice, values: list[int]) -> list[int]:
    """What each member prefers of all that is as good: options come in the member's order, so the index is the rank."""
    order = sorted(range(len(choice.members)), key=lambda i: -choice.members[i].priority)
    for i in order:
        at = choice.chosen(values)[i]
        columns = choice.columns[i]
        for column in columns[at + 1 :]:
            choice.program.forbid(column)
        if at:
            found = choice.program.least({column: float(rank) for rank, column in enumerate(columns) if rank})
            values = found if found is not None else values
            for rank, column in enumerate(columns):
                if rank != choice.chosen(values)[i]:
                    choice.program.forbid(column)
    return choice.chosen(values)
