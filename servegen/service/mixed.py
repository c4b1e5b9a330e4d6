"""Decodes that share their steps with prefill chunks (vLLM, SGLang with mixed chunks)."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from servegen.service import arrivals, fill, queueing, turns, waiting
from servegen.service.burst import burst
from servegen.service.demand import PLACES, Demand
from servegen.service.point import Point, of_rate, without_edges
from servegen.service.server import Server
from servegen.service.waiting import Work

Array = NDArray[np.float64]

#: Rounds of rate -> prompts per step -> rate: with four it is within 3 % of where it settles.
ROUNDS = 4
#: Half the width of a uniform distribution, in its standard deviations.
SQRT3 = 3.0**0.5
#: Shares of full steps between two places.
OF_FULL: Array = np.diff(np.append(PLACES[:-1], 1.0))
#: Below and above a mean, (sides, 1).
SIDES: Array = np.array([[-1.0], [1.0]])


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


def _moments(s: Server, d: Demand, whole: Array, work: Array) -> tuple[Array, Array]:
    """Squared coefficient of variation, and E[x^3]/E[x]^3, of the ``work`` of a prompt. Where steps are full it goes by tokens,
    and by what attention adds for long prompts; where they hold whole prompts, by prompts."""
    packed, each = np.minimum(whole, 1.0), np.maximum(work - s.attention_mean_s, 0.0) / d.uncached_mean
    x2, x3 = d.uncached_mean**2 * (1.0 + d.uncached_cv2), d.uncached_mean**3 * d.uncached_third
    xa, aa, xxa, xaa, aaa = s.attention_moments.T
    square = each * (each * x2 + 2.0 * xa) + aa
    cube = each * (each * (each * x3 + 3.0 * xxa) + 3.0 * xaa) + aaa
    cv2, third = np.maximum(square / work**2 - 1.0, 0.0), cube / work**3
    return packed * cv2 + (1.0 - packed) * s.prefill_cv2, packed * third + (1.0 - packed) * s.prefill_third


def _by_token(rate: Array, work: Array, cv2: Array, rest: Array) -> Array:
    """Mean wait, at the least: for what is left of a step, of mean ``rest`` / 2, and for the tokens before it, which take their
    ``work`` where several prompts share full steps (Pollaczek-Khinchine)."""
    busy = np.minimum(rate * work, 1.0 - 1e-6)
    return np.asarray(rest / 2.0 + busy * work * (1.0 + cv2) / (2.0 * (1.0 - busy)))


def _seen_by_gaps(single: Array, others: Array, outside: Array) -> Array:
    """Weights of bins of steps as gaps see them, (rows, bins), by the shares of steps with a prompt alone (``single``) and with
    others, and by what those that an outsider sees are of all that run beside prompts. A prompt alone finds as many, so that
    all beyond these run beside others, at the most twice as many.
    """
    alone = single.sum(axis=1)
    many = np.minimum((1.0 - alone * np.minimum(outside, 1.0)) / np.maximum(1.0 - alone, 1e-9), 2.0)
    few = (1.0 - many * (1.0 - alone)) / np.maximum(alone, 1e-9)
    weights = few[:, None] * single + many[:, None] * others
    weights = np.concatenate((weights[:, :-1], weights[:, -1:] * OF_FULL), axis=1)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


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

    def holding(base: Array, decoding: Array, tokens: Array) -> Array:
        """The same of as many prompts as make so many ``tokens``, (rows,) or (rows, steps)."""
        prompts = tokens / d.uncached_mean
        attention = s.attention_mean_s if tokens.ndim == 1 else s.attention_mean_s[:, None]
        return mixed_step(base, decoding, tokens, prompts, attention * prompts)

    zero = np.zeros_like(level)
    rate, busy, share, longer, followed, uneven, mixing, unjoined = zero, zero, zero, zero, zero, zero, zero, zero
    # Those that decode leave prompts the less room the more they are: of so many as many end as prompts then can begin.
    fed = d.gaps * s.chunk / (d.gaps + d.uncached_mean)
    fed = d.gaps * np.maximum(s.chunk - queueing.beside(d, fed), 1.0) / (d.gaps + d.uncached_mean)
    running = np.minimum(level, fed)
    of_burst = queueing.company(d, running)
    beside, same = queueing.beside(d, running), queueing.of_one_step(d, running, of_burst)
    bursty = np.maximum(d.arrival_cv2, 1.0)  # near saturation what is steadier than chance queues as chance does
    for turn in range(ROUNDS):
        seen = np.maximum(running + beside + queueing.begun(s, d, busy), 1.0)
        step, base = s.terms.decode_s(seen, s.kv_s), decoding_s(seen)
        room = np.maximum(s.chunk - seen, 1.0)
        whole = d.uncached_mean / room
        came = (running / d.gaps,) * 2 if d.turns else (rate * step, rate * np.maximum(longer, step))
        begin = fill.gathered(*came, d) if turn else np.ones_like(level)
        parts = d.uncached_nodes / room[:, None]
        if turn in (0, ROUNDS - 2):
            rounded = fill.empty(d, seen, room)
        alone = np.maximum(parts + rounded, 1.0)
        lone = alone @ d.node_weights
        # Those of one step end in the same last step; what that has left goes to those who waited behind them when it began.
        group = np.maximum(parts + (begin * whole + 0.5)[:, None], 1.0) @ d.node_weights
        ended = (lone / begin + (1.0 - 1.0 / begin) * group) / begin
        least = np.maximum(whole, 1.0 / begin)
        found = queueing.passed(d, running, of_burst, same, 1.0 / whole, mixing, share)
        # As many run on average as run beside prompts, in the share of time that these take, and some more.
        found = np.minimum(found, running / np.maximum(mixing, 1e-3))
        # Once every step carries prompts, as many share it as come.
        steps = (1.0 - followed) * ended + followed * least
        if turn:
            rest = fill.sharing(whole, steps, begin, lone, followed).full(lone) * unjoined
            several = fill.steps_of_whole(whole, begin, rest, d)
            steps = steps + np.clip(2.0 * (1.0 - whole), 0.0, 1.0) * (several - steps)
        steps = np.maximum(np.minimum(steps, d.gaps / np.maximum(found, 1e-12)), whole)
        if turn == ROUNDS - 2:  # it changes little in between, and is the costliest of a round
            shared = fill.sharing(whole, steps, begin, lone, followed)
            tokens, single, others = fill.fills(d, room, lone, followed, shared)
            weights = single + others
            middle = (tokens[:, 1:] + tokens[:, :-1]) / 2.0
            uneven = np.sum(weights * holding(base, seen, middle), axis=1) - holding(base, seen, np.sum(weights * middle, axis=1))
            uneven = np.maximum(uneven, 0.0)
        longer = holding(base, seen, d.uncached_mean / steps) + uneven
        share = np.minimum(steps * found / d.gaps, 1.0)
        rate = running / (d.gaps * (step + share * (longer - step)))
        work = least * (holding(base, seen, d.uncached_mean / least) + uneven * (whole < 1.0))
        # Requests of a closed loop come by steps, and so the slower while prompts are computed.
        inside = found / d.gaps if d.turns else rate * longer
        busy = np.minimum(inside * least if d.turns else rate * work, 1.0)
        if turn == ROUNDS - 1:  # what follows is for the next
            break
        # Who leaves leaves nobody behind as often as who comes finds nobody; before the last step there were fewer by those who
        # came while it ran.
        mixing = np.minimum(steps * inside, 1.0)
        waits = arrivals.waits(mixing, bursty, d.uncached_cv2, d.dealt)
        alone_behind = 1.0 - arrivals.of_alike(waits, bursty, d.uncached_cv2)
        full = step + (longer - step) * steps / whole
        # Who comes in a full step shares the next one with what is left of that.
        nobody, unjoined = arrivals.none_after_one(np.stack((inside, full / longer * inside)), bursty, d.dealt)
        followed = 1.0 - np.minimum(alone_behind / np.maximum(nobody, 1e-12), 1.0)
    if s.rates_only:
        return of_rate(running, rate)
    gap_mean_s = share * longer + (1.0 - share) * step
    cv2, third = _moments(s, d, whole, work)
    means = {"level": running, "seen": seen, "rate": rate, "busy": busy, "gap_s": step, "gap_mean_s": gap_mean_s}
    base_found = decoding_s(found)

    def computed_s(prompt: Array, number: Array, attention: Array) -> Array:
        """Seconds of prompts alone, in a ``number`` of steps of which all are full but the last one. (rows, prompts)."""
        full = np.broadcast_to(room[:, None], number.shape)
        last = np.maximum(prompt - (number - 1.0) * full, 1.0)
        each = attention / prompt
        before = mixed_step(base_found, found, full, np.zeros_like(number), each * full)
        return (number - 1.0) * before + mixed_step(base_found, found, last, np.ones_like(number), each * last)

    means["service_mean_s"] = computed_s(d.uncached_nodes, alone, s.attention_nodes_s) @ d.node_weights
    full = mixed_step(base, seen, room, np.maximum(1.0 / whole, 1.0), s.attention_mean_s / whole)
    number = queueing.number_std(s, d, running, beside, step)
    # One more prompt fills what room a step has left; where there is none it takes steps of its own.
    window = step + share * np.maximum(longer - step, 0.0)
    together, crowd = np.maximum(1.0 / least, 1.0), waiting.crowd(rate * window, d)
    filled = np.maximum((together + crowd) * whole, 1.0)
    then = filled * holding(base, seen, (together + crowd) / filled * d.uncached_mean)
    more = np.where(whole < 1.0, np.minimum((then + uneven - together * work) / crowd, work), work)
    w = Work(work, more, together, cv2, third, (full - step) * np.maximum(1.0 - whole, 0.5))
    if d.turns:  # the more decode the fewer wait
        means |= turns.queued(w, d, running, level - running, rate, busy, (step, longer, share), waiting.alone(rate * step, d))
        means["const_s"] = means["const_s"] + s.request_s
    else:
        delayed, wait = _modulated(s, d, w, rate, number, room, running, waiting.alone(rate * step, d))
        if d.open_loop:
            least_wait = _by_token(rate, whole * full, cv2, busy * longer * (1.0 - 1.0 / together))
            wait = np.maximum(wait, least_wait / np.maximum(delayed, 1e-12))
        means |= waiting.first_token(w, d, rate, busy, step, s.request_s, (delayed, wait))
    if not s.prefill_edges_s.shape[1]:
        return without_edges(tokens_together, **means)
    varied = queueing.spread(s, d, seen, queueing.seen_std(s, d, running, seen, step), step)
    spread = SQRT3 * varied["gap_sd_s"]
    # Full steps differ by how far their prompts have come, on which attention depends.
    attending = (full - s.attention_mean_s / whole)[:, None] + room[:, None] * s.attention_token_s
    fuller = np.maximum(attending, s.terms.prompt_s[:, None]) - step[:, None]
    stalls = np.concatenate((holding(base, seen, tokens[:, :-1]) - step[:, None], fuller[:, 1:]), axis=1)
    stalls[:, -len(PLACES)] = np.minimum(stalls[:, -len(PLACES)], fuller[:, 0] - spread)
    stalls[:, -1] += spread
    weights = _seen_by_gaps(single, others, running / np.maximum(found, 1e-12))
    # Between two bins, half of what either leaves empty.
    left = np.concatenate((rounded[:, :1], (rounded[:, 1:] + rounded[:, :-1]) / 2.0, rounded[:, -1:]), axis=1)
    number = np.maximum(d.uncached_edges / room[:, None] + left, 1.0)
    stalls, none = np.maximum.accumulate(np.maximum(stalls, 0.0), axis=1), np.zeros_like(weights)
    return Point(
        **means,
        service_edges_s=np.maximum.accumulate(computed_s(d.uncached_edges, number, s.attention_edges_s), axis=1),
        **varied,
        stall_share=share,
        stall_low_s=stalls[:, :-1],
        stall_high_s=stalls[:, 1:],
        stall_weights=weights,
        joined=none,
        joined_least_s=none,
        joined_s=none,
        joined_cv2=none + 1.0,
        stall_most_s=stalls[:, -1],
        burst=tokens_together,
    )
