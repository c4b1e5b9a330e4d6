"""What a draw of two leaves of waiting: a router that sends each request to the emptier of two servers that it draws.

A request waits where both are busy. Of n servers B are so, and with them the chance ``B(B - 1)/(n(n - 1))`` that a draw finds no
other; so B is a birth and death process, which is born by each request that finds an idle server. In a great number of servers
any two know nothing of each other, and the chance is busy^2 (Vvedenskaya, Dobrushin and Karpelevich 1996; Mitzenmacher 2001); of
few all are busy together more often.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from servegen.service.demand import Demand

Array = NDArray[np.float64]

#: Logarithms of births over deaths, by idle server and busy one: from hardly any busy server to hardly any idle one.
OFFERED: Array = np.linspace(np.log(1e-4), np.log(1e6), 1024)
#: Places in a queue that are counted one by one.
LEVELS = 8


def draws(d: Demand) -> bool:
    """Whether some of it comes from such a router."""
    return not isinstance(d.drawn, float)


def busy_both(busy: Array, servers: float) -> Array:
    """Chance that two of ``servers`` that are drawn are both busy, each being so a ``busy`` share of the time."""
    rarely, both = _table(servers)
    return np.interp(busy, rarely, both)


def met(busy: Array, d: Demand) -> tuple[Array, Array]:
    """Chance that a request finds others before it at both servers that it draws; and what is to those who wait as the share of
    busy time is to a queue of M/G/1. Shapes (rows,).

    Bursts of a cv2 of n leave each server a Poisson stream, as turns; in between the chances go in a straight line.
    """
    both, again = busy.copy(), busy.copy()
    servers, cv2 = (np.broadcast_to(v, busy.shape) for v in (d.drawn, d.queue_cv2))
    for n in set(servers.tolist()) - {1.0}:
        rows = servers == n
        mine = busy[rows]
        chance = busy_both(mine, n)
        bursts = np.clip((n * cv2[rows] - 1.0) / (n - 1.0), 0.0, 1.0)
        both[rows] = chance + bursts * (mine - chance)
        again[rows] = (1.0 - bursts) * _queue(chance, n) + bursts * mine
    return both, again


def _queue(chance: Array, servers: float) -> Array:
    """The share of busy time at which a queue of M/M/1 is as long as that of those who wait, by ``chance``.

    Of two servers the emptier has one more before it with the chance of having one, each time anew; of many each of both has so
    for itself, with the chance squared, and with that squared one more again. In between the power g is linear in 1/n: those
    behind the first are k or more with the chance to the power of ``g + g^2 + ... + g^k``, each of which is at most n/2: a full
    system fills by n requests at a time, one for each server.
    """
    power = 2.0 - 2.0 / servers
    each, term, number = power, chance**power, chance**power
    for _ in range(LEVELS):
        each = min(each * power, servers / 2.0)
        more = chance**each
        term = term * more
        number = number + term
    number = number + term * more / np.maximum(1.0 - more, 1e-9)  # what is left falls so fast
    return np.asarray(number / (1.0 + number))


@functools.lru_cache(maxsize=64)
def _table(servers: float) -> tuple[Array, Array]:
    """Share of busy time, rising, and the chance that two servers are both busy."""
    number = np.arange(servers + 1.0)
    pairs = number * (number - 1.0) / (servers * (servers - 1.0))
    born = np.log(servers * (1.0 - pairs[:-1]) / number[1:])
    logs = np.concatenate(([0.0], np.cumsum(born))) + number * OFFERED[:, None]
    chance = np.exp(logs - logs.max(axis=1, keepdims=True))
    chance = chance / chance.sum(axis=1, keepdims=True)
    return chance @ number / servers, chance @ pairs
