"""One replica as plain arithmetic, by the discipline of its engine, in Python floats."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from tests.solver import plain_fill
from tests.solver.plain_bulk import per_step
from tests.solver.plain_seen import Seen, Stall
from tests.solver.plain_step import Round, Step
from tests.solver.plain_traffic import EDGES, WIDTHS, Traffic, company, none_after, some_in, waiting
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
        gain, busy, prompts, ahead = 1.0, 0.0, 1.0, 0.0
        for _ in range(4):
            seen = n + beside + self.begun(busy)
            step_s = self.decode(seen)
            rate = n / (steps * step_s + (found + ahead) * self.prefill * gain)
            later = rate * self.prefill * gain * prompts * t.own if t.arrival_cv2 >= 1.0 else 0.0
            prompts = min(self.begin(rate * step_s, later), most)
            if t.turns:
                prompts = in_a_stall(n / steps, most, t.new_mean / self.chunk)
            if self.step.groups > 1:  # other groups prefill meanwhile
                later = rate * self.prefill * gain
                none = none_after(later, t.arrival_cv2)
                prompts = min(self.at_once(rate * step_s), most)
                prompts = min(none * prompts + (1 - none) * self.at_once(later), most)
            gain = self.gain(prompts)
            busy = min(rate * self.prefill * gain, 1 - 1e-9)
            if t.own:  # those before a prompt stand still with it
                part, held = prompts / most, min(busy, 0.5)
                ahead = held * prompts + part * held**2 / (1 - part * held) * (1 + self.cv2) / 2
        each = self.prefill * gain
        stood = found + ahead
        rate = n / (steps * step_s + stood * each)
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
        others = max(stood * each / (steps * share) - sum(w * (a + b) / 2 for a, b, w, _ in bins), 0.0)
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
            gap_mean=(step_s + stood * each / steps) / self.tokens,
            burst=self.burst,
        )

    def _mixed(self, asked: float) -> Seen:
        t, s = self.load, self.step

        def step_of(decoding: float, tokens: float, prompts: float, attention: float) -> float:
            base = s.fixed + (s.each + s.read * t.held) * decoding + s.each * prompts
            return max(base + s.gemm(decoding + tokens) + s.wire * (decoding + tokens) + attention, s.least)

        def holding(tokens: float) -> float:
            """Seconds of a step with so many tokens of mean prompts."""
            return step_of(seen, tokens, tokens / t.new_mean, tokens / t.new_mean * self.attention)

        n = min(asked, t.gaps * max(self.chunk - self.beside(asked), 1.0) / (t.gaps + t.new_mean))  # prompts begin no more
        beside, c = self.beside(n), t.arrival_cv2
        rate = busy = share = longer = followed = uneven = waits = mixing = 0.0
        for turn in range(4):
            seen = max(n + beside + self.begun(busy), 1.0)
            step_s = self.decode(seen)
            room = max(self.chunk - seen, 1.0)
            whole = t.new_mean / room
            came = (n / t.gaps, n / t.gaps) if t.turns else (rate * step_s, rate * max(longer, step_s))
            begin = self.begin(*came) if turn else 1.0
            if turn in (0, 2):
                empty = plain_fill.empty(t, seen, room)
            alone = [max(v / room + e, 1.0) for v, e in zip(t.new_bins, empty, strict=True)]
            lone = sum(v * w for v, w in zip(alone, t.bin_weights, strict=True))
            several = sum(w * max(v / room + begin * whole + 0.5, 1.0) for v, w in zip(t.new_bins, t.bin_weights, strict=True))
            ended = (lone / begin + (1 - 1 / begin) * several) / begin
            least = max(whole, 1 / begin)
            # Who came before in the burst but not in the step, and who was computed meanwhile, less those who ended.
            same = min(max(company(n / t.gaps, c), 0.0), (max(1 / whole, 1.0) - 1) / 2)
            before = 0.0 if c == 1.0 else max(company(n, c) - same, 0.0)
            found = (n + before + rate * waits) / (1 + waits / max(longer, step_s) / t.gaps)
            found = min(found, n / max(mixing, 1e-3))  # beside prompts, in their share of the time, no more than there are
            steps = max(min((1 - followed) * ended + followed * least, t.gaps / max(found, 1e-12)), whole)
            if turn == 2:
                fills = plain_fill.fills(t, room, steps, begin, lone, followed)
                mean = sum(w * (a + b) / 2 for a, b, w in fills)
                uneven = max(sum(w * holding((a + b) / 2) for a, b, w in fills) - holding(mean), 0.0)
            longer = holding(t.new_mean / steps) + uneven
            share = min(steps * found / t.gaps, 1.0)
            rate = n / (t.gaps * (step_s + share * (longer - step_s)))
            work = least * (holding(t.new_mean / least) + (uneven if whole < 1 else 0.0))
            inside = n / t.gaps if t.turns else rate * longer  # who comes in a step with prompts
            busy = min(inside * least if t.turns else rate * work, 1.0)
            cv2, third = self.moments(whole, work)
            if t.own and turn < 3:
                w = Work(work, work * min(whole / steps, 1.0), 1 / least, cv2, third, 0.0)
                waits = math.prod(wait(w, busy, rate * step_s, t, n))
            mixing = min(steps * inside, 1.0)
            behind = waiting(mixing, max(c, 1.0), cv2)
            followed = 1 - min((1 - behind) / max(none_after(inside, max(c, 1.0)), 1e-12), 1.0)

        def computed(tokens: float, attention: float, number: float) -> float:
            """Seconds of a prompt alone: full steps, and what is left."""
            last, each = max(tokens - (number - 1) * room, 1.0), attention / tokens
            return (number - 1) * step_of(found, room, 0.0, each * room) + step_of(found, last, 1.0, each * last)

        full = step_of(seen, room, max(1 / whole, 1.0), self.attention / whole)
        each = zip(t.new_bins, t.bin_weights, alone, strict=True)
        service_mean = sum(w * computed(v, self.attention * v / t.new_mean, k) for v, w, k in each)
        number = self.number_sd(n, beside, step_s)
        shared, extra = max(1 / least, 1.0), crowd(rate * (step_s + share * max(longer - step_s, 0.0)), t)
        filled = max((shared + extra) * whole, 1.0)
        then = filled * holding((shared + extra) / filled * t.new_mean) + uneven
        more = min((then - shared * work) / extra, work) if whole < 1 else work
        w = Work(work, more, shared, cv2, third, (full - step_s) * max(1 - whole, 0.5))
        start = 0.0
        if t.turns:
            start, delayed, waits, wait_cv2 = queued(w, t, n, rate, busy, (step_s, longer, share), rate * step_s)
            rest = 0.0
        else:
            delayed, waits = self._sides(w, rate, number, room, n, step_s)
            if t.open_loop:  # by tokens where several share full steps, and the rest of a step
                load = min(rate * whole * full, 1 - 1e-6)
                tokens = load * whole * full * (1 + cv2) / (2 * (1 - load))
                waits = max(waits, (busy * longer * (1 - 1 / shared) / 2 + tokens) / max(delayed, 1e-12))
                single = max(service_mean, work)  # the first prompt of a queue shares no step
                first = rate * (single**2 - work**2) / (2 * (1 + rate * (single - work)))
                first *= min(max(2 * (1 - lone + whole), 0.0), 1.0, lone - 1)  # a follower uses what its last step has left
                waits += first / max(delayed, 1e-12)
            rest, delayed, waits, wait_cv2 = first_token(w, t, rate, busy, step_s, (delayed, waits))
        spread, skew = self.spread(seen, number)
        between = [empty[0], *((a + b) / 2 for a, b in itertools.pairwise(empty)), empty[-1]]
        prompts = zip(t.new, (s.attention(v, w) for v, w in zip(t.new, t.whole, strict=True)), between, strict=True)
        firsts = [computed(v, a, max(v / room + e, 1.0)) for v, a, e in prompts]
        times = [holding(a) - step_s for a, _, _ in fills]
        return Seen(
            rate=rate,
            start=self.request + start,
            rest=rest,
            delayed=delayed,
            wait=waits,
            wait_cv2=wait_cv2,
            service=list(itertools.accumulate(firsts, max)),
            service_mean=service_mean,
            gap=step_s,
            gap_spread=(spread, skew),
            stalled=share,
            stalls=self._mixed_stalls(fills, n / max(found, 1e-12), full - step_s, spread, times),
            longest=max(full - step_s, 0.0) + math.sqrt(3) * spread,
            gap_mean=share * longer + (1 - share) * step_s,
            burst=self.burst,
        )

    def begin(self, plain: float, longer: float) -> float:
        """Prompts that begin together: of a step of decodes, and of steps with prompts that follow it, which see so many."""
        c = self.load.arrival_cv2
        one, more = self.at_once(plain), self.at_once(longer)
        since = plain / (1 + one), longer / (1 + more)
        first, then = (none_after(v + longer, c) / max(none_after(v, c), 1e-12) for v in since)
        further = (1 - first) / max(then, 1e-12)
        return (one + further * more) / (1 + further)

    def moments(self, whole: float, work: float) -> tuple[float, float]:
        """Variation and skewness of a prompt's work."""
        t, packed, share = self.load, min(whole, 1.0), min(self.prefill / work, 1.0)
        deviation = math.sqrt(t.new_cv2) + max(math.sqrt(self.cv2) - math.sqrt(t.new_cv2), 0.0) * share
        third = t.new_third + max(self.third - t.new_third, 0.0) * share
        return packed * deviation**2 + (1 - packed) * self.cv2, packed * third + (1 - packed) * self.third

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
        self, fills: list[tuple[float, float, float]], outside: float, full: float, spread: float, times: list[float]
    ) -> list[Stall]:
        wide = math.sqrt(3) * spread
        times = [*times[:8], min(times[8], full - wide), max(full, 0.0) + wide]  # the last are full
        times = list(itertools.accumulate((max(v, 0.0) for v in times), max))
        weights = [w for _, _, w in fills]
        weights[-1] *= max(1 + (1 - weights[-1]) * (1 - outside), 1.0)
        return [Stall(a, b, w / sum(weights)) for (a, b), w in zip(itertools.pairwise(times), weights, strict=True)]

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
