"""Why a replica is cut as it is: over several nodes, into stages, attention groups and ranks of experts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from servegen.plan import RoleName
from servegen.record import record
from servegen.solve.aggregate import Outcome
from servegen.solve.candidate import Block, Candidate, RoleChoice
from servegen.solve.problem import Problem
from servegen.solve.space import occupancy

#: Says what the best candidate of those that are kept is and what it lost by; "" if there is none.
Beside = Callable[[Callable[[Candidate], bool]], str]


@record
class Way:
    """A way to cut a replica, beside TP, by the name of a shape's field, and what is ``done`` by it."""

    name: str
    done: str


WAYS = (
    Way("pp", "is a pipeline of {n} stages (PP)"),
    Way("dp", "computes attention in {n} groups, each with the KV cache of requests of its own (attention DP)"),
    Way("ep", "spreads its experts over {n} ranks (EP)"),
)


def cut_words(problem: Problem, chosen: Candidate, outcomes: Sequence[Outcome], beside: Beside) -> Iterator[str]:
    """A sentence for each way in which the chosen one's replicas are cut, with what the best one without it lost by. ``outcomes``
    are what the search saw."""
    yield from _nodes(problem, chosen, outcomes, beside)
    stated = {"pp": problem.pps, "dp": problem.dps, "ep": problem.eps}
    for way, role in itertools.product(WAYS, dict.fromkeys(r.role for r in chosen.roles)):
        cut = [(r, n) for r in chosen.roles if r.role == role and (n := getattr(r.shape, way.name)) > 1]
        if not cut:
            continue
        what = "; ".join(f"a {_word(r)} {way.done.format(n=n)}" for r, n in cut)
        best = beside(_without(way.name, role))
        if best:
            rest = f"; the best plan without that is {best}"
        elif stated[way.name] and 1 not in stated[way.name]:
            rest = f", as constraints.{way.name} asks"
        else:
            rest = "; without that no plan meets the spec"
        yield f"{what[0].upper()}{what[1:]}{rest}."


def _without(way: str, role: RoleName) -> Callable[[Candidate], bool]:
    """Whether a candidate does not cut its servers of a role that way: all of its servers, where it has none of that role."""

    def uncut(c: Candidate) -> bool:
        mine = [r for r in c.roles if r.role == role] or c.roles
        return all(getattr(r.shape, way) == 1 for r in mine)

    return uncut


def _word(role: RoleChoice) -> str:
    what = "replica" if role.role == "serve" else f"{role.role} server"
    return f"{what} of {role.name}" if role.grouped else what


def _nodes(problem: Problem, chosen: Candidate, outcomes: Sequence[Outcome], beside: Beside) -> Iterator[str]:
    """Why replicas span several nodes, if some do."""
    wide = [r for r in chosen.roles if not _on_one(r)]
    if not wide:
        return
    what = " and ".join(f"a {_word(r)} spans {-(-r.devices // r.block.kind.plan.per_node)} nodes" for r in wide)
    best = beside(lambda c: all(map(_on_one, c.roles)))
    rest = f"the best plan whose replicas keep to one node each is {best}" if best else _lacking(problem, outcomes)
    yield f"{what[0].upper()}{what[1:]}: {rest}."


def _on_one(role: RoleChoice) -> bool:
    return role.devices <= role.block.kind.plan.per_node


def _lacking(problem: Problem, outcomes: Sequence[Outcome]) -> str:
    """What a single node lacks, by the configuration that comes closest to fitting one."""
    closest: tuple[float, Block, int] | None = None
    frames = [f for o in outcomes for f in (o.frame, *(s.frame for s in o.sides or ()))]
    for block in (f.block for f in frames if f is not None):
        within = np.flatnonzero(block.rows.devices <= block.kind.plan.per_node)
        if not len(within):
            continue
        over = _over(problem, block)[within]
        least = int(np.argmin(over))
        if closest is None or over[least] < closest[0]:
            closest = float(over[least]), block, int(within[least])
    if closest is None:
        return "the constraints allow none within one" if problem.tps or problem.pps else "none can be cut for one alone"
    over_by, block, row = closest
    if over_by <= 0:
        return "one node would hold the model, but no plan whose replicas keep to one node each meets the spec"
    memory, one = block.rows.memory, block.rows.at(np.array([row]))
    usable, weights = float(memory.usable_bytes[row]), float(memory.weight_bytes[row])
    left = float(block.budget_of(one).pool[0, 0])
    config = one.lowered.configs[int(one.config[0])]
    node = f"on one node of {block.kind.plan.per_node} x {config.accelerator.id} a device of {usable / 1e9:.1f} GB"
    parts = f"{weights / 1e9:.1f} GB of {config.weights} weights"
    if weights < usable:
        parts += f" and {(usable - weights - left) / 1e9:.1f} GB of the engine's own"
    if left <= 0:
        return f"{node} would have to hold {parts}"
    longest = float(occupancy(problem, one)[2][0])
    return (
        f"{node} holds {parts}, and the {left / 1e9:.2f} GB that are left are less than the {longest / 1e9:.2f} GB of KV of the "
        "longest request"
    )


def _over(problem: Problem, block: Block) -> np.ndarray:
    """Bytes by which each row is over a device's memory with its longest request, shape (rows,)."""
    return occupancy(problem, block.rows)[2] - block.budget.pool[:, 0]
