"""What a replica's requests see of each other: who runs beside them, who stalls them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servegen.service import arrivals
from servegen.service.demand import Demand
from servegen.service.latency import LOGISTIC
from servegen.service.server import Server
from servegen.service.waiting import Work

Array = NDArray[np.float64]


def company(d: Demand, level: Array) -> Array | None:
    """Who came before a sequence in its burst and still runs when it begins, of a ``level``; None for Poisson arrivals."""
    return None if arrivals.poisson(d.arrival_cv2) else arrivals.company(level, d.arrival_cv2, d.dealt)


def beside(d: Demand, level: Array) -> Array:
    """Sequences that a gap sees beyond the ``level`` that an outsider sees: its own, and others of its burst.

    Processor sharing: weighted by their gaps, the others of a gap are as many as an arrival finds. Whoever waits for its token
    is in the step, so that no step is of less than one sequence. Of a burst those who came u arrivals earlier or later share
    1 - u/level of their gaps: as many as windows up to ``level`` see on average. Company grows nearly as the logarithm of a
    window, whose mean is that of level/e.
    """
    if arrivals.poisson(d.arrival_cv2) or not d.own:
        return np.maximum(d.own, 1.0 - level)
    of_burst = arrivals.company(level / np.e, d.arrival_cv2, d.dealt)
    return np.maximum(d.own + 2.0 * d.overlap * of_burst, np.maximum(1.0 - level, 0.0))


def begun(s: Server, d: Demand, busy: Array) -> Array:
    """Sequences beyond a lone one that a gap sees because they began to decode at the same moment, after one busy period.

    A busy period of M/G/1 serves n prompts with E[n^2]/E[n] = 1/(1-b) + (b + b^2*cv2)/(1-b)^2 (Takacs).
    """
    if not d.own:
        return np.zeros_like(busy)
    # In x = b/(1-b), less one: 2x + (1 + cv2)*x^2. Held where prompts fill more than half of the time, so that a fuller replica
    # always carries more.
    x = np.minimum(busy / np.maximum(1.0 - busy, 1e-9), 1.0)
    return np.asarray(d.overlap * x * (2.0 + (1.0 + s.prefill_cv2) * x))


def found(d: Demand, level: Array, company: Array | None, steps: Array | float, most: Array) -> Array:
    """Sequences that a prompt stalls: those that an outsider sees, and those that came before it in its burst, but for those who
    share its step with prompts. Those came in the same decode step, which sees level/steps arrivals, and no more than ``most``
    are together, half of them before it."""
    if company is None:
        return level
    same = np.minimum(arrivals.company(level / steps, d.arrival_cv2, d.dealt), (most - 1.0) / 2.0)
    return level + np.maximum(company - same, 0.0)


def of_one_step(d: Demand, level: Array, company: Array | None) -> Array | None:
    """Of the :func:`company` of a sequence those who came while one decode step ran, of which there are ``gaps`` in an answer."""
    return None if company is None else np.maximum(arrivals.company(level / d.gaps, d.arrival_cv2, d.dealt), 0.0)


def passed(d: Demand, level: Array, company: Array | None, same: Array | None, fit: Array, mixing: Array, ended: Array) -> Array:
    """Sequences that a step with prompts finds running, where it advances them, too.

    Those that an outsider sees; of the burst of its prompts those that came before them, but for the ``same`` step's, of which
    no more than ``fit`` are together in it, half of them before; and the prompts that were ahead of them, which began to decode
    meanwhile: as many as wait or are computed in M/D/1 when prompts take ``mixing`` of the time, in the rest of which they are
    more than on average. Less those of which ``ended`` for each of these.
    """
    before = d.own * mixing * (1.0 + mixing * np.maximum(d.arrival_cv2, 1.0) / 2.0) * np.maximum(1.0 - ended, 0.0)
    if company is not None and same is not None:
        before = before + np.maximum(company - np.minimum(same, (np.maximum(fit, 1.0) - 1.0) / 2.0), 0.0)
    return np.asarray(level + before)


def number_std(s: Server, d: Demand, level: Array, beside: Array, step_s: Array) -> Array:
    """Standard deviation of the number of sequences running.

    Poisson where a step takes the same with any number; steps that lengthen with it make it negative binomial (processor
    sharing), and bursts raise it by what each sequence brings with it.
    """
    longer = step_s / s.terms.decode_s(np.ones_like(level), s.kv_s)
    return np.sqrt(level * longer * (beside if d.own else 1.0))


def seen_std(s: Server, d: Demand, level: Array, seen: Array, step_s: Array) -> Array:
    """The same of the number that a gap sees, of mean ``seen``, which counts full steps more often than empty ones.

    Of n others half came before its own and half behind. Where hardly any run at a random time either half is geometric: each
    of a burst is followed by another with the same chance. That makes n (1 + n/2). Where many run it is the variance of all,
    level (1 + n - level). Both are n + (n^2 - level^2)/2.
    """
    if not d.own:
        return number_std(s, d, level, seen - level, step_s)
    n = np.maximum(seen - 1.0, 0.0)
    longer = step_s / s.terms.decode_s(np.ones_like(level), s.kv_s)
    return np.sqrt(longer * np.maximum(n + (n * n - level * level) / 2.0, 0.0))


def spread(s: Server, d: Demand, seen: Array, number: Array, step_s: Array) -> dict[str, Array]:
    """Standard deviation of a decode step, of the ``number`` of sequences and of what each holds, and its skewness, by the names
    of :class:`servegen.service.point.Point`.

    Read two deviations up, where percentiles lie: experts that are awake already make a step grow ever less. The number is skewed
    like a negative binomial one, by (2 v - n) / (n sqrt(v)) at a mean of n and a variance v, as far as bursts make the variance
    of what arrives (1 - 1/cv2 of it): a Poisson stream's is nearly normal.
    """
    context = s.kv_s * np.sqrt(seen / s.terms.groups) * (d.held_std / d.held_mean)
    numbers = (s.terms.decode_s(seen + 2.0 * number, s.kv_s) - step_s) / 2.0
    both = np.hypot(numbers, context)
    if arrivals.poisson(d.arrival_cv2):
        return {"gap_sd_s": both, "gap_skew": np.zeros_like(both)}
    bursty = 1.0 - 1.0 / np.maximum(d.arrival_cv2, 1.0)
    skew = bursty * (2.0 * number / seen - 1.0 / np.maximum(number, 1e-9))
    return {"gap_sd_s": both, "gap_skew": np.maximum(skew, 0.0) * (numbers / np.maximum(both, 1e-12)) ** 3}


def period(d: Demand, busy: Array, found: Array, rest: Array, service_cv2: Array) -> Array:
    """Prompts of a stall on average: a busy period that those begin who came in one decode step, whose ``rest`` sees so many
    arrivals. ``found`` is the chance of :func:`servegen.service.arrivals.waits`, without decode steps. Shapes (rows,).

    The first prompt waits for that rest, which counts as work of its period: by the slope of the root of GI/M/1, and exactly for
    Poisson arrivals.
    """
    if arrivals.poisson(d.arrival_cv2):
        return (1.0 + rest) / (1.0 - busy)
    cv2 = np.maximum(d.arrival_cv2, 1.0)
    first = 1.0 - found
    slope = first * found / np.maximum(busy * (busy + first * (1.0 + cv2) - 1.0), 1e-12)
    found = np.minimum(found + rest * first * slope, 1.0 - 1e-9)
    return np.asarray(1.0 / np.maximum(1.0 - arrivals.of_alike(found, cv2, service_cv2), 1e-9))


def stands(decoding: Array, company: Array | None, between: Array) -> Array:
    """Sequences that a stall finds running, and stalls: of a Poisson stream the ``decoding`` of a random decode step. A prompt of
    a burst finds itself and its ``company`` beyond them, but the first of a stall comes after a gap longer than others, of
    ``between`` mean gaps of decode steps, where a Poisson stream has one."""
    return decoding if company is None else decoding + np.maximum(1.0 + company - between, 0.0)


def hazard(d: Demand, since: Array, service: Array) -> Array:
    """Rate at which others come while prompts are computed of which the last came ``since`` so many mean gaps: the mean over a
    ``service`` of so many."""
    before, after = np.maximum(arrivals.none_after_one(np.stack((since, since + service)), d.arrival_cv2, d.dealt), 1e-12)
    return np.asarray(np.log(before / after) / np.maximum(service, 1e-12))


def fit(d: Demand, most: Array) -> Array:
    """Chance that two prompts fit into a step that holds ``most`` mean ones: their sum, in whole tokens, is taken as normal."""
    deviation = max((2.0 * d.uncached_cv2) ** 0.5 * d.uncached_mean, 0.1)
    z = ((most - 2.0) * d.uncached_mean + 0.5) / deviation
    return np.asarray(1.0 / (1.0 + np.exp(np.minimum(-LOGISTIC * z, 60.0))))


def together(arrived: Array, d: Demand) -> Array:
    """Prompts that wait together when a step ends in which ``arrived`` come on average, given that one does."""
    return np.maximum(arrived / np.maximum(arrivals.some_within(arrived, d.arrival_cv2, d.dealt), 1e-12), 1.0)


def others(number: Array, joined: Array, free: Array, s: Server, d: Demand, w: Work, counts: Array) -> dict[str, Array]:
    """What ``number`` others on average add to a stall, given that some do (chance ``joined``), and its variation; by bin.

    Each brings those who come while it is computed: a busy period of mean service/free and E[B^2] = E[S^2]/free^3, so that
    a Poisson number of them has the squared coefficient of variation (1 + cv2)/(number*free), of zero ones, too. So where
    each ``counts`` whole. Where they share steps it is steps that follow each other, each as long as that of a prompt alone, and
    one more with the same chance after any: a geometric number.
    """
    mean = number * (w.each_s / free)[:, None] / np.maximum(joined, 1e-12)
    varied = (np.asarray(d.arrival_cv2) + s.prefill_cv2) / free
    square = np.maximum(joined * (1.0 + varied[:, None] / np.maximum(number, 1e-12)) - 1.0, 0.0) * mean
    square *= counts[:, None]
    shared = 1.0 - counts
    steps = np.maximum(mean - s.prefill_mean_s[:, None], 0.0)
    steps += (s.prefill_mean_s * s.prefill_cv2)[:, None]
    steps *= shared[:, None]
    square += steps
    square *= mean
    deviation = np.sqrt(square)
    # Some more prompt is there, which adds ``more_s``, none much shorter than the others where they hardly differ; or a step.
    one = w.more_s * (1.0 - np.sqrt(s.prefill_cv2))
    one = one + shared * np.maximum(s.prefill_edges_s[:, 0] - one, 0.0)
    least = np.minimum(np.maximum(mean - deviation, one[:, None]), mean)
    rest = np.maximum(mean - least, 1e-9)
    return {"joined_least_s": least, "joined_s": rest, "joined_cv2": np.clip((deviation / rest) ** 2, 1.0, 1e6)}
