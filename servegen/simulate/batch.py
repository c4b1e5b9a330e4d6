"""The running batch of a replica: who decodes, what their KV is, when the next one ends; advanced many steps at a time."""

from __future__ import annotations

import math
from heapq import heappop, heappush

from servegen.simulate.drafting import Rounder
from servegen.simulate.requests import Request
from servegen.simulate.result import Log
from servegen.simulate.steps import StepModel, Window


class _Seen:
    """Tokens that the batch sees in layers of one window, and how many sequences still fill theirs."""

    __slots__ = ("fills", "growing", "tokens", "window")

    def __init__(self, window: Window) -> None:
        self.window, self.growing = window, 0
        self.tokens: float = 0
        self.fills: list[tuple[int, int, Request]] = []  # (step at which it is full, order of the sequence, the sequence)


class Batch:
    """Decoding sequences. Counts of tokens are whole numbers, so nothing drifts over millions of steps.

    With ``waits_for_longest`` the places of ended sequences stay taken, and read, until the last one ends. Where the model
    drafts a step is a round: ``rounder`` draws how many an answer takes, and in each of them it grows by the mean yield.
    """

    def __init__(
        self, model: StepModel, log: Log, waits_for_longest: bool = False, rounder: Rounder | None = None
    ) -> None:
        self.running: dict[Request, int] = {}  # -> tokens that the prefix cache holds for it; in order of joining
        self.size = 0
        self.done = 0  # decode steps so far
        self._model, self._log, self._waits = model, log, waits_for_longest
        self._drafting, self._rounder, self._pace = model.drafting, rounder, model.pace
        self._whole = model.stages == 1 and model.groups == 1
        self._ends: list[tuple[int, int, Request]] = []
        self._order = 0
        self._tokens: float = 0  # of context, over all sequences
        self._shared = 0  # of them in the prefix cache
        self._seen = [_Seen(w) for w in model.windows]
        self._base: dict[int, float] = {}  # batch_s by size
        # The last token of every sequence: at ``_last_s``, but for the groups (count, time) that joined since.
        self._last_s = -1.0
        self._since: list[tuple[int, float]] = []

    # -- figures -----------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> float:
        """Bytes of KV, without what the prefix cache holds."""
        model = self._model
        held = model.sequence_bytes * self.size + model.token_bytes * self._tokens
        for seen in self._seen:
            held += seen.window.token_bytes * seen.tokens
        return held - model.token_bytes * self._shared

    @property
    def growth_bytes(self) -> float:
        """Bytes that one step adds."""
        grown = self._model.token_bytes * self.size
        for seen in self._seen:
            grown += seen.window.token_bytes * seen.growing
        return grown * self._pace

    def read_s(self) -> float:
        """Seconds to read the KV of all sequences once."""
        seconds = self._model.read_s * self._tokens
        for seen in self._seen:
            seconds += seen.window.read_s * seen.tokens
        return seconds

    def step_s(self) -> tuple[float, float]:
        """Seconds of the next decode step, and what each further one takes more."""
        size = self.size
        base = self._base.get(size)
        if base is None:
            base = self._base[size] = self._model.batch_s(size)
        slope = self._model.read_s * size
        for seen in self._seen:
            slope += seen.window.read_s * seen.growing
        slope *= self._pace
        if not self._whole:
            share = self._model.read_share(size)
            return base + self.read_s() * share, slope * share
        return base + self.read_s(), slope

    def steps_to_next(self) -> int:
        """Decode steps until a sequence ends or fills a window, whatever is first."""
        ends = self._ends
        while ends[0][1] != ends[0][2].order:  # it was retracted
            heappop(ends)
        first = ends[0][0]
        for seen in self._seen:
            self._fill(seen)
            if seen.fills and seen.fills[0][0] < first:
                first = seen.fills[0][0]
        return max(first - self.done, 1)

    # -- changes -----------------------------------------------------------------------------------------------------

    def join(self, request: Request, shared: int) -> None:
        """Begin to decode ``request``; say when its group had its last token with :meth:`joined_at`."""
        self._order += 1
        request.order = self._order
        request.rounds = request.left
        if self._drafting is not None and self._rounder is not None:
            request.rounds = self._rounder.rounds(self._drafting, request.left)
        request.finish = self.done + request.rounds
        heappush(self._ends, (request.finish, self._order, request))
        self.running[request] = shared
        self.size += 1
        self._tokens += request.context
        self._shared += shared
        for seen in self._seen:
            if request.context < seen.window.tokens:
                seen.tokens += request.context
                seen.growing += 1
                heappush(seen.fills, (self.done + self._rounds_to(seen, request), self._order, request))
            else:
                seen.tokens += seen.window.tokens

    def joined_at(self, count: int, time_s: float) -> None:
        """The last ``count`` that joined had their last token then."""
        if count == len(self.running):
            self._last_s = time_s
        elif time_s != self._last_s:
            self._since.append((count, time_s))

    def advance(self, steps: int, start_s: float, end_s: float, first_s: float, slope_s: float) -> list[Request]:
        """Decode: the first step takes ``first_s``, each further one ``slope_s`` more. Returns the requests that ended."""
        log, live = self._log, len(self.running)
        if self._drafting is None:
            log.generated += live * steps
        if not log.watch:
            self._since.clear()
        elif self._since or self._last_s != start_s:
            at = start_s + first_s
            main = live
            for count, last_s in self._since:
                log.gap(at - last_s, at - last_s, count)
                main -= count
            if main:
                log.gap(at - self._last_s, at - self._last_s, main)
            self._since.clear()
            if steps > 1:
                log.gap(first_s + slope_s, first_s + slope_s * (steps - 1), live * (steps - 1))
        else:
            log.gap(first_s, first_s + slope_s * (steps - 1), live * steps)
        self._last_s = end_s
        self.done += steps
        grown = self._pace * steps
        self._tokens += self.size * grown
        for seen in self._seen:
            seen.tokens += seen.growing * grown
            self._fill(seen)
        ended = []
        ends, done = self._ends, self.done
        while ends and (ends[0][0] <= done or ends[0][1] != ends[0][2].order):
            _, order, request = heappop(ends)
            if order == request.order:
                ended.append(request)
                self._yielded(request, request.left, request.rounds)
                self._remove(request, request.rounds)
        if self._waits and not self.running:
            self._clear()
        return ended

    def retract(self) -> Request | None:
        """Take out the sequence that joined last, with what it has generated as part of its prompt; None if there is none."""
        if not self.running:
            return None
        request = next(reversed(self.running))
        if self._since:
            count, request.last_s = self._since.pop()
            if count > 1:
                self._since.append((count - 1, request.last_s))
        else:
            request.last_s = self._last_s
        ahead = request.finish - self.done
        behind = request.rounds - ahead
        # As many of its tokens as of its rounds; each round has given one, and each that is left must.
        given = min(max(round(request.left * behind / request.rounds), behind), request.left - ahead)
        self._yielded(request, given, behind)
        self._remove(request, behind)
        request.context += given
        request.left -= given
        return request

    def _yielded(self, request: Request, tokens: int, rounds: int) -> None:
        """Account for the tokens that followed the first one of their round at once."""
        if self._drafting is not None:
            self._log.generated += tokens
            if tokens > rounds:
                self._log.gap(0.0, 0.0, tokens - rounds)

    def _rounds_to(self, seen: _Seen, request: Request) -> int:
        """Steps until ``request`` fills a window, counted from its joining."""
        left = seen.window.tokens - request.context
        return left if self._drafting is None else math.ceil(left / self._pace)

    def _remove(self, request: Request, rounds: int) -> None:
        """Take out a sequence that has run for so many steps."""
        shared = self.running.pop(request)
        request.order = -1
        if self._waits:  # its place stays taken
            return
        self.size -= 1
        self._shared -= shared
        context = request.context + self._pace * rounds
        self._tokens -= context
        for seen in self._seen:
            if request.context < seen.window.tokens and rounds < self._rounds_to(seen, request):
                seen.growing -= 1
                seen.tokens -= context
            else:
                seen.tokens -= seen.window.tokens
        if not self.size:  # mean yields are no whole numbers
            self._tokens = 0
            for seen in self._seen:
                seen.tokens = 0

    def _fill(self, seen: _Seen) -> None:
        """Stop the growth of what has reached the window; forget what ended before."""
        fills = seen.fills
        while fills and (fills[0][0] <= self.done or (fills[0][1] != fills[0][2].order and not self._waits)):
            step, order, request = heappop(fills)
            if order == request.order or self._waits:
                seen.growing -= 1
                if self._drafting is not None:  # its last round went past the window
                    begun = request.finish - request.rounds
                    seen.tokens -= request.context + self._pace * (step - begun) - seen.window.tokens

    def _clear(self) -> None:
        self.size = self._tokens = self._shared = 0
        for seen in self._seen:
            seen.tokens = seen.growing = 0
            seen.fills.clear()
