"""Steps that take all who wait (bulk service): how many share one, by the share of time that the server is busy.

Steps are taken as equally long and arrivals as those of :mod:`servegen.service.arrivals`; time is cut into cells of a step, in
which a gap ends where it is nearest. A step that ends with nobody waiting leaves the server idle until one comes, and that one
has the next step for itself. So the time since the last arrival, seen when steps begin, is a Markov chain between two idle
times, and all that follows are its visits.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from servegen.service import arrivals

Array = NDArray[np.float64]

#: Cells of a step: what follows is then within 2 % of what it is in continuous time, up to two arrivals in a step.
CELLS = 32
#: Arrivals in a step, of which each is a row of the table. In between numbers are linear in the logarithm of the share of time
#: that the server is idle: Poisson arrivals leave exp(-x)/x of it.
ARRIVED: Array = np.exp(np.linspace(np.log(1e-2), np.log(24.0), 48))
#: The busiest that a server is told from one that is never idle.
BUSIEST = 1.0 - 1e-9


def per_step(busy: Array, cv2: Array | float) -> tuple[Array, Array]:
    """Prompts of a step, on average over steps, and how many others a prompt has in its step, on average over prompts."""
    if isinstance(cv2, float):
        rarely, prompts, others = _table(cv2)
        level = -np.log1p(-np.minimum(busy, BUSIEST))
        return np.interp(level, rarely, prompts), np.interp(level, rarely, others)
    prompts, others = np.empty_like(busy), np.empty_like(busy)
    for value in set(cv2.tolist()):
        rows = cv2 == value
        prompts[rows], others[rows] = per_step(busy[rows], float(value))
    return prompts, others


@functools.lru_cache(maxsize=64)
def _table(cv2: float) -> tuple[Array, Array, Array]:
    """Logarithms of one by the share of idle time, rising; the prompts of a step; the others of a prompt's step."""
    if arrivals.poisson(cv2):  # a step ends with nobody waiting by the chance of no arrival
        prompts = ARRIVED + np.exp(-ARRIVED)
        busy = ARRIVED / prompts
        return -np.log1p(-np.minimum(busy, BUSIEST)), prompts, busy * ARRIVED
    if cv2 <= arrivals.EVEN:  # one comes after the other has been served, or the server is never idle
        return -np.log1p(-np.minimum(ARRIVED, BUSIEST)), np.ones_like(ARRIVED), np.zeros_like(ARRIVED)
    width = (ARRIVED / CELLS)[:, None]
    cells = np.arange(2 * CELLS + 1)
    longer = arrivals.exactly(width * cells, cv2)[0]  # (x, cells): chance that a gap is longer than so many
    ends = arrivals.exactly(width * (cells[: CELLS + 1] + 0.5), cv2)[0]
    gap = -np.diff(ends, axis=1, prepend=1.0)  # (x, cells): chance that it ends nearest to so many
    again = np.zeros_like(gap)  # arrivals so many cells after one, itself among them
    again[:, 0] = 1.0 / np.maximum(1.0 - gap[:, 0], 1e-12)
    for m in range(1, CELLS + 1):
        again[:, m] = np.einsum("xj,xj->x", gap[:, 1 : m + 1], again[:, m - 1 :: -1][:, :m]) * again[:, 0]
    ages = longer[:, np.add.outer(cells[: CELLS + 1], cells[: CELLS + 1])]
    first = -np.diff(ages, axis=2) / np.maximum(ages[:, :, :1], 1e-300)  # (x, age, cells): the first arrival of a step
    come = np.zeros_like(first)
    for m in range(CELLS):
        come[:, :, m] = np.einsum("xaj,xj->xa", first[:, :, : m + 1], again[:, m::-1][:, : m + 1])
    quiet = 1.0 - np.cumsum(gap, axis=1)  # chance of none in the cells that are left
    next_age = np.zeros((len(ARRIVED), CELLS + 1, CELLS + 1))
    next_age[:, :, CELLS - 1 :: -1] = come * np.maximum(quiet, 0.0)[:, None, CELLS - 1 :: -1]
    start = np.zeros(CELLS + 1)
    start[0] = 1.0
    left = np.swapaxes(np.eye(CELLS + 1) - BUSIEST * next_age, 1, 2)
    visits = np.linalg.solve(left, np.broadcast_to(start, gap.shape)[..., None])[..., 0]
    after = np.cumsum(again, axis=1)[:, CELLS - 1 :: -1] - 1.0  # further arrivals of the step after one in each cell
    steps = visits.sum(axis=1)
    served = 1.0 + np.einsum("xa,xam->x", visits, come)
    others = 2.0 * np.einsum("xa,xam,xm->x", visits, come, after) / served
    prompts = np.maximum(served / steps, ARRIVED / BUSIEST)
    return np.maximum.accumulate(-np.log1p(-ARRIVED / prompts)), prompts, others
