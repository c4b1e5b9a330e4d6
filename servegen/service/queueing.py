"""What a replica's requests see of each other: who runs beside them, for whom they wait, who stalls them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servegen.service import arrivals
from servegen.service.demand import Demand
from servegen.service.server import Server

Array = NDArray[np.float64]


def wait_s(service_s: Array, busy: Array, delayed: Array, d: Demand, service_cv2: Array | float, slots: Array | float) -> Array:
    """Mean wait of those who wait: exact for Poisson arrivals (Pollaczek-Khinchine), near saturation, and, where they are
    bursty, for exponential service (the root of GI/M/1). Regular arrivals by Kraemer and Langenbach-Belz (1976).

    In a closed loop at most the ``slots`` of the replica are before a request.
    """
    # E[wait] = service * delayed / (1 - delayed) * spread, and ``delayed`` of all requests wait.
    cv2 = d.queue_cv2
    wait = service_s * (cv2 + service_cv2) / (cv2 + 1.0) / np.maximum(1.0 - delayed, 1e-9)
    if cv2 < 1.0 if isinstance(cv2, float) else bool((cv2 < 1.0).any()):
        free, both = np.maximum(1.0 - busy, 1e-9), np.maximum(cv2 + service_cv2, 1e-9)
        even = np.exp(-2.0 * free * (1.0 - cv2) ** 2 / (3.0 * np.maximum(busy, 1e-9) * both))
        even = busy * service_s * both * even / (2.0 * free * np.maximum(delayed, 1e-12))
        wait = np.where(np.asarray(cv2) < 1.0, even, wait)
    return wait if d.open_loop else np.minimum(wait, slots * service_s)


def wait_cv2(busy: Array, cv2: Array | float, third: Array | float) -> Array:
    """Squared coefficient of variation of the wait of those who wait, from its second moment in M/G/1 (Takacs 1962).

    E[W^2] = 2 E[W]^2 + rate*E[S^3] / (3 (1 - busy)): 1 for exponential service, more where few prompts are very long.
    """
    return np.maximum(2.0 * busy - 1.0 + 4.0 / 3.0 * third * (1.0 - busy) / (1.0 + cv2) ** 2, 1.0)


def beside(d: Demand, level: Array) -> Array:
    """Sequences that a gap sees beyond the ``level`` that an outsider sees: its own, and what came with it in a burst.

    Processor sharing: weighted by their gaps, the others of a gap are as many as an arrival finds. Whoever waits for its token
    is in the step, so that no step is of less than one sequence.
    """
    if arrivals.poisson(d.arrival_cv2) or not d.own:
        return np.maximum(d.own, 1.0 - level)
    return np.maximum(d.own + 2.0 * d.overlap * arrivals.company(level, d.arrival_cv2), np.maximum(1.0 - level, 0.0))


def found(d: Demand, level: Array, steps: Array | float) -> Array:
    """Sequences that a prompt finds running: those that an outsider sees, and those that came before it in its burst, but
    for the company of one step, which waits with it. A step, of ``steps`` of an answer, sees level/steps arrivals."""
    if arrivals.poisson(d.arrival_cv2):
        return level
    company = arrivals.company(level, d.arrival_cv2) - arrivals.company(level / steps, d.arrival_cv2)
    return level + np.maximum(company, 0.0)


def number_std(s: Server, d: Demand, level: Array, beside: Array, step_s: Array) -> Array:
    """Standard deviation of the number of sequences running.

    Poisson where a step takes the same with any number; steps that lengthen with it make it negative binomial (processor
    sharing), and bursts raise it by what each sequence brings with it.
    """
    longer = step_s / s.terms.decode_s(np.ones_like(level), s.kv_s)
    return np.sqrt(level * longer * (beside if d.own else 1.0))


def spread_s(s: Server, d: Demand, seen: Array, number: Array, step_s: Array) -> Array:
    """Standard deviation of a decode step: of the ``number`` of sequences, and of what each holds."""
    context = s.kv_s * np.sqrt(seen / s.terms.groups) * (d.held_std / d.held_mean)
    return np.hypot(s.terms.decode_s(seen + number, s.kv_s) - step_s, context)


def behind(busy: Array, wait_s: Array, left_s: Array) -> Array:
    """Share of its wait by which a request waits longer for those who come after it and end in the same step.

    All who come while a step runs end together with the next one. A step in progress has work/(1 + busy) to go, and meanwhile
    busy times that comes behind; but no more than a prompt's last step has left (``left_s``) for others, who are there
    with chance ``busy``.
    """
    return np.minimum(busy / (1.0 + busy), busy * left_s / np.maximum(wait_s, 1e-12))


def together(arrived: Array, d: Demand) -> Array:
    """Prompts that wait together when a step ends in which ``arrived`` come on average, given that one does."""
    return np.maximum(arrived / np.maximum(arrivals.some_within(arrived, d.arrival_cv2), 1e-12), 1.0)


def others(number: Array, joined: Array, free: Array, s: Server, d: Demand, service_s: Array) -> dict[str, Array]:
    """What ``number`` others on average add to a stall, given that some do (chance ``joined``), and its variation; by bin.

    Each brings those who come while it is computed: a busy period of mean service/free and E[B^2] = E[S^2]/free^3, so that
    a Poisson number of them has the squared coefficient of variation (1 + cv2)/(number*free), of zero ones, too.
    """
    mean = number * (service_s / free)[:, None] / np.maximum(joined, 1e-12)
    varied = (np.asarray(d.arrival_cv2) + s.prefill_cv2) / free
    cv2 = joined * (1.0 + varied[:, None] / np.maximum(number, 1e-12)) - 1.0
    deviation = mean * np.sqrt(np.maximum(cv2, 0.0))
    # Some more prompt is there, and none is much shorter than the others where they hardly differ.
    least = np.minimum(np.maximum(mean - deviation, (service_s * (1.0 - np.sqrt(s.prefill_cv2)))[:, None]), mean)
    rest = np.maximum(mean - least, 1e-9)
    return {"joined_least_s": least, "joined_s": rest, "joined_cv2": np.clip((deviation / rest) ** 2, 1.0, 1e6)}
