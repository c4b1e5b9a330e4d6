"""Which replica takes a request: the router's policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from servegen.simulate.engine import Replica
from servegen.simulate.requests import Request
from servegen.workload import FOLLOWED

Policy = Callable[[Sequence[Replica], Request], Replica]

#: SGLang's router follows its cache only while no replica has this many requests more than another, and ...
BALANCE_ABSOLUTE = 64
#: ... this many times as many (sglang-router --balance-abs-threshold, --balance-rel-threshold).
BALANCE_RELATIVE = 1.5


def _uniform(rng: np.random.Generator) -> Callable[[], float]:
    """Numbers in [0, 1), drawn many at a time: one draw of numpy's costs more than a whole choice."""

    def stream() -> Iterator[float]:
        while True:
            yield from rng.random(1024).tolist()

    return stream().__next__


def round_robin(rng: np.random.Generator) -> Policy:
    """One after the other."""
    turn = -1

    def choose(replicas: Sequence[Replica], request: Request) -> Replica:
        nonlocal turn
        turn += 1
        return replicas[turn % len(replicas)]

    return choose


def at_random(rng: np.random.Generator) -> Policy:
    """Any of them, each as likely (a Kubernetes Service, which picks one for each connection)."""

    draw = _uniform(rng)

    def choose(replicas: Sequence[Replica], request: Request) -> Replica:
        return replicas[int(draw() * len(replicas))]

    return choose


def power_of_two(rng: np.random.Generator) -> Policy:
    """Two at random, the one with fewer requests in flight."""
    draw = _uniform(rng)

    def choose(replicas: Sequence[Replica], request: Request) -> Replica:
        n = len(replicas)
        if n == 1:
            return replicas[0]
        one = int(draw() * n)
        other = (one + 1 + int(draw() * (n - 1))) % n
        a, b = replicas[one], replicas[other]
        return b if b.in_flight < a.in_flight else a

    return choose


def least_loaded(replicas: Sequence[Replica], request: Request) -> Replica:
    """The one with the fewest requests in flight, the first of equals."""
    return min(replicas, key=lambda r: r.in_flight)


def cache_aware(
    rng: np.random.Generator, absolute: float = BALANCE_ABSOLUTE, relative: float = BALANCE_RELATIVE
) -> Policy:
    """Where most of the prompt is cached, unless loads differ much or little is cached anywhere: then the least loaded."""

    def choose(replicas: Sequence[Replica], request: Request) -> Replica:
        loads = [r.in_flight for r in replicas]
        uneven = max(loads) - min(loads) > absolute and max(loads) > relative * min(loads)
        if uneven or not request.blocks:
            return least_loaded(replicas, request)
        best, most = replicas[0], -1
        for replica in replicas:
            matched = replica.cache.match(request.blocks) if replica.cache is not None else 0
            if matched > most:
                best, most = replica, matched
        return best if most >= FOLLOWED * len(request.blocks) else least_loaded(replicas, request)

    return choose


POLICIES: Mapping[str, Callable[[np.random.Generator], Policy]] = {
    "round-robin": round_robin,
    "random": at_random,
    "power-of-two": power_of_two,
    "cache-aware": cache_aware,
}
