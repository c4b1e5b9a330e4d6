"""How many share a step that takes all who wait, as plain arithmetic: arrivals counted cell by cell."""

from __future__ import annotations

import functools
import math

import numpy as np

from tests.solver.plain_traffic import none_after

CELLS = 32
ROWS = 48


def per_step(busy: float, cv2: float) -> tuple[float, float]:
    """Prompts of a step, and the others in the step of a prompt."""
    if cv2 <= 1e-3:
        return 1.0, 0.0
    level = -math.log1p(-min(busy, 1 - 1e-9))
    low, high = 0, ROWS - 1
    if level <= _row(low, cv2)[0]:
        return _row(low, cv2)[1:]
    if level >= _row(high, cv2)[0]:
        return _row(high, cv2)[1:]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _row(middle, cv2)[0] <= level else (low, middle)
    (a, *below), (b, *above) = _row(low, cv2), _row(high, cv2)
    prompts, others = (v + (w - v) * (level - a) / (b - a) for v, w in zip(below, above, strict=True))
    return prompts, others


@functools.cache
def _row(index: int, cv2: float) -> tuple[float, float, float]:
    """Log of one by the share of idle time, prompts and others, where so many come in a step."""
    x = math.exp(math.log(1e-2) + (math.log(24.0) - math.log(1e-2)) * index / (ROWS - 1))
    if cv2 == 1.0:
        prompts = x + math.exp(-x)
        return -math.log1p(-min(x / prompts, 1 - 1e-9)), prompts, x / prompts * x

    @functools.cache
    def longer(cells: float) -> float:
        return none_after(cells * x / CELLS, cv2)

    gap = [1 - longer(0.5), *(longer(j - 0.5) - longer(j + 0.5) for j in range(1, CELLS + 1))]
    again = [1 / (1 - gap[0])]
    for m in range(1, CELLS + 1):
        again.append(sum(gap[j] * again[m - j] for j in range(1, m + 1)) / (1 - gap[0]))
    moves = np.zeros((CELLS + 1, CELLS + 1))
    come, pairs = [], []
    for age in range(CELLS + 1):
        number = number_of_pairs = 0.0
        for m in range(CELLS):  # an arrival in cell m, of which the first was in cell j
            here = sum((longer(age + j) - longer(age + j + 1)) / max(longer(age), 1e-300) * again[m - j] for j in range(m + 1))
            left = CELLS - 1 - m
            number += here
            number_of_pairs += 2 * here * (sum(again[: left + 1]) - 1)
            moves[age, left] = here * max(1 - sum(gap[: left + 1]), 0.0)
        come.append(number)
        pairs.append(number_of_pairs)
    visits = np.linalg.solve((np.eye(CELLS + 1) - (1 - 1e-9) * moves).T, np.eye(CELLS + 1)[0])
    served = 1 + float(visits @ come)
    prompts = max(served / float(visits.sum()), x / (1 - 1e-9))
    return -math.log1p(-x / prompts), prompts, float(visits @ pairs) / served
