"""What a service is asked to carry: lengths, load, and how much of the prompts is shared."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from servegen.errors import Diagnostic, UserError, Where
from servegen.record import record
from servegen.workload.lengths import Lengths
from servegen.workload.reuse import Found
from servegen.workload.trace import HASH_BLOCK_TOKENS, TraceRequests

MINUTE_S = 60.0
# Fewer gaps than this say little about a minute's own scatter.
_MIN_GAPS = 10
_MOST_TICKS = 10**7

_LOADS = ("rate_per_s", "concurrency", "users", "saturate")
_NOT_NEGATIVE = (
    "rate_per_s",
    "trough_per_s",
    "concurrency",
    "users",
    "think_time_s",
    "burstiness",
    "prefix_shared",
)


@record
class Workload:
    """The traffic of one service. Exactly one load is stated: a rate, a concurrency, users, or ``saturate``.

    ``rate_per_s`` is the peak of open arrivals and ``trough_per_s`` their lowest (0 = not stated); ``concurrency``
    requests are always in flight in a closed loop; ``users`` each send a request ``think_time_s`` after the last
    answer; ``saturate`` means as much as the pool yields. ``burstiness`` is the coefficient of variation of the times
    between arrivals (1 = Poisson). ``prefix_hit`` is the share of prompt tokens found in a cache, ``prefix_shared`` the
    tokens of a prompt head that all requests share; at most one of the two. ``found`` replaces both
    where a trace shows what is found request by request. ValueError where the figures contradict.
    """

    isl: Lengths
    osl: Lengths
    rate_per_s: float = 0.0
    trough_per_s: float = 0.0
    concurrency: int = 0
    users: int = 0
    think_time_s: float = 0.0
    burstiness: float = 1.0
    prefix_hit: float = 0.0
    prefix_shared: float = 0.0
    saturate: bool = False
    found: Found | None = None

    def __post_init__(self) -> None:
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be 0 or more, not {value!r}")
        if not 0 <= self.prefix_hit < 1:
            raise ValueError(f"prefix_hit must be at least 0 and below 1, not {self.prefix_hit!r}")
        if self.prefix_hit and self.prefix_shared:
            raise ValueError("state prefix_hit or prefix_shared, not both")
        stated = [name for name in _LOADS if getattr(self, name)]
        if len(stated) != 1:
            found = " and ".join(stated) or "none"
            raise ValueError(f"state one load of rate_per_s, concurrency, users and saturate, not {found}")
        if self.trough_per_s > self.rate_per_s:
            raise ValueError(f"trough_per_s = {self.trough_per_s:g} is above rate_per_s = {self.rate_per_s:g}")
        if self.think_time_s and not self.users:
            raise ValueError("think_time_s belongs to users")

    def uncached_isl(self) -> Lengths:
        """Prompt tokens of a request that must be computed, at least 1: past the shared head, or the share that misses.

        A hit rate shortens every prompt by the same share; which prompts hit is not known from a rate.
        """
        if self.found is not None:
            return self.found.computed
        if self.prefix_shared:
            return self.isl.minus(self.prefix_shared)
        return self.isl.scaled(1 - self.prefix_hit) if self.prefix_hit else self.isl

    def hit_share(self) -> float:
        """Share of all prompt tokens that need no computing, in [0, 1)."""
        return max(0.0, 1 - self.uncached_isl().mean / self.isl.mean)

    def unshared(self) -> Workload:
        """The same traffic where no cache finds anything."""
        return replace(self, prefix_hit=0.0, prefix_shared=0.0, found=None)

    def longest_context(self) -> int:
        """Tokens of context to provide for: the longest prompt with the longest answer."""
        return self.isl.longest + self.osl.longest


def of_trace(requests: TraceRequests, name: str) -> Workload:
    """The workload that a trace shows, which is called ``name`` where it shows none.

    Lengths are the trace's own. Minutes count from the first arrival. The rate is the busiest minute's, the trough the
    quietest full minute's; of a trace shorter than two minutes both are the mean over the whole. ``burstiness`` is
    measured inside minutes (`arrival_burstiness`), because the swing from minute to minute is already in rate and
    trough. ``prefix_hit`` is what an unbounded cache would find (`prefix_hit_share`). UserError where all requests
    arrive at once, which shows no rate.
    """
    span_s = float(requests.arrival_s[-1])
    if span_s == 0:
        message = "all requests of the trace arrive at the same time: there is no rate"
        raise UserError(Diagnostic("trace-empty", message, Where(name)))
    if span_s < 2 * MINUTE_S:
        rate = trough = (len(requests) - 1) / span_s
    else:
        counts = np.bincount(_minutes(requests.arrival_s))
        full = counts[: int(span_s // MINUTE_S)]
        rate, trough = float(counts.max()) / MINUTE_S, float(full.min()) / MINUTE_S
    return Workload(
        isl=Lengths.empirical(requests.input_tokens),
        osl=Lengths.empirical(requests.output_tokens),
        rate_per_s=rate,
        trough_per_s=trough,
        burstiness=arrival_burstiness(requests.arrival_s),
        prefix_hit=prefix_hit_share(requests),
    )


def prefix_hit_share(requests: TraceRequests) -> float:
    """Share of all prompt tokens whose blocks an unbounded cache holds, matched from the head; 0 without hashes.

    A block counts as held once any earlier request had it. In [0, 1).
    """
    if requests.hashes is None:
        return 0.0
    held: set[int] = set()
    hit = 0
    for blocks, tokens in zip(requests.hashes, requests.input_tokens.tolist(), strict=True):
        leading = next((i for i, block in enumerate(blocks) if block not in held), len(blocks))
        hit += min(leading * HASH_BLOCK_TOKENS, tokens)
        held.update(blocks)
    return hit / int(requests.input_tokens.sum())


def arrival_burstiness(arrival_s: NDArray[np.float64]) -> float:
    """Coefficient of variation of the times between arrivals, each minute measured against its own mean. 1 = Poisson.

    ``arrival_s``: (n,), ascending. Of m gaps the ratio variance / mean**2 comes out low by (m - 1) / (m + 1) for
    Poisson arrivals, which is put right; minutes weigh by their gaps, and those with fewer than 10 are left out (if
    that leaves none, the whole trace counts as one).

    A clock so coarse that more than half of the gaps are 0 shows no gaps to measure (Mooncake's ticks of 3 s would read
    as 3.0): there the counts per tick are taken instead, sqrt(variance / mean), which is 1 for Poisson arrivals, too,
    and for independent gaps tends to the same coefficient as ticks get longer. 1 where there are fewer than two gaps.
    """
    gaps = np.diff(arrival_s)
    if len(gaps) < 2 or arrival_s[-1] == arrival_s[0]:
        return 1.0
    coarse = bool(np.count_nonzero(gaps == 0) * 2 > len(gaps))
    tick_s = float(np.median(np.diff(np.unique(arrival_s))))
    # Ticks are counted one by one: a clock of which the trace spans more is not a coarse one.
    coarse = coarse and arrival_s[-1] - arrival_s[0] < tick_s * _MOST_TICKS
    if coarse:
        at = np.rint((arrival_s - arrival_s[0]) / tick_s).astype(np.int64)
        values = np.bincount(at).astype(np.float64)
        minutes = (np.arange(len(values)) * tick_s // MINUTE_S).astype(np.int64)
    else:
        minutes = _minutes(arrival_s)
        inside = minutes[1:] == minutes[:-1]
        values, minutes = gaps[inside], minutes[1:][inside]
    sizes = np.bincount(minutes) if len(values) else np.zeros(1, dtype=np.int64)
    groups = [values[minutes == i] for i in np.flatnonzero(sizes >= _MIN_GAPS)] or [values if coarse else gaps]
    weighted, total = 0.0, 0
    for group in groups:
        n, mean = len(group), float(group.mean())
        if n < 2 or mean == 0:
            continue
        variance = float(group.var())
        ratio = variance / mean * n / (n - 1) if coarse else variance / mean**2 * (n + 1) / (n - 1)
        weighted, total = weighted + n * ratio, total + n
    return math.sqrt(weighted / total) if total else 1.0


def _minutes(arrival_s: NDArray[np.float64]) -> NDArray[np.int64]:
    return (arrival_s // MINUTE_S).astype(np.int64)
