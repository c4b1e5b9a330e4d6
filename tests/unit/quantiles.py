"""Quantiles of a chance of being above a time, by plain halving: what the product's are compared with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
HALVINGS = 32


def quantile(exceeds: Callable[[Array], Array], probability: float | Array, rows: int) -> Array:
    """The time that is exceeded with chance 1 - ``probability``, by bisection in log time; shape (rows,).

    ``probability`` is one for all rows, or one each.
    """
    low_t, high_t = np.full(rows, np.log(1e-7)), np.full(rows, np.log(1e5))
    for _ in range(HALVINGS):
        middle = (low_t + high_t) / 2.0
        over = exceeds(np.exp(middle)) > 1.0 - probability
        low_t, high_t = np.where(over, middle, low_t), np.where(over, high_t, middle)
    return np.asarray(np.exp(high_t))
