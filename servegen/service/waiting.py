"""For whom a first token waits: the step in progress, prompts that came before, and those that come behind and end with it.

Prompts share steps, so that one costs less beside others than alone. Where a step is the host's, or streams weights, one more
prompt costs nothing: who comes waits for the step in progress, and not for those who wait with it. Where prompts fill steps,
each costs all of its time, and what follows is M/G/1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.service import arrivals
from servegen.service import drawn as drawing
from servegen.service.demand import Demand

Array = NDArray[np.float64]


@record
class Work:
    """What prompts cost a replica at one load; seconds, shape (rows,).

    ``each_s`` is a prompt's share of a step that ``prompts`` share, ``more_s`` what one more would add to it, at most ``each_s``.
    ``cv2`` and ``third`` are the squared coefficient of variation and E[x^3]/E[x]^3 of a prompt alone. ``left_s`` is what others
    can fill of a prompt's last step.
    """

    each_s: Array
    more_s: Array
    prompts: Array
    cv2: Array
    third: Array
    left_s: Array

    @property
    def added(self) -> Array:
        """What one more prompt adds, as a share of what each costs."""
        return np.minimum(np.maximum(self.more_s / self.each_s, 0.0), 1.0)


def crowd(arrived: Array, d: Demand) -> Array:
    """Prompts over which the cost of one more is taken: one, and in bursts those that come in the same window on either side."""
    return 1.0 + 2.0 * np.maximum(arrivals.company(arrived, d.arrival_cv2, d.dealt), 0.0)


def alone(arrived: Array, d: Demand) -> Array:
    """Chance that a prompt has none behind it in the decode step in which it came, which sees ``arrived``. After three arrivals
    a quarter of a step is left on average: a prompt of a burst has others before it, and less time for more."""
    return arrivals.none_after_one(arrived / 4.0, d.arrival_cv2, d.dealt)


def interrupting(busy: Array, delayed: Array, alone: Array) -> Array:
    """Chance that an arrival finds prompts being computed: of the ``delayed``, who find another before them, all but those who
    came in the same decode step as that one. For Poisson arrivals it is ``busy``."""
    return np.asarray(np.maximum(1.0 - (1.0 - delayed) / np.maximum(alone, 1e-9), busy))


def wait(w: Work, busy: Array, alone: Array, d: Demand, slots: Array | float) -> tuple[Array, Array]:
    """Chance of a wait for other prompts, and its mean; ``alone`` is the chance of :func:`alone`.

    Exact for Poisson arrivals where prompts share nothing (Pollaczek-Khinchine), near saturation, and, where they are bursty, for
    exponential service (the root of GI/M/1). Regular arrivals by Kraemer and Langenbach-Belz (1976). In a closed loop at most the
    ``slots`` of the replica are before a request.
    """
    cv2, added = d.queue_cv2, w.added
    delayed = arrivals.waits(busy, cv2, w.cv2, d.dealt)
    # A step in progress belongs to all of its prompts; those that wait with one cost what they add.
    held, ahead = w.each_s * (1.0 + (1.0 - added) * (w.prompts - 1.0)), added * busy
    free = np.maximum(1.0 - ahead, 1e-9)
    number, found = busy * busy / free, busy
    spread = (cv2 + w.cv2) / (np.maximum(cv2, 1.0) + 1.0)
    if not arrivals.poisson(cv2):
        idle = np.maximum(1.0 - busy, 1e-9)
        # Those of its burst that are before it, beyond a Poisson stream's: nearly as 1/(1 - busy) at any load.
        burst = np.maximum(delayed / np.maximum(1.0 - delayed, 1e-9) - busy / idle, 0.0)
        number = number + burst * idle / free
        found = busy + (1.0 - added) * (interrupting(busy, delayed, alone) - busy)
        if arrivals.regular(cv2):
            even = np.exp(-2.0 * idle * (1.0 - cv2) ** 2 / (3.0 * np.maximum(busy, 1e-9) * np.maximum(cv2 + w.cv2, 1e-9)))
            spread = spread * np.where(np.asarray(cv2) < 1.0, even, 1.0)
    mean = spread * (found * held + w.each_s * added * number) / np.maximum(delayed, 1e-12)
    return delayed, mean if d.open_loop else np.minimum(mean, slots * w.each_s)


def drawn(
    w: Work, busy: Array, waits: tuple[Array, Array], d: Demand, slots: Array | float
) -> tuple[tuple[Array, Array], Array, Array]:
    """The :func:`wait` of those who are sent to the emptier of two servers, where it is not ``waits``; and what is to those who
    wait as the share of busy time, and as the chance of a wait, are to a queue of M/G/1 (:func:`servegen.service.drawn.met`).
    """
    both, again = drawing.met(busy, d)
    added = w.added
    held = w.each_s * (1.0 + (1.0 - added) * (w.prompts - 1.0))
    mean = (1.0 + w.cv2) / 2.0 * (held + w.each_s * added * again / np.maximum(1.0 - added * again, 1e-9))
    mean = mean if d.open_loop else np.minimum(mean, slots * w.each_s)
    rows = (np.asarray(d.drawn) > 1.0) & (np.asarray(d.queue_cv2) < 1.0)
    delayed, each = np.where(rows, both, waits[0]), np.where(rows, mean, waits[1])
    return (delayed, each), np.where(rows, again, busy), np.where(rows, again, delayed)


def first_token(
    w: Work,
    d: Demand,
    rate: Array,
    busy: Array,
    step_s: Array,
    request_s: Array,
    waits: tuple[Array, Array],
    behind: Array | None = None,
    again: Array | None = None,
) -> dict[str, Array]:
    """What comes before a prompt's own computation, by the names of :class:`servegen.service.point.Point`.

    Who finds a step with prompts waits for that, and not for a decode step, too, where prompts share all of their steps.
    ``behind`` are those of a burst that come behind a prompt and end with it; None = who comes in the rest of the decode step.
    """
    (delayed, mean), added = waits, w.added
    rest = step_s * (1.0 - (1.0 - added) * busy)
    if behind is None:
        behind = arrivals.company(rate * rest / 2.0, d.arrival_cv2, d.dealt)
    longer, burst = _behind(w, d, added * busy, delayed, delayed * mean + rest / 2.0, behind)
    return {
        "const_s": request_s,
        "rest_s": rest * (1.0 + longer),
        "delayed": delayed,
        "wait_s": mean * (1.0 + longer),
        # Of a burst as many come before as behind, each by chance: their sum varies less than either.
        "wait_cv2": _cv2(added * (delayed if again is None else again), added * busy, w) * (1.0 + burst**2) / (1.0 + burst) ** 2,
    }


def _cv2(delayed: Array, busy: Array, w: Work) -> Array:
    """Squared coefficient of variation of the wait of those who wait: for a geometric number of prompts, of which each takes what
    is left of it where it was being computed at arrival, by chance ``busy``, and all of it where it came in the same burst.

    For Poisson arrivals it is that of M/G/1 (Takacs 1962), E[W^2] = 2 E[W]^2 + rate*E[S^3] / (3 (1 - busy)): 1 for exponential
    service, more where few prompts are very long, and down to that of the rest of a step where all are alike.
    """
    left = np.minimum(busy / np.maximum(delayed, 1e-12), 1.0)
    each = left * (4.0 / 3.0 * w.third / (1.0 + w.cv2) ** 2 - 1.0) + (1.0 - left) * w.cv2
    return np.asarray(each * (1.0 - delayed) + delayed)


def _behind(
    w: Work, d: Demand, busy: Array, delayed: Array, waits_s: Array, behind: Array
) -> tuple[Array, Array]:
    """Share of its wait ``waits_s`` by which a request waits longer for those who come after it and end in the same step; and
    what of that a burst adds, of which so many come ``behind``.

    All who come while a step runs end together with the next one. A step in progress has work/(1 + busy) to go, and meanwhile
    busy times that comes behind. But no more than a prompt's last step has left for others, who are there with chance
    ``delayed``.
    """
    waits_s = np.maximum(waits_s, 1e-12)
    share, most = busy / (1.0 + busy), delayed * w.left_s / waits_s
    if arrivals.poisson(d.arrival_cv2):
        return np.minimum(share, most), np.zeros_like(share)
    burst = w.more_s * behind / waits_s
    both = np.minimum(np.maximum(share + burst, 0.0), most)
    return both, np.maximum(both - share, 0.0)
