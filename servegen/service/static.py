"""Static batches: formed, prefilled and decoded until the longest member ends (Megatron)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servegen.service import arrivals
from servegen.service.burst import burst, per_token
from servegen.service.demand import BATCH_GRID, EDGES, WIDTHS, Demand
from servegen.service.point import Point, bins, unstalled
from servegen.service.server import Server

Array = NDArray[np.float64]

#: Factor on a static batch by which its growth in time is told.
GROWN = 1.25
#: Standard normal quantiles at the demand's probabilities; the ends are cut where a few in ten thousand lie.
NORMAL_EDGES: Array = np.array([-3.3, -0.6745, 0.0, 0.6745, 1.2816, 1.6449, 2.0537, 2.3263, 2.5758, 3.3])


def static(s: Server, d: Demand, level: Array) -> Point:
    """A batch is formed, prefilled and decoded until its longest member ends; who comes later waits for the next one.

    A batch is as large as the one before was long, and the longer the larger: its size varies by those who come meanwhile, by
    the longest output, and by the size before it.
    """
    size = np.maximum(level, 1.0)
    length = _batch_s(s, d, size)
    bends = np.clip(np.log(_batch_s(s, d, GROWN * size) / length) / np.log(GROWN), 0.0, 0.95)
    came = (1.0 + np.maximum(2.0 * arrivals.company(size, d.arrival_cv2, d.dealt), -0.9)) / size
    outputs = np.interp(np.log(size), np.log(BATCH_GRID), d.longest_cv2)
    size_cv2 = (came + outputs) / (1.0 - bends**2)
    length_cv2 = outputs + bends**2 * size_cv2
    seen = size * (1.0 + size_cv2)
    step = s.terms.decode_s(seen, s.kv_s)
    number = s.terms.decode_s(seen * (1.0 + np.sqrt(size_cv2)), s.kv_s) - step
    # All grow at once, so that the context of a batch varies like that of one sequence.
    context = s.kv_s * s.terms.busiest(seen) * d.age_std / d.held_mean
    busy = np.minimum(level, 1.0)
    # Who finds no batch is one alone; who finds one finds a long one rather, during which more have come.
    prefill = _batch_prefill_s(s, d, size * (1.0 + busy * length_cv2))
    tokens = burst(s, d)
    zeros = np.zeros_like(step)
    first = prefill[:, None] + _rest_edges_s(length, length_cv2, busy, s.prefill_edges_s.shape[1])
    return unstalled(
        tokens,
        first,
        np.hypot(number, context),
        zeros,
        level=level,
        seen=seen,
        rate=level / length,
        busy=zeros,
        service_mean_s=prefill + busy * length * (1.0 + length_cv2) / 2.0,
        gap_s=step,
        gap_mean_s=per_token(tokens, step),
        const_s=s.request_s,
        rest_s=zeros,
        delayed=zeros,
        wait_s=zeros,
        wait_cv2=zeros + 1.0,
    )


def _batch_prefill_s(s: Server, d: Demand, size: Array) -> Array:
    return s.terms.chunk_s(size * d.uncached_mean) + size * (s.terms.sequence_s + s.attention_mean_s)


def _batch_s(s: Server, d: Demand, size: Array) -> Array:
    """Seconds of a static batch of ``size`` requests, until the longest has ended; the places of all are read until then, and on
    average hold half of its output beside their prompts."""
    longest = np.interp(np.log(size), np.log(BATCH_GRID), d.longest_of_batch)
    context = np.maximum(d.total_nodes @ d.node_weights + longest / 2.0, d.held_mean)
    decoding = np.maximum(longest - 1.0, 0.0) * s.terms.decode_s(size, s.kv_s * context / d.held_mean)
    return _batch_prefill_s(s, d, size) + per_token(burst(s, d), decoding)


def _rest_edges_s(mean_s: Array, cv2: Array, busy: Array, count: int) -> Array:
    """What is left of a batch when a request comes, at the demand's probabilities: (rows, count).

    It finds a batch with chance ``busy``, a long one sooner than a short one: more than t is left with chance
    E[(T - t)+] / E[T], for lognormal T.
    """
    if not count:
        return np.zeros((len(mean_s), 0))
    sigma = np.sqrt(np.log1p(cv2))[:, None]
    edges = np.exp(sigma * NORMAL_EDGES - sigma * sigma / 2.0)
    middle = bins(edges)
    at = np.concatenate((np.zeros_like(sigma), edges), axis=1)
    over = np.maximum(middle[:, None, :] - at[:, :, None], 0.0) @ WIDTHS / (middle @ WIDTHS)[:, None]
    out = np.zeros_like(edges)
    rows = np.arange(len(mean_s))
    for k, probability in enumerate(EDGES):
        target = np.minimum((1.0 - probability + 1e-12) / np.maximum(busy, 1e-12), 1.0)
        right = np.clip(np.sum(over > target[:, None], axis=1), 1, at.shape[1] - 1)
        high, low = over[rows, right - 1], over[rows, right]
        share = np.clip((high - target) / np.maximum(high - low, 1e-12), 0.0, 1.0)
        out[:, k] = at[rows, right - 1] + share * (at[rows, right] - at[rows, right - 1])
    return np.asarray(np.maximum.accumulate(out, axis=1) * mean_s[:, None])
