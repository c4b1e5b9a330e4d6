"""What a router makes of two groups of replicas when it sends each request to the emptier of two that it draws.

Each pair of replicas is as likely to be drawn. Where both are of one group, that group gets the request however full it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servegen.solve.candidate import RoleChoice

Array = NDArray[np.float64]


def forced(x: Array, y: Array) -> Array:
    """Share of the requests that the group of ``y`` beside ``x`` gets whatever it holds: both that the router draws are its."""
    n = x + y
    return np.asarray(y * (y - 1.0) / (n * (n - 1.0)))


def usable(x: Array, y: Array, rates: tuple[Array, Array]) -> Array:
    """Part of what both groups sustain that the router's draw lets through, at most 1.

    A group that must get a share f sustains no more than its rate over f in all. A group up to twice as slow as the other never
    gets there; of a slower one this limits how many there can be (Mukhopadhyay and Mazumdar 2015, on where such a draw is
    unstable).
    """
    first, second = x * rates[0], y * rates[1]
    shares = (forced(y, x), first), (forced(x, y), second)
    limits = (np.where(f > 0.0, own / np.maximum(f, 1e-300), np.inf) / (first + second) for f, own in shares)
    return np.minimum(np.minimum(*limits), 1.0)


def fully_used(x: Array, ratio: Array) -> Array:
    """Replicas of a second group, ``ratio`` times as slow, beside ``x``, up to which :func:`usable` is 1; inf if always.

    y(y-1)/(n(n-1)) <= y·r'/(x·r + y·r') with q = r/r' comes to q(y - 1) <= x + 2y - 1.
    """
    return np.where(ratio > 2.0, (x + ratio - 1.0) / np.maximum(ratio - 2.0, 1e-12), np.inf)


def shared_out(
    counts: Sequence[int], rates: Sequence[float], carried: Sequence[float], load: float
) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """Each group's share of the requests; the load of one of its replicas, of a whole ``load``; and what part of what the groups
    sustain the router lets through.

    A group answers in proportion to what it sustains, or what it is drawn for where that is more.
    """
    x, y = (np.array(float(n)) for n in counts)
    own = [n * r / sum(m * q for m, q in zip(counts, rates, strict=True)) for n, r in zip(counts, rates, strict=True)]
    first = min(max(own[0], float(forced(y, x))), 1.0 - float(forced(x, y)))
    shares = first, 1.0 - first
    used = load / sum(n * c for n, c in zip(counts, carried, strict=True))
    loads = tuple(used * c * s / o for c, s, o in zip(carried, shares, own, strict=True))
    return shares, loads, float(usable(x, y, (np.array(rates[0]), np.array(rates[1]))))


def spread(roles: tuple[RoleChoice, ...], counts: Sequence[int]) -> tuple[RoleChoice, ...]:
    """The groups with other ``counts`` of replicas, not both none, which share the same whole load out."""
    load = sum(r.load * r.replicas for r in roles)
    if 0 in counts:  # one group is left, and all is its own
        return tuple(
            dataclasses.replace(r, replicas=n, load=load / n if n else 0.0, share=1.0 if n else 0.0)
            for r, n in zip(roles, counts, strict=True)
        )
    rates = [r.share * r.sustained / (r.replicas * r.load) for r in roles]  # up to a factor that both have
    shares, loads, _ = shared_out(counts, rates, [r.sustained for r in roles], load)
    return tuple(
        dataclasses.replace(r, replicas=n, load=own, share=s) for r, n, s, own in zip(roles, counts, shares, loads, strict=True)
    )
