"""A closed loop on one replica as plain arithmetic: an end is the next beginning, and requests are counted by steps."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from tests.solver.plain_traffic import Traffic
from tests.solver.plain_wait import Work, first_token, wait


@dataclass
class Turn:
    """The certain part; chance, mean and variation of the wait; how many march; stalls behind a step, and those of several."""

    certain: float
    delayed: float
    wait: float
    wait_cv2: float
    march: float
    stalls: float
    several: float


def spread_of(load: Traffic, tokens: float, variance: float) -> float:
    """Standard deviation of the steps of an answer."""
    return math.sqrt(load.output_sd**2 + load.gaps * variance / tokens) / tokens


def in_a_stall(ends: float, most: float, steps: float) -> float:
    """Prompts that share steps: those of one step of answers, and by the last step of a long one all that are there."""
    number = max(ends / max(-math.expm1(-ends), 1e-300), 1.0)
    first = min(number, most)
    return first + (number + ends - first) * max(1 - 1 / steps, 0.0)


def stalling(w: Work, load: Traffic, tokens: float, variance: float, level: float, step: float, busy: float) -> Turn:
    """Whether those who begin together end together, and whom a prompt waits for in either case."""
    ends = level * tokens / load.gaps
    march = 1 / (1 + 20 * spread_of(load, tokens, variance) ** 2)
    one = w.cv2 * w.each**2

    # Lengths differ: a Poisson number ends in each step.
    none = math.exp(-ends)
    met = (1 - none) / (2 - none)
    number = max(ends / max(-math.expm1(-ends), 1e-300), 1.0)
    mine, mine_2 = w.more * ends / 2, w.more**2 * (ends**2 / 3 + ends / 2) + one * ends / 2
    theirs = max(number * w.each - step, 0.0)
    theirs_2 = theirs**2 + w.more**2 * max(number * (1 + ends) - number**2, 0.0) + one * number
    rather = (
        1 - 1 / number + met / number,
        mine + met * theirs,
        mine_2 + met * (2 * mine * theirs + theirs_2),
        min(w.more * ends / 2, (1 - 1 / number) * w.left),
        met,
        met * (1 - number * none**2),
    )

    # Lengths are equal: stalls are the busy periods in which users began, the neighbours of a step with them.
    users = max(level, 1.0)
    free = math.sqrt((1 - busy) ** 2 + 1 / users)
    a2, a3 = busy**2 * (1 + w.cv2), busy**3 * w.third
    n1 = 1 / free
    n2 = (2 * busy * n1 + a2 * n1**2) / free
    n3 = (3 * a2 * n1**2 + 3 * busy * n2 + a3 * n1**3 + 3 * a2 * n1 * n2) / free
    near = 3 * ends * (1 - busy)
    place = n2 / n1 / 2 + near / 2 * n1
    square = n3 / n1 / 3 + n2 / n1 / 2 + n2 / n1 * near / 2 * n1 + near / 2 * (n2 + n1) + (near / 2 * n1) ** 2
    place = min(place, (users - 1) / 2)
    square = max(min(square, (users - 1) * (2 * users - 1) / 6), place**2)
    begins = min(free * math.exp(-near), 1.0)
    marching = (
        1 - begins,
        w.more * place,
        w.more**2 * square + one * place,
        min(w.more * place, (1 - begins) * w.left),
        ends * begins,
        ends * begins * (1 - math.exp(-busy - near)),
    )

    delayed, mean, both, behind, stalls, several = ((1 - march) * a + march * b for a, b in zip(rather, marching, strict=True))
    each = mean / max(delayed, 1e-12)
    cv2 = max(both / max(delayed * each**2, 1e-24) - 1, 0.0)
    return Turn(step + behind, delayed, each, cv2, march, stalls, several / max(stalls, 1e-300))


def returning(queue: float, level: float, busy: float) -> float:
    """What such a queue is of one whose arrivals do not depend on it: a normal number that is held above 0."""
    drift = math.sqrt(max(1 - busy, 1e-12) * level / max(busy * queue, 1e-12))

    def held(z: float) -> float:
        """Density at 0 over the chance of being above it, of deviation 1."""
        return math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / (math.erfc(-z / math.sqrt(2)) / 2)

    low, high = -30.0, 8.0
    for _ in range(100):
        z = (low + high) / 2
        low, high = (z, high) if held(z) > drift else (low, z)
    return held(z) * (z + held(z))


def queued(
    w: Work, load: Traffic, level: float, idle: float, rate: float, busy: float, steps: tuple[float, float, float], arrived: float
) -> tuple[float, float, float, float]:
    """The certain part; chance, mean and variation of the wait for mixed steps, which have no room for ``idle`` more. ``steps``:
    without prompts, with, their share."""
    step, longer, share = steps
    ends = level / load.gaps
    shifts = 2 * (load.output_sd * ends / max(busy, 1e-3)) ** 2
    c = max((min(w.cv2, 1.0) + shifts) / (1 + shifts), 1e-3)
    delayed, mean = wait(w, busy, arrived, dataclasses.replace(load, queue_cv2=c), level)
    mean = max(mean * returning(rate * delayed * mean, level, busy), 1e-12)
    number = max(ends / max(-math.expm1(-ends), 1e-300), 1.0)
    beside, some = c * ends / 2 * w.each, c * (1 - 1 / number)
    behind_step = min(max(delayed - beside / mean, 0.0) * math.exp(-longer / mean), share)
    queue = 1 - (1 - some) * (1 - behind_step) * math.exp(-idle)
    left = beside + behind_step * mean + idle / max(rate, 1e-300)
    varied = level + w.cv2 * rate * left
    part = math.sqrt(varied / (varied + (rate * left) ** 2))  # of the wait that is not certain
    _, _, each, cv2 = first_token(w, load, rate, busy, 0.0, (queue, left * part / max(queue, 1e-12)))
    more, found = longer - step, max(share, queue)
    square = share * more**2 + 2 * share * more * queue * each + (1 + cv2) * queue * each**2
    mean = max((share * more + queue * each) / max(found, 1e-12), 1e-12)
    return step + left * (1 - part), found, mean, max(square / max(found * mean**2, 1e-24) - 1, 0.0)
