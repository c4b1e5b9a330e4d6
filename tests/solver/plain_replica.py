"""One replica as plain arithmetic, by the discipline of its engine, in Python floats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from tests.solver.plain_bulk import per_step
from tests.solver.plain_seen import Seen, Stall
from tests.solver.plain_step import Round, Step
from tests.solver.plain_traffic import EDGES, WIDTHS, Traffic, company, none_after, rank, some_in
from tests.solver.plain_traffic import rest as rest_of
from tests.solver.plain_turns import in_a_stall, queued, stalling
from tests.solver.plain_wait import Work, crowd, first_token, interrupting, wait


@dataclass
class Replica:
    """One server: its step, its chunk, the load, and what an engine adds before a first token."""

    step: Step
    chunk: float
    load: Traffic
    request: float
    handoff: list[float]
    bursts: bool = False  # whether the spec lets tokens come in bursts, here or elsewhere

    def __post_init__(self) -> None:
        t = self.load
        mean, square = self.step.yields() if isinstance(self.step, Round) else (1.0, 1.0)
        past = (square - mean) / (2 * mean)
        tokens = min(max(mean * t.gaps / (t.gaps + past), 1.0), max(t.gaps, 1.0))
        self.tokens = tokens
        self.burst = (tokens, square - mean * mean, past) if self.bursts else None
        alone = [self.step.prefill(n, w, self.chunk) for n, w in zip(t.new_bins, t.whole_bins, strict=True)]
        self.prefill = sum(w * a for w, a in zip(t.bin_weights, alone, strict=True))
        self.cv2 = max(sum(w * a * a for w, a in zip(t.bin_weights, alone, strict=True)) / self.prefill**2 - 1.0, 0.0)
        self.third = sum(w * a**3 for w, a in zip(t.bin_weights, alone, strict=True)) / self.prefill**3
        left = sum(w * ((-n / self.chunk) % 1.0) for w, n in zip(t.bin_weights, t.new_bins, strict=True))
        self.edges: list[float] = []
        for n, w in zip(t.new, t.whole, strict=True):
            self.edges.append(max(self.step.prefill(n, w, self.chunk), self.edges[-1] if self.edges else 0.0))
        # What comes after the first stage and the prefill: the other stages, the hand-over.
        self.later: list[float] = []
        for n, w in zip(t.new, t.whole, strict=True):
            stages = self.step.after(n, w, self.chunk)
            self.later.append(max(stages, self.later[-1] if self.later else 0.0))
        self.later = [stages + handed for stages, handed in zip(self.later, self.handoff, strict=True)]
        self.later_mean = sum(w * (a + b) / 2 for w, a, b in zip(WIDTHS, self.later, self.later[1:], strict=False))
        bins = zip(t.bin_weights, t.new_bins, t.whole_bins, strict=True)
        self.attention = sum(w * self.step.attention(n, whole) for w, n, whole in bins)
        groups, each = self.step.groups, self.step.each + self.attention
        self.left = left * (self.step.chunk(self.chunk / groups) + self.chunk / t.new_mean * each / groups)

    def together(self, k: float) -> float:
        """Seconds of ``k`` mean prompts that share steps."""
        tokens, groups = k * self.load.new_mean, min(k, self.step.groups)  # groups that have a prompt
        chunks = max(tokens / (self.chunk * groups / self.step.groups), 1.0)
        return chunks * self.step.chunk(tokens / chunks, k) + k / groups * (self.step.each + self.attention)

    def gain(self, prompts: float) -> float:
        """How much cheaper a prompt is when so many share a step."""
        each = (self.together(prompts + 1.0) - self.together(1.0)) / prompts
        return min((self.prefill + (prompts - 1.0) * each) / (prompts * self.prefill), 1.0)

    def added(self, service: float, prompts: float, extra: float) -> float:
        """Seconds that each of some ``extra`` prompts adds to a step of so many."""
        return (self.prefill + self.together(prompts + extra) - self.together(1.0) - prompts * service) / extra

    def first(
        self, busy: float, service: float, step_s: float, slots: float, prompts: float, more: float, behind: float | None = None
    ) -> tuple[float, ...]:
        """The most that is left of a step; chance, mean and variation of the wait, where one more prompt adds ``more``."""
        rate = busy / service
        w = Work(service, more, prompts, self.cv2, self.third, self.left)
        return first_token(w, self.load, rate, busy, step_s, wait(w, busy, rate * step_s, self.load, slots), behind)

    def decode(self, n: float) -> float:
        return self.step.decode(n, self.load.held)

    def beside(self, n: float) -> float:
        """Sequences beyond ``n`` that a gap sees."""
        if not self.load.own:
            return max(1.0 - n, 0.0)  # who waits for a token is in the step
        return max(self.load.own + 2 * self.load.overlap * company(n, self.load.arrival_cv2), 1.0 - n, 0.0)

    def found(self, n: float, steps: float) -> float:
        """Sequences that a prompt finds."""
        c = self.load.arrival_cv2
        return n + max(company(n, c) - company(n / steps, c), 0.0)

    def number_sd(self, n: float, beside: float, step_s: float) -> float:
        return math.sqrt(n * step_s / self.decode(1.0) * (beside if self.load.own else 1.0))

    def spread(self, seen: float, number: float) -> tuple[float, float]:
        """Deviation and skewness of a step."""
        context = self.step.read * math.sqrt(seen / self.step.groups) * self.load.held_std  # of one group
        numbers = (self.decode(seen + 2 * number) - self.decode(seen)) / 2
        both = math.hypot(numbers, context)
        skew = max(2 * number / seen - 1 / number, 0.0) * (1 - 1 / max(self.load.arrival_cv2, 1.0))
        return both, skew * (numbers / max(both, 1e-12)) ** 3

    def begun(self, busy: float) -> float:
        """Sequences beyond that that began at the same moment."""
        x = min(busy / max(1 - busy, 1e-9), 1.0)
        return self.load.overlap * x * (2 + (1 + self.cv2) * x) if self.load.own else 0.0

    def at_once(self, arrived: float) -> float:
        return max(arrived / max(some_in(arrived, self.load.arrival_cv2), 1e-12), 1.0)

    def joining(
        self, low: float, high: float, weight: float, number: float, joined: float, free: float, each: float, more: float
    ) -> Stall:
        """A bin of stalls, with ``number`` others of ``each`` seconds, by chance ``joined``; one adds ``more``."""
        mean = number * each / free / max(joined, 1e-12)
        varied = (self.load.arrival_cv2 + self.cv2) / free
        deviation = mean * math.sqrt(max(joined * (1 + varied / max(number, 1e-12)) - 1, 0.0))
        least = min(max(mean - deviation, more * (1 - math.sqrt(self.cv2))), mean)
        rest = max(mean - least, 1e-9)
        return Stall(low, high, weight, joined, least, rest, min(max((deviation / rest) ** 2, 1.0), 1e6))

    def at(self, discipline: str, level: float) -> Seen:
        disciplines = {
            "prefill-first": self._first,
            "mixed": self._mixed,
            "static": self._static,
            "prefill": self._prefill,
            "decode": self._decode,
        }
        return disciplines[discipline](level)

    def _first(self, n: float) -> Seen:
        t, most = self.load, max(self.chunk / self.load.new_mean, self.step.groups)
        steps = t.gaps / self.tokens
        beside, found = self.beside(n), self.found(n, steps)
        gain, busy = 1.0, 0.0
        for _ in range(4):
            seen = n + beside + self.begun(busy)
            step_s = self.decode(seen)
            rate = n / (steps * step_s + found * self.prefill * gain)
            prompts = min(self.at_once(rate * step_s), most)
            if t.turns:
                prompts = in_a_stall(n / steps, most, t.new_mean / self.chunk)
            if self.step.groups > 1:  # other groups prefill meanwhile
                later = rate * self.prefill * gain
                none = none_after(later, t.arrival_cv2)
                prompts = min(none * prompts + (1 - none) * self.at_once(later), most)
            gain = self.gain(prompts)
            busy = min(rate * self.prefill * gain, 1 - 1e-9)
        each = self.prefill * gain
        rate = n / (steps * step_s + found * each)
        busy = min(rate * each, 1.0)
        more = self.added(each, prompts, crowd(rate * step_s, t))
        free, start = max(1 - busy, 1e-9), 0.0
        if not t.turns:
            rest, delayed, mean_wait, wait_cv2 = self.first(busy, each, step_s, n, prompts, more)
            march = 1.0 if t.own else 0.0
        else:
            w = Work(each, more, prompts, self.cv2, self.third, self.left)
            turn = stalling(w, t, self.tokens, self.burst[1] if self.burst else 0.0, n, step_s, busy)
            rest, delayed, mean_wait, wait_cv2 = 0.0, turn.delayed, turn.wait, turn.wait_cv2
            start, march = turn.certain, turn.march
        during, arrived = rate * march, rate * step_s if t.own else rate * step_s / free
        stalled = some_in(arrived, t.arrival_cv2)
        if t.arrival_cv2 != 1.0:
            stalled *= (1 - interrupting(busy, delayed, rate * step_s, t)) / free
        share = stalled * found / n
        if t.own:  # those who have just begun
            share += (1 - none_after(rate * each, t.arrival_cv2)) / steps
        share = turn.stalls if t.turns else min(share, 1.0)
        quiet = during * each + arrived / 2
        hazard = -math.log(max(none_after(quiet, t.arrival_cv2), 1e-12)) / max(quiet, 1e-12)
        bins = [(a, b, w, during * (a + b) / 2) for a, b, w in zip(self.edges, self.edges[1:], WIDTHS, strict=False)]
        others = max(found * each / (steps * share) - sum(w * (a + b) / 2 for a, b, w, _ in bins), 0.0)
        brings = free if t.own else 1.0 - march * busy
        scale = others * brings / (each * max(sum(w * (self.at_once(arrived) - 1 + m) for *_, w, m in bins), 1e-12))
        stalls = []
        for a, b, w, middle in bins:
            joined = -math.expm1(-hazard * (middle + arrived / 2)) if not t.turns else turn.several
            stalls.append(self.joining(a, b, w, (self.at_once(arrived) - 1 + middle) * scale, joined, brings, each, more))
        return Seen(
            rate=rate,
            start=self.request + start,
            rest=rest,
            delayed=delayed,
            wait=mean_wait,
            wait_cv2=wait_cv2,
            service=[a + b for a, b in zip(self.edges, self.later, strict=True)],
            service_mean=self.prefill + self.later_mean,
            gap=step_s,
            gap_spread=self.spread(seen, math.sqrt(n / steps) if t.turns else self.number_sd(n, seen - n, step_s)),
            stalled=share,
            stalls=stalls,
            longest=math.inf,
            gap_mean=(step_s + found * each / steps) / self.tokens,
            burst=self.burst,
        )

    def _mixed(self, asked: float) -> Seen:
        t, s = self.load, self.step

        def step_of(decoding: float, tokens: float, prompts: float, attention: float) -> float:
            base = s.fixed + (s.each + s.read * t.held) * decoding + s.each * prompts
            return base + s.gemm(decoding + tokens) + s.wire * (decoding + tokens) + attention

        def longer_step(tokens: float, prompts: float, attention: float) -> float:
            return max(step_of(seen, tokens, prompts, attention), s.least)

        def first_step(tokens: float, prompts: float, attention: float) -> float:
            return max(step_of(found, tokens, prompts, attention), s.least)

        n = min(asked, t.gaps * max(self.chunk - self.beside(asked), 1.0) / (t.gaps + t.new_mean))  # prompts begin no more
        beside, found = self.beside(n), self.found(n, t.gaps)
        rate = busy = share = longer = followed = uneven = 0.0
        for turn in range(4):
            seen = max(n + beside + self.begun(busy), 1.0)
            step_s = self.decode(seen)
            room = max(self.chunk - seen, 1.0)
            window = step_s + share * max(longer - step_s, 0.0)
            whole = t.new_mean / room
            arrived = self.at_once(rate * window)
            prompts = min(arrived, max(1 / whole, 1.0))
            split = [max(v / room + 0.5, 1.0) for v in t.new_bins]
            lone = sum(v * w for v, w in zip(split, t.bin_weights, strict=True))
            last = [max(v / room + 0.5 + (prompts - 1) * whole, 1.0) for v in t.new_bins]
            ended = sum(v * w for v, w in zip(last, t.bin_weights, strict=True)) / prompts
            least = max(whole, 1 / prompts)
            steps = max(min((1 - followed) * ended + followed * least, t.gaps / max(found, 1e-12)), whole)
            parts = [(v / k, w) for v, k, w in zip(t.new_bins, split, t.bin_weights, strict=True)]
            mean = sum(v * w for v, w in parts)
            more = max(t.new_mean / steps - mean, 0.0)
            matrices = max(sum(w * s.gemm(seen + more + v) for v, w in parts) - s.gemm(seen + more + mean), 0.0)
            per_new = (s.each + self.attention) / t.new_mean  # a prompt's other costs, by token
            times = [(step_of(seen, more + v, 0.0, per_new * (more + v)), w) for v, w in parts]
            device = step_of(seen, more + mean, 0.0, per_new * (more + mean)) + matrices
            idle = sum(w * max(s.least - v, 0.0) for v, w in times) - max(s.least - device, 0.0)
            uneven = matrices + max(idle, 0.0) if turn in (0, 3) else uneven
            longer = longer_step(t.new_mean / steps, 1 / steps, self.attention / steps) + uneven
            share = min(steps * found / t.gaps, 1.0)
            rate = n / (t.gaps * (step_s + share * (longer - step_s)))
            work = least * (longer_step(t.new_mean / least, 1 / least, self.attention / least) + uneven)
            inside = n / t.gaps if t.turns else rate * longer  # who comes in a step with prompts
            busy = min(inside * least if t.turns else rate * work, 1.0)
            idle = 1 - min(steps * inside, 1.0)
            followed = 1 - min(idle * math.exp(min(inside, 60.0)), 1.0)
        full = longer_step(room, max(1 / whole, 1.0), self.attention / whole)
        packed = min(whole, 1.0)
        cv2, third = packed * t.new_cv2 + (1 - packed) * self.cv2, packed * t.new_third + (1 - packed) * self.third
        number = self.number_sd(n, beside, step_s)

        def full_steps(prompts: float) -> float:
            """Seconds of steps that hold so many prompts, none beyond its room."""
            k = max(prompts * whole, 1.0)
            return k * longer_step(prompts / k * t.new_mean, prompts / k, prompts / k * self.attention)

        shared, extra = max(1 / least, 1.0), crowd(rate * window, t)
        more = min((full_steps(shared + extra) + uneven - shared * work) / extra, work) if whole < 1 else work
        w = Work(work, more, shared, cv2, third, (full - step_s) * max(1 - whole, 0.5))
        if not t.turns:
            start, sides = 0.0, self._sides(w, rate, number, room, n, step_s)
            rest, delayed, waits, wait_cv2 = first_token(w, t, rate, busy, step_s, sides)
        else:
            start, delayed, waits, wait_cv2 = queued(w, t, n, rate, busy, (step_s, longer, share), rate * step_s)
            rest = 0.0
        spread, skew = self.spread(seen, number)
        counts = [max(v / room + 0.5, 1.0) for v in t.new]
        firsts = [c * first_step(v / c, 1 / c, s.attention(v, w) / c) for v, w, c in zip(t.new, t.whole, counts, strict=True)]
        sums = full - step_s, spread, rate * window, arrived
        stalls = self._mixed_stalls(room, lone, followed, *sums, longer_step, step_s, more)
        return Seen(
            rate=rate,
            start=self.request + start,
            rest=rest,
            delayed=delayed,
            wait=waits,
            wait_cv2=wait_cv2,
            service=list(itertools.accumulate(firsts, max)),
            service_mean=lone * (first_step(t.new_mean / lone, 1 / lone, self.attention / lone) + uneven),
            gap=step_s,
            gap_spread=(spread, skew),
            stalled=share,
            stalls=stalls,
            longest=max(full - step_s, 0.0) + math.sqrt(3) * spread,
            gap_mean=share * longer + (1 - share) * step_s,
            burst=self.burst,
        )

    def _sides(self, w: Work, rate: float, number: float, room: float, n: float, step_s: float) -> tuple[float, float]:
        """Chance and mean of a wait for mixed steps, with fewer and with more sequences running."""
        s, t, total = self.step, self.load, 0.0
        for side in (-1.0, 1.0):
            left = max(room - side * number, 1.0)
            slow = w.each * (room / left) + t.new_mean / left * (s.each + s.read * t.held + s.wire) * side * number
            then = Work(slow, w.more / w.each * slow, w.prompts, w.cv2, w.third, w.left)
            delayed, waits = wait(then, min(max(rate * slow, 1e-9), 1 - 1e-6), rate * step_s, t, n)
            total += delayed * waits / 2
        return min(total / max(waits, 1e-12), delayed), waits

    def _mixed_stalls(
        self,
        room: float,
        lone: float,
        followed: float,
        full: float,
        spread: float,
        window: float,
        arrived: float,
        longer_step: Callable[[float, float, float], float],
        step_s: float,
        more: float,
    ) -> list[Stall]:
        t, wide = self.load, math.sqrt(3) * spread
        top = min(room, t.new[-2])
        tokens = [top * min(i / 8, 1.0) ** 2 for i in range(10)]
        times = [longer_step(v, v / t.new_mean, self.attention * v / t.new_mean) - step_s for v in tokens]
        times[8] = min(times[8], full - wide)
        times[9] = max(full, 0.0) + wide
        times = list(itertools.accumulate((max(v, 0.0) for v in times), max))
        longer_than = 1 - rank(t.new, room)
        parts = [rank(t.new, b) - rank(t.new, a) + longer_than * (b - a) / room for a, b in itertools.pairwise(tokens)]
        weights = [(1 - followed) * part for part in parts]
        weights[-1] = max(lone - 1 + followed * min(t.new_mean / room - lone + 1, 1.0), 0.0)
        total = max(sum(weights), 1e-300)
        joined = 1 - none_after(window / 2, t.arrival_cv2)
        each = min(self.step.each + (self.step.multiply + self.step.wire) * t.new_mean + self.attention, more)
        return [
            self.joining(a, b, w / total, arrived - 1, joined, 1.0, each, each)
            for a, b, w in zip(times, times[1:], weights, strict=False)
        ]

    def _static(self, level: float) -> Seen:
        """A batch runs until its longest member ends; who comes meanwhile waits for the rest of it."""
        t, s, size, busy = self.load, self.step, max(level, 1.0), min(level, 1.0)
        prompt = sum(w * v for w, v in zip(t.bin_weights, t.whole_bins, strict=True))

        def filled(n: float) -> float:
            return s.chunk(n * t.new_mean) + n * (s.each + self.attention)

        def whole(n: float) -> float:
            longest = self.load.longest_of(n)[0]
            return filled(n) + max(longest - 1.0, 0.0) * s.decode(n, max(prompt + longest / 2, t.held))

        batch = whole(size)
        slope = min(max(math.log(whole(1.25 * size) / batch) / math.log(1.25), 0.0), 0.95)
        outputs = self.load.longest_of(size)[1]
        arrived = (1 + max(2 * company(size, t.arrival_cv2), -0.9)) / size
        size_cv2 = (arrived + outputs) / (1 - slope**2)
        cv2 = outputs + slope**2 * size_cv2
        seen = size * (1 + size_cv2)
        step_s = self.decode(seen)
        context = s.read * t.held * seen * t.age_sd / t.held
        prefill = filled(size * (1 + busy * cv2))
        return Seen(
            rate=level / batch,
            start=self.request,
            rest=0.0,
            delayed=0.0,
            wait=0.0,
            wait_cv2=1.0,
            service=[prefill + batch * v for v in rest_of(cv2, busy)],
            service_mean=prefill + busy * batch * (1 + cv2) / 2,
            gap=step_s,
            gap_spread=(math.hypot(self.decode(seen * (1 + math.sqrt(size_cv2))) - step_s, context), 0.0),
            stalled=0.0,
            stalls=[],
            longest=0.0,
            gap_mean=step_s,
        )

    def _prefill(self, busy: float) -> Seen:
        most = max(self.chunk / self.load.new_mean, self.step.groups)
        prompts, others = per_step(busy, self.load.queue_cv2)
        prompts = min(prompts, most)
        each = self.prefill * self.gain(prompts)
        more = self.added(each, prompts, max(others, 1.0))
        inside = others * (1 - (others / (1 + others)) ** (most - 1))
        behind = max(inside - per_step(busy, 1.0)[1], 0.0) / 2
        rest, delayed, mean_wait, wait_cv2 = self.first(busy, each, 0.0, 64.0, prompts, more, behind)
        return Seen(
            rate=busy / each,
            start=self.request,
            rest=rest,
            delayed=delayed,
            wait=mean_wait,
            wait_cv2=wait_cv2,
            service=[a + b for a, b in zip(self.edges, self.later, strict=True)],
            service_mean=self.prefill + self.later_mean,
            gap=0.0,
            gap_spread=(0.0, 0.0),
            stalled=0.0,
            stalls=[],
            longest=0.0,
            gap_mean=0.0,
        )

    def _decode(self, n: float) -> Seen:
        beside = self.beside(n)
        step_s = self.decode(n + beside)
        return Seen(
            rate=n * self.tokens / (self.load.gaps * step_s),
            start=0.0,
            rest=0.0,
            delayed=0.0,
            wait=0.0,
            wait_cv2=1.0,
            service=[0.0] * len(EDGES),
            service_mean=0.0,
            gap=step_s,
            gap_spread=self.spread(n + beside, self.number_sd(n, beside, step_s)),
            stalled=0.0,
            stalls=[],
            longest=0.0,
            gap_mean=step_s / self.tokens,
            burst=self.burst,
        )
