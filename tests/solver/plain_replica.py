"""One replica as plain arithmetic, by the discipline of its engine, in Python floats."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from tests.solver.plain_mixed import mixed
from tests.solver.plain_prefill import prefilling
from tests.solver.plain_seen import Seen
from tests.solver.plain_stalls import joining, of_period, stepwise, two_fit
from tests.solver.plain_step import Round, Step
from tests.solver.plain_traffic import EDGES, WIDTHS, Traffic, company, none_after, overflow, some_in
from tests.solver.plain_traffic import rest as rest_of
from tests.solver.plain_turns import in_a_stall, stalling
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
        alone = [(w, self.step.prefill(n, whole, self.chunk)) for n, whole, w in t.fine]
        self.prefill = sum(w * a for w, a in alone)
        self.cv2 = max(sum(w * a * a for w, a in alone) / self.prefill**2 - 1.0, 0.0)
        self.third = sum(w * a**3 for w, a in alone) / self.prefill**3
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
        self.attention = sum(w * self.step.attention(n, whole) for n, whole, w in t.fine)
        groups, each = self.step.groups, self.step.each + self.attention
        self.left = left * (self.step.chunk(self.chunk / groups) + self.chunk / t.new_mean * each / groups)

    def together(self, k: float) -> float:
        """Seconds of ``k`` mean prompts that share steps."""
        tokens, groups = k * self.load.new_mean, min(k, self.step.groups)  # groups that have a prompt
        chunks = max(tokens / (self.chunk * groups / self.step.groups), 1.0)
        if self.step.groups == 1:
            chunks = max(chunks, 1 + overflow(k, self.load.new_mean / self.chunk, self.load.arrival_cv2))
        return chunks * self.step.chunk(tokens / chunks, k) + k / groups * (self.step.each + self.attention)

    def gain(self, prompts: float) -> float:
        """How much cheaper a prompt is when so many share a step."""
        each = (self.together(prompts + 1.0) - self.together(1.0)) / prompts
        return min((self.prefill + (prompts - 1.0) * each) / (prompts * self.prefill), 1.0)

    def added(self, service: float, prompts: float, extra: float) -> float:
        """Seconds that each of some ``extra`` prompts adds to a step of so many."""
        return (self.prefill + self.together(prompts + extra) - self.together(1.0) - prompts * service) / extra

    def first(
        self, busy: float, service: float, step_s: float, slots: float, prompts: float, more: float
    ) -> tuple[float, ...]:
        """The most that is left of a step; chance, mean and variation of the wait, where one more prompt adds ``more``."""
        rate = busy / service
        w = Work(service, more, prompts, *self.shared(service), self.left)
        return first_token(w, self.load, rate, busy, step_s, wait(w, busy, rate * step_s, self.load, slots))

    def shared(self, each: float) -> tuple[float, float]:
        """Variation and skewness of prompts that cost so much: they vary by as many seconds as alone."""
        ratio = self.prefill / each
        cv2 = self.cv2 * ratio**2
        return cv2, 1 + 3 * cv2 + (self.third - 1 - 3 * self.cv2) * ratio**3

    def decode(self, n: float) -> float:
        return self.step.decode(n, self.load.held)

    def beside(self, n: float) -> float:
        """Sequences beyond ``n`` that a gap sees."""
        if not self.load.own:
            return max(1.0 - n, 0.0)  # who waits for a token is in the step
        return max(self.load.own + 2 * self.load.overlap * company(n / math.e, self.load.arrival_cv2), 1.0 - n, 0.0)

    def found(self, n: float, steps: float, most: float) -> float:
        """Sequences that a prompt stalls."""
        c = self.load.arrival_cv2
        if c == 1.0:
            return n
        return n + max(company(n, c) - min(company(n / steps, c), (most - 1) / 2), 0.0)

    def number_sd(self, n: float, beside: float, step_s: float) -> float:
        return math.sqrt(n * step_s / self.decode(1.0) * (beside if self.load.own else 1.0))

    def seen_sd(self, n: float, seen: float, step_s: float) -> float:
        """The same of the number that a gap sees."""
        if not self.load.own:
            return self.number_sd(n, seen - n, step_s)
        others = max(seen - 1, 0.0)
        return math.sqrt(max(others + (others - n) * (others + n) / 2, 0.0) * step_s / self.decode(1.0))

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

    def at(self, discipline: str, level: float) -> Seen:
        disciplines = {
            "prefill-first": self._first,
            "mixed": lambda level: mixed(self, level),
            "static": self._static,
            "prefill": lambda busy: prefilling(self, busy),
            "decode": self._decode,
        }
        return disciplines[discipline](level)

    def _first(self, n: float) -> Seen:
        t, most = self.load, max(self.chunk / self.load.new_mean, self.step.groups)
        steps = t.gaps / self.tokens
        beside, found = self.beside(n), self.found(n, steps, most)
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
        w = Work(each, more, prompts, *self.shared(each), self.left)
        if not t.turns:
            rest, delayed, mean_wait, wait_cv2 = self.first(busy, each, step_s, n, prompts, more)
            march = 1.0 if t.own else 0.0
        else:
            turn = stalling(w, t, self.tokens, self.burst[1] if self.burst else 0.0, n, step_s, busy)
            rest, delayed, mean_wait, wait_cv2 = 0.0, turn.delayed, turn.wait, turn.wait_cv2
            start, march = turn.certain, turn.march
        during, arrived = rate * march, rate * step_s if t.own else rate * step_s / free
        at_once, c = self.at_once(arrived), t.arrival_cv2
        bins = stepwise(t, self.step, self.chunk, self.edges)
        if t.turns:
            share, whole, chances = turn.stalls, 1.0, [turn.several] * len(bins)
        elif t.own:
            whole = w.added
            left = at_once - 1 if c == 1.0 else arrived / 2
            period = of_period(t.arrival_cv2, min(busy, 1 - 1e-9), delayed, left, self.cv2)
            running = rate * steps * step_s / free
            if c != 1.0:
                running += max(1 + company(n, c) - (period * free - left), 0.0)
            share = min((running / period + 1 - none_after(rate * each, c)) / steps, 1.0)
            since, while_one = arrived / (1 + at_once), rate * self.prefill
            before, after = (max(none_after(v, c), 1e-12) for v in (since, since + while_one))
            hazard = math.log(before / after) / max(while_one, 1e-12) * rate
            longer = 1 - (1 - whole) * two_fit(t, most)
            single = 1 - longer * (1 - 1 / at_once)
            chances = [1 - single * math.exp(-hazard * (a + b) / 2) for a, b, _ in bins]
        else:
            stalled = some_in(arrived, c)
            if c != 1.0:
                stalled *= (1 - interrupting(busy, delayed, rate * step_s, t)) / free
            share, whole = min(stalled * found / n, 1.0), 1.0
            chances = [1 - none_after(arrived / 2, c)] * len(bins)
        others = max(stood * each / (steps * share) - sum(v * (a + b) / 2 for a, b, v in bins), 0.0)
        brings = free if t.own else 1.0 - march * busy
        numbers = [at_once - 1 + during * (a + b) / 2 for a, b, _ in bins]
        scale = others * brings / (each * max(sum(v * m for (*_, v), m in zip(bins, numbers, strict=True)), 1e-12))
        lone = self.prefill, self.edges[0]
        each_bin = zip(bins, numbers, chances, strict=True)
        own = dataclasses.replace(w, cv2=self.cv2)  # as in a stall of its own
        stalls = [joining(bin_, m * scale, chance, brings, whole, own, lone, c) for bin_, m, chance in each_bin]
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
            gap_spread=self.spread(seen, math.sqrt(n / steps) if t.turns else self.seen_sd(n, seen, step_s)),
            stalled=share,
            stalls=stalls,
            longest=math.inf,
            gap_mean=(step_s + stood * each / steps) / self.tokens,
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
            gap_spread=self.spread(n + beside, self.seen_sd(n, n + beside, step_s)),
            stalled=0.0,
            stalls=[],
            longest=0.0,
            gap_mean=step_s / self.tokens,
            burst=self.burst,
        )
