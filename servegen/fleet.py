"""The IR of a fleet: who was given what of the shared pool, frozen, with a JSON round trip; each member's plan is its own.

Like a plan it holds no clock, host or path of this machine. Dollars per hour, watts; loads in the unit of their kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servegen.codec import Unsure, parsed, read_as
from servegen.plan import Plan
from servegen.record import record


@record
class Use:
    """Servers of one size on one entry of the pool, spares included."""

    pool: int
    devices: int  # of one server
    servers: int


@record
class Member:
    """What one member was given. ``load_kind`` is rate (requests/s), concurrency or users; ``share`` is carried / asked.

    ``note`` says why it was not given the plan that it would have had alone, "" if it was.
    """

    name: str
    spec: str  # path, as the fleet states it
    priority: int
    load_kind: str
    asked: float
    carried: float
    share: float
    devices: int
    cost_per_hour: float
    watts: Unsure
    uses: tuple[Use, ...]
    note: str


@record
class PoolUse:
    """One entry of the pool. ``used_nodes`` is the fewest nodes that its servers stand on; what is free is the rest."""

    accelerator: str
    nodes: int
    per_node: int
    price_per_hour: float
    used: int  # accelerators
    used_nodes: int

    @property
    def free(self) -> int:
        return self.nodes * self.per_node - self.used

    @property
    def free_nodes(self) -> int:
        return self.nodes - self.used_nodes


@record
class FleetPlan:
    name: str
    objective: str
    members: tuple[Member, ...]
    pool: tuple[PoolUse, ...]
    devices: int
    cost_per_hour: float
    watts: Unsure
    searched: int
    why: tuple[str, ...]
    spec: Mapping[str, Any]  # the fleet with every default applied
    inputs: Mapping[str, str]  # name of an input -> sha256 of its content, those of members with their name before them

    @property
    def unmet(self) -> tuple[Member, ...]:
        """Members whose demand is not carried wholly."""
        return tuple(m for m in self.members if m.share < 1.0)


@record
class Fleet:
    """A fleet's plan with the plan of each member, None where it was given nothing."""

    plan: FleetPlan
    members: tuple[Plan | None, ...]


def loads(text: str) -> FleetPlan:
    """The inverse of :func:`servegen.plan.dumps`. Raises ValueError, KeyError or TypeError on anything else."""
    return parsed(FleetPlan, text)


def read(text: str) -> FleetPlan:
    """The plan in a file that anybody may have edited: as :func:`loads`, and ValueError for numbers that cannot be."""
    return read_as(lambda edited: parsed(FleetPlan, edited, edited=True), text)
