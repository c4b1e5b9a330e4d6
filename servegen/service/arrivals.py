"""Arrivals between clockwork and bursts: a renewal process with gamma distributed gaps, as one replica sees it.

``cv2`` is the squared coefficient of variation of the gaps: 1 is Poisson, 0 evenly spaced, above 1 bursty. Times are in mean
gaps, so that a window of ``x`` sees x arrivals on average. ``cv2`` is one number or a column of rows.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Terms of the series of the incomplete gamma function: below 1e-6 off where :data:`FAR` begins.
TERMS = 40
#: Gaps longer than this many gamma scales hardly occur.
FAR = 16.0
#: Windows of a table: linear in between, less than 1e-6 off.
POINTS = 8192
#: Least cv2 that is told from evenly spaced arrivals.
EVEN = 1e-3
#: Newton's steps for the chance of waiting; they double the digits, from one at the start.
NEWTON = 4


def _lower_gamma(shape: Array, x: Array) -> tuple[Array, Array]:
    """Regularised lower incomplete gamma function at ``shape`` and at ``shape`` + 1 (Abramowitz and Stegun 6.5.29)."""
    term = total = np.ones_like(x)
    for j in range(1, TERMS):
        term = term * x / (shape + j)
        total = total + term
    scale = np.exp(shape * np.log(np.maximum(x, 1e-300)) - x - _log_gamma(shape + 1.0))
    first = np.where(x > FAR, 1.0, np.minimum(scale * total, 1.0))
    return first, np.where(x > FAR, 1.0, np.maximum(first - scale, 0.0))


def _log_gamma(values: Array) -> Array:
    first = float(values.flat[0])  # one table has one shape
    return np.full_like(values, math.lgamma(first))


@functools.lru_cache(maxsize=64)
def _table(cv2: float) -> tuple[Array, Array, Array]:
    """Logarithms of windows; the chance that none comes within one after an arrival; that some comes in one at random."""
    log_x: Array = np.linspace(np.log(1e-12), np.log(1e3), POINTS)
    return log_x, *exactly(np.exp(log_x), cv2)


def exactly(x: Array, cv2: float) -> tuple[Array, Array]:
    """:func:`none_after_one` and :func:`some_within`, from the series itself."""
    if cv2 <= EVEN:
        return np.where(x < 1.0, 1.0, 0.0), np.minimum(x, 1.0)
    shape = np.full_like(x, 1.0 / cv2)
    within, beyond = _lower_gamma(shape, shape * x)
    none: Array = 1.0 - within
    return none, np.asarray(np.minimum(x * none + beyond, 1.0))


def _looked_up(x: Array, cv2: Array | float, column: int) -> Array:
    """A column of the table, or of one for each row of ``x`` (..., rows) where ``cv2`` is a column."""
    log_x = np.log(np.maximum(x, 1e-12))
    if isinstance(cv2, float):
        table = _table(cv2)
        return np.asarray(np.interp(log_x, table[0], table[column]))
    out = np.empty_like(x)
    for value in set(cv2.tolist()):
        rows = cv2 == value
        table = _table(value)
        out[..., rows] = np.interp(log_x[..., rows], table[0], table[column])
    return out


def poisson(cv2: Array | float) -> bool:
    """Whether all of it is Poisson."""
    return cv2 == 1.0 if isinstance(cv2, float) else bool((cv2 == 1.0).all())


def regular(cv2: Array | float) -> bool:
    """Whether some of it is steadier than Poisson."""
    return cv2 < 1.0 if isinstance(cv2, float) else bool((cv2 < 1.0).any())


def none_after_one(x: Array, cv2: Array | float) -> Array:
    """Chance that none comes within ``x`` after one came."""
    return np.exp(-x) if poisson(cv2) else _looked_up(x, cv2, 1)


def some_within(x: Array, cv2: Array | float) -> Array:
    """Chance that a window of ``x`` at a random time sees an arrival: the time until the next one has the density 1 - F."""
    return -np.expm1(-x) if poisson(cv2) else _looked_up(x, cv2, 2)


def company(x: Array, cv2: Array | float) -> Array:
    """Arrivals within ``x`` before (or after) one, beyond the x of a Poisson stream: (cv2-1)/2 in the long run.

    In bursts the count is nearly geometric, since each arrival finds the same chance of another one.
    """
    if poisson(cv2):
        return np.zeros_like(x)
    none = np.maximum(none_after_one(x, cv2), 1e-12)
    beyond = np.maximum((1.0 - none) / none - x, 0.0)
    if isinstance(cv2, float) and cv2 > 1.0:
        return np.minimum(beyond, (cv2 - 1.0) / 2.0)
    excess = (np.asarray(cv2) - 1.0) / 2.0
    beyond = np.minimum(beyond, np.maximum(excess, 0.0))
    return np.where(excess > 0.0, beyond, excess * np.minimum(x, 1.0))


def waits(busy: Array, cv2: Array | float, service_cv2: Array | float) -> Array:
    """Chance that an arrival waits for a server that is ``busy`` so much of the time; ``busy`` itself for Poisson arrivals.

    Bursts: the root of GI/M/1 (Kendall 1953), w = (1 + (1 - w)*cv2/busy)^(-1/cv2). Regular arrivals: Kraemer and
    Langenbach-Belz (1976).
    """
    if poisson(cv2):
        return busy
    b = np.minimum(np.maximum(busy, 1e-9), 1.0 - 1e-12)
    if not regular(cv2):
        return 1.0 - _idle(b, cv2)
    c = np.asarray(cv2)
    seldom = (1.0 + c + b * service_cv2) / (1.0 + b * (service_cv2 - 1.0) + b * b * (4.0 * c + service_cv2))
    steady = np.maximum(b - (1.0 - c) * b * (1.0 - b) * np.minimum(seldom, 1.0 / np.maximum(1.0 - b, 1e-12)), 0.0)
    if np.all(c < 1.0):
        return np.asarray(steady)
    return np.where(c < 1.0, steady, 1.0 - _idle(b, np.maximum(c, 1.0)))


def _idle(b: Array, k: Array | float) -> Array:
    """Chance that an arrival of bursts of ``k``, at least 1, finds a server idle that is busy ``b`` of the time."""
    # Right of the maximum of a concave function, so that Newton's steps come from the side of the root.
    s = 2.0 * (1.0 - b) / (1.0 + k)
    s = 1.0 - (1.0 + s * k / b) ** (-1.0 / k)  # which is close where little is busy
    for _ in range(NEWTON):
        value = k * np.log1p(-s) + np.log1p(s * k / b)
        slope = k / (b + s * k) - k / (1.0 - s)
        s = np.minimum(np.maximum(s - value / slope, 1e-15), 1.0 - b)
    return np.asarray(s)
