"""Halving brackets of many rows at once.

An evaluation of a few rows costs hardly more than one of none, so that several halvings are taken in one: all midpoints that they
could come to are evaluated together. The brackets are those of one halving after the other, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Index = NDArray[np.int64]

#: Rows whose evaluation costs as much as the call itself, about.
ROWS_OF_A_CALL = 500
#: Halvings that are taken at once at the most.
DEEPEST = 5


def at_once(rows: int, halvings: int) -> int:
    """Halvings to take at once: where calls and rows together cost the least."""
    return min(range(1, DEEPEST + 1), key=lambda n: -(-halvings // n) * (ROWS_OF_A_CALL + rows * (2**n - 1)))


def halved(
    make: Callable[[Index], Callable[[Array], Mask]], low: Array, high: Array, halvings: int, rising: bool = True
) -> tuple[Array, Array]:
    """Brackets ``low`` to ``high`` (rows,) after so many halvings.

    ``make`` takes an index of rows, which repeats some, and returns what says for a value of each whether it is above the one
    that is looked for; where not ``rising``, below it.
    """
    rows, deep = len(low), at_once(len(low), halvings)
    above = make(np.repeat(np.arange(rows), 2**deep - 1))
    each = np.arange(rows)
    while halvings:
        if halvings < deep:
            deep = halvings
            above = make(np.repeat(np.arange(rows), 2**deep - 1))
        edges = np.stack([low, high], axis=1)
        for _ in range(deep):
            finer = np.empty((rows, 2 * edges.shape[1] - 1))
            finer[:, ::2] = edges
            finer[:, 1::2] = (edges[:, :-1] + edges[:, 1:]) / 2.0
            edges = finer
        over = above(edges[:, 1:-1].ravel()).reshape(rows, -1)
        left, right = np.zeros(rows, dtype=np.int64), np.full(rows, 2**deep)
        for _ in range(deep):
            middle = (left + right) // 2
            up = over[each, middle - 1] == rising
            left, right = np.where(up, left, middle), np.where(up, middle, right)
        low, high, halvings = edges[each, left], edges[each, right], halvings - deep
    return low, high
