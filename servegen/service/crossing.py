"""Where rising functions of many rows cross a bound, to a cell of a grid.

An evaluation of a few rows costs hardly more than one of none. So several edges of the grid are tried at once in each row, around
the one where inverse interpolation expects the crossing. Which cell it is in does not depend on the edges that were tried, but
for a function that crosses its bound several times.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Index = NDArray[np.int64]
#: Of edges, whether the function is above its bound there, and a continuous measure of it that is 0 at the bound.
Measure = Callable[[Array], tuple[Mask, Array]]

#: Where edges are tried at once around the expected crossing, in errors of the expectation, which are a guess: of a function
#: whose call costs more than its rows, and of one whose rows cost more.
WIDE: Array = np.array([-8.0, -1.0, -0.1, 0.0, 0.1, 1.0, 8.0])
NARROW: Array = np.array([-2.0, 0.0, 2.0])
#: Rounds after which what is left is not as smooth as was expected. From then on as many edges are tried as cost little more than
#: those few: of all rows together, and of one row at the most.
EASY = 2
AT_ONCE = 256
MOST = 63
#: Share of a bound below which less is no other, and bound below which none is told from 0.
NOTHING = 1e-9


def excess(value: Array, bound: Array | float) -> Array:
    """A measure of what is not negative that is 0 at a ``bound``: the logarithm of its share, except of next to nothing."""
    return np.asarray(np.log(np.maximum(value / np.maximum(bound, NOTHING), NOTHING)))


def _expected(x: Array, y: Array) -> tuple[Array, Array]:
    """Where a function of the values ``y`` at ``x`` (both (rows, 4), the bracket in the middle) may be 0, by inverse
    interpolation of as many of the four as lead into the bracket (Neville), else by a line; and a guess at how far off that is.
    """
    low, high = x[:, 1], x[:, 2]
    with np.errstate(all="ignore"):
        p, fits = x, []
        for m in (1, 2, 3):
            p = (y[:, m:] * p[:, :-1] - y[:, :-m] * p[:, 1:]) / (y[:, m:] - y[:, :-m])
            fits.append(p)
        straight = fits[0][:, 1]
        straight = np.where((straight >= low) & (straight <= high), straight, (low + high) / 2.0)
        best, most = straight, (high - low) / 8.0
        for curved in (fits[1][:, 0], fits[1][:, 1], fits[2][:, 0]):
            best = np.where((curved > low) & (curved < high), curved, best)
    return best, np.where(best == straight, most, np.minimum(np.abs(best - straight), most))


def crossing(make: Callable[[Index], Measure], tried: Array, over: Mask, measured: Array, errors: Array = WIDE) -> Array:
    """The last edge of each row at which its function is not above its bound: -1 where it is at the first, ``tried[-1]`` where it
    is at none. Shape (rows,).

    ``tried`` (edges,), rising whole numbers, were tried with every row; ``over`` and ``measured`` (rows, edges) is what came of
    it. ``make`` takes an index of rows, which repeats some, and returns what tells of an edge of each. ``errors`` is where more
    edges are tried around the expected crossing, an odd number.
    """
    count, near = len(tried), len(errors)
    apart = np.abs(np.arange(near) - near // 2)
    first = np.where(over.any(axis=1), over.argmax(axis=1), count)
    out = np.where(first == 0, -1.0, tried[-1])
    rows = np.flatnonzero((first > 0) & (first < count))
    # Of each row the bracket and a neighbour on either side of it.
    beyond = np.full((len(rows), 1), np.nan)
    x = np.broadcast_to(np.concatenate(([np.nan], tried, [np.nan])), (len(rows), count + 2))
    x, y = _bracket(first[rows] - 1, x, np.concatenate((beyond, measured[rows], beyond), axis=1))
    slow, more, measure = np.zeros(len(rows), dtype=bool), near, None
    turn = 0
    while len(rows):
        if turn >= EASY and AT_ONCE // len(rows) > 2 * more:
            more, measure = min(AT_ONCE // len(rows), MOST), None
        measure = measure or make(np.repeat(rows, more))
        low, high = x[:, 1:2], x[:, 2:3]
        width = (high - low)[:, 0]
        place, error = _expected(x, y)
        away = np.copysign(np.maximum(error[:, None] * np.abs(errors), apart), errors)
        edges = np.concatenate((np.floor(place)[:, None] + away, low + width[:, None] * _evenly(more - near)), axis=1)
        if more > near:
            edges.sort(axis=1)
        # After a round that gained less than an even split would have, an even split.
        even = slow | (width <= more + 1.0)
        edges = np.where(even[:, None], low + width[:, None] * _evenly(more), edges)
        edges = np.minimum(np.maximum(np.floor(edges), low + 1.0), high - 1.0)
        above, value = measure(edges.ravel())
        above, value = above.reshape(edges.shape), value.reshape(edges.shape)
        first = np.where(above.any(axis=1), above.argmax(axis=1), more)
        x, y = _bracket(
            first, np.concatenate((x[:, :2], edges, x[:, 2:]), axis=1), np.concatenate((y[:, :2], value, y[:, 2:]), axis=1)
        )
        left = x[:, 2] - x[:, 1]
        slow, done = ~even & (left * (more + 1.0) > width), left <= 1.0
        if done.any():
            out[rows[done]] = x[done, 1]
            rows, x, y, slow = rows[~done], x[~done], y[~done], slow[~done]
            measure = None
        turn += 1
    return out


def _evenly(count: int) -> Array:
    """Shares of a bracket that split it evenly."""
    return np.asarray(np.arange(1.0, count + 1.0) / (count + 1.0))


def _bracket(start: Index, x: Array, y: Array) -> tuple[Array, Array]:
    """Four neighbours of each row of ``x`` and ``y``, from ``start`` on."""
    each, four = np.arange(len(start))[:, None], start[:, None] + np.arange(4)
    return x[each, four], y[each, four]


def searched(make: Callable[[Index], Measure], rows: int, tried: Array, errors: Array = WIDE) -> Array:
    """:func:`crossing` of so many rows of which nothing is known yet."""
    if not rows:
        return np.zeros(0)
    over, measured = make(np.repeat(np.arange(rows), len(tried)))(np.tile(tried, rows))
    return crossing(make, tried, over.reshape(rows, -1), measured.reshape(rows, -1), errors)
