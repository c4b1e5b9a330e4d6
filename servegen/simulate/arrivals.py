"""Where the requests of a replay come from: drawn by a rate, recorded in a trace, or sent by users in a closed loop."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from servegen.errors import Diagnostic, UserError
from servegen.record import record
from servegen.simulate.requests import Closed, Floats, Ints, Open
from servegen.workload import TraceRequests, Workload


@record
class Cut:
    """What of a trace is replayed: seconds from ``start_s`` to ``end_s`` of it, ``speedup`` times as fast."""

    start_s: float = 0.0
    end_s: float = math.inf
    speedup: float = 1.0


WHOLE = Cut()


def poisson(rate_per_s: float, n: int, rng: np.random.Generator) -> Floats:
    """``n`` arrivals of a Poisson stream, ascending from 0. Shape: (n,)."""
    return np.asarray(np.cumsum(rng.exponential(1.0 / rate_per_s, n)))


def gamma(rate_per_s: float, burstiness: float, n: int, rng: np.random.Generator) -> Floats:
    """``n`` arrivals whose times between them are gamma distributed with coefficient of variation ``burstiness``; evenly
    spaced where it is 0. Shape: (n,)."""
    if burstiness == 0.0:
        return np.arange(1, n + 1) / rate_per_s
    shape = burstiness**-2.0
    return np.asarray(np.cumsum(rng.gamma(shape, 1.0 / (shape * rate_per_s), n)))


def cached_tokens(workload: Workload, isl: Ints) -> Ints | None:
    """Tokens of each prompt that the declared sharing leaves in the cache, None where none is declared. Shape: (n,)."""
    if workload.prefix_shared:
        return np.asarray(np.minimum(np.int64(workload.prefix_shared), isl - 1))
    if workload.prefix_hit:
        return np.asarray(np.minimum(np.floor(workload.prefix_hit * isl).astype(np.int64), isl - 1))
    return None


def open_loop(workload: Workload, rate_per_s: float, burstiness: float, n: int, seed: int) -> Open:
    """``n`` requests of the workload's lengths, arriving at a rate. The same seed gives the same requests."""
    rng = np.random.Generator(np.random.PCG64(seed))
    at = poisson(rate_per_s, n, rng) if burstiness == 1.0 else gamma(rate_per_s, burstiness, n, rng)
    isl, osl = workload.isl.sample(rng, n), workload.osl.sample(rng, n)
    return Open(at, isl, osl, cached_tokens(workload, isl))


def closed_loop(workload: Workload, users: int, pause_s: float, n: int, seed: int, turn_s: float = 0.0) -> Closed:
    """``n`` requests of the workload's lengths by ``users`` who pause before each but the first.

    Pauses are drawn from an exponential distribution of mean ``pause_s``, as think times are in the machine repair model:
    users who all paused for the same time would come back together for ever after they were once stalled together.

    ``turn_s`` is about what a user takes for a request and the pause after it: each begins at a random point of it, which is
    where a loop that has always turned would find them, and the requests of the first and the last turn do not count, one
    for each user. With 0 all begin at once and every request counts. UserError where none would.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    isl, osl = workload.isl.sample(rng, n), workload.osl.sample(rng, n)
    cached = cached_tokens(workload, isl)
    pauses = rng.exponential(pause_s, n)
    if not turn_s:
        return Closed(users, isl, osl, pauses, cached)
    if n <= 2 * users:
        message = f"{n:,} requests of {users:,} users show no steady state: the first and the last of each user do not count"
        raise UserError(Diagnostic("too-few-requests", message, hint=f"--requests {10 * users}, or at least {2 * users + 1}"))
    starts = np.sort(rng.random(users)) * turn_s
    return Closed(users, isl, osl, pauses, cached, starts, users)


def recorded(trace: TraceRequests, cut: Cut = WHOLE, most: int = 0, workload: Workload | None = None) -> Open:
    """The requests of a trace inside the cut, the first ``most`` of them (0 = all), with what ``workload`` declares as shared
    in place of the trace's own hashes. UserError where none is left.
    """
    inside = np.nonzero((trace.arrival_s >= cut.start_s) & (trace.arrival_s < cut.end_s))[0]
    inside = inside[:most] if most else inside
    if not len(inside):
        last = float(trace.arrival_s[-1])
        message = f"no request of the trace lies between {cut.start_s:g} s and {cut.end_s:g} s"
        raise UserError(Diagnostic("trace-window", message, hint=f"the trace goes from 0 to {last:g} s"))
    at: NDArray[np.float64] = (trace.arrival_s[inside] - cut.start_s) / cut.speedup
    isl, osl = trace.input_tokens[inside], trace.output_tokens[inside]
    if workload is not None:
        return Open(at, isl, osl, cached_tokens(workload, isl))
    return Open(at, isl, osl, blocks=None if trace.hashes is None else [trace.hashes[i] for i in inside])
