"""The requests as the steady state needs them: moments, and prompt lengths at fixed probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servegen.workload import Workload, held_tokens

Array = NDArray[np.float64]

#: Probabilities at which lengths are taken; dense where SLO percentiles lie. A length is linear in between.
EDGES: Array = np.array([0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0])
#: Chance of a length inside each pair of edges.
WIDTHS: Array = np.diff(EDGES)
#: Weights of the edges in a mean over the bins (trapezoid).
EDGE_WEIGHTS: Array = (np.concatenate(([0.0], WIDTHS)) + np.concatenate((WIDTHS, [0.0]))) / 2.0
#: Squared coefficient of variation of the arrivals of a closed loop, whose users wait for their answers: half of a
#: Poisson stream's, by the fit of closed-loop benchmarks (queue S*rho/(4(1-rho)) in the steady state).
CLOSED_LOOP_CV2 = 0.5
#: Batches at which the longest output of a batch is tabulated (static batching waits for it).
BATCH_GRID: Array = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])


@dataclass(frozen=True)
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
    uncached_mean: float
    total_mean: float
    osl_edges: Array
    osl_nodes: Array
    osl_mean: float
    osl_longest: float
    longest_of_batch: Array
    gaps: float
    held_mean: float
    held_std: float
    arrival_cv2: float
    open_loop: bool  # whether requests arrive whatever waits; else no more can wait than the replica has slots


def demand(workload: Workload, bounded: bool = True) -> Demand:
    """Numbers of a workload. Closed loops (concurrency, users) arrive without burst.

    A pool that is saturated without any bound (``bounded``) is a closed loop, too: what does not fit waits elsewhere.
    """
    uncached = workload.uncached_isl()
    nodes, weights = uncached.nodes(upper=False)
    uncached_edges = _edges(uncached)
    held_mean, held_variance = held_tokens(workload.isl, workload.osl)
    osl = workload.osl
    gaps = max(osl.mean - 1.0, 1e-3)
    return Demand(
        uncached_edges=uncached_edges,
        total_edges=np.maximum(_edges(workload.isl), uncached_edges),
        uncached_nodes=nodes,
        # A shared head stands before every prompt; a hit rate leaves the same share of each.
        total_nodes=nodes + workload.prefix_shared if workload.prefix_shared else nodes / (1.0 - workload.prefix_hit),
        node_weights=weights,
        uncached_mean=uncached.mean,
        total_mean=workload.isl.mean,
        osl_edges=_edges(osl),
        osl_nodes=osl.nodes(upper=False)[0],
        osl_mean=osl.mean,
        osl_longest=float(osl.longest),
        longest_of_batch=np.array([float(osl.quantile(b / (b + 1.0))) if b > 1 else osl.mean for b in BATCH_GRID]),
        gaps=gaps,
        held_mean=held_mean,
        held_std=float(np.sqrt(held_variance)),
        open_loop=bool(workload.rate_per_s) or (workload.saturate and bounded),
        arrival_cv2=workload.burstiness**2 if workload.rate_per_s or workload.saturate else CLOSED_LOOP_CV2,
    )


def _edges(lengths: object) -> Array:
    """Quantiles at :data:`EDGES`, the last one the longest that is planned for."""
    inner = np.asarray(lengths.quantile(EDGES[1:-1]), dtype=np.float64)  # type: ignore[attr-defined]
    longest = max(float(lengths.longest), float(inner[-1]))  # type: ignore[attr-defined]
    shortest = min(1.0, float(inner[0])) if inner[0] != inner[-1] or longest != inner[-1] else float(inner[0])
    return np.maximum.accumulate(np.concatenate(([shortest], inner, [longest])))
