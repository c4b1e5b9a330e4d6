"""How full the steps are that prompts share with decodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.service import arrivals, queueing
from servegen.service.demand import EDGES, Demand
from servegen.service.server import steps_left

Array = NDArray[np.float64]

#: Shares of what a step may hold of prompts, between which it lies; the last bin is a full step.
GRID: Array = np.minimum(np.arange(10) / 8.0, 1.0) ** 2
#: Half the width of a uniform distribution, in its standard deviations.
SQRT3 = 3.0**0.5
#: Mean fills of a step whose work is exponential, (1 - exp(-z)) / z, by z = room / mean work, and the logarithms of z.
_LOG_Z: Array = np.linspace(np.log(1e4), np.log(1e-4), 1 << 14)
_MEAN: Array = -np.expm1(-np.exp(_LOG_Z)) / np.exp(_LOG_Z)
#: Mean amounts of work beyond which there is next to none.
MOST_WORK = 6.0


def gathered(plain: Array, longer: Array, d: Demand) -> Array:
    """Prompts that begin in the same step, if it has room: those who came in the step before it, one of decodes alone or one with
    prompts, which see ``plain`` and ``longer`` arrivals on average. Shapes (rows,).

    A step with prompts is followed by another one with the chance that some come meanwhile. Of k that came in a step the last one
    did so 1/(1 + k) of it before its end.
    """
    before = np.stack((plain, longer))
    together = queueing.together(before, d)
    since = before / (1.0 + together)
    none = arrivals.none_after_one(np.stack((since + longer, since)), d.arrival_cv2, d.dealt)
    first, then = none[0] / np.maximum(none[1], 1e-12)
    more = (1.0 - first) / np.maximum(then, 1e-12)
    return np.asarray((together[0] + more * together[1]) / (1.0 + more))


def empty(d: Demand, seen: Array, room: Array) -> Array:
    """Share of its last step that a prompt alone leaves empty, by bin of lengths, (rows, bins): on average over the bin and over
    the room, which varies with the number of sequences ``seen``."""
    varies = np.minimum(SQRT3 * np.sqrt(seen) / room, 0.5)[:, None]
    low, high = (d.uncached_edges[:-1] / room[:, None] * (1.0 - varies), d.uncached_edges[1:] / room[:, None] * (1.0 + varies))
    return np.asarray((steps_left(high) - steps_left(low)) / (high - low))


@record
class Sharing:
    """Of the steps with prompts the share of those of a prompt alone, which takes ``counted`` of them, and fills ``last`` of the
    last one; and the room over the mean work of all others. Shapes (rows,).
    """

    alone: Array
    counted: Array
    last: Array
    z: Array

    def full(self, lone: Array) -> Array:
        """Share of the steps with prompts that are full, of prompts that alone take ``lone``."""
        return self.alone * (lone - 1.0) / self.counted + (1.0 - self.alone) * np.exp(-self.z)


def sharing(whole: Array, steps: Array, prompts: Array, lone: Array, followed: Array) -> Sharing:
    """How steps are shared. A prompt without company takes ``lone``, all full but the last one, unless that is ``followed``. Of
    others the work that waits when a step begins is exponential, by replays of prompts of all kinds, and as much as makes the
    mean of all right: each prompt of ``whole`` steps has its share of ``steps``, and ``prompts`` begin together.
    """
    last = np.clip(whole - (lone - 1.0), 1e-3, 1.0)  # what a prompt alone has in its last step
    counted = np.maximum(lone - followed, 1e-9)
    alone = np.minimum(counted / (prompts * prompts * steps), 1.0)
    mean = (lone - 1.0 + (1.0 - followed) * last) / counted
    rest = np.clip((np.minimum(whole / steps, 1.0) - alone * mean) / np.maximum(1.0 - alone, 1e-9), 1e-4, 1.0 - 1e-4)
    return Sharing(alone, counted, last, np.exp(np.interp(rest, _MEAN, _LOG_Z)))


def steps_of_whole(whole: Array, prompts: Array, rest: Array, d: Demand) -> Array:
    """Steps that each prompt takes where ``prompts`` begin together, of ``whole`` < 1 steps each, and a share ``rest`` of the
    steps holds nothing but what is left of one. Of a burst those begin later that a step has no room for.
    """
    return np.asarray((1.0 + arrivals.overflow(prompts, whole, d.arrival_cv2)) / (prompts * (1.0 - rest)))


def fills(d: Demand, room: Array, lone: Array, followed: Array, of: Sharing) -> tuple[Array, Array, Array]:
    """Tokens of prompts at the edges of bins, (rows, edges), and the shares of steps with prompts that are in each bin, (rows,
    bins): those of a prompt alone, and all others.
    """
    most = np.minimum(np.maximum(d.uncached_edges[-2] / room, MOST_WORK / of.z), 1.0)
    at = most[:, None] * GRID
    weights = np.diff(-np.exp(-of.z[:, None] * at), axis=1)
    weights[:, -1] = np.exp(-of.z * most)
    own = (1.0 - followed)[:, None] * _last_step(d, room, at, of.last)
    own[:, -1] = lone - 1.0
    return at * room[:, None], (of.alone / of.counted)[:, None] * own, (1.0 - of.alone)[:, None] * weights


def _last_step(d: Demand, room: Array, at: Array, mean: Array) -> Array:
    """Share of prompts whose last step, alone, lies in each bin between ``at``: whole prompts, or what is left of longer ones,
    which is as even as the ``mean`` of all lets it be."""
    longer = 1.0 - np.interp(room, d.uncached_edges, EDGES)
    shorter = np.interp(at * room[:, None], d.uncached_edges, EDGES)
    shorter[:, -2:] = (1.0 - longer)[:, None]
    short = np.diff(shorter, axis=1)
    left = mean - np.sum(short * (at[:, 1:] + at[:, :-1]), axis=1) / 2.0
    left = np.clip(left / np.maximum(longer, 1e-9), 0.01, 0.99)
    low, high = np.maximum(2.0 * left - 1.0, 0.0)[:, None], np.minimum(2.0 * left, 1.0)[:, None]
    even = np.minimum(np.maximum((at - low) / (high - low), 0.0), 1.0)
    return np.asarray(short + longer[:, None] * np.diff(even, axis=1))
