"""A deployment: replicas behind a router, or pools of prefill and decode servers with a hand-off between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from heapq import heappop, heappush

import numpy as np

from servegen.record import record
from servegen.roofline.collectives import HANDOFF
from servegen.simulate.drafting import Rounder
from servegen.simulate.engine import Kind, Limits, Replica
from servegen.simulate.prefix import PrefixCache
from servegen.simulate.requests import Request, Source
from servegen.simulate.result import Log, RequestBound, Result, summarize
from servegen.simulate.router import POLICIES, Policy, cache_aware
from servegen.simulate.schedulers import SCHEDULERS
from servegen.simulate.steps import StepModel

#: Requests between two calls of ``progress``.
PROGRESS_EVERY = 1000


@record
class Pool:
    """``count`` equal replicas. ``scheduler`` names one of `schedulers.SCHEDULERS`; ``prefill`` and ``decode`` pools belong
    together. ``request_s`` is what its server adds to a request's first token. ``block_tokens`` 0 means no prefix cache.
    """

    model: StepModel
    limits: Limits
    scheduler: str
    count: int
    request_s: float = 0.0
    block_tokens: int = 0


@record
class Handoff:
    """Seconds to move the KV of a prompt of n tokens: ``base_s + token_s * n``, of which prefilling hides what it can. A prefill
    server moves one prompt after the other.
    """

    base_s: float
    token_s: float

    @classmethod
    def of(cls, model: StepModel, tp: int, links_bytes_per_s: float) -> Handoff:
        """The transfer from a prefill server of ``tp`` devices over all links to its peer at once (docs/physics.md, F28)."""
        speed = HANDOFF.peak_share * links_bytes_per_s
        token_bytes = model.token_bytes + sum(w.token_bytes for w in model.windows)
        return cls((HANDOFF.half_bytes + model.sequence_bytes * tp) / speed, token_bytes * tp / speed)


@record
class Deployment:
    """One pool that serves, a prefill pool and a decode pool, or groups that serve beside each other behind one router.
    ``context_tokens`` (0 = any) is the longest request that is taken in; ``balance`` the thresholds of the cache-aware policy
    where they are not the router's own.
    """

    pools: tuple[Pool, ...]
    policy: str = "round-robin"
    handoff: Handoff = field(default_factory=lambda: Handoff(0.0, 0.0))
    context_tokens: int = 0
    balance: tuple[float, float] | None = None

    @property
    def split(self) -> bool:
        """Whether a request passes through one pool after the other."""
        return self.pools[0].scheduler == "prefill"


def replay(
    deployment: Deployment,
    source: Source,
    seed: int = 0,
    bounds: Sequence[RequestBound] = (),
    fail_s: float = math.inf,
    progress: Callable[[int], None] | None = None,
    watch: bool = True,
    fail_pool: int = 0,
) -> Result:
    """Send every request of ``source`` and wait for all answers. Without ``watch`` there are no gaps and no timeline.

    At ``fail_s`` the first replica of pool ``fail_pool`` dies; what it had in flight is sent anew. ``progress`` is
    told how many requests were sent. The same arguments give the same result, to the last bit.
    """
    run = _Run(deployment, source, seed, watch)
    run.play(fail_s, progress, fail_pool)
    busy = sum(r.busy_s for pool in run.pools for r in pool)
    count = sum(len(pool) for pool in run.pools)
    # Whoever passes through two servers meets both; of groups the slower is on the safe side.
    added = [p.request_s for p in deployment.pools]
    return summarize(run.log, busy, count, sum(added) if deployment.split else max(added), bounds)


class _Run:
    """One replay in progress."""

    def __init__(self, deployment: Deployment, source: Source, seed: int, watch: bool = True) -> None:
        self.deployment, self.source = deployment, source
        self.log = Log(source.count, source.finished, watch, source.steady)
        self._fits = 0  # the longest request so far that fits every replica
        self.events: list[tuple[float, int, object, int]] = []
        self.pushed = 0
        self.rounder = Rounder(seed)
        # A stream of its own: the source draws from the seed, and must not decide who is sent where.
        rng = np.random.Generator(np.random.PCG64([seed, 2]))
        self.pools = [[self._replica(pool, i) for i in range(pool.count)] for pool in deployment.pools]
        # To the router groups are one pool.
        self.alive = [list(pool) for pool in self.pools] if deployment.split else [[r for pool in self.pools for r in pool]]
        self.links_free = [0.0] * deployment.pools[0].count  # when each server's links have moved what was before
        self.choose = [self._policy(rng) for _ in deployment.pools]

    def _replica(self, pool: Pool, index: int) -> Replica:
        kinds: dict[str, Kind] = {"static": "static", "prefill": "prefill", "decode": "decode"}
        kind: Kind = kinds.get(pool.scheduler, "serve")
        return Replica(
            index=index,
            model=pool.model,
            limits=pool.limits,
            plan=SCHEDULERS[pool.scheduler],
            log=self.log,
            wake=self.wake,
            cache=PrefixCache(pool.block_tokens) if pool.block_tokens and kind != "decode" else None,
            handoff=self.hand_off if kind == "prefill" else None,
            kind=kind,
            rounder=self.rounder,
        )

    def _policy(self, rng: np.random.Generator) -> Policy:
        name, balance = self.deployment.policy, self.deployment.balance
        return cache_aware(rng, *balance) if name == "cache-aware" and balance is not None else POLICIES[name](rng)

    def wake(self, time_s: float, replica: Replica) -> None:
        """Remember that the action of ``replica`` ends then."""
        self.pushed += 1
        heappush(self.events, (time_s, self.pushed, replica, replica.version))

    def play(self, fail_s: float, progress: Callable[[int], None] | None, fail_pool: int = 0) -> None:
        """Let everything happen, in order of time; what arrives when a step ends is seen by the next one."""
        events, source = self.events, self.source
        # The requests at which the steady part begins and ends.
        begins, ends = (-1, -1) if self.log.whole else (self.log.steady.start, self.log.steady.stop)
        sent = 0
        while True:
            arrival = source.next_s
            if fail_s <= arrival and (not events or fail_s <= events[0][0]):
                if not events and arrival == math.inf:
                    return
                self._fail(fail_s, fail_pool)
                fail_s = math.inf
            elif events and events[0][0] < arrival:
                now, _, what, version = heappop(events)
                if isinstance(what, Replica):
                    if version == what.version:
                        what.complete(now)
                elif isinstance(what, Request) and what.left:
                    self._send(what, now, 1)
                elif isinstance(what, Request):
                    self.log.finish(what, now)
            elif arrival < math.inf:
                request = source.take()
                if request.id in (begins, ends):
                    busy = sum(r.busy_until(arrival) for pool in self.pools for r in pool)
                    self.log.bound_steady(self.log.mark(arrival, busy), request.id == begins)
                self.log.sent(request)
                self._send(request, arrival, 0)
                sent += 1
                if progress is not None and sent % PROGRESS_EVERY == 0:
                    progress(sent)
            else:
                return

    def _send(self, request: Request, now: float, pool: int) -> None:
        alive = self.alive[pool]
        longest = request.isl + request.osl
        if longest > self._fits:
            most = self.deployment.context_tokens
            if 0 < most < longest or any(p.model.held_bytes(longest) > p.limits.pool_bytes for p in self.deployment.pools):
                self.log.refused += 1
                self.source.finished(request, now)
                return
            self._fits = longest
        if alive:
            self.choose[pool](alive, request).arrive(request, now)

    def hand_off(self, request: Request, now: float) -> None:
        """A prefill server has computed a prompt: its KV moves, and the client gets its first token from the decode server."""
        rule = self.deployment.handoff
        whole = rule.base_s + rule.token_s * request.isl
        chunks = max(math.ceil((request.isl - request.cached) / self.deployment.pools[0].limits.chunk), 1)
        # KV follows chunk by chunk: the last one remains, or the backlog of a fabric slower than prefill, with what is before.
        begin = max(request.started_s, self.links_free[request.replica])
        arrives = max(now + whole / chunks, begin + whole)
        self.links_free[request.replica] = arrives
        self.log.first(request, arrives)
        self.log.generated += 1
        request.last_s = arrives
        request.left -= 1
        request.context += 1
        request.todo = 0
        self.pushed += 1
        heappush(self.events, (arrives, self.pushed, request, 0))

    def _fail(self, now: float, pool: int) -> None:
        dead = self.pools[pool][0]
        next(alive for alive in self.alive if dead in alive).remove(dead)
        for request in dead.fail(now):
            self.log.resent += 1
            self.log.first_token[request.id] = math.nan
            self._send(request, now, 0)
