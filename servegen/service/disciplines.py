"""The engine's way of batching as a steady state, one function per discipline.

Each takes the server, the demand and a *level* (the mean number of decoding sequences; for a prefill-only server the share
of time it is busy) and returns the :class:`Point` at which the replica then stands. The level is the free variable because
the load follows from it without solving anything: rate = level / (gaps * gap) by Little's law (F29, F44).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servegen.service import arrivals, bulk, drawn, fill, queueing, turns, waiting
from servegen.service.burst import burst, per_token, rounds_of
from servegen.service.demand import Demand
from servegen.service.mixed import ROUNDS, mixed
from servegen.service.point import Point, of_rate, unstalled, without_edges
from servegen.service.server import Server, added_s, batching_gain
from servegen.service.static import static
from servegen.service.waiting import Work

Array = NDArray[np.float64]

#: Prompts that a prefill-only server keeps at the most until their KV is handed over.
PREFILL_SLOTS = 64.0
#: Share of idle time below which a prefill-only server is as good as never idle.
SELDOM = 1e-6

Discipline = Callable[[Server, Demand, Array], Point]


def means_only(s: Server, rates_only: bool = False) -> Server:
    """The same server without its edges: every discipline then computes means only, many times faster; or, of ``rates_only``, the
    rate and nothing else, where that is faster still."""
    none = np.zeros((len(s.chunk), 0))
    blank = ("prefill_edges_s", "prefill_low_s", "prefill_high_s", "prefill_weights", "attention_edges_s", "first_edges_s")
    without: dict[str, Any] = dict.fromkeys(blank, none)
    return dataclasses.replace(s, **without, rates_only=rates_only)


def _most_together(s: Server, d: Demand) -> Array:
    """Prompts that a step can hold: what its tokens allow, or one for each attention group."""
    return np.maximum(np.maximum(s.chunk / d.uncached_mean, 1.0), s.terms.groups)


def _of_shared(s: Server, alone: Array) -> tuple[Array, Array]:
    """Squared coefficient of variation, and E[x^3]/E[x]^3, of what prompts cost that take ``alone`` times as long by themselves:
    what they share, all of a step have in common, so that they vary by as many seconds as alone."""
    square = alone * alone
    cv2 = s.prefill_cv2 * square
    return cv2, 1.0 + 3.0 * cv2 + (s.prefill_third - 1.0 - 3.0 * s.prefill_cv2) * (square * alone)


def _of_stall(company: Array, arrived: Array, d: Demand) -> Array:
    """Prompts in a step of a stall whose first one has ``company``: each further one has those who came in the step before it, in
    which ``arrived`` come on average, until none did."""
    more = 1.0 - arrivals.none_after_one(arrived, d.arrival_cv2, d.dealt)
    return np.asarray(company + more * (queueing.together(arrived, d) - company))


def prefill_first(s: Server, d: Demand, level: Array) -> Point:
    """Waiting prompts are prefilled at once and the decodes stall meanwhile (SGLang without mixed chunks)."""
    most, service = _most_together(s, d), s.prefill_mean_s
    tokens = burst(s, d)
    steps = rounds_of(tokens, d)
    of_burst = queueing.company(d, level)
    beside, found = queueing.beside(d, level), queueing.found(d, level, of_burst, steps, most)
    effective, busy = service, np.zeros_like(service)
    at_least, ahead, company = level + beside, np.zeros_like(level), np.ones_like(level)
    # Where work waits elsewhere for a slot none comes during a stall; steady arrivals do not gather.
    gathers = d.own * (np.asarray(d.arrival_cv2) >= 1.0)
    for _ in range(ROUNDS):
        seen = at_least + queueing.begun(s, d, busy)
        step = s.terms.decode_s(seen, s.kv_s)
        rate = level / (steps * step + (found + ahead) * effective)
        if d.turns:
            company = turns.company(found / steps, most, d.uncached_mean / s.chunk)
        else:
            company = np.minimum(fill.gathered(rate * step, rate * effective * company * gathers, d), most)
        if not s.terms.plain:  # who arrives while other groups prefill does not wait for them
            of_stall = _of_stall(np.minimum(queueing.together(rate * step, d), most), rate * effective, d)
            company = np.where(s.terms.groups > 1.0, np.minimum(of_stall, most), company)
        effective = service * batching_gain(s, d, company)
        busy = np.minimum(rate * effective, 1.0 - 1e-9)
        if d.own:  # those before a prompt in its queue are stalled by it, too
            # Held where prompts fill more than half of the time, so that a fuller replica always carries more.
            filled, held = company / most, np.minimum(busy, 0.5)
            ahead = held * company + filled * held**2 / (1.0 - filled * held) * (1.0 + s.prefill_cv2) / 2.0
    rate = level / (steps * step + (found + ahead) * effective)
    if s.rates_only:
        return of_rate(level, rate)
    busy = np.minimum(rate * effective, 1.0)
    means = {
        "level": level,
        "seen": seen,
        "rate": rate,
        "busy": busy,
        "service_mean_s": service + s.extra_mean_s,
        "gap_s": step,
        "gap_mean_s": per_token(tokens, step + (found + ahead) * effective / steps),
    }
    came = rate * step
    alone = waiting.alone(came, d)
    more = added_s(s, d, company, effective, waiting.crowd(came, d))
    w = Work(effective, more, company, *_of_shared(s, service / effective), s.left_s)
    free = np.maximum(1.0 - busy, 1e-9)
    if d.turns:
        turn = turns.stalling(w, d, tokens, level, step, busy, s.request_s)
        # Who ends while all stand still has begun so in the first turn.
        first, during, arrived, free = turn.first, rate * turn.marching, found / steps, 1.0 - turn.marching * busy
    else:
        first = waiting.first_token(w, d, rate, busy, step, s.request_s, waiting.wait(w, busy, alone, d, level))
        # Where work waits elsewhere for a slot none comes during a stall, for none ends then.
        during, arrived = (rate, came) if d.own else (np.zeros_like(rate), came / free)
    if not s.prefill_edges_s.shape[1]:
        return without_edges(tokens, **means, **first)
    # Prompts that arrive during the stall prolong it: a busy period of the queue, begun by those that came in one step.
    own, weights = (s.prefill_low_s + s.prefill_high_s) / 2.0, s.prefill_weights
    middle = during[:, None] * own
    together, counts = queueing.together(arrived, d), np.ones_like(level)
    if d.turns:
        share, joined = turn.stalls, np.broadcast_to(turn.several[:, None], middle.shape)
    elif d.own:
        rest = together - 1.0 if of_burst is None else arrived / 2.0
        period = queueing.period(d, np.minimum(busy, 1.0 - 1e-9), first["delayed"], rest, s.prefill_cv2)
        # Whoever has just begun to decode is stalled at once by those who came meanwhile.
        begun = 1.0 - arrivals.none_after_one(rate * effective, d.arrival_cv2, d.dealt)
        stands = queueing.stands(came * steps / free, of_burst, period * free - rest)
        share = np.minimum((stands / period + begun) / steps, 1.0)
        # Who shares the first step counts as far as one more makes that longer, or does not fit. Of k that came in a decode step
        # the last one did so 1/(1 + k) of it before its end.
        counts = w.added
        hazard = queueing.hazard(d, arrived / (1.0 + together), rate * service) * rate
        longer = 1.0 - (1.0 - counts) * queueing.fit(d, most)
        joined = 1.0 - (1.0 - longer * (1.0 - 1.0 / together))[:, None] * np.exp(-hazard[:, None] * own)
    else:
        stalled = arrivals.some_within(arrived, d.arrival_cv2, d.dealt)
        if not arrivals.poisson(d.arrival_cv2):  # who finds prompts being computed begins no stall
            stalled = stalled * (1.0 - waiting.interrupting(busy, first["delayed"], alone)) / free
        share = np.minimum(stalled * found / np.maximum(level, 1e-300), 1.0)
        joined = np.broadcast_to(1.0 - arrivals.none_after_one(arrived / 2.0, d.arrival_cv2, d.dealt)[:, None], middle.shape)
    number = (together - 1.0)[:, None] + middle
    # The others of a stall take what all prompts take, shared out among all stalls, beyond one prompt alone.
    one_s, others = np.einsum("ij,ij->i", own, weights), np.einsum("ij,ij->i", number, weights)
    others_s = np.maximum((found + ahead) * effective / (steps * np.maximum(share, 1e-300)) - one_s, 0.0)
    brings = free if d.turns or d.own else np.ones_like(free)
    number = number * (others_s * brings / (effective * np.maximum(others, 1e-12)))[:, None]
    # Of a closed loop those run who do not wait, a Poisson number.
    deviation = np.sqrt(found / steps) if d.turns else queueing.seen_std(s, d, level, seen, step)
    return Point(
        **means,
        **first,
        service_edges_s=s.first_edges_s,
        **queueing.spread(s, d, seen, deviation, step),
        stall_share=share,
        stall_low_s=s.prefill_low_s,
        stall_high_s=s.prefill_high_s,
        stall_weights=weights,
        joined=joined,
        **queueing.others(number, joined, brings, s, d, w, counts),
        stall_most_s=np.full_like(level, np.inf),
        burst=tokens,
    )


def prefill_only(s: Server, d: Demand, level: Array) -> Point:
    """A server that only prefills and hands the KV on; the level is the share of time that it is busy."""
    # Whoever waits is in the next step: as many as that holds. A draw looks at who waits, not at when the last one came.
    cv2_seen = np.maximum(d.queue_cv2, 1.0) if drawn.draws(d) else d.queue_cv2
    (together, others), most = bulk.per_step(level, cv2_seen), _most_together(s, d)
    company = np.minimum(together, most)
    effective = s.prefill_mean_s * batching_gain(s, d, company)
    if s.rates_only:
        return of_rate(level, level / effective)
    zeros, rate = np.zeros_like(level), level / effective
    poisson = arrivals.poisson(cv2_seen)
    strangers = others if poisson else bulk.per_step(level, 1.0)[1]
    # One more is one more of a queue, which has filled what a short step leaves idle.
    more = added_s(s, d, company, effective, np.maximum(others / np.maximum(1.0 - level, SELDOM), 1.0))
    # What prompts share, all of a step have in common: they vary by as many seconds as alone, about what each of it costs.
    number = 1.0 + np.minimum(others, strangers)
    alone = np.maximum(s.prefill_mean_s * number / (company * effective + (number - company) * more), 1.0)
    w = Work(effective, more, company, *_of_shared(s, alone), s.left_s)
    lone = zeros if poisson else waiting.alone(zeros, d)  # of no meaning in a Poisson stream
    waits = waiting.wait(w, level, lone, d, PREFILL_SLOTS)
    queue, again = level, waits[0]
    if drawn.draws(d):
        waits, queue, again = waiting.drawn(w, level, waits, d, PREFILL_SLOTS)
    behind = zeros
    if not poisson:
        # Others of a burst are nearly geometric in number, of which a step holds so many; half of those come behind. A Poisson
        # stream's are counted in any wait.
        inside = others * (1.0 - (others / (1.0 + others)) ** (most - 1.0))
        behind = np.maximum(inside - strangers, 0.0) / 2.0
    first = waiting.first_token(w, d, rate, queue, zeros, s.request_s, waits, behind, again)
    # Prompts of one step are handed over one after the other. A wait is half of the step that it finds, and that share more of it
    # which others fill; who comes in one such step is in the next.
    beside = np.minimum(2.0 * rate * waits[0] * waits[1] / (1.0 + rate * more), most - 1.0)
    first["wait_s"] += s.extra_mean_s * beside / (2.0 * np.maximum(waits[0], 1e-12))
    return unstalled(
        None,
        s.first_edges_s,
        zeros,
        zeros,
        level=level,
        seen=zeros,
        rate=rate,
        busy=level,
        service_mean_s=s.prefill_mean_s + s.extra_mean_s,
        gap_s=zeros,
        gap_mean_s=zeros,
        **first,
    )


def decode_only(s: Server, d: Demand, level: Array) -> Point:
    """A server that takes over prefilled requests: no prefill ever lengthens a step."""
    beside = queueing.beside(d, level)
    step = s.terms.decode_s(level + beside, s.kv_s)
    tokens = burst(s, d)
    rate = level / (rounds_of(tokens, d) * step)
    if s.rates_only:
        return of_rate(level, rate)
    zeros = np.zeros_like(level)
    number = queueing.seen_std(s, d, level, level + beside, step)
    return unstalled(
        tokens,
        np.zeros_like(s.prefill_edges_s),
        **queueing.spread(s, d, level + beside, number, step),
        level=level,
        seen=level + beside,
        rate=rate,
        busy=zeros,
        service_mean_s=zeros,
        gap_s=step,
        gap_mean_s=per_token(tokens, step),
        const_s=zeros,
        rest_s=zeros,
        delayed=zeros,
        wait_s=zeros,
        wait_cv2=zeros + 1.0,
    )


#: By name; ``prefill-first``, ``mixed`` and ``static`` are an engine's schedulers, the other two the roles of a split.
DISCIPLINES: Mapping[str, Discipline] = {
    "prefill-first": prefill_first,
    "mixed": mixed,
    "static": static,
    "prefill": prefill_only,
    "decode": decode_only,
}
