"""The requests as the steady state needs them: moments, and prompt lengths at fixed probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.workload import Lengths, Workload, held_tokens

Array = NDArray[np.float64]

#: Probabilities at which lengths are taken; dense where SLO percentiles lie. A length is linear in between.
EDGES: Array = np.array([0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0])
#: The same where powers of lengths are summed, to which few very long ones contribute much.
FINE: Array = np.concatenate((EDGES[:-1], [0.998, 0.999, 0.9999, 1.0]))
#: Chance of a length inside each pair of edges.
WIDTHS: Array = np.diff(EDGES)
#: Weights of the edges in a mean over the bins (trapezoid).
EDGE_WEIGHTS: Array = (np.concatenate(([0.0], WIDTHS)) + np.concatenate((WIDTHS, [0.0]))) / 2.0
#: Shares of all tokens of prompts, by their place in the prompt, between which full steps are told apart.
PLACES: Array = np.array([0.0, 0.7, 0.92, 0.995])
#: Probabilities at which outputs are compared with each other.
MIDDLES: Array = (np.arange(200) + 0.5) / 200
#: Batches at which the longest output of a batch is tabulated (static batching waits for it).
BATCH_GRID: Array = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])


@record
class Demand:
    """Tokens and dimensionless numbers. ``*_edges`` are lengths at :data:`EDGES`, ``*_nodes`` the means in between.

    ``uncached`` tokens must be computed, ``total`` is the whole prompt. ``gaps`` is the mean number of gaps between output
    tokens, ``held`` the context that a running request holds at a random time (residency weighted).
    """

    uncached_edges: Array
    total_edges: Array
    uncached_nodes: Array
    total_nodes: Array
    node_weights: Array
    uncached_fine: Array  # the same as nodes between :data:`FINE`
    total_fine: Array
    fine_weights: Array
    places: Array  # how many tokens of its prompt are before a token, at :data:`PLACES`, those that are found included
    uncached_mean: float
    uncached_cv2: float
    uncached_third: float  # E[x^3]/E[x]^3
    total_mean: float
    osl_edges: Array
    osl_nodes: Array
    osl_mean: float
    osl_std: float
    osl_longest: float
    longest_of_batch: Array
    longest_cv2: Array  # squared coefficient of variation of the former
    age_std: float  # of the tokens that a running request has put out at a random time
    gaps: float
    held_mean: float
    held_std: float
    arrival_cv2: float | Array
    queue_cv2: float | Array  # the same where requests queue
    drawn: float | Array  # servers of which a router draws two for each request; 1 = none does
    overlap: float  # share of its gaps that an output shares with one that began at the same time
    own: float  # whether a request comes on top of those that an outsider sees: 1, or 0 where their number is what it is
    turns: bool  # whether all who wait for answers take their turns here, so that an end is the next beginning
    open_loop: bool  # whether requests arrive whatever waits; else no more can wait than the replica has slots
    dealt: float | Array = 1.0  # servers, this one of them, to which the stream is dealt out at random

    def nodes_of(self, fine: Array) -> Array:
        """Means between :data:`EDGES` of what has these means between :data:`FINE`. Shapes (rows, fine) -> (rows, nodes)."""
        last = len(self.node_weights) - 1
        end = np.asarray(fine[:, last:] @ self.fine_weights[last:] / self.node_weights[-1], dtype=np.float64)
        return np.concatenate((fine[:, :last], end[:, None]), axis=1)


def demand(workload: Workload, bounded: bool = True) -> Demand:
    """Numbers of a workload. Closed loops (concurrency, users) arrive without burst.

    A pool that is saturated without any bound (``bounded``) is a closed loop, too: what does not fit waits elsewhere.
    """
    uncached = workload.uncached_isl()
    nodes, weights = uncached.nodes(upper=False)
    uncached_edges = _edges(uncached)
    total_nodes, total_edges = _totals(workload, nodes, uncached_edges)
    fine, fine_weights = uncached.means(FINE), np.diff(FINE)
    held_mean, held_variance = held_tokens(workload.isl, workload.osl)
    osl = workload.osl
    gaps = max(osl.mean - 1.0, 1e-3)
    cv2 = workload.burstiness**2 if workload.rate_per_s or workload.saturate else 1.0
    outputs = np.asarray(osl.quantile(MIDDLES), dtype=np.float64)
    longest, squares = _longest(osl)
    think = bool(workload.users and workload.think_time_s)
    return Demand(
        uncached_edges=uncached_edges,
        total_edges=total_edges,
        uncached_nodes=nodes,
        total_nodes=total_nodes,
        node_weights=weights,
        uncached_fine=fine,
        total_fine=_whole(workload, fine),
        fine_weights=fine_weights,
        places=_places(uncached) + max(workload.isl.mean - uncached.mean, 0.0),
        uncached_mean=uncached.mean,
        uncached_cv2=max(float(fine**2 @ fine_weights) / uncached.mean**2 - 1.0, 0.0),
        uncached_third=float(fine**3 @ fine_weights) / uncached.mean**3,
        total_mean=workload.isl.mean,
        osl_edges=_edges(osl),
        osl_nodes=osl.nodes(upper=False)[0],
        osl_mean=osl.mean,
        osl_std=float(np.std(outputs)),
        osl_longest=float(osl.longest),
        longest_of_batch=longest,
        longest_cv2=np.maximum(squares / longest**2 - 1.0, 0.0),
        age_std=_age_std(outputs),
        gaps=gaps,
        held_mean=held_mean,
        held_std=float(np.sqrt(held_variance)),
        turns=bool(workload.concurrency),
        open_loop=bool(workload.rate_per_s) or (workload.saturate and bounded),
        # Many users who think one by one are as good as strangers.
        arrival_cv2=cv2,
        queue_cv2=cv2,
        drawn=1.0,
        overlap=float(2.0 * np.dot(1.0 - MIDDLES, outputs) / np.sum(outputs)),
        own=1.0 if workload.rate_per_s or (workload.saturate and bounded) or think else 0.0,
    )


def _totals(workload: Workload, nodes: Array, edges: Array) -> tuple[Array, Array]:
    """Whole prompts of those that leave ``nodes`` and ``edges`` tokens to compute."""
    if workload.found is not None:
        cached = np.array(workload.found.cached_by_bin)
        between = (np.append(cached, cached[-1]) + np.append(cached[0], cached)) / 2.0
        return _whole(workload, nodes), np.maximum.accumulate(edges + between)
    return _whole(workload, nodes), np.maximum(_edges(workload.isl), edges)


def _whole(workload: Workload, nodes: Array) -> Array:
    """Whole prompts of those that leave ``nodes``, the shortest first, tokens to compute."""
    if workload.found is not None:
        cached = np.array(workload.found.cached_by_bin)
        return np.asarray(nodes + np.append(cached, np.repeat(cached[-1:], len(nodes) - len(cached))))
    # A shared head stands before every prompt; a hit rate leaves the same share of each.
    return nodes + workload.prefix_shared if workload.prefix_shared else nodes / (1.0 - workload.prefix_hit)


def _places(lengths: Lengths) -> Array:
    """Tokens before one of all tokens, at :data:`PLACES`: as many are at a place as prompts are longer than that."""
    longer = 1.0 - np.concatenate((MIDDLES, FINE[-5:-1]))
    ends = np.asarray(lengths.quantile(1.0 - longer), dtype=np.float64)
    steps = np.concatenate(([longer[0] * ends[0]], (longer[1:] + longer[:-1]) / 2.0 * np.diff(ends)))
    share = np.concatenate(([0.0], np.cumsum(steps) / np.sum(steps)))
    return np.asarray(np.interp(PLACES, share, np.concatenate(([0.0], ends))))


def _longest(osl: Lengths) -> tuple[Array, Array]:
    """Mean and mean square of the longest output of each batch of :data:`BATCH_GRID`: its chance is the power of one's."""
    each = np.asarray(osl.quantile(MIDDLES[None, :] ** (1.0 / BATCH_GRID[:, None])), dtype=np.float64)
    mean = each.mean(axis=1)
    mean[0] = osl.mean
    return mean, np.maximum((each * each).mean(axis=1), mean * mean)


def _age_std(outputs: Array) -> float:
    """Standard deviation of the output so far of a running request: uniform over outputs met in proportion to their length."""
    first, second, third = outputs.mean(), (outputs**2).mean(), (outputs**3).mean()
    return float(np.sqrt(max(third / (3.0 * first) - (second / (2.0 * first)) ** 2, 0.0)))


def _edges(lengths: Lengths) -> Array:
    """Quantiles at :data:`EDGES`: the last one the longest that is planned for, and the first one as long as makes the mean of
    the shortest quarter right, which is taken as even."""
    inner = np.asarray(lengths.quantile(EDGES[1:-1]), dtype=np.float64)
    longest = max(float(lengths.longest), float(inner[-1]))
    shortest = max(2.0 * float(lengths.means(EDGES)[0]) - float(inner[0]), 1.0)
    return np.maximum.accumulate(np.concatenate(([min(shortest, float(inner[0]))], inner, [longest])))
