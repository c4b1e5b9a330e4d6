"""Decodes that share their steps with prefill chunks (vLLM, SGLang with mixed chunks)."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from servegen.service import arrivals, queueing, turns, waiting
from servegen.service.burst import burst
from servegen.service.demand import EDGES, Demand
from servegen.service.point import Point, of_rate, without_edges
from servegen.service.server import Server
from servegen.service.waiting import Work

Array = NDArray[np.float64]

#: Rounds of rate -> prompts per step -> rate: with four it is within 2 % of where it settles.
ROUNDS = 4
#: Shares of a mixed step's room that its prompt tokens take; the last bin is a full step.
GRID: Array = np.minimum(np.arange(len(EDGES)) / (len(EDGES) - 2.0), 1.0) ** 2
#: Half the width of a uniform distribution, in its standard deviations.
SQRT3 = 3.0**0.5
#: Below and above a mean, (sides, 1).
SIDES: Array = np.array([[-1.0], [1.0]])


def _uneven(s: Server, d: Demand, seen: Array, steps: Array, split: Array) -> Array:
    """Seconds by which a step takes longer since prompts differ: matrices cost max(streaming, multiplying), and the device waits
    for its host where a prompt is short."""
    tokens = d.uncached_nodes[None, :] / split
    mean = tokens @ d.node_weights
    more = np.maximum(d.uncached_mean / steps - mean, 0.0)
    matrices = s.terms.gemm_s((seen + more)[:, None] + tokens)
    matrices_mean = s.terms.gemm_s(seen + more + mean)
    longer = np.maximum(matrices @ d.node_weights - matrices_mean, 0.0)
    # A step's other costs grow with its tokens; those of all its sequences are there in any case.
    token_s = s.terms.token_wire_s + (s.terms.sequence_s + s.attention_mean_s) / d.uncached_mean
    fixed = s.terms.fixed_s + (s.terms.sequence_s + s.kv_s + s.terms.token_wire_s) * seen + token_s * more
    spare = s.terms.prompt_s - fixed
    idle = np.maximum(spare[:, None] - matrices - token_s[:, None] * tokens, 0.0) @ d.node_weights
    on_average = np.maximum(spare - matrices_mean - longer - token_s * mean, 0.0)
    return np.asarray(longer + np.maximum(idle - on_average, 0.0))


def _modulated(
    s: Server, d: Demand, w: Work, rate: Array, number: Array, room: Array, level: Array, alone: Array
) -> tuple[Array, Array]:
    """Chance and mean of a wait for mixed steps, whose pace varies slowly with the sequences running, by ``number`` (one
    standard deviation): the mean of both sides of it, with the tail of the side where many run."""
    each = s.terms.sequence_s + s.kv_s + s.terms.token_wire_s
    left = np.maximum(room - SIDES * number, 1.0)
    work = w.each_s * (room / left) + d.uncached_mean / left * each * SIDES * number
    then = dataclasses.replace(w, each_s=work, more_s=w.more_s / w.each_s * work)
    delayed, wait = waiting.wait(then, np.minimum(np.maximum(rate * work, 1e-9), 1.0 - 1e-6), alone, d, level)
    few, many = delayed * wait / 2.0
    return np.minimum((few + many) / np.maximum(wait[1], 1e-12), delayed[1]), wait[1]


def mixed(s: Server, d: Demand, level: Array) -> Point:
    """Decodes share a step with a prefill chunk under a token budget (F44; vLLM, SGLang with mixed chunks).

    Rows of one stage and one attention group only. No engine drafts in such steps, so rows that draft are read as if they did
    not.
    """
    tokens_together = burst(s, d)
    if s.terms.rounds is not None:
        s = dataclasses.replace(s, terms=dataclasses.replace(s.terms, rounds=None))
    each_s, sequence_s, wire_s, least_s = s.terms.sequence_s + s.kv_s, s.terms.sequence_s, s.terms.token_wire_s, s.terms.prompt_s

    def decoding_s(decoding: Array) -> Array:
        """Seconds of a step that ``decoding`` sequences take besides their matrices."""
        return s.terms.fixed_s + each_s * decoding

    def mixed_step(base: Array, decoding: Array, tokens: Array, prompts: Array, attention: Array) -> Array:
        """Seconds of a step of ``decoding`` sequences, which take ``base`` already, that adds ``tokens`` of prompts. Of several
        steps the last three are (rows, steps)."""
        own = base, decoding, sequence_s, wire_s, least_s
        base, batch, each, wire, least = own if tokens.ndim == 1 else (column[:, None] for column in own)
        batch = batch + tokens
        return np.maximum(base + each * prompts + s.terms.gemm_s(batch) + wire * batch + attention, least)

    zero = np.zeros_like(level)
    rate, busy, share, longer, followed = zero, zero, zero, zero, zero
    # Those that decode leave prompts the less room the more they are: of so many as many end as prompts then can begin.
    beside = queueing.beside(d, level, queueing.company(d, level))
    fed = d.gaps * np.maximum(s.chunk - beside, 1.0) / (d.gaps + d.uncached_mean)
    running = np.minimum(level, fed)
    of_burst = queueing.company(d, running)
    beside, found = queueing.beside(d, running, of_burst), queueing.found(d, running, of_burst, d.gaps)
    for turn in range(ROUNDS):
        seen = np.maximum(running + beside + queueing.begun(s, d, busy), 1.0)
        step = s.terms.decode_s(seen, s.kv_s)
        room = np.maximum(s.chunk - seen, 1.0)
        window = step + share * np.maximum(longer - step, 0.0)
        whole = d.uncached_mean / room
        arrived = queueing.together(rate * window, d)
        prompts = np.minimum(arrived, np.maximum(1.0 / whole, 1.0))
        # Alone, a prompt ends somewhere inside its last step.
        parts = d.uncached_nodes / room[:, None] + 0.5
        split = np.maximum(parts, 1.0)
        # Those of one step end in the same last step; what that has left goes to those who waited behind them when it began.
        ended = np.maximum(parts + ((prompts - 1.0) * whole)[:, None], 1.0) @ d.node_weights / prompts
        least = np.maximum(whole, 1.0 / prompts)
        # Once every step carries prompts, as many share it as come.
        steps = np.maximum(np.minimum((1.0 - followed) * ended + followed * least, d.gaps / np.maximum(found, 1e-12)), whole)
        base = decoding_s(seen)
        longer = mixed_step(base, seen, d.uncached_mean / steps, 1.0 / steps, s.attention_mean_s / steps)
        if turn in (0, ROUNDS - 1):  # it changes little in between, and is the costliest of a round
            uneven = _uneven(s, d, seen, steps, split)
        longer = longer + uneven
        share = np.minimum(steps * found / d.gaps, 1.0)
        rate = running / (d.gaps * (step + share * (longer - step)))
        work = least * (mixed_step(base, seen, d.uncached_mean / least, 1.0 / least, s.attention_mean_s / least) + uneven)
        # Requests of a closed loop come by steps, and so the slower while prompts are computed.
        inside = found / d.gaps if d.turns else rate * longer
        busy = np.minimum(inside * least if d.turns else rate * work, 1.0)
        # Of a queue nobody is left behind with the chance that it is idle; before the last step there were fewer by those who
        # came while it ran.
        idle = 1.0 - np.minimum(steps * inside, 1.0)
        followed = 1.0 - np.minimum(idle * np.exp(np.minimum(inside, 60.0)), 1.0)
    if s.rates_only:
        return of_rate(running, rate)
    gap_mean_s = share * longer + (1.0 - share) * step
    means = {"level": running, "seen": seen, "rate": rate, "busy": busy, "gap_s": step, "gap_mean_s": gap_mean_s}
    lone, base_found = split @ d.node_weights, decoding_s(found)
    alone_s = mixed_step(base_found, found, d.uncached_mean / lone, 1.0 / lone, s.attention_mean_s / lone)
    means["service_mean_s"] = lone * (alone_s + uneven)
    full = mixed_step(base, seen, room, np.maximum(1.0 / whole, 1.0), s.attention_mean_s / whole)
    # Where steps are full, work goes by tokens; where they hold whole prompts, by prompts.
    packed = np.minimum(whole, 1.0)
    cv2 = packed * d.uncached_cv2 + (1.0 - packed) * s.prefill_cv2
    third = packed * d.uncached_third + (1.0 - packed) * s.prefill_third
    number = queueing.number_std(s, d, running, beside, step)
    # One more prompt fills what room a step has left; where there is none it takes steps of its own.
    together, crowd = np.maximum(1.0 / least, 1.0), waiting.crowd(rate * window, d)
    filled = np.maximum((together + crowd) * whole, 1.0)
    prompts = (together + crowd) / filled
    then = filled * mixed_step(base, seen, prompts * d.uncached_mean, prompts, prompts * s.attention_mean_s)
    more = np.where(whole < 1.0, np.minimum((then + uneven - together * work) / crowd, work), work)
    w = Work(work, more, together, cv2, third, (full - step) * np.maximum(1.0 - whole, 0.5))
    if d.turns:  # the more decode the fewer wait
        means |= turns.queued(w, d, running, rate, busy, (step, longer, share), waiting.alone(rate * step, d))
        means["const_s"] = means["const_s"] + s.request_s
    else:
        waits = _modulated(s, d, w, rate, number, room, running, waiting.alone(rate * step, d))
        means |= waiting.first_token(w, d, rate, busy, step, s.request_s, waits)
    if not s.prefill_edges_s.shape[1]:
        return without_edges(tokens_together, **means)
    varied = queueing.spread(s, d, seen, number, step)
    spread = varied["gap_sd_s"]
    # Tokens of a step, from none to all of its room: a prompt that fits it whole, the rest of one that does not, or full.
    prompt = np.minimum(room, d.uncached_edges[-2])[:, None] * GRID
    part = np.diff(np.interp(prompt, d.uncached_edges, EDGES), axis=1)
    part += (1.0 - np.interp(room, d.uncached_edges, EDGES))[:, None] * np.diff(prompt, axis=1) / room[:, None]
    weights = (1.0 - followed)[:, None] * part
    weights[:, -1] = np.maximum(lone - 1.0 + followed * np.minimum(whole - lone + 1.0, 1.0), 0.0)
    prompts_in = prompt / d.uncached_mean
    stalls = mixed_step(base, seen, prompt, prompts_in, s.attention_mean_s[:, None] * prompts_in) - step[:, None]
    most = np.maximum(full - step, 0.0) + SQRT3 * spread
    stalls[:, -2] = np.minimum(stalls[:, -2], full - step - SQRT3 * spread)
    stalls[:, -1] = most
    stalls = np.maximum.accumulate(np.maximum(stalls, 0.0), axis=1)
    # What the budget still holds: prompts that came in the same step.
    joined = np.broadcast_to(1.0 - arrivals.none_after_one(rate * window / 2.0, d.arrival_cv2)[:, None], part.shape)
    marginal = s.terms.sequence_s + (s.terms.token_flop_s + s.terms.token_wire_s) * d.uncached_mean + s.attention_mean_s
    marginal = np.minimum(marginal, more)
    beyond = np.broadcast_to(arrived[:, None] - 1.0, part.shape)
    edge_steps = np.maximum(d.uncached_edges / room[:, None] + 0.5, 1.0)
    edges = d.uncached_edges / edge_steps
    edge_step = mixed_step(base_found, found, edges, 1.0 / edge_steps, s.attention_edges_s / edge_steps)
    return Point(
        **means,
        service_edges_s=np.maximum.accumulate(edge_steps * edge_step, axis=1),
        **varied,
        stall_share=share,
        stall_edges_s=stalls,
        stall_weights=weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300),
        joined=joined,
        **queueing.others(beyond, joined, np.ones_like(room), s, d, marginal, marginal),
        stall_most_s=most,
        burst=tokens_together,
    )
