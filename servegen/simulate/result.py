"""What a replay saw: times of every request, a weighted histogram of gaps, integrals over time, counts of tokens."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.simulate.requests import Request
from servegen.simulate.series import Series

Floats = NDArray[np.float64]

#: Bins of the histogram of gaps per factor e, from SHORTEST_S on: each is 0.1 % wide.
BINS_PER_E = 1000
SHORTEST_S = 1e-7
LONGEST_S = 1e6
#: A run of steps whose gaps differ is entered as so many equal parts.
PARTS = 8
#: Runs that are held back before they are entered.
HELD_BACK = 1 << 15


@record
class Mark:
    """What had come to pass at ``time_s``: requests answered, tokens given out, seconds that replicas were busy; and the
    integrals of the queue and of the KV in use.
    """

    time_s: float = 0.0
    answered: int = 0
    generated: int = 0
    busy_s: float = 0.0
    queue_area: float = 0.0
    kv_area: float = 0.0


class Log:
    """What happens, as it happens. Times are seconds of the replay, nan where something never happened.

    Without ``watch`` only requests and tokens are kept: neither gaps nor anything over time. ``steady`` are the requests that
    count for latencies and rates; gaps count from when the first of them is sent until the last is, so do the rates.
    """

    def __init__(
        self, requests: int, on_finish: Callable[[Request, float], None], watch: bool = True, steady: range | None = None
    ) -> None:
        self.watch = watch
        self.steady = range(requests) if steady is None else steady
        self.whole = len(self.steady) == requests
        self.begin = Mark() if self.whole else None
        self.end_mark: Mark | None = None
        self._counting = watch and self.whole
        self.answered = 0
        self._on_finish = on_finish
        self.arrival = array("d", [np.nan]) * requests
        self.first_token = array("d", [np.nan]) * requests
        self.end = array("d", [np.nan]) * requests
        self.isl = array("q", [0]) * requests
        self.osl = array("q", [0]) * requests
        self.prefilled = self.generated = self.cached = 0
        self.retracted = self.refused = self.resent = 0
        self.gap_count, self.gap_sum = 0, 0.0
        self.queue, self.running, self.kv = Series(), Series(), Series()
        self._low, self._high, self._count = array("d"), array("d"), array("q")
        self._bins = np.zeros(int(np.log(LONGEST_S / SHORTEST_S) * BINS_PER_E) + 1)

    def sent(self, request: Request) -> None:
        n = request.id
        self.arrival[n], self.isl[n], self.osl[n] = request.arrival_s, request.isl, request.osl

    def first(self, request: Request, now: float) -> None:
        self.first_token[request.id] = now

    def mark(self, now: float, busy_s: float) -> Mark:
        """How things stand."""
        return Mark(now, self.answered, self.generated, busy_s, self.queue.area, self.kv.area)

    def bound_steady(self, mark: Mark, begins: bool) -> None:
        """The steady part begins, or ends."""
        if begins:
            self.begin = mark
        else:
            self.end_mark = mark
        self._counting = self.watch and begins

    def finish(self, request: Request, now: float) -> None:
        self.end[request.id] = now
        self.answered += 1
        self._on_finish(request, now)

    def gap(self, low_s: float, high_s: float, count: int) -> None:
        """``count`` gaps between tokens, evenly from ``low_s`` to ``high_s``."""
        if not self._counting:
            return
        self._low.append(low_s)
        self._high.append(high_s)
        self._count.append(count)
        if len(self._count) >= HELD_BACK:
            self._enter()

    def _enter(self) -> None:
        low, high = np.frombuffer(self._low), np.frombuffer(self._high)
        count = np.frombuffer(self._count, dtype=np.int64).astype(np.float64)
        self.gap_count += int(count.sum())
        self.gap_sum += float(np.dot((low + high) / 2.0, count))
        for part in range(PARTS):
            value = low + (high - low) * ((part + 0.5) / PARTS)
            index = np.log(np.clip(value, SHORTEST_S, LONGEST_S) / SHORTEST_S) * BINS_PER_E
            self._bins += np.bincount(index.astype(np.int64), count / PARTS, minlength=len(self._bins))[: len(self._bins)]
        del low, high
        self._low, self._high, self._count = array("d"), array("d"), array("q")

    def gaps(self) -> Floats:
        """Weights of the bins of gaps."""
        if self._count:
            self._enter()
        return self._bins


@record
class Spread:
    """Mean and percentiles of one latency, seconds; nan where there is none."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


NOTHING = Spread(*[float("nan")] * 5)


def spread(values: Floats) -> Spread:
    """Mean and percentiles of single values."""
    if not len(values):
        return NOTHING
    return Spread(float(values.mean()), *(float(v) for v in np.percentile(values, (50, 90, 95, 99))))


def binned_quantile(bins: Floats, probability: float) -> float:
    """Quantile of gaps from their histogram, within half a bin of 0.1 %."""
    total = np.cumsum(bins)
    index = int(np.searchsorted(total, probability * total[-1]))
    return float(SHORTEST_S * np.exp((index + 0.5) / BINS_PER_E))


@record
class Timeline:
    """Means over equal spans of time, ``width_s`` each; KV as a share of the pool of one replica."""

    width_s: float
    waiting: tuple[float, ...]
    running: tuple[float, ...]
    kv: tuple[float, ...]


@record
class Result:
    """A replay in figures. ``requests`` were sent, ``completed`` of them answered; the others were ``refused`` because they
    fit no replica, or found none alive (``unserved``). All of them and their tokens are counted, but ``left_out`` of them are
    no part of the steady state, to which latencies, attainment and rates belong.

    ``sent_rate`` is requests/s until the last was sent, ``request_rate`` answers/s until the last was given; where requests are
    left out, both are those of the time between.
    ``attainment`` is the share of all requests that met every bound of the request, nan without bounds. ``utilization`` is the
    share of time that the replicas were busy. ``ttft_s``, ``e2e_s`` and ``tpot_s`` are per request in the order of arrival, nan
    where there is none.
    """

    requests: int
    completed: int
    left_out: int
    refused: int
    unserved: int
    resent: int
    retracted: int
    duration_s: float
    ttft: Spread
    itl: Spread
    tpot: Spread
    e2e: Spread
    attainment: float
    sent_rate: float
    request_rate: float
    output_tokens_per_s: float
    utilization: float
    kv_mean: float
    kv_peak: float
    waiting_mean: float
    waiting_peak: float
    prompt_tokens: int
    prefilled_tokens: int
    cached_tokens: int
    output_tokens: int
    timeline: Timeline
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    gap_bins: Floats


@record
class RequestBound:
    """A latency that a request must keep: metric (ttft, tpot, e2e) and seconds."""

    metric: str
    seconds: float


def summarize(log: Log, busy_s: float, replicas: int, request_s: float, bounds: Sequence[RequestBound] = ()) -> Result:
    """Figures of a log. ``request_s`` is what the engine adds to every first token beside its steps."""
    arrival, first, end = (np.frombuffer(a) if len(a) else np.zeros(0) for a in (log.arrival, log.first_token, log.end))
    isl, osl = (np.frombuffer(a, dtype=np.int64) if len(a) else np.zeros(0, np.int64) for a in (log.isl, log.osl))
    done = ~np.isnan(end)
    counted = np.zeros(len(arrival), dtype=bool)
    counted[log.steady.start : log.steady.stop] = True
    ttft, e2e = first - arrival + request_s, end - arrival + request_s
    tpot = np.where(osl > 1, (end - first) / np.maximum(osl - 1, 1), np.nan)
    bins = log.gaps()
    gaps = NOTHING
    if log.gap_count:
        gaps = Spread(log.gap_sum / log.gap_count, *(binned_quantile(bins, p) for p in (0.5, 0.9, 0.95, 0.99)))
    # Steps may go on behind the last answer where requests are lost.
    last_s = max(log.queue.end_s, log.running.end_s, log.kv.end_s)
    duration = max(float(np.nanmax(end)) if done.any() else 0.0, last_s)
    final = log.mark(duration, busy_s)
    begin, until = log.begin or final, log.end_mark or final
    span = until.time_s - begin.time_s
    last_sent = float(np.nanmax(arrival)) if len(arrival) else 0.0
    sending = last_sent if log.whole else span
    attainment = float("nan")
    if bounds:
        met = done.copy()
        for bound in bounds:
            value = {"ttft": ttft, "tpot": tpot, "e2e": e2e}[bound.metric]
            met &= ~(value > bound.seconds)  # a request of one token has no gap to miss
        attainment = float(met[counted].mean()) if counted.any() else float("nan")
    output = int(osl[done].sum())
    # Of a run as a whole the tokens of the answers count; of a part of it, those that were given out in it.
    tokens = output if log.whole else until.generated - begin.generated
    seen = done & counted
    for series in (log.queue, log.running, log.kv):
        series.close(last_s)
    timeline = Timeline(
        log.queue.width_s,
        tuple(log.queue.means()),
        tuple(log.running.means()),
        tuple(v / max(replicas, 1) for v in log.kv.means()),
    )
    return Result(
        requests=len(arrival),
        completed=int(done.sum()),
        left_out=len(arrival) - len(log.steady),
        refused=log.refused,
        unserved=int(len(arrival) - done.sum()) - log.refused,
        resent=log.resent,
        retracted=log.retracted,
        duration_s=duration,
        ttft=spread(ttft[seen]),
        itl=gaps,
        tpot=spread(tpot[seen & (osl > 1)]),
        e2e=spread(e2e[seen]),
        attainment=attainment,
        sent_rate=len(log.steady) / sending if sending > 0.0 else math.inf,
        request_rate=(until.answered - begin.answered) / span if span else 0.0,
        output_tokens_per_s=tokens / span if span else 0.0,
        utilization=(until.busy_s - begin.busy_s) / (span * replicas) if span and replicas else 0.0,
        kv_mean=(until.kv_area - begin.kv_area) / (span * replicas) if span and replicas else 0.0,
        kv_peak=max(timeline.kv, default=0.0),
        waiting_mean=(until.queue_area - begin.queue_area) / span if span else 0.0,
        waiting_peak=max(timeline.waiting, default=0.0),
        prompt_tokens=int(isl[done].sum()),
        prefilled_tokens=log.prefilled,
        cached_tokens=log.cached,
        output_tokens=output,
        timeline=timeline,
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=e2e,
        gap_bins=bins,
    )
