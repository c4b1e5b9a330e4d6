"""What one replica takes to serve the demand: columns with one row per configuration and chunk."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.roofline.step import StepTerms
from servegen.service import arrivals
from servegen.service.demand import WIDTHS, Demand

Array = NDArray[np.float64]


@record
class Server:
    """Seconds and tokens, shape (rows,) or (rows, edges).

    ``prefill_edges_s`` is the prefill of a prompt alone at each edge of the demand, ``prefill_low_s``, ``prefill_high_s`` and
    ``prefill_weights`` are ends and weights of its bins, which know where a step more begins. ``prefill_mean_s``,
    ``prefill_cv2`` and ``prefill_third`` its mean, squared coefficient of variation and E[x^3]/E[x]^3, ``attention_*`` the part
    of it that is attention; ``attention_moments`` are E[xa], E[aa], E[xxa], E[xaa] and E[aaa] of its seconds a and the tokens x
    of a prompt, (rows, 5), ``attention_token_s`` is that of one token at each of the demand's places. ``alone_s`` is the mean
    prompt's own step, which :func:`batching_gain` compares with. All of these are of one pipeline stage.
    ``request_s`` is what the engine adds to every first token, ``extra_mean_s`` what the way there adds on average (hand-off,
    the stages that follow the first); ``first_edges_s`` is the prefill with that. ``left_s`` is what others
    can fill of a prompt's last step. Of ``rates_only`` the rate is asked and nothing else.
    """

    terms: StepTerms
    chunk: Array
    kv_s: Array
    prefill_edges_s: Array
    prefill_low_s: Array
    prefill_high_s: Array
    prefill_weights: Array
    prefill_mean_s: Array
    prefill_cv2: Array
    prefill_third: Array
    attention_edges_s: Array
    attention_nodes_s: Array
    attention_mean_s: Array
    attention_moments: Array
    attention_token_s: Array
    request_s: Array
    first_edges_s: Array
    extra_mean_s: Array
    alone_s: Array
    left_s: Array
    rates_only: bool = False


def server(terms: StepTerms, chunk: Array, request_s: float, d: Demand, extra_edges_s: Array | None = None) -> Server:
    """Columns for ``terms`` (rows) with a prefill step of ``chunk`` (rows) tokens."""
    fine = terms.prefill_s(d.uncached_fine, d.total_fine, chunk)
    mean = fine @ d.fine_weights
    square = (fine * fine) @ d.fine_weights
    edges = terms.prefill_s(d.uncached_edges, d.total_edges, chunk)
    extra = np.zeros_like(edges) if extra_edges_s is None else extra_edges_s
    if not terms.plain:
        extra = extra + _later_stages_s(terms, chunk, d)
    # A prompt that fills one more chunk can look cheaper than a shorter one by a rounding error only.
    rising = np.maximum.accumulate(edges, axis=1)
    low, high, weights = _stepwise(terms, chunk, rising, d)
    attention = terms.attention_s(d.total_fine, d.total_fine - d.uncached_fine)
    attention_mean = attention @ d.fine_weights
    whole = chunk / d.uncached_mean
    left = np.mod(-d.uncached_nodes[None, :] / chunk[:, None], 1.0) @ d.node_weights
    return Server(
        terms=terms,
        chunk=chunk,
        kv_s=terms.kv_s(d.held_mean),
        prefill_edges_s=rising,
        prefill_low_s=low,
        prefill_high_s=high,
        prefill_weights=weights,
        prefill_mean_s=mean,
        prefill_cv2=np.maximum(square / (mean * mean) - 1.0, 0.0),
        prefill_third=(fine * fine * fine) @ d.fine_weights / mean**3,
        attention_edges_s=terms.attention_s(d.total_edges, d.total_edges - d.uncached_edges),
        attention_nodes_s=d.nodes_of(attention),
        attention_mean_s=attention_mean,
        attention_moments=_with_tokens(attention, d),
        attention_token_s=terms.attention_s(d.places + 1.0, d.places),
        request_s=np.full(chunk.shape, request_s),
        first_edges_s=rising + extra,
        extra_mean_s=(extra[:, 1:] + extra[:, :-1]) @ WIDTHS / 2.0,
        alone_s=_together(terms, chunk, attention_mean, d, np.ones_like(chunk)),
        left_s=(terms.chunk_s(chunk / terms.groups) + whole * (terms.sequence_s + attention_mean) / terms.groups) * left,
    )


def _stepwise(terms: StepTerms, chunk: Array, edges_s: Array, d: Demand) -> tuple[Array, Array, Array]:
    """Ends and weights of bins of the times ``edges_s`` of a prompt alone, (rows, bins): lengths are even between two edges, but
    each more step begins at once. So an edge is moved up to the end of its step, where that is not beyond the next one; and a bin
    in which steps begin keeps the end that more of them are close to, and their mean.
    """
    x, each = d.uncached_edges, chunk / terms.groups  # of a step for one prompt
    size = each[:, None]
    begun = np.ceil(x / size)
    last = x - (begun - 1.0) * size
    moved = np.pad((begun * size)[:, 1:-1] <= x[2:], ((0, 0), (1, 1)))
    at = np.where(moved, begun, x / size)
    ends = edges_s + np.where(moved, terms.chunk_s(each)[:, None] - terms.chunk_s(last), 0.0)
    step = terms.chunk_s(np.ones_like(chunk))[:, None]
    low, high = ends[:, :-1] + np.where(moved[:, :-1], step, 0.0), ends[:, 1:]
    wide = np.diff(at, axis=1)
    steps = np.diff(at * at / 2.0 + steps_left(at), axis=1) / np.maximum(wide, 1e-9)
    shift = 2.0 * step * np.where(wide > 1e-9, steps - (begun[:, 1:] + begun[:, :-1] + moved[:, :-1]) / 2.0, 0.0)
    low = np.minimum(low, high)
    later = (at[:, :-1] * size - x[:-1]) / np.maximum(np.diff(x), 1e-3) * WIDTHS
    weights = WIDTHS + np.pad(later[:, 1:], ((0, 0), (0, 1))) - later
    return np.clip(low + np.maximum(shift, 0.0), low, high), np.clip(high + np.minimum(shift, 0.0), low, high), weights


def steps_left(steps: Array) -> Array:
    """Integral of ceil(x) - x up to ``steps``."""
    whole = np.floor(steps)
    part = steps - whole
    return np.asarray(whole / 2.0 + part - part * part / 2.0)


def _with_tokens(attention: Array, d: Demand) -> Array:
    """Moments of the ``attention`` of prompts, (rows, fine), with their tokens: (rows, 5), see :class:`Server`."""
    x, w, square = d.uncached_fine, d.fine_weights, attention * attention
    moments = attention @ (x * w), square @ w, attention @ (x * x * w), square @ (x * w), square * attention @ w
    return np.stack(moments, axis=1)


def _later_stages_s(terms: StepTerms, chunk: Array, d: Demand) -> Array:
    """Seconds from the end of a prompt on the first stage to its end on the last one, at each edge: (rows, edges).

    A full chunk of it is under way on each of the stages that follow.
    """
    last = np.minimum((chunk / terms.groups)[:, None], d.uncached_edges[None, :])
    attention = terms.attention_s(d.total_edges, d.total_edges - d.uncached_edges) * last / d.uncached_edges[None, :]
    return (terms.stages - 1.0)[:, None] * np.maximum.accumulate(terms.chunk_s(last) + attention, axis=1)


def batching_gain(s: Server, d: Demand, prompts: Array) -> Array:
    """How much cheaper a prompt gets when ``prompts`` are prefilled together on average: (S + (k - 1)*e) / (k S), at most 1.

    S is the mean over all lengths. Prompts come in whole numbers, and one more costs nothing until a step is full: so each of the
    others takes e = (E(k + 1) - E(1)) / k, where E(k) is the time of k mean prompts. Short prompts share the step's launch and
    the streaming of the weights; long ones gain nothing.
    """
    each = (_together(s.terms, s.chunk, s.attention_mean_s, d, prompts + 1.0) - s.alone_s) / prompts
    return np.minimum((s.prefill_mean_s + (prompts - 1.0) * each) / (prompts * s.prefill_mean_s), 1.0)


def added_s(s: Server, d: Demand, prompts: Array, each_s: Array, more: Array) -> Array:
    """Seconds that each of ``more`` prompts adds to a step that ``prompts`` share, who take ``each_s`` each."""
    then = _together(s.terms, s.chunk, s.attention_mean_s, d, prompts + more) - s.alone_s
    return np.asarray((s.prefill_mean_s + then - prompts * each_s) / more)


def _together(terms: StepTerms, chunk: Array, attention_mean_s: Array, d: Demand, prompts: Array) -> Array:
    """Seconds to prefill ``prompts`` mean prompts in shared steps."""
    tokens, least = prompts * d.uncached_mean, np.ones_like(chunk)
    if not arrivals.poisson(d.arrival_cv2):
        least = 1.0 + arrivals.overflow(prompts, d.uncached_mean / chunk, d.arrival_cv2) * (terms.groups == 1.0)
    if terms.plain:
        chunks = np.maximum(tokens / chunk, least)
        return chunks * terms.chunk_s(tokens / chunks) + prompts * (terms.sequence_s + attention_mean_s)
    # Each prompt has the step of its group, and its attention runs beside that of the other groups.
    busy = np.minimum(prompts, terms.groups)
    chunks = np.maximum(tokens * terms.groups / (busy * chunk), least)
    each = prompts / busy * (terms.sequence_s + attention_mean_s)
    return np.asarray(chunks * terms.chunk_s(tokens / chunks, prompts) + each)
