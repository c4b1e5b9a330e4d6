"""How full steps are that prompts share with decodes, as plain arithmetic."""

from __future__ import annotations

import itertools
import math

from tests.solver.plain_traffic import Traffic, overflow, rank


def empty(load: Traffic, seen: float, room: float) -> list[float]:
    """Share of its last step that a prompt alone leaves empty, for each bin of lengths and a room that varies."""
    varies = min(math.sqrt(3 * seen) / room, 0.5)
    out = []
    for a, b in itertools.pairwise(load.new):
        low, high = a / room * (1 - varies), b / room * (1 + varies)
        out.append((_left(high) - _left(low)) / (high - low))
    return out


def _left(steps: float) -> float:
    """What is left up to whole steps, from none on."""
    part = steps - math.floor(steps)
    return math.floor(steps) / 2 + part - part * part / 2


def shared(whole: float, steps: float, begin: float, lone: float, followed: float) -> tuple[float, float, float, float]:
    """Share of the steps with prompts that are of a prompt alone, how many such a prompt has, what is in the last of these; and
    the room of a step over the mean work of the others."""
    last = min(max(whole - (lone - 1), 1e-3), 1.0)
    counted = max(lone - followed, 1e-9)
    alone = min(counted / (begin * begin * steps), 1.0)
    mean = (lone - 1 + (1 - followed) * last) / counted
    rest = min(max((min(whole / steps, 1.0) - alone * mean) / max(1 - alone, 1e-9), 1e-4), 1 - 1e-4)
    low, high = 1e-5, 1e5  # bisection for (1 - exp(-z)) / z = rest
    for _ in range(200):
        z = math.sqrt(low * high)
        low, high = (z, high) if -math.expm1(-z) / z > rest else (low, z)
    return alone, counted, last, z


def steps_of_whole(
    load: Traffic, whole: float, steps: float, begin: float, lone: float, followed: float, unjoined: float
) -> float:
    """Steps of each prompt where several fit one: all but those that hold the rest of one and nothing else begin some."""
    alone, counted, _, z = shared(whole, steps, begin, lone, followed)
    full = alone * (lone - 1) / counted + (1 - alone) * math.exp(-z)
    return (1 + overflow(begin, whole, load.arrival_cv2)) / (begin * (1 - full * unjoined))


def fills(
    load: Traffic, room: float, steps: float, begin: float, lone: float, followed: float
) -> list[tuple[float, float, float, float]]:
    """Steps with prompts by their tokens: from, to, and the shares of a prompt alone and of others; the last are full."""
    alone, counted, last, z = shared(load.new_mean / room, steps, begin, lone, followed)
    most = min(max(load.new[-2] / room, 6 / z), 1.0)
    at = [most * min(i / 8, 1.0) ** 2 for i in range(10)]
    longer = 1 - rank(load.new, room)
    ranks = [*(rank(load.new, v * room) for v in at[:-2]), 1 - longer, 1 - longer]
    short = [b - a for a, b in itertools.pairwise(ranks)]
    left = last - sum(p * (a + b) / 2 for p, (a, b) in zip(short, itertools.pairwise(at), strict=True))
    left = min(max(left / max(longer, 1e-9), 0.01), 0.99)
    start, end = max(2 * left - 1, 0.0), min(2 * left, 1.0)
    even = [min(max((v - start) / (end - start), 0.0), 1.0) for v in at]
    out = []
    for i, (a, b) in enumerate(itertools.pairwise(at)):
        own = (1 - followed) * (short[i] + longer * (even[i + 1] - even[i])) if i < 8 else lone - 1
        other = math.exp(-z * a) - math.exp(-z * b) if i < 8 else math.exp(-z * most)
        out.append((a * room, b * room, alone / counted * own, (1 - alone) * other))
    return out
