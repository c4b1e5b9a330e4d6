"""One replica: a queue, a running batch, a KV pool, and steps, one after the other.

Steps without a prompt in them are advanced together up to the next end, arrival that can be taken in, full pool or filled
window: their time is affine in the KV total, so that k steps are an arithmetic series. There is no work per token.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Literal

from servegen.record import record
from servegen.simulate.batch import Batch
from servegen.simulate.drafting import Rounder
from servegen.simulate.prefix import PrefixCache
from servegen.simulate.requests import Request
from servegen.simulate.result import Log
from servegen.simulate.steps import StepModel

Part = tuple[Request, int]
Kind = Literal["serve", "static", "prefill", "decode"]
IDLE, WAKING, DECODING, STEPPING = range(4)
#: Share of a step's tokens from which on prompts do not wait for company (InferenceX's batch_wait_max_tokens_ratio).
WORTH_A_STEP = 0.9


@record
class Limits:
    """What the engine was told: sequences at a time, tokens of a prefill step, bytes of KV on one device, the share of
    its output for which a request must find room before it is taken in, and for how many decode steps prompts that do not
    fill a step wait for company. Of ``head_tokens`` that prompts have in common the pool holds one copy.
    """

    max_running: int
    chunk: int
    pool_bytes: float
    reserve_share: float = 0.6
    wait_steps: int = 0
    head_tokens: int = 0


class Replica:
    """``plan`` chooses what comes next (`schedulers`), ``wake`` is told when this replica's present action ends,
    ``handoff`` takes over the prompts that a prefill server has computed.
    """

    def __init__(
        self,
        index: int,
        model: StepModel,
        limits: Limits,
        plan: Callable[[Replica, float], None],
        log: Log,
        wake: Callable[[float, Replica], None],
        cache: PrefixCache | None = None,
        handoff: Callable[[Request, float], None] | None = None,
        kind: Kind = "serve",
        rounder: Rounder | None = None,
    ) -> None:
        self.index, self.model, self.limits, self.log, self.cache = index, model, limits, log, cache
        self.plan, self._wake, self._handoff, self.kind = plan, wake, handoff, kind
        self.batch = Batch(model, log, waits_for_longest=kind == "static", rounder=rounder)
        self.waiting: deque[Request] = deque()
        self.partial: Request | None = None  # its prompt is computed in part
        self.blocked = False  # the head of the queue cannot be taken in before something ends
        self.in_flight = 0
        self.version = 0
        self.busy_s = 0.0
        self.alive = True
        self._state = IDLE
        self._parts: list[Part] = []
        self._prefilling = 0
        self._prefill_bytes = 0.0
        self._reserved_bytes = 0.0
        # A cached block is kept in the layers that see everything; a window's part stays with the sequence.
        self._block_bytes = cache.block_tokens * model.token_bytes if cache is not None else 0.0
        self._head_bytes = limits.head_tokens * model.token_bytes
        self._shares = cache is not None or limits.head_tokens > 0  # sequences may have tokens in common
        self._noted_s = 0.0  # since when the queue has its present length
        self._start_s = self._first_s = self._slope_s = 0.0
        self._steps = 0
        self._waited = 0  # decode steps for which the queue was kept waiting for company
        self._holding = False

    # -- what happens to it ------------------------------------------------------------------------------------------

    def arrive(self, request: Request, now: float) -> None:
        """A request joins the queue."""
        if self.waiting:
            self._note_queue(now)
        else:
            self._noted_s = now
        self.waiting.append(request)
        request.replica = self.index
        self.in_flight += 1
        if self._state == IDLE:
            self._state = WAKING
            self._wake(now, self)
        elif self._state == DECODING and not self.blocked and not self.full:
            self._cut(now)

    def busy_until(self, now: float) -> float:
        """Seconds of steps up to ``now``, the running ones included."""
        return self.busy_s + (now - self._start_s if self._state in (DECODING, STEPPING) else 0.0)

    def complete(self, now: float) -> None:
        """The present action ends."""
        if self._state == DECODING:
            self._observe(now)
            self._waited += self._steps if self._holding else 0
            self._holding = False
            self._release(self.batch.advance(self._steps, self._start_s, now, self._first_s, self._slope_s), now)
        elif self._state == STEPPING:
            self._observe(now)
            self._finish_step(now)
        if self.waiting:
            self._note_queue(now)
        self._state = IDLE
        self.blocked = False
        self.plan(self, now)

    def fail(self, now: float) -> list[Request]:
        """Die; returns every request that was here, as new."""
        self._note_queue(now)
        if self._state in (DECODING, STEPPING):
            self._observe(now)
        lost = [*self.waiting, *self.batch.running, *(request for request, _ in self._parts)]
        if self.partial is not None and self.partial not in lost:
            lost.append(self.partial)
        self.waiting.clear()
        self.alive, self.version, self._state = False, self.version + 1, IDLE
        for request in lost:
            request.reset()
        return sorted(lost, key=lambda r: r.id)

    # -- what a scheduler asks and orders ----------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether every slot is taken."""
        return self.batch.size + self._prefilling >= self.limits.max_running

    def admit(self, budget: int, whole: bool = False) -> list[Part]:
        """The prompts, or parts of prompts, of the next step, ``budget`` tokens at most; first come, first served.

        ``whole`` prompts are not cut; one that is longer than any step goes alone.
        """
        parts: list[Part] = []
        room = budget
        if self.partial is not None:
            tokens = min(self.partial.todo, room)
            if tokens < 1:
                return parts
            parts.append((self.partial, tokens))
            room -= tokens
        while self.waiting and room > 0:
            request = self.waiting[0]
            if self.full or not self._take_in(request, whole, room, bool(parts)):
                self.blocked = True
                break
            tokens = request.todo if whole else min(request.todo, room)
            parts.append((request, tokens))
            room -= tokens
            if tokens < request.todo:
                self.partial = request
        return parts

    def admit_ready(self) -> None:
        """Take in requests whose prompt was computed elsewhere."""
        while self.waiting:
            request = self.waiting[0]
            if self.full or not self._take_in(request, False, 1, False):
                self.blocked = True
                break
            self._prefilling -= 1
            self._prefill_bytes -= self._own_bytes(request)
            self.batch.join(request, self._elsewhere(request))
            self.batch.joined_at(1, request.last_s)

    def step(self, now: float, parts: list[Part], decodes: bool) -> None:
        """Run one step with these prompts, and with the running batch if it ``decodes``."""
        model, sequences = self.model, self.batch.size if decodes else 0
        tokens, ending, attention = 0, 0, 0.0
        for request, n in parts:
            if request.started_s < 0.0:
                request.started_s = now
            tokens += n
            ending += n == request.todo
            attention += model.attention_s(request.past, n)
        if sequences:
            seconds = model.mixed_s(sequences, tokens, ending, attention, len(parts))
            seconds += self.batch.read_s() * model.read_share(sequences)
        else:
            seconds = model.prompts_s(tokens, ending, attention, len(parts))
        seconds = max(seconds, model.prompt_s)
        self._parts, self._steps = parts, 1 if decodes and sequences else 0
        self._begin(STEPPING, now, now + seconds)

    def hold(self, now: float) -> bool:
        """Decode on while prompts wait for company, if they are to; returns whether that is so (TensorRT-LLM's batch wait)."""
        left = self.limits.wait_steps - self._waited
        if left <= 0 or not self.waiting or not self.batch.size or self.full:
            return False
        tokens = float(self.batch.size)
        for request in self.waiting:
            tokens += request.todo
            if tokens >= WORTH_A_STEP * self.limits.chunk:
                return False
        self._holding = True
        self.decode(now, left)
        return True

    def decode(self, now: float, limit: int | None = None) -> None:
        """Run decode steps until something changes, at most so many."""
        batch = self.batch
        room, growth = self._room_bytes(), batch.growth_bytes
        while room < growth and self._retract(now):
            room, growth = self._room_bytes(), batch.growth_bytes
        if not batch.size:
            self.plan(self, now)
            return
        most = batch.steps_to_next()
        if room < growth * most:
            most = max(int(room / growth), 1)
        self._evict()
        if limit is not None:
            most = min(most, limit)
        self._steps = most
        self._first_s, self._slope_s = batch.step_s()
        self._begin(DECODING, now, now + most * self._first_s + self._slope_s * (most * (most - 1) / 2))

    # -- inside ------------------------------------------------------------------------------------------------------

    def _begin(self, state: int, now: float, end: float) -> None:
        self._state, self._start_s = state, now
        self._wake(end, self)

    def _cut(self, now: float) -> None:
        """Let the steps end with the one that is running: something waits that may be taken in."""
        first, slope = self._first_s, self._slope_s
        elapsed = now - self._start_s
        # The least k with k*first + slope*k*(k-1)/2 >= elapsed, in the form that stands a slope of 0.
        linear = first - slope / 2.0
        k = max(math.ceil(2.0 * elapsed / (linear + math.sqrt(linear * linear + 2.0 * slope * elapsed)) - 1e-9), 1)
        if k < self._steps:
            self._steps = k
            self.version += 1
            self._begin(DECODING, self._start_s, max(self._start_s + k * first + slope * (k * (k - 1) / 2), now))

    def _finish_step(self, now: float) -> None:
        if self._steps:
            self._release(self.batch.advance(1, self._start_s, now, now - self._start_s, 0.0), now)
        joined = 0
        for request, tokens in self._parts:
            request.past += tokens
            request.todo -= tokens
            self.log.prefilled += tokens
            if request.todo:
                self.partial = request
                continue
            if request is self.partial:
                self.partial = None
            joined += self._prefilled(request, now)
        self._parts = []
        if joined:
            self.batch.joined_at(joined, now)

    def _prefilled(self, request: Request, now: float) -> bool:
        """The prompt is computed and gives a token; returns whether the request goes on decoding here."""
        self._prefilling -= 1
        self._prefill_bytes -= self._own_bytes(request)
        if self.cache is not None and request.blocks:
            blocks = request.blocks[: request.isl // self.cache.block_tokens]
            self.cache.lock(blocks[request.locked :])
            request.locked = len(blocks)
        if self._handoff is not None:
            self._leave(request)
            self._handoff(request, now)
            return False
        if request.last_s < 0.0:
            self.log.first(request, now)
        else:
            self.log.gap(now - request.last_s, now - request.last_s, 1)
        self.log.generated += 1
        request.left -= 1
        request.context += 1
        if not request.left:
            self._leave(request)
            self.log.finish(request, now)
            return False
        self.batch.join(request, self._elsewhere(request))
        return True

    def _release(self, ended: list[Request], now: float) -> None:
        for request in ended:
            self._leave(request)
            self.log.finish(request, now)

    def _leave(self, request: Request) -> None:
        self.in_flight -= 1
        self._reserved_bytes -= request.reserved
        if request.locked and self.cache is not None:
            self.cache.release(request.blocks[: request.locked])
            request.locked = 0

    def _own_bytes(self, request: Request) -> float:
        """Bytes of a prompt, without those that are held for others, too."""
        held = self.model.held_bytes(request.context)
        return held - self._elsewhere(request) * self.model.token_bytes if self._shares else held

    def _elsewhere(self, request: Request) -> int:
        """Tokens of a prompt that others use as well: blocks of the cache, or of the common head."""
        if request.locked and self.cache is not None:
            return request.locked * self.cache.block_tokens
        return request.cached if self.limits.head_tokens else 0

    def _room_bytes(self) -> float:
        """Bytes of the pool that are free, or would be without idle blocks."""
        held = self._prefill_bytes + self.batch.held_bytes + self._head_bytes
        if self.cache is not None:
            held += self.cache.locked * self._block_bytes
        return self.limits.pool_bytes - held

    def _take_in(self, request: Request, whole: bool, room: int, parts: bool) -> bool:
        """Give a waiting request its memory, if there is room; its slot is free."""
        matched, hit, cache = 0, request.cached, self.cache
        model, limits, context, ready = self.model, self.limits, request.context, request.todo == 0
        if cache is not None and request.blocks:
            blocks = request.blocks[: request.isl // cache.block_tokens]
            matched = cache.match(blocks)
            hit = max(hit, matched * cache.block_tokens)
        todo = 0 if ready else max(context - hit, 1)
        if whole and todo > room and (parts or todo <= limits.chunk):
            return False
        share = 1.0 if request.retracted else limits.reserve_share
        common = self._elsewhere(request) * model.token_bytes if self._shares else 0.0
        reserve = model.held_bytes(context + math.ceil(share * request.left)) - common
        new = model.held_bytes(context) - common
        if matched and cache is not None:
            new -= (matched - cache.idle_among(blocks[:matched])) * self._block_bytes
        if self.batch.size or self._prefilling:
            reserved = self._reserved_bytes + reserve + self._head_bytes
            if reserved > limits.pool_bytes or new > self._room_bytes():
                return False
        self.waiting.popleft()
        self._waited = 0
        if matched and cache is not None:
            cache.lock(blocks[:matched])
            request.locked = matched
        request.todo, request.past, request.reserved = todo, context - todo, reserve
        self.log.cached += request.past if not ready else 0
        self._reserved_bytes += reserve
        self._prefilling += 1
        self._prefill_bytes += self._own_bytes(request)
        self._evict()
        return True

    def _evict(self) -> None:
        """Drop the idle blocks that the pool has no room for."""
        if self.cache is not None and self.cache.idle:
            over = self.cache.idle * self._block_bytes - self._room_bytes()
            if over > 0.0:
                self.cache.evict(math.ceil(over / self._block_bytes))

    def _retract(self, now: float) -> bool:
        """Put the request that was taken in last back to the head of the queue; False where it is alone.

        A static batch keeps what it was given: its memory is laid out for the longest when it is formed.
        """
        if self.kind == "static" or (self.batch.size < 2 and not self._prefilling):
            return False
        request = self.batch.retract()
        if request is None:
            return False
        self._leave(request)
        self.in_flight += 1
        request.retracted = True
        request.todo = 0 if self.kind == "decode" else request.context  # a decode server keeps the KV at hand
        self._note_queue(now)
        self.waiting.appendleft(request)
        self.blocked = True
        self.log.retracted += 1
        return True

    def _note_queue(self, now: float) -> None:
        if self.log.watch:
            self.log.queue.add(self._noted_s, now, len(self.waiting))
            self._noted_s = now

    def _observe(self, now: float) -> None:
        """Account for the action that ends now."""
        start = self._start_s
        self.busy_s += now - start
        if not self.log.watch:
            return
        held = self.limits.pool_bytes - self._room_bytes() + self.batch.growth_bytes * self._steps / 2.0
        self.log.kv.add(start, now, held / self.limits.pool_bytes)
        self.log.running.add(start, now, len(self.batch.running) + self._prefilling)
