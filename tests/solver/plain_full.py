"""The plain solver's pools that yield what they can of a split, where bounds on whole requests limit how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from servegen.solve.problem import Problem
from tests.solver.plain import Found

if TYPE_CHECKING:
    from tests.solver.plain_split import Two


def yielding(problem: Problem, pairs: Sequence[Two], full: Sequence[tuple[Two, int, int]]) -> list[Found]:
    """What takes the least for the most that the pool yields on time, to three digits; and, unless that is asked for,
    whatever is on time where it gets the most out of the pool."""
    most = max((_most(pair, x, y) for pair in pairs for x, y in pair.fitting), default=None)
    if most is None or most == NONE:
        return []
    able = []
    for at, pair in enumerate(pairs):
        sized = max(_least(most) / pair.load.output_mean, pair.rate * (1 - 1e-9))
        for x, y in pair.fitting:
            if pair.enough(x, y, sized) and pair.on_time(x, y, sized):
                able.append((pair.spent(x, y), sum(pair.devices(x, y)), -pair.headroom(x, y), at, x, y, sized))
    *_, at, x, y, sized = min(able)
    whole = problem.utilization * pairs[at].one(x, y)
    out = [pairs[at].found(x, y, whole if pairs[at].keeps(x, y, whole) else sized)]
    if problem.objective == "throughput":
        return out
    for pair, a, b in full:
        whole = problem.utilization * pair.one(a, b)
        if whole * pair.load.output_mean < _least(most + 1) and pair.keeps(a, b, whole):
            out.append(pair.found(a, b, whole))
    return out


#: Below the number of any three digits.
NONE = -(10**9)


def _rung(number: int) -> float:
    """The value of so manieth three digits, of which 900 lie between powers of ten."""
    return (100 + number % 900) * 10.0 ** (number // 900)


def _least(number: int) -> float:
    """About the least that is rounded to these three digits."""
    return (_rung(number - 1) + _rung(number)) / 2 * (1 + 1e-9)


def _most(pair: Two, x: int, y: int) -> int:
    """The highest three digits of a yield that these servers sustain and have on time, where no others have more of a role."""
    output = pair.problem.utilization * pair.one(x, y) * pair.load.output_mean
    if pair.beside_x[x] > y or pair.beside_y[y] > x or not pair.enough(x, y, pair.rate):
        return NONE
    top = math.floor(900 * math.log10(output))
    while _least(top) > output:
        top -= 1
    while _least(top + 1) <= output:
        top += 1
    asked = pair.rate * (1 - 1e-9)

    def ok(number: int) -> bool:
        return pair.keeps(x, y, max(_least(number) / pair.load.output_mean, asked))

    low = top
    while not ok(low):
        if _least(low) < asked * pair.load.output_mean or top - low > 6 * 900:
            return NONE
        low -= max(top - low, 1)
    high = min(low + max((top - low + 1) // 2, 1), top + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ok(middle) else (low, middle)
    return low
