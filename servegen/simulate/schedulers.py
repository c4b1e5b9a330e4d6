"""What an engine does next when a step ends: one function per engine's way, each orders the replica's next action.

A function returns without an order when there is nothing to do; the replica then sleeps until a request arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servegen.simulate.engine import Replica

Scheduler = Callable[["Replica", float], None]
#: A step that takes whatever waits.
UNBOUNDED = 1 << 60


def prefill_first(replica: Replica, now: float) -> None:
    """Waiting prompts are computed at once, in steps of their own, while the decodes stall (SGLang by default)."""
    parts = replica.admit(replica.limits.chunk)
    if parts:
        replica.step(now, parts, decodes=False)
    elif replica.batch.size:
        replica.decode(now)


def mixed(replica: Replica, now: float) -> None:
    """Decodes take their tokens of the step's budget first, prompts in chunks what is left (vLLM; SGLang's mixed chunk)."""
    _together(replica, now, whole=False)


def whole(replica: Replica, now: float) -> None:
    """Prompts join a decode step whole, as many as its budget holds (TensorRT-LLM without chunked context)."""
    _together(replica, now, whole=True)


def static(replica: Replica, now: float) -> None:
    """A batch is formed from what waits, computed at once and decoded until its longest member ends (Megatron)."""
    if replica.batch.size:
        replica.decode(now)
        return
    parts = replica.admit(UNBOUNDED)
    if parts:
        replica.step(now, parts, decodes=False)


def prefill_only(replica: Replica, now: float) -> None:
    """A prefill server: its prompts leave when they are computed."""
    parts = replica.admit(replica.limits.chunk)
    if parts:
        replica.step(now, parts, decodes=False)


def decode_only(replica: Replica, now: float) -> None:
    """A decode server: what arrives is computed already."""
    replica.admit_ready()
    if replica.batch.size:
        replica.decode(now)


def _together(replica: Replica, now: float, whole: bool) -> None:
    if replica.hold(now):
        return
    budget = replica.limits.chunk - replica.batch.size
    parts = replica.admit(budget, whole) if budget > 0 else []
    if parts:
        replica.step(now, parts, decodes=True)
    elif replica.batch.size:
        replica.decode(now)


SCHEDULERS: Mapping[str, Scheduler] = {
    "prefill-first": prefill_first,
    "mixed": mixed,
    "whole": whole,
    "static": static,
    "prefill": prefill_only,
    "decode": decode_only,
}
