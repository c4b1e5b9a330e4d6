"""A replica whose prompts share steps with decodes, as plain arithmetic."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from tests.solver import plain_fill
from tests.solver.plain_seen import Seen, Stall
from tests.solver.plain_traffic import alike, company, none_after, waiting
from tests.solver.plain_turns import queued
from tests.solver.plain_wait import Work, crowd, first_token, wait

if TYPE_CHECKING:
    from tests.solver.plain_replica import Replica

#: Shares of full steps, told apart by how far their prompts have come.
FULL = (0.7, 0.22, 0.08)


def mixed(r: Replica, asked: float) -> Seen:
    t, s = r.load, r.step

    def step_of(decoding: float, tokens: float, prompts: float, attention: float) -> float:
        base = s.fixed + (s.each + s.read * t.held) * decoding + s.each * prompts
        return max(base + s.gemm(decoding + tokens) + s.wire * (decoding + tokens) + attention, s.least)

    def holding(tokens: float) -> float:
        """Seconds of a step with so many tokens of mean prompts."""
        return step_of(seen, tokens, tokens / t.new_mean, tokens / t.new_mean * r.attention)

    most = t.gaps / (t.gaps + t.new_mean)  # of a step's tokens those that decode, where as many prompts begin as end
    n = min(asked, most * max(r.chunk - r.beside(most * r.chunk), 1.0))
    beside, c = r.beside(n), t.arrival_cv2
    rate = busy = share = longer = followed = uneven = mixing = unjoined = 0.0
    for turn in range(4):
        seen = max(n + beside + r.begun(busy), 1.0)
        step_s = r.decode(seen)
        room = max(r.chunk - seen, 1.0)
        whole = t.new_mean / room
        came = (n / t.gaps, n / t.gaps) if t.turns else (rate * step_s, rate * max(longer, step_s))
        begin = r.begin(*came) if turn else 1.0
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
        meanwhile = mixing * (1 + mixing * max(c, 1.0) / 2) * (1 - share) if t.own else 0.0
        found = min(n + before + meanwhile, n / max(mixing, 1e-3))  # beside prompts no more than there are in all
        steps = (1 - followed) * ended + followed * least
        if turn and whole < 1:
            several = plain_fill.steps_of_whole(t, whole, steps, begin, lone, followed, unjoined)
            steps += min(2 * (1 - whole), 1.0) * (several - steps)
        steps = max(min(steps, t.gaps / max(found, 1e-12)), whole)
        if turn == 2:
            fills = plain_fill.fills(t, room, steps, begin, lone, followed)
            mean = sum((v + w) * (a + b) / 2 for a, b, v, w in fills)
            uneven = max(sum((v + w) * holding((a + b) / 2) for a, b, v, w in fills) - holding(mean), 0.0)
        longer = holding(t.new_mean / steps) + uneven
        share = min(steps * found / t.gaps, 1.0)
        rate = n / (t.gaps * (step_s + share * (longer - step_s)))
        work = least * (holding(t.new_mean / least) + (uneven if whole < 1 else 0.0))
        inside = found / t.gaps if t.turns else rate * longer  # who comes in a step with prompts
        busy = min(inside * least if t.turns else rate * work, 1.0)
        if turn < 3:
            mixing = min(steps * inside, 1.0)
            behind = alike(waiting(mixing, max(c, 1.0), t.new_cv2), max(c, 1.0), t.new_cv2)
            followed = 1 - min((1 - behind) / max(none_after(inside, max(c, 1.0)), 1e-12), 1.0)
            # Who comes in a full step shares the next one with what is left of that.
            unjoined = none_after(inside * (step_s + (longer - step_s) * steps / whole) / longer, max(c, 1.0))

    def computed(tokens: float, attention: float, number: float) -> float:
        """Seconds of a prompt alone: full steps, and what is left."""
        last, each = max(tokens - (number - 1) * room, 1.0), attention / tokens
        return (number - 1) * step_of(found, room, 0.0, each * room) + step_of(found, last, 1.0, each * last)

    full = step_of(seen, room, max(1 / whole, 1.0), r.attention / whole)
    cv2, third = _moments(r, whole, work)
    attended = [s.attention(v, w) for v, w in zip(t.new_bins[:-1], t.whole_bins[:-1], strict=True)]
    longest = t.fine[len(attended) :]
    attended.append(sum(w * s.attention(v, total) for v, total, w in longest) / sum(w for _, _, w in longest))
    each = zip(t.new_bins, t.bin_weights, alone, attended, strict=True)
    service_mean = sum(w * computed(v, a, k) for v, w, k, a in each)
    number = r.number_sd(n, beside, step_s)
    shared, extra = max(1 / least, 1.0), crowd(rate * (step_s + share * max(longer - step_s, 0.0)), t)
    filled = max((shared + extra) * whole, 1.0)
    then = filled * holding((shared + extra) / filled * t.new_mean) + uneven
    more = min((then - shared * work) / extra, work) if whole < 1 else work
    w = Work(work, more, shared, cv2, third, (full - step_s) * max(1 - whole, 0.5))
    start = 0.0
    if t.turns:
        start, delayed, waits, wait_cv2 = queued(w, t, n, asked - n, rate, busy, (step_s, longer, share), rate * step_s)
        rest = 0.0
    else:
        delayed, waits = _sides(r, w, rate, number, room, n, step_s)
        if t.open_loop:  # by tokens where several share full steps, and the rest of a step
            load = min(rate * whole * full, 1 - 1e-6)
            tokens = load * whole * full * (1 + cv2) / (2 * (1 - load))
            waits = max(waits, (busy * longer * (1 - 1 / shared) / 2 + tokens) / max(delayed, 1e-12))
        rest, delayed, waits, wait_cv2 = first_token(w, t, rate, busy, step_s, (delayed, waits))
    spread, skew = r.spread(seen, r.seen_sd(n, seen, step_s))
    between = [empty[0], *((a + b) / 2 for a, b in itertools.pairwise(empty)), empty[-1]]
    prompts = zip(t.new, (s.attention(v, w) for v, w in zip(t.new, t.whole, strict=True)), between, strict=True)
    firsts = [computed(v, a, max(v / room + e, 1.0)) for v, a, e in prompts]
    partly = [holding(a) - step_s for a, _, _, _ in fills[:-1]]
    fuller = [full + room * s.attention(1.0, place + 1.0) - r.attention / whole for place in t.places]
    wide = math.sqrt(3) * spread
    entire = [max(v, s.least) - step_s for v in fuller]
    times = [*partly, min(holding(fills[-1][0]) - step_s, entire[0] - wide), *entire[1:-1], entire[-1] + wide]
    times = list(itertools.accumulate((max(v, 0.0) for v in times), max))
    return Seen(
        rate=rate,
        start=r.request + start,
        rest=rest,
        delayed=delayed,
        wait=waits,
        wait_cv2=wait_cv2,
        service=list(itertools.accumulate(firsts, max)),
        service_mean=service_mean,
        gap=step_s,
        gap_spread=(spread, skew),
        stalled=share,
        stalls=_stalls(fills, n / max(found, 1e-12), times),
        longest=max(entire[-1] + wide, 0.0),
        gap_mean=share * longer + (1 - share) * step_s,
        burst=r.burst,
    )


def _moments(r: Replica, whole: float, work: float) -> tuple[float, float]:
    """Variation and skewness of a prompt's work: by tokens and attention where they fill steps, else by prompts."""
    t, packed = r.load, min(whole, 1.0)
    each = max(work - r.attention, 0.0) / t.new_mean
    square, cube = each**2 * t.new_mean**2 * (1 + t.new_cv2), each**3 * t.new_mean**3 * t.new_third
    for v, total, p in t.fine:
        a = r.step.attention(v, total)
        square += p * (2 * each * v * a + a * a)
        cube += p * (3 * each * each * v * v * a + 3 * each * v * a * a + a**3)
    cv2, third = max(square / work**2 - 1, 0.0), cube / work**3
    return packed * cv2 + (1 - packed) * r.cv2, packed * third + (1 - packed) * r.third


def _sides(r: Replica, w: Work, rate: float, number: float, room: float, n: float, step_s: float) -> tuple[float, float]:
    """Chance and mean of a wait for mixed steps, with fewer and with more sequences running."""
    s, t, total = r.step, r.load, 0.0
    for side in (-1.0, 1.0):
        left = max(room - side * number, 1.0)
        slow = w.each * (room / left) + t.new_mean / left * (s.each + s.read * t.held + s.wire) * side * number
        then = Work(slow, w.more / w.each * slow, w.prompts, w.cv2, w.third, w.left)
        delayed, waits = wait(then, min(max(rate * slow, 1e-9), 1 - 1e-6), rate * step_s, t, n)
        total += delayed * waits / 2
    return min(total / max(waits, 1e-12), delayed), waits


def _stalls(fills: list[tuple[float, float, float, float]], outside: float, times: list[float]) -> list[Stall]:
    """Steps as gaps find them: beside a prompt alone run as many as an outsider sees, and all others beside several."""
    alone = sum(v for _, _, v, _ in fills)
    many = min((1 - alone * min(outside, 1.0)) / max(1 - alone, 1e-9), 2.0)
    few = (1 - many * (1 - alone)) / max(alone, 1e-9)
    *partly, entire = (few * v + many * w for _, _, v, w in fills)
    weights = [*partly, *(entire * p for p in FULL)]
    return [Stall(a, b, w / sum(weights)) for (a, b), w in zip(itertools.pairwise(times), weights, strict=True)]
