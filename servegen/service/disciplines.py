"""The engine's way of batching as a steady state, one function per discipline.

Each takes the server, the demand and a *level* (the mean number of decoding sequences; for a prefill-only server the share
of time it is busy) and returns the :class:`Point` at which the replica then stands. The level is the free variable because
the load follows from it without solving anything: rate = level / (gaps * gap) by Little's law (F29, F44).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servegen.service.burst import Burst, burst, per_token, rounds_of
from servegen.service.demand import BATCH_GRID, EDGES, WIDTHS, Demand
from servegen.service.server import Server, batching_gain

Array = NDArray[np.float64]

#: Rounds of rate -> prompts per step -> rate. Each round only raises the rate, so stopping early is on the safe side.
ROUNDS = 4
#: Prompts that a prefill-only server keeps at the most until their KV is handed over.
PREFILL_SLOTS = 64.0


@dataclass(frozen=True)
class Point:
    """A replica at one load; seconds, requests/s; shape (rows,), with a trailing axis for edges or bins.

    First token: ``const`` + wait + service, where the wait is 0 with chance 1 - ``busy`` and else exponential of mean
    ``wait_s``, and service lies between ``service_edges_s``. Gap: ``gap_s`` (spread ``gap_sd_s``), with chance
    ``stall_share`` lengthened by a stall between ``stall_edges_s``, whose bins weigh ``stall_weights``.
    ``gap_mean_s`` counts the stalls. With a ``burst`` that gap is a round's, behind which its other tokens follow at once;
    ``gap_mean_s`` is the mean over all of them.
    """

    level: Array
    rate: Array
    const_s: Array
    const_mean_s: Array
    busy: Array
    wait_s: Array
    service_edges_s: Array
    service_mean_s: Array
    gap_s: Array
    gap_sd_s: Array
    stall_share: Array
    stall_edges_s: Array
    stall_weights: Array
    gap_mean_s: Array
    burst: Burst | None = None


Discipline = Callable[[Server, Demand, Array], Point]


def means_only(s: Server) -> Server:
    """The same server without its edges: every discipline then computes means and rates only, many times faster."""
    none = np.zeros((len(s.chunk), 0))
    return dataclasses.replace(s, prefill_edges_s=none, attention_edges_s=none, first_edges_s=none)


def _even(level: Array) -> Array:
    """Weights of bins that count by their chance alone."""
    return np.broadcast_to(WIDTHS, (len(level), len(WIDTHS)))


def _prompts_per_step(rate: Array, step_s: Array, most: Array) -> Array:
    """Prompts that wait together when a step ends, given that one does: a/(1-exp(-a)) with a = rate*step."""
    arrivals = rate * step_s
    return np.clip(arrivals / -np.expm1(-np.maximum(arrivals, 1e-12)), 1.0, most)


def _most_together(s: Server, d: Demand) -> Array:
    """Prompts that a step can hold: what its tokens allow, or one for each attention group."""
    return np.maximum(np.maximum(s.chunk / d.uncached_mean, 1.0), s.terms.groups)


def _queue_s(service_s: Array, busy: Array, d: Demand, service_cv2: Array, slots: Array | float) -> Array:
    """Mean wait of those who wait, general arrivals and service (Marchal 1976; Pollaczek-Khinchine for Poisson).

    In a closed loop at most the ``slots`` of the replica are before a request.
    """
    varied = busy * busy * service_cv2
    spread = (1.0 + service_cv2) * (d.arrival_cv2 + varied) / (1.0 + varied)
    wait = service_s * spread / (2.0 * np.maximum(1.0 - busy, 1e-9))
    return wait if d.open_loop else np.minimum(wait, slots * service_s)


def _decode_s(s: Server, level: Array) -> Array:
    """Seconds of a decode step. Whoever waits for its token is in the batch: below a mean of one sequence it is of one."""
    return s.terms.decode_s(np.maximum(level, 1.0), s.kv_s)


def _spread(s: Server, level: Array, step_s: Array) -> Array:
    """Standard deviation of a decode step when the number of sequences varies like a Poisson count."""
    return s.terms.decode_s(np.maximum(level, 1.0) + np.sqrt(level), s.kv_s) - step_s


def prefill_first(s: Server, d: Demand, level: Array) -> Point:
    """Waiting prompts are prefilled at once and the decodes stall meanwhile (SGLang without mixed chunks)."""
    step = _decode_s(s, level)
    most = _most_together(s, d)
    service = s.prefill_mean_s
    gain = np.ones_like(service)
    prompts = np.ones_like(service)
    together = burst(s, d)
    steps = rounds_of(together, d)
    for _ in range(ROUNDS):
        rate = level / (steps * step + level * service * gain)
        # Who arrives while other groups prefill does not wait for them.
        window = step if s.terms.plain else np.where(s.terms.groups > 1.0, step + service * gain, step)
        prompts = _prompts_per_step(rate, window, most)
        gain = batching_gain(s, d, prompts)
    rate = level / (steps * step + level * service * gain)
    effective = service * gain
    busy = rate * effective
    # Prompts that arrive during the stall prolong it: a busy period of the queue.
    others = (prompts / np.maximum(1.0 - busy, 1e-9) - 1.0) * effective
    return Point(
        level=level,
        rate=rate,
        const_s=s.request_s + step,
        const_mean_s=s.request_s + step / 2.0 * (1.0 - busy),
        busy=busy,
        wait_s=_queue_s(effective, busy, d, s.prefill_cv2, level),
        service_edges_s=s.first_edges_s,
        service_mean_s=service + s.extra_mean_s,
        gap_s=step,
        gap_sd_s=_spread(s, level, step),
        stall_share=-np.expm1(-rate * step),
        stall_edges_s=s.prefill_edges_s * gain[:, None] + others[:, None],
        stall_weights=_even(level),
        gap_mean_s=per_token(together, step / np.maximum(1.0 - busy, 1e-9)),
        burst=together,
    )


def mixed(s: Server, d: Demand, level: Array) -> Point:
    """Decodes share a step with a prefill chunk under a token budget (F44; vLLM, SGLang with mixed chunks).

    Rows of one stage and one attention group only. No engine drafts in such steps, so rows that draft are read as if they did
    not.
    """
    together = burst(s, d)
    if s.terms.rounds is not None:
        s = dataclasses.replace(s, terms=dataclasses.replace(s.terms, rounds=None))

    def mixed_step(tokens: Array, prompts: Array, attention: Array) -> Array:
        """Seconds of a step that adds ``tokens`` prefill tokens; trailing axes broadcast."""
        tail = (slice(None),) + (None,) * (tokens.ndim - 1)
        decoding = np.maximum(running, 1.0)
        base = (s.terms.launch_s + s.terms.latency_s + (s.terms.sequence_s + s.kv_s) * decoding)[tail]
        batch = decoding[tail] + tokens
        return base + s.terms.sequence_s[tail] * prompts + s.terms.gemm_s(batch) + s.terms.token_wire_s[tail] * batch + attention

    rate, running = np.zeros_like(level), level
    for _ in range(ROUNDS):
        step = _decode_s(s, running)
        room = np.maximum(s.chunk - running, 1.0)
        prompts = _prompts_per_step(rate, step, np.maximum(room / d.uncached_mean, 1.0))
        steps = np.maximum(d.uncached_mean / room, 1.0 / prompts)
        # Once every step carries a chunk, prompts set the pace: no more sequences can be decoding than they feed.
        running = np.minimum(level, d.gaps / steps)
        step = _decode_s(s, running)
        longer = mixed_step(d.uncached_mean / steps, 1.0 / steps, s.attention_mean_s / steps)
        rate = 1.0 / (steps * (longer - step) + d.gaps * step / np.maximum(running, 1e-12))
    share = np.minimum(steps * running / d.gaps, 1.0)
    busy = np.minimum(rate * steps * longer, 1.0)
    prompt = d.uncached_edges[None, : s.prefill_edges_s.shape[1]]
    edge_steps = np.maximum(prompt / room[:, None], 1.0)
    edge_step = mixed_step(prompt / edge_steps, 1.0 / edge_steps, s.attention_edges_s / edge_steps)
    # A long prompt lengthens more steps than a short one.
    weights = WIDTHS[: max(prompt.shape[1] - 1, 0)] * (edge_steps[:, 1:] + edge_steps[:, :-1])
    return Point(
        level=running,
        rate=rate,
        const_s=s.request_s + step,
        const_mean_s=s.request_s + step / 2.0,
        busy=busy,
        wait_s=_queue_s(steps * longer, busy, d, s.prefill_cv2, running),
        service_edges_s=edge_steps * edge_step,
        service_mean_s=np.maximum(d.uncached_mean / room, 1.0) * longer,
        gap_s=step,
        gap_sd_s=_spread(s, running, step),
        stall_share=share,
        stall_edges_s=np.maximum.accumulate(np.maximum(edge_step - step[:, None], 0.0), axis=1),
        stall_weights=weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300),
        gap_mean_s=share * longer + (1.0 - share) * step,
        burst=together,
    )


def static(s: Server, d: Demand, level: Array) -> Point:
    """A batch is formed, prefilled and decoded until its longest member ends; who comes later waits for the next one."""
    step = _decode_s(s, level)
    size = np.maximum(level, 1.0)
    longest = np.interp(np.log(size), np.log(BATCH_GRID), d.longest_of_batch)
    prefill = s.terms.chunk_s(size * d.uncached_mean) + size * (s.terms.sequence_s + s.attention_mean_s)
    together = burst(s, d)
    batch = prefill + per_token(together, np.maximum(longest - 1.0, 0.0) * step)
    zeros = np.zeros_like(step)
    # Who finds a batch running (chance ``busy``) waits for the rest of it, which is uniform over its length.
    busy = np.minimum(level, 1.0)[:, None]
    rest = np.clip((EDGES[: s.prefill_edges_s.shape[1]] - (1.0 - busy)) / np.maximum(busy, 1e-12), 0.0, 1.0)
    return Point(
        level=level,
        rate=level / batch,
        const_s=s.request_s,
        const_mean_s=s.request_s,
        busy=zeros,
        wait_s=zeros,
        service_edges_s=prefill[:, None] + rest * batch[:, None],
        service_mean_s=prefill + busy[:, 0] * batch / 2.0,
        gap_s=step,
        gap_sd_s=zeros,
        stall_share=zeros,
        stall_edges_s=np.zeros_like(s.prefill_edges_s),
        stall_weights=_even(level),
        gap_mean_s=per_token(together, step),
        burst=together,
    )


def prefill_only(s: Server, d: Demand, level: Array) -> Point:
    """A server that only prefills and hands the KV on; the level is the share of time that it is busy."""
    most = _most_together(s, d)
    gain = np.ones_like(level)
    for _ in range(ROUNDS):
        rate = level / (s.prefill_mean_s * gain)
        gain = batching_gain(s, d, np.clip(rate * s.prefill_mean_s, 1.0, most))
    effective = s.prefill_mean_s * gain
    zeros = np.zeros_like(level)
    service = s.first_edges_s
    return Point(
        level=level,
        rate=level / effective,
        const_s=s.request_s,
        const_mean_s=s.request_s,
        busy=level,
        wait_s=_queue_s(effective, level, d, s.prefill_cv2, PREFILL_SLOTS),
        service_edges_s=service,
        service_mean_s=s.prefill_mean_s + s.extra_mean_s,
        gap_s=zeros,
        gap_sd_s=zeros,
        stall_share=zeros,
        stall_edges_s=np.zeros_like(service),
        stall_weights=_even(level),
        gap_mean_s=zeros,
    )


def decode_only(s: Server, d: Demand, level: Array) -> Point:
    """A server that takes over prefilled requests: no prefill ever lengthens a step."""
    step = _decode_s(s, level)
    zeros = np.zeros_like(level)
    together = burst(s, d)
    return Point(
        level=level,
        rate=level / (rounds_of(together, d) * step),
        const_s=zeros,
        const_mean_s=zeros,
        busy=zeros,
        wait_s=zeros,
        service_edges_s=np.zeros_like(s.prefill_edges_s),
        service_mean_s=zeros,
        gap_s=step,
        gap_sd_s=_spread(s, level, step),
        stall_share=zeros,
        stall_edges_s=np.zeros_like(s.prefill_edges_s),
        stall_weights=_even(level),
        gap_mean_s=per_token(together, step),
        burst=together,
    )


#: By name; ``prefill-first``, ``mixed`` and ``static`` are an engine's schedulers, the other two the roles of a split.
DISCIPLINES: Mapping[str, Discipline] = {
    "prefill-first": prefill_first,
    "mixed": mixed,
    "static": static,
    "prefill": prefill_only,
    "decode": decode_only,
}
