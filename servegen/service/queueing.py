"""What a replica's requests see of each other: who runs beside them, who stalls them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servegen.service import arrivals
from servegen.service.demand import Demand
from servegen.service.server import Server

Array = NDArray[np.float64]


def company(d: Demand, level: Array) -> Array | None:
    """Who came with a sequence in its burst and still runs with it, of a ``level`` of them; None for Poisson arrivals."""
    return None if arrivals.poisson(d.arrival_cv2) else arrivals.company(level, d.arrival_cv2)


def beside(d: Demand, level: Array, company: Array | None) -> Array:
    """Sequences that a gap sees beyond the ``level`` that an outsider sees: its own, and its :func:`company`.

    Processor sharing: weighted by their gaps, the others of a gap are as many as an arrival finds. Whoever waits for its token
    is in the step, so that no step is of less than one sequence.
    """
    if company is None or not d.own:
        return np.maximum(d.own, 1.0 - level)
    return np.maximum(d.own + 2.0 * d.overlap * company, np.maximum(1.0 - level, 0.0))


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


def found(d: Demand, level: Array, company: Array | None, steps: Array | float) -> Array:
    """Sequences that a prompt finds running: those that an outsider sees, and those that came before it in its burst, but
    for the company of one step, which waits with it. A step, of ``steps`` of an answer, sees level/steps arrivals."""
    if company is None:
        return level
    return level + np.maximum(company - arrivals.company(level / steps, d.arrival_cv2), 0.0)


def of_one_step(d: Demand, level: Array, company: Array | None) -> Array | None:
    """Of the :func:`company` of a sequence those who came while one decode step ran, of which there are ``gaps`` in an answer."""
    return None if company is None else np.maximum(arrivals.company(level / d.gaps, d.arrival_cv2), 0.0)


def passed(
    d: Demand, level: Array, company: Array | None, same: Array | None, fit: Array, ahead: Array, steps: Array
) -> Array:
    """Sequences that a step with prompts finds running, where it advances them, too.

    Those that an outsider sees; of the burst of its prompts those that came before them, but for the ``same`` step's, of which
    no more than ``fit`` are together in it, half of them before; and the prompts that were ``ahead`` of them, which began to
    decode meanwhile, less those that ended in the ``steps`` that these took. Steps with prompts take long: fewer end in them than
    begin.
    """
    before = ahead
    if company is not None and same is not None:
        before = ahead + np.maximum(company - np.minimum(same, (np.maximum(fit, 1.0) - 1.0) / 2.0), 0.0)
    return np.asarray((level + before) / (1.0 + steps / d.gaps))


def number_std(s: Server, d: Demand, level: Array, beside: Array, step_s: Array) -> Array:
    """Standard deviation of the number of sequences running.

    Poisson where a step takes the same with any number; steps that lengthen with it make it negative binomial (processor
    sharing), and bursts raise it by what each sequence brings with it.
    """
    longer = step_s / s.terms.decode_s(np.ones_like(level), s.kv_s)
    return np.sqrt(level * longer * (beside if d.own else 1.0))


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


def together(arrived: Array, d: Demand) -> Array:
    """Prompts that wait together when a step ends in which ``arrived`` come on average, given that one does."""
    return np.maximum(arrived / np.maximum(arrivals.some_within(arrived, d.arrival_cv2), 1e-12), 1.0)


def others(number: Array, joined: Array, free: Array, s: Server, d: Demand, service_s: Array, more_s: Array) -> dict[str, Array]:
    """What ``number`` others on average add to a stall, given that some do (chance ``joined``), and its variation; by bin.

    Each brings those who come while it is computed: a busy period of mean service/free and E[B^2] = E[S^2]/free^3, so that
    a Poisson number of them has the squared coefficient of variation (1 + cv2)/(number*free), of zero ones, too.
    """
    mean = number * (service_s / free)[:, None] / np.maximum(joined, 1e-12)
    varied = (np.asarray(d.arrival_cv2) + s.prefill_cv2) / free
    cv2 = joined * (1.0 + varied[:, None] / np.maximum(number, 1e-12)) - 1.0
    deviation = mean * np.sqrt(np.maximum(cv2, 0.0))
    # Some more prompt is there, which adds ``more_s``; none is much shorter than the others where they hardly differ.
    least = np.minimum(np.maximum(mean - deviation, (more_s * (1.0 - np.sqrt(s.prefill_cv2)))[:, None]), mean)
    rest = np.maximum(mean - least, 1e-9)
    return {"joined_least_s": least, "joined_s": rest, "joined_cv2": np.clip((deviation / rest) ** 2, 1.0, 1e6)}
