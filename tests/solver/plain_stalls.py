"""How many prompts a stall has, and how long they take, as plain arithmetic."""

from __future__ import annotations

import itertools
import math

from tests.solver.plain_seen import Stall
from tests.solver.plain_step import Step
from tests.solver.plain_traffic import WIDTHS, Traffic, alike
from tests.solver.plain_wait import Work


def of_period(arrival_cv2: float, busy: float, delayed: float, rest: float, prompt_cv2: float) -> float:
    """Prompts of a stall that begins with the ``rest`` of a decode step, in arrivals; without that a share ``delayed`` waits."""
    if arrival_cv2 == 1.0:
        return (1 + rest) / (1 - busy)
    k, idle = max(arrival_cv2, 1.0), 1 - delayed
    more = rest * idle * idle * delayed / max(busy * (busy + idle * (1 + k) - 1), 1e-12)
    return 1 / max(1 - alike(min(delayed + more, 1 - 1e-9), k, prompt_cv2), 1e-9)


def stepwise(load: Traffic, step: Step, chunk: float, edges: list[float]) -> list[tuple[float, float, float]]:
    """Bins of a prompt alone, from, to, weight: an edge goes up to the end of its step, if that is not beyond the next one."""
    size, first = chunk / step.groups, step.chunk(1.0)
    at, times, moves = [], [], []
    for i, (tokens, seconds) in enumerate(zip(load.new, edges, strict=True)):
        begun = math.ceil(tokens / size)
        moves.append(0 < i < len(edges) - 1 and begun * size <= load.new[i + 1])
        at.append(begun * size if moves[-1] else tokens)
        times.append(seconds + (step.chunk(size) - step.chunk(tokens - (begun - 1) * size) if moves[-1] else 0.0))
    out = []
    for i, width in enumerate(WIDTHS):
        high = times[i + 1]
        low = min(times[i] + (first if moves[i] else 0.0), high)
        a, b = at[i] / size, at[i + 1] / size
        ends = math.ceil(load.new[i] / size) + moves[i], math.ceil(load.new[i + 1] / size)
        more = 2 * first * (_mean_of_ceiling(a, b) - sum(ends) / 2) if b - a > 1e-9 else 0.0
        weight = width - _moved(load, at, i) * width
        if i + 1 < len(WIDTHS):
            weight += _moved(load, at, i + 1) * WIDTHS[i + 1]
        out.append((min(low + max(more, 0.0), high), max(high + min(more, 0.0), low), weight))
    return out


def _moved(load: Traffic, at: list[float], i: int) -> float:
    """By what part of the bin above it an edge was moved."""
    wide = load.new[i + 1] - load.new[i]
    return (at[i] - load.new[i]) / wide if wide > 1e-3 else 0.0


def _mean_of_ceiling(a: float, b: float) -> float:
    """Of a number that is even between two, by the whole ones in between."""
    cuts = [a, *(float(k) for k in range(math.floor(a) + 1, math.ceil(b))), b]
    return sum((high - low) * math.ceil((low + high) / 2) for low, high in itertools.pairwise(cuts)) / (b - a)


def two_fit(load: Traffic, most: float) -> float:
    """Chance that two prompts fit into a step that holds ``most`` mean ones."""
    z = ((most - 2) * load.new_mean + 0.5) / max(math.sqrt(2 * load.new_cv2) * load.new_mean, 0.1)
    return 1 / (1 + math.exp(min(max(-1.702 * z, -60.0), 60.0)))


def joining(
    bin_: tuple[float, float, float],
    others_in: float,
    joined: float,
    free: float,
    whole: float,
    work: Work,
    lone: tuple[float, float],
    cv2: float,
) -> Stall:
    """A bin of stalls with so many others, by chance ``joined``, each of which counts ``whole``. A prompt alone takes ``lone``
    seconds on average and at the least; arrivals vary by ``cv2``."""
    step, shortest = lone
    mean = others_in * work.each / free / max(joined, 1e-12)
    varied = (cv2 + work.cv2) / free
    by_prompt = mean**2 * max(joined * (1 + varied / max(others_in, 1e-12)) - 1, 0.0)
    by_step = mean * max(mean - step, 0.0) + mean * step * work.cv2
    deviation = math.sqrt(whole * by_prompt + (1 - whole) * by_step)
    one = work.more * (1 - math.sqrt(work.cv2))
    one += (1 - whole) * max(shortest - one, 0.0)
    least = min(max(mean - deviation, one), mean)
    rest = max(mean - least, 1e-9)
    return Stall(*bin_, joined, least, rest, min(max((deviation / rest) ** 2, 1.0), 1e6))
