"""Whom a request of a closed loop meets whose users all take their turns on one replica: an end is the next beginning.

A new request comes when a step ends, and the next step has then begun. None comes inside a step, nor while all decodes stall, so
that requests are counted by steps here and not by time: ``ends`` is how many end in a decode step on average.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.service import arrivals, waiting
from servegen.service.burst import Burst, rounds_of
from servegen.service.demand import Demand
from servegen.service.point import Point
from servegen.service.waiting import Work

Array = NDArray[np.float64]

#: Turns after which requests that once began together count as together: about as many as a replay shows.
SHOWN = 20.0


@record
class Turn:
    """What comes before a prompt's own computation, by the names of :class:`servegen.service.point.Point`; the share of requests
    that march in step; the share of decode steps behind which prompts are computed, and the chance that those are several. Shapes
    (rows,).
    """

    first: dict[str, Array]
    marching: Array
    stalls: Array
    several: Array


@record
class _Stalls:
    """Of the prompts that are computed with one: the chance that some are waited for, mean and mean square of their seconds; how
    many end in its own last step on average, by chance ``others`` some; and of the stalls the last two of :class:`Turn`.
    """

    some: Array
    mean: Array
    square: Array
    others: Array
    behind: Array
    stalls: Array
    several: Array


def apart(d: Demand, tokens: Burst | None) -> Array | float:
    """Standard deviation of the decode steps of an answer: by its length, and by what rounds of a draft yield."""
    if tokens is None:
        return d.osl_std
    return np.sqrt(d.osl_std**2 + d.gaps * tokens.variance / tokens.tokens) / tokens.tokens


def company(ends: Array, most: Array, steps: Array) -> Array:
    """Prompts that share the steps of a stall, of which one takes so many ``steps`` of tokens: those who waited for it, as far as
    a step holds them (``most``); and when the last of several steps begins all of the stall, which fill what it leaves.
    """
    number = _waiting(ends)
    first = np.minimum(number, most)
    return first + (number + ends - first) * np.maximum(1.0 - 1.0 / steps, 0.0)


def _waiting(ends: Array) -> Array:
    """Those who end in a step, where some do."""
    return np.maximum(ends / np.maximum(-np.expm1(-ends), 1e-300), 1.0)


def stalling(w: Work, d: Demand, tokens: Burst | None, level: Array, step_s: Array, busy: Array, request_s: Array) -> Turn:
    """Where the decodes stall while prompts are computed: those who began together end together if their answers are equally
    long, for all stand still meanwhile. They stay together unless their lengths take them apart, by a step or more.
    """
    ends = level / rounds_of(tokens, d)
    spread = apart(d, tokens)
    march = 1.0 / (1.0 + SHOWN * spread * spread) * np.ones_like(level)
    apart_ones, marching_ones = _mixed(w, ends, step_s), _marching(w, level, ends, busy)

    def both(of: Callable[[_Stalls], Array]) -> Array:
        return (1.0 - march) * of(apart_ones) + march * of(marching_ones)

    some, mean, stalls = both(lambda p: p.some), both(lambda p: p.mean), both(lambda p: p.stalls)
    each = mean / np.maximum(some, 1e-12)
    # Those behind in its last step delay a first token as those before it do, as far as that step has room.
    behind = both(lambda p: np.minimum(w.more_s * p.behind, p.others * w.left_s))
    return Turn(
        {
            "const_s": request_s + step_s + behind,
            "rest_s": np.zeros_like(step_s),
            "delayed": some,
            "wait_s": each,
            "wait_cv2": np.maximum(both(lambda p: p.square) / np.maximum(some * each * each, 1e-24) - 1.0, 0.0),
        },
        march,
        stalls,
        both(lambda p: p.stalls * p.several) / np.maximum(stalls, 1e-300),
    )


def _mixed(w: Work, ends: Array, step_s: Array) -> _Stalls:
    """Lengths differ: in any step as many end as in any other, a Poisson number. Those who find nobody waiting wait for a
    decode step; those who do are computed behind them, in the same stall, and wait for them in its place.

    A stall is followed by a step in which nobody waits, and other steps by one in which somebody does with chance 1 - exp(-ends).
    """
    waiting_one = -np.expm1(-ends)
    stalls = waiting_one / (1.0 + waiting_one)
    number = _waiting(ends)
    varied = w.cv2 * w.each_s**2
    # Of those who end in the same step, any part comes before a request.
    mine, mine_square = w.more_s * ends / 2.0, w.more_s**2 * (ends**2 / 3.0 + ends / 2.0) + varied * ends / 2.0
    theirs = np.maximum(number * w.each_s - step_s, 0.0)
    theirs_square = theirs**2 + w.more_s**2 * np.maximum(number * (1.0 + ends - number), 0.0) + varied * number
    others = 1.0 - 1.0 / number
    return _Stalls(
        some=others + stalls / number,
        mean=mine + stalls * theirs,
        square=mine_square + stalls * (2.0 * mine * theirs + theirs_square),
        others=others,
        behind=ends / 2.0,
        stalls=stalls,
        several=1.0 - number * (1.0 - waiting_one) ** 2,
    )


def _marching(w: Work, level: Array, ends: Array, busy: Array) -> _Stalls:
    """Lengths are equal: whoever once was computed in one stall ends in one step for ever. So a stall is what it was when users
    began, each at a time of their own: a busy period of M/G/1 (Takacs 1962), with those who came in the same decode step, and
    those of the steps on either side, whose stalls meet in the first turn.

    Of n users no period is longer than they are: where all time is busy it is as long as a parking function's clusters, whose
    size, as its members find it, is about n (Knuth 1973, linear probing).
    """
    users = np.maximum(level, 1.0)
    free = np.hypot(1.0 - busy, users**-0.5)
    pairs, triples = busy**2 * (1.0 + w.cv2), busy**3 * w.third
    # Factorial moments of the prompts of a period, from the equation of its generating function.
    one = 1.0 / free
    two = (2.0 * busy * one + pairs * one**2) / free
    three = (3.0 * (pairs * one**2 + busy * two) + triples * one**3 + 3.0 * pairs * one * two) / free
    beside = 3.0 * ends * (1.0 - busy)
    place, place_square = two / (2.0 * one), three / (3.0 * one) + two / (2.0 * one)
    more, more_square = beside / 2.0 * one, beside / 2.0 * (two + one)
    mean = np.minimum(place + more, (users - 1.0) / 2.0)
    square = place_square + 2.0 * place * more + more_square + more**2
    square = np.maximum(np.minimum(square, (users - 1.0) * (2.0 * users - 1.0) / 6.0), mean**2)
    begins = np.minimum(free * np.exp(-beside), 1.0)
    return _Stalls(
        some=1.0 - begins,
        mean=w.more_s * mean,
        square=w.more_s**2 * square + w.cv2 * w.each_s**2 * mean,
        others=1.0 - begins,
        behind=mean,
        stalls=ends * begins,
        several=-np.expm1(-busy - beside),
    )


def _back(d: Demand, level: Array, busy: Array, service_cv2: Array) -> Array:
    """Squared coefficient of variation of the arrivals at a queue that those who leave it come back to, each after an answer.

    What leaves a queue varies by ``busy^2 * service_cv2 + (1 - busy^2) * cv2`` (Marshall 1968), and comes back so if answers are
    equally long. Answers of a spread shift neighbours, who follow each other at a mean gap of gaps/level steps, by twice its
    square more in each turn. The cv2 that is the same after a turn is the sum, and no larger than that of strangers.
    """
    shifted = 2.0 * (apart(d, None) * level / (d.gaps * np.maximum(busy, 1e-3))) ** 2
    return np.asarray(np.maximum((np.minimum(service_cv2, 1.0) + shifted) / (1.0 + shifted), arrivals.EVEN))


@functools.cache
def _reflected() -> tuple[Array, Array]:
    """Of a normal number of deviation 1 that is held above 0: its density there over the chance of being above, rising, and its
    mean times that."""
    z = np.linspace(8.0, -30.0, 400)
    below = np.array([math.erfc(-v / math.sqrt(2.0)) / 2.0 for v in z])
    at = np.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi) / below
    return at, at * (z + at)


def _returning(queue: Array, level: Array, busy: Array) -> Array:
    """What a ``queue`` (a mean number) is of one whose arrivals do not depend on it: who waits sends nothing, so that it does not
    grow exponentially long but is drawn back, a reflected Ornstein-Uhlenbeck process. Both have the same share of idle time."""
    drift = np.sqrt(np.maximum(1.0 - busy, 1e-12) * level / np.maximum(busy * queue, 1e-12))
    return np.interp(drift, *_reflected())


def queued(
    w: Work, d: Demand, level: Array, more: Array, rate: Array, busy: Array, steps: tuple[Array, Array, Array], alone: Array
) -> dict[str, Array]:
    """What comes before a prompt's own computation in mixed steps, by the names of :class:`servegen.service.point.Point`, but for
    what the engine adds. ``more`` than the ``level`` wait in any case, for whom steps have no room. ``steps`` are seconds without
    prompts, with some, and the share of the latter.

    A request waits for the step that has just begun, in which a queue passes, too, and behind it for those that ended with it and
    for what is left of the queue, whose length is nearly exponential. Those who wait are the users that do not decode, so that
    their number never varies more than that of those who do: of a long queue a part is certain (machine repair, M/M/1//N, to a
    tenth), but for what their own lengths add.
    """
    step, longer, share = steps
    ends = level / d.gaps
    cv2 = _back(d, level, busy, w.cv2)
    delayed, mean = waiting.wait(w, busy, alone, dataclasses.replace(d, queue_cv2=cv2), level)
    mean = np.maximum(mean * _returning(rate * delayed * mean, level, busy), 1e-12)
    # What is as regular as a clock has none beside it.
    number = _waiting(ends)
    beside, some = cv2 * ends / 2.0 * w.each_s, cv2 * (1.0 - 1.0 / number)
    chance = np.minimum(np.maximum(delayed - beside / mean, 0.0) * np.exp(-longer / mean), share)
    queue = 1.0 - (1.0 - some) * (1.0 - chance) * np.exp(-more)
    left = beside + chance * mean + more / np.maximum(rate, 1e-300)
    varied = level + w.cv2 * rate * left
    unsure = np.sqrt(varied / np.maximum(varied + (rate * left) ** 2, 1e-300))
    certain = step + left * (1.0 - unsure)
    each = left * unsure / np.maximum(queue, 1e-12)
    first = waiting.first_token(w, d, rate, busy, np.zeros_like(step), certain, (queue, each))
    # Who finds a step with prompts waits for that at least.
    least, wait, found = longer - step, queue * first["wait_s"], np.maximum(share, queue)
    square = share * least**2 + 2.0 * share * least * wait + (1.0 + first["wait_cv2"]) * wait * first["wait_s"]
    each = np.maximum((share * least + wait) / np.maximum(found, 1e-12), 1e-12)
    varied = np.maximum(square / np.maximum(found * each**2, 1e-24) - 1.0, 0.0)
    return first | {"delayed": found, "wait_s": each, "wait_cv2": varied}


def dealt(d: Demand, p: Point, service_cv2: Array, stalls: bool, replicas: Array) -> Array:
    """Squared coefficient of variation of what arrives at each of ``replicas``, among which a Service deals a closed loop out and
    which stand at ``p``: that of strangers, and of what one of them sends back more, or less, each gets its part. Shapes (rows,).

    In mixed steps (not ``stalls``) prompts leave a queue one after the other, as in :func:`_back`. Where decodes stall, those of
    a busy period of n, which those begin who came in one decode step, march until they are dealt out, as far as answers are
    equally long: E[n^2]/E[n] (M/G/1, Takacs). To a twentieth: what varies by less is as good as strangers.
    """
    if stalls:
        # In x = b/(1-b), less one; held where prompts fill more than half of the time.
        x = np.minimum(p.busy / np.maximum(1.0 - p.busy, 1e-9), 1.0)
        more = x * (2.0 + (1.0 + service_cv2) * x) + (1.0 + x) * p.level / rounds_of(p.burst, d)
        more = more / (1.0 + SHOWN * apart(d, p.burst) ** 2)
    else:
        shifted = 2.0 * (apart(d, p.burst) * p.level / (d.gaps * np.maximum(p.busy, 1e-3))) ** 2
        more = p.busy**2 * (np.minimum(service_cv2, 1.0) - 1.0) / (1.0 + shifted)
    return np.asarray(np.round(20.0 * (1.0 + more / replicas)) / 20.0)
