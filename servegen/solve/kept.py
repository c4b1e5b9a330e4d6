"""What a prefix cache takes of a pool, and what it saves the running batch.

A cached token is kept in the layers that see everything; a window's part, and recurrent state, stay with their sequence.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servegen.solve.problem import Problem
from servegen.solve.space import Rows, occupancy

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def cached_token_bytes(rows: Rows) -> Array:
    """Bytes on one device of a token that is kept, shape (rows,)."""
    return np.asarray(np.sum(rows.memory.kv_bytes * (rows.memory.window == 0), axis=-1))


def kept_bytes(problem: Problem, rows: Rows) -> Array:
    """Bytes on one device that the hits of the demand need, shape (rows,)."""
    return problem.kept_tokens * cached_token_bytes(rows)


def running(problem: Problem, rows: Rows, pool: Array) -> tuple[Array, Array, Array]:
    """The pool without what all requests share, and what one takes of the rest: its mean and standard deviation, all in bytes on
    one device. ``pool`` (rows,) or (rows, limits); the others (rows,).

    A head that every prompt has is held once by a replica, however many run.
    """
    mean, std, _ = occupancy(problem, rows)
    head = problem.workload.prefix_shared * cached_token_bytes(rows)
    if not problem.workload.prefix_shared:
        return pool, mean, std
    # Prompts shorter than the head hold what they have of it.
    share = 1.0 - problem.demand.uncached_mean / problem.demand.total_mean
    common = share * problem.demand.total_mean * cached_token_bytes(rows)
    return pool - (head if pool.ndim == 1 else head[:, None]), np.maximum(mean - common, 0.0), std


def level_cap(problem: Problem, rows: Rows, pool: Array) -> Array:
    """Largest mean number of running sequences that leaves the cache its room, shape (rows, limits); inf where none is asked for.

    What is kept counts the prompts of running requests, which are its latest use: only their answers come on top.
    """
    if not problem.kept_tokens:
        return np.full(pool.shape, np.inf)
    mean, _, _ = occupancy(problem, rows)
    own = np.maximum(mean - problem.demand.total_mean * cached_token_bytes(rows), 1e-9 * mean)
    # A pool without the room is refused by itself; its cap only stays positive.
    return np.maximum((pool - kept_bytes(problem, rows)[:, None]) / own[:, None] * rows.groups[:, None], 1e-3)


def room_tokens(problem: Problem, rows: Rows, row: int, pool: float, level: float) -> float:
    """Tokens that a cache can keep in ``pool`` bytes beside ``level`` running sequences; the inverse of :func:`level_cap`."""
    one = rows.at(np.array([row]))
    mean, _, _ = occupancy(problem, one)
    token = cached_token_bytes(one)
    own = np.maximum(mean - problem.demand.total_mean * token, 0.0)
    left = pool - level / one.groups * own
    return float(np.maximum(left / token, 0.0)[0]) if token[0] else 0.0

