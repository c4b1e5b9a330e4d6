"""Typed launch arguments: what an engine is started with, before any template sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from servegen.plan import Plan, RoleName

#: On the pods of both groups of a plan, so that a router finds them all and nothing else.
ROLE_LABEL = "servegen.dev/role"


@dataclass(frozen=True)
class Arg:
    """One flag by its full name (``--tp-size``). ``values`` is empty for a switch; more than one word for nargs > 1."""

    flag: str
    values: tuple[str, ...] = ()

    def words(self) -> tuple[str, ...]:
        return (self.flag, *self.values)


@dataclass(frozen=True)
class Probes:
    """HTTP paths that answer: alive; able to serve. ``timeout_s`` is the slowest honest answer of the path."""

    liveness: str
    readiness: str
    timeout_s: int


@dataclass(frozen=True)
class Launch:
    """One kind of process of a deployment.

    ``name`` is the file and object suffix (``serve``, ``prefill``, ``decode``, ``router``): of a server that of its role in the
    plan (``serve-1`` in one of two groups); ``role`` is None for the router.
    ``program`` are the words before the flags. ``env`` holds plain values only, never a secret. ``contract`` names the
    file in ``engines/contracts/`` that lists the legal flags.
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
