"""Typed launch arguments: what an engine is started with, before any template sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Protocol

from servegen.plan import Plan, RoleName
from servegen.record import record

#: On the pods of both groups of a plan, so that a router finds them all and nothing else.
ROLE_LABEL = "servegen.dev/role"


@record
class Arg:
    """One flag by its full name (``--tp-size``). ``values`` is empty for a switch; more than one word for nargs > 1."""

    flag: str
    values: tuple[str, ...] = ()

    def words(self) -> tuple[str, ...]:
        return (self.flag, *self.values)


@record
class Probes:
    """HTTP paths that answer: alive; able to serve. ``timeout_s`` is the slowest honest answer of the path."""

    liveness: str
    readiness: str
    timeout_s: int


@record
class Place:
    """What a node says of itself: the leader's address, and its own rank (0 is the leader)."""

    address: str
    rank: str


#: In a pod of a LeaderWorkerSet: the kubelet puts in what the controller told the container (sigs.k8s.io/lws, api v1).
IN_POD = Place("$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)")
#: In a launch script: variables that whoever starts it has to set.
IN_SCRIPT = Place("${LEADER_ADDRESS}", "${NODE_RANK}")


@record
class Group:
    """The processes of one replica on ``nodes`` nodes, one each: all meet at ``port`` of the leader, which alone serves.

    The flags are those that take what only the node knows.
    """

    nodes: int
    port: int
    address_flag: str
    rank_flag: str

    @property
    def last_rank(self) -> int:
        """Ranks count from 0, the leader's."""
        return self.nodes - 1

    def args(self, place: Place) -> tuple[Arg, ...]:
        """The flags of the process at ``place``."""
        return (Arg(self.address_flag, (f"{place.address}:{self.port}",)), Arg(self.rank_flag, (place.rank,)))


@record
class Launch:
    """One kind of process of a deployment.

    ``name`` is the file and object suffix (``serve``, ``prefill``, ``decode``, ``router``): of a server that of its role in the
    plan (``serve-1`` in one of two groups); ``role`` is None for the router.
    ``program`` are the words before the flags. ``env`` holds plain values only, never a secret. ``contract`` names the
    file in ``engines/contracts/`` that lists the legal flags. ``group`` is set where a replica takes several nodes: ``args``
    are those of every node, and :meth:`at` adds each node's own.
    """

    name: str
    role: RoleName | None
    program: tuple[str, ...]
    args: tuple[Arg, ...]
    env: Mapping[str, str]
    port: int
    probes: Probes
    contract: str
    metrics_port: int = 0
    metrics_path: str = "/metrics"
    extra_ports: Mapping[str, int] = field(default_factory=dict)
    group: Group | None = None

    @property
    def nodes(self) -> int:
        """Nodes of one replica."""
        return self.group.nodes if self.group is not None else 1

    def at(self, place: Place) -> Launch:
        """The whole command of the process at ``place``; the launch itself where a replica has one node."""
        return self if self.group is None else replace(self, args=(*self.args, *self.group.args(place)), group=None)

    def argv(self) -> tuple[str, ...]:
        """Every word of the command, in order."""
        words = list(self.program)
        for arg in self.args:
            words.extend(arg.words())
        return tuple(words)


class Engine(Protocol):
    """What a file in this room provides as ``ENGINE``."""

    id: str

    def launches(self, plan: Plan) -> tuple[Launch, ...]:
        """The processes of ``plan``, servers before the router. Raises UserError on an override that the contract forbids."""
        ...
