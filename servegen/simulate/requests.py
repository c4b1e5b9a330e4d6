"""A request, and where requests come from: recorded or drawn arrivals, or users who send anew when they are answered."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Request:
    """A request on its way. ``todo`` prompt tokens are still to be computed behind ``past`` that are; ``left`` output
    tokens are still to come. The other fields are the replica's own notes.
    """

    __slots__ = (
        "arrival_s", "blocks", "cached", "context", "finish", "id", "isl", "last_s", "left", "locked", "order", "osl",
        "past", "replica", "reserved", "retracted", "rounds", "started_s", "todo",
    )  # fmt: skip

    def __init__(self, id: int, arrival_s: float, isl: int, osl: int, cached: int = 0, blocks: tuple[int, ...] = ()) -> None:
        self.id, self.arrival_s, self.isl, self.osl, self.cached, self.blocks = id, arrival_s, isl, osl, cached, blocks
        self.reset()

    def reset(self) -> None:
        """As if it had just been sent: nothing computed, nothing held."""
        self.context = self.isl  # tokens of KV once the prompt is computed
        self.left = self.osl
        self.todo = self.isl
        self.past = 0
        self.locked = 0  # leading blocks that the prefix cache holds for it
        self.order = -1  # when it began to decode, -1 before
        self.finish = 0  # the decode step after which it ends
        self.rounds = 0  # the decode steps that it takes from joining to there
        self.last_s = -1.0  # its last token, -1 before the first
        self.reserved = 0.0
        self.retracted = False
        self.started_s = -1.0  # the computing of its prompt, -1 before
        self.replica = -1


class Source(Protocol):
    """Sends requests in the order of time. ``count`` is how many it sends in all; those of ``steady`` count for latencies and
    rates, the others only bring the system to its steady state and keep it there.
    """

    @property
    def count(self) -> int: ...

    @property
    def steady(self) -> range: ...

    @property
    def next_s(self) -> float:
        """When the next one is sent, inf while none is known."""
        ...

    def take(self) -> Request:
        """The next one."""
        ...

    def finished(self, request: Request, time_s: float) -> None:
        """Learn that a request is answered."""
        ...


class Open:
    """Arrivals that wait for nobody. ``cached`` tokens of each prompt are found in the cache, ``blocks`` are its hashes."""

    def __init__(
        self,
        arrival_s: Floats,
        isl: Ints,
        osl: Ints,
        cached: Ints | None = None,
        blocks: Sequence[tuple[int, ...]] | None = None,
    ) -> None:
        self._arrival, self._isl, self._osl, self._blocks = arrival_s, isl, osl, blocks
        self._cached = cached
        self._n, self.count = 0, len(arrival_s)
        self.steady = range(self.count)
        self.next_s = float(arrival_s[0]) if self.count else math.inf

    def take(self) -> Request:
        n = self._n
        self._n = n + 1
        cached = 0 if self._cached is None else int(self._cached[n])
        blocks = () if self._blocks is None else self._blocks[n]
        request = Request(n, self.next_s, int(self._isl[n]), int(self._osl[n]), cached, blocks)
        self.next_s = float(self._arrival[n + 1]) if n + 1 < self.count else math.inf
        return request

    def finished(self, request: Request, time_s: float) -> None:
        """Arrivals do not depend on answers."""


class Closed:
    """``users`` who each send a request, and again ``pause_s`` after each answer: the same for all, or one for each request.

    They begin all at once, or at ``starts_s`` (ascending, one for each user). The first and the last ``unsteady`` requests do
    not count: those of users who find a system that fills, and those of users whom nobody follows any more.
    """

    def __init__(
        self,
        users: int,
        isl: Ints,
        osl: Ints,
        pause_s: float | Floats,
        cached: Ints | None = None,
        starts_s: Floats | None = None,
        unsteady: int = 0,
    ) -> None:
        self._isl, self._osl, self._cached = isl, osl, cached
        self._n, self.count = 0, len(isl)
        self._pauses = [pause_s] * self.count if isinstance(pause_s, float) else pause_s.tolist()
        self.steady = range(unsteady, max(self.count - unsteady, unsteady))
        begin = [0.0] * users if starts_s is None else starts_s.tolist()
        self._starts: deque[float] = deque(begin[: self.count])
        self._sends: list[float] = []  # a heap: who pauses briefly overtakes others
        self._left = self.count - len(self._starts)

    @property
    def next_s(self) -> float:
        start = self._starts[0] if self._starts else math.inf
        again = self._sends[0] if self._sends else math.inf
        return start if start <= again else again

    def take(self) -> Request:
        n, at = self._n, self.next_s
        self._n = n + 1
        if self._starts and self._starts[0] == at:
            self._starts.popleft()
        else:
            heappop(self._sends)
        cached = 0 if self._cached is None else int(self._cached[n])
        return Request(n, at, int(self._isl[n]), int(self._osl[n]), cached)

    def finished(self, request: Request, time_s: float) -> None:
        if self._left:
            self._left -= 1
            heappush(self._sends, time_s + self._pauses[request.id])
