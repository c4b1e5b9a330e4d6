"""For whom a first token waits, as plain arithmetic: the step in progress, prompts before it, and those that end with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.solver.plain_traffic import Traffic, company, none_after, waiting


@dataclass
class Work:
    """What each prompt of a step costs, what one more adds, how many share it; variation and skewness of one alone; what others
    can fill of a last step."""

    each: float
    more: float
    prompts: float
    cv2: float
    third: float
    left: float

    @property
    def added(self) -> float:
        return min(max(self.more / self.each, 0.0), 1.0)


def crowd(arrived: float, load: Traffic) -> float:
    return 1.0 + (0.0 if load.arrival_cv2 == 1.0 else 2.0 * max(company(arrived, load.arrival_cv2), 0.0))


def interrupting(busy: float, delayed: float, arrived: float, load: Traffic) -> float:
    """Chance that an arrival finds prompts being computed."""
    if load.queue_cv2 == 1.0:
        return busy
    return max(1.0 - (1.0 - delayed) / max(none_after(arrived / 4.0, load.arrival_cv2), 1e-9), busy)


def wait(w: Work, busy: float, arrived: float, load: Traffic, slots: float) -> tuple[float, float]:
    """Chance and mean of the wait for other prompts."""
    c = load.queue_cv2
    delayed = waiting(busy, c, w.cv2)
    ahead = w.added * busy
    free = max(1.0 - ahead, 1e-9)
    number, found, spread = busy * busy / free, busy, (c + w.cv2) / (max(c, 1.0) + 1.0)
    if c != 1.0:
        idle = max(1.0 - busy, 1e-9)
        number += max(delayed / max(1.0 - delayed, 1e-9) - busy / idle, 0.0) * idle / free
        found += (1.0 - w.added) * (interrupting(busy, delayed, arrived, load) - busy)
    if c < 1.0:
        spread *= math.exp(-2 * idle * (1 - c) ** 2 / (3 * max(busy, 1e-9) * max(c + w.cv2, 1e-9)))
    held = w.each * (1.0 + (1.0 - w.added) * (w.prompts - 1.0))
    mean = spread * (found * held + w.each * w.added * number) / max(delayed, 1e-12)
    return delayed, mean if load.open_loop else min(mean, slots * w.each)


def first_token(
    w: Work, load: Traffic, rate: float, busy: float, step: float, waits: tuple[float, float], behind: float | None = None
) -> tuple[float, float, float, float]:
    """The most that is left of a step; chance, mean and variation of the wait."""
    delayed, mean = waits
    rest = step * (1.0 - (1.0 - w.added) * busy)
    total = max(delayed * mean + rest / 2, 1e-12)
    ahead = w.added * busy
    share, most = ahead / (1.0 + ahead), delayed * w.left / total
    longer, burst = min(share, most), 0.0
    if load.arrival_cv2 != 1.0:
        more = company(rate * rest / 2, load.arrival_cv2) if behind is None else behind
        longer = min(max(share + w.more * more / total, 0.0), most)
        burst = max(longer - share, 0.0)
    chance = w.added * delayed
    left = min(ahead / max(chance, 1e-12), 1.0)
    each = left * (4 / 3 * w.third / (1 + w.cv2) ** 2 - 1) + (1 - left) * w.cv2
    cv2 = each * (1 - chance) + chance
    return rest * (1 + longer), delayed, mean * (1 + longer), cv2 * (1 + burst**2) / (1 + burst) ** 2
