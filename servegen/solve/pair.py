"""One prefill and one decode configuration put together: how many servers of each, and what a client of the pair sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from servegen.record import record
from servegen.roofline.step import take
from servegen.service import latency, size
from servegen.service.demand import Demand
from servegen.service.disciplines import DISCIPLINES, means_only
from servegen.service.point import Point
from servegen.service.server import Server
from servegen.service.size import Slo
from servegen.solve.bands import pessimism
from servegen.solve.candidate import Block, Candidate, RoleChoice, first_best, three_digits
from servegen.solve.counts import BEYOND, Frontier, fewest, fill, spans
from servegen.solve.problem import Kind, Problem
from servegen.solve.space import BATCH_LIMITS, replicas_that_fit
from servegen.solve.split import BUSIEST, Array, Index, Mask, Servers, combine

#: Counts of each role that are compared when latency is the objective: between more of them it differs by less than it is known.
SPREAD = 16
#: Prefill configurations, by the TP of their peers, whose figures are kept: pairs of one follow each other.
KEPT = 8
#: Why candidates are none that no number of servers makes enough.
MISSED = "split: more accelerators needed than there are, or a bound missed at the load"
#: Combinations of counts that are computed at a time, about.
CELLS = 2048


@record
class Counted:
    """What ``of`` candidates see with each of ``counts`` servers, a row each."""

    point: Point
    counts: int
    of: int

    def at(self, candidate: Index, count: Index) -> Index:
        """Rows of candidates, which are alike where there is but one, with the counts at these places."""
        return (candidate if self.of > 1 else 0) * self.counts + count


def _ties(cells: Index, keys: Array, least: int) -> Iterator[Index]:
    """``cells`` in parts of at least so many, those of equal keys in one."""
    start = 0
    while start < len(cells):
        stop = min(start + least, len(cells))
        stop = start + int(np.searchsorted(keys[cells[start:]], keys[cells[stop - 1]], side="right"))
        yield cells[start:stop]
        start = stop


@record
class Pair:
    """One prefill configuration (candidates ``p``: its chunks) with one decode configuration (``q``: its batch limits)."""

    problem: Problem
    pre: Block
    dec: Block
    start: Servers
    gaps: Servers
    p: Index
    q: Index
    front: Frontier
    idle_s: tuple[Array, Array]  # of a closed loop's turn, each candidate's part when nothing waits (:func:`idle_s`)
    starting: dict[tuple[bytes, ...], Point]  # what was computed for other pairs
    decoding: dict[tuple[bytes, ...], Point]

    @property
    def rates(self) -> tuple[Array, Array]:
        """Requests/s that one server of each role sustains, shapes (p, 1) and (1, q)."""
        return self.start.rate[self.p][:, None], self.gaps.rate[self.q][None, :]

    def most(self) -> float:
        """The largest load that the pool carries with any candidate, in the unit of the load."""
        if not self.front.any:
            return 0.0
        rate_p, rate_d = self.rates
        x, y = fill(self.front, rate_p, rate_d)
        carried = self.problem.utilization * np.minimum(x * rate_p, y * rate_d)
        # A closed loop's rate grows with its users.
        return float(np.max(carried if self.problem.open_loop else self.problem.load * carried / self._rate()))

    def best(self, rejected: Counter[str], late: Counter[str]) -> Candidate | None:
        """The best candidate, None if none carries the load within the bounds."""
        shape = (len(self.p), len(self.q))
        if not self.front.any:
            rejected["split: more accelerators needed than there are"] += shape[0] * shape[1]
            return None
        x, y, enough, extra = self._counts(late)
        rejected[MISSED] += int(np.sum(~enough))
        if not enough.any():
            return None
        return self._candidate(x, y, enough, extra)

    def _counts(self, late: Counter[str]) -> tuple[Array, Array, Mask, tuple[Array, ...]]:
        """Servers of each role, shape (p, q); where they are enough; and the keys of the objective if it is latency."""
        problem = self.problem
        rate_p, rate_d = self.rates
        if problem.saturate or problem.objective == "throughput":
            x, y = fewest(*fill(self.front, rate_p, rate_d), rate_p, rate_d)
            carried = problem.utilization * np.minimum(x * rate_p, y * rate_d)
            enough = carried >= self._rate() * (1.0 - 1e-9)
            if self._whole().bounds or not np.isnan(self._whole().attainment):
                enough &= self._on_time(x, y, np.maximum(carried, 1e-12), late)
            return x, y, enough, ()
        rate = self._rate()
        need_x = np.maximum(np.ceil(rate / (problem.utilization * rate_p) - 1e-9), 1.0)
        need_y = np.maximum(np.ceil(rate / (problem.utilization * rate_d) - 1e-9), 1.0)
        whole = self._whole()
        if not whole.bounds and np.isnan(whole.attainment) and problem.objective != "latency":
            return need_x, need_y, self.front.holds(need_x, need_y), ()
        return self._by_table(need_x[:, 0], need_y, rate[:, 0], late)

    def _by_table(
        self, need_x: Array, need_y: Array, rate: Array, late: Counter[str]
    ) -> tuple[Array, Array, Mask, tuple[Array, ...]]:
        """Counts where rates alone do not decide: the best of all pairs of counts that the pool holds, from the least on.

        First tokens depend on the prefill candidate and x only, gaps on y only, so each is computed once; and no more of their
        combinations than it takes to know the fewest accelerators.
        """
        fast = self.problem.objective == "latency"
        xs, ys = spans(self.front, float(need_x.min()), float(need_y.min()), SPREAD if fast else 0)
        shape = need_y.shape
        if not len(xs) or not len(ys):
            return np.ones(shape), np.ones(shape), np.zeros(shape, dtype=bool), ()
        rows = len(self.p), len(xs), len(ys)
        starts, gaps = self._starts(xs, rate), self._gaps(ys, rate)
        held = np.broadcast_to(self.front.holds(xs[:, None], ys[None, :]), rows) & (xs[None, :] >= need_x[:, None])[:, :, None]
        devices = np.broadcast_to(xs[:, None] * self.front.tp_p + ys[None, :] * self.front.tp_d, rows)
        cells = np.flatnonzero(held)
        cells = cells[np.argsort(devices.reshape(-1)[cells], kind="stable")]
        good, needs = np.zeros(rows, dtype=bool), np.unique(need_y, return_index=True)[0]
        keys = (np.full(rows, np.inf), np.full(rows, np.inf), devices) if fast else (devices,)
        for some in _ties(cells, devices.reshape(-1), CELLS):
            i, a, b = np.unravel_index(some, rows)
            point = combine(take(starts.point, starts.at(i, a)), take(gaps.point, gaps.at(i, b)))
            good.reshape(-1)[some] = ~self._misses(point, late)
            if fast:
                for key, values in zip(keys, self._p95(point), strict=False):
                    key.reshape(-1)[some] = three_digits(values)
            elif all((good & (ys >= need)).any(axis=(1, 2)).all() for need in needs):
                break
        x, y, enough = np.ones(shape), np.ones(shape), np.zeros(shape, dtype=bool)
        extra = (np.full(shape, np.inf), np.full(shape, np.inf)) if fast else ()
        for need in needs:
            flat = (good & (ys >= need)).reshape(len(self.p), -1)
            found, best = first_best(flat, tuple(k.reshape(len(self.p), -1) for k in keys))
            at = need_y == need
            x = np.where(at, xs[best // len(ys)][:, None], x)
            y = np.where(at, ys[best % len(ys)][:, None], y)
            enough = np.where(at, found[:, None], enough)
            for e, k in zip(extra, keys, strict=False):
                e[:] = np.where(at, k.reshape(len(self.p), -1)[np.arange(len(self.p)), best][:, None], e)
        return x, y, enough, extra

    def _starts(self, xs: Array, rate: Array) -> Counted:
        """The prefill candidates with each count of them at the whole ``rate`` (p,)."""
        servers = self.start.row[self.p]
        counts = self._counted(xs, self.pre.kind, self.front.tp_p)
        step, key = DISCIPLINES["prefill"], (counts.tobytes(), servers.tobytes(), rate.tobytes())
        if key not in self.starting:
            if len(self.starting) >= KEPT:
                self.starting.clear()
            srv, load = take(self.pre.server, np.repeat(servers, len(counts))), (rate[:, None] / counts).reshape(-1)
            level = size.level_at(step, srv, self.problem.demand, "rate", load, np.full(len(load), BUSIEST))
            self.starting[key] = step(srv, self.problem.demand, level)
        return Counted(self.starting[key], len(counts), len(self.p))

    def _counted(self, xs: Array, kind: Kind, tp: int) -> Array:
        """Counts to compute: of an open loop, whose rate all pairs share, all that the pool holds of these servers alone."""
        problem = self.problem
        if problem.objective == "latency" or not problem.open_loop:
            return xs
        alone = float(replicas_that_fit(kind, np.array(float(tp)))) - problem.spares
        return np.arange(xs[0], max(min(alone, xs[0] + BEYOND), xs[-1]) + 1.0)

    def _gaps(self, ys: Array, rate: Array) -> Counted:
        """The decode configuration with each count of it, the same."""
        rate = rate if len(set(rate.tolist())) > 1 else rate[:1]
        counts, row = self._counted(ys, self.dec.kind, self.front.tp_d), self.gaps.row[self.q[:1]]
        step, key = DISCIPLINES["decode"], (counts.tobytes(), row.tobytes(), rate.tobytes())
        if key not in self.decoding:
            load = (rate[:, None] / counts).reshape(-1)
            srv = take(self.dec.server, np.repeat(row, len(load)))
            level = size.level_at(step, srv, self.problem.demand, "rate", load, np.full(len(load), BATCH_LIMITS[-1]))
            self.decoding[key] = step(srv, self.problem.demand, level)
        return Counted(self.decoding[key], len(counts), len(rate))

    def _rate(self) -> Array:
        """Requests/s of the load, shape (p, q). A closed loop is fastest when nothing waits: that rate is the safe one."""
        shape = (len(self.p), len(self.q))
        if self.problem.saturate or self.problem.open_loop:
            return np.full(shape, self.problem.load)
        first, second = self.idle_s
        turn = first[self.p] + second[self.q[0]] + self.problem.think_s
        return np.broadcast_to((self.problem.load / turn)[:, None], shape)

    def _whole(self) -> Slo:
        """The bounds that neither role answers for alone."""
        slo = self.problem.slo
        return Slo(tuple(b for b in slo.bounds if b.metric == "e2e"), slo.attainment, slo.jointly)

    @cached_property
    def _factors(self) -> dict[str, float]:
        """Factors on predictions, by metric: the larger of both roles'. A configuration is cut or not, whatever its candidate."""
        sides = (self.pre, self.start.row[self.p[0]]), (self.dec, self.gaps.row[self.q[0]])
        ends = [pessimism(self.problem, b.engine.facts, b.kind.facts, bool(b.rows.is_cut(b.kind)[row])) for b, row in sides]
        return {metric: max(end[metric] for end in ends) for metric in ends[0]}

    def _misses(self, point: Point, late: Counter[str]) -> Mask:
        """Rows that break a bound on whole requests."""
        broken = size.violations(point, self.problem.demand, self._whole(), self._factors)
        for bound, flags in broken.items():
            late[bound] += int(np.sum(flags))
        return np.asarray(np.logical_or.reduce(list(broken.values()))) if broken else np.zeros(len(point.level), dtype=bool)

    def _on_time(self, x: Array, y: Array, rate: Array, late: Counter[str]) -> Mask:
        """Where whole requests are on time at ``rate``; all arguments (p, q)."""
        i, j = (a.reshape(-1) for a in np.indices(x.shape))
        load_p, load_d = (rate / x).reshape(-1), (rate / y).reshape(-1)
        rows = self.start.row[self.p][i], self.gaps.row[self.q][j]
        point = joined(self.problem, self.pre, rows[0], self.dec, rows[1], load_p, load_d)
        return np.asarray(~self._misses(point, late).reshape(x.shape))

    def _p95(self, point: Point) -> tuple[Array, Array]:
        return latency.pace_percentile(0.95, point, self.problem.demand), latency.ttft_percentile(0.95, point)

    def _candidate(self, x: Array, y: Array, enough: Mask, extra: tuple[Array, ...]) -> Candidate:
        """The best of the candidates that are ``enough``."""
        problem = self.problem
        rate_p, rate_d = self.rates
        carried = np.minimum(x * rate_p, y * rate_d)
        starting, decoding = (x + problem.spares) * self.front.tp_p, (y + problem.spares) * self.front.tp_d
        devices = starting + decoding
        cost, watts = price((self.pre.kind, self.dec.kind), starting, decoding)
        full = problem.saturate or problem.objective == "throughput"
        load = problem.utilization * carried if full else np.minimum(self._rate(), carried)
        output = load * problem.demand.osl_mean
        if problem.objective == "throughput":
            keys: tuple[Array, ...] = (-three_digits(output),)
        elif problem.objective == "latency":
            keys = extra or self._saturated_latency(x, y, load)
        else:
            spent = cost if problem.objective == "cost" else watts
            keys = (three_digits(spent / output) if problem.saturate else spent,)
        headroom = carried if problem.open_loop else np.ones_like(carried)
        ranked = tuple(k.reshape(1, -1) for k in (*keys, devices))
        i, j = divmod(int(first_best(enough.reshape(1, -1), ranked, headroom.reshape(1, -1))[1][0]), len(self.q))
        roles = (
            role_of("prefill", self.pre, self.start, self.p[i], x[i, j], load[i, j]),
            role_of("decode", self.dec, self.gaps, self.q[j], y[i, j], load[i, j]),
        )
        return Candidate(
            topology="disaggregated",
            engine=self.pre.engine,
            roles=roles,
            objective=tuple(float(k[i, j]) for k in keys),
            devices=int(devices[i, j]),
            cost_per_h=float(cost[i, j]),
            watts=float(watts[i, j]),
            output_tokens_per_s=float(output[i, j]),
            headroom=float(headroom[i, j]),
        )

    def _saturated_latency(self, x: Array, y: Array, load: Array) -> tuple[Array, ...]:
        i, j = (a.reshape(-1) for a in np.indices(x.shape))
        rows = self.start.row[self.p][i], self.gaps.row[self.q][j]
        point = joined(self.problem, self.pre, rows[0], self.dec, rows[1], (load / x).reshape(-1), (load / y).reshape(-1))
        return tuple(three_digits(v).reshape(x.shape) for v in self._p95(point))


def turn_s(problem: Problem, pre: Server, dec: Server) -> Array:
    """Shortest mean turn of a closed loop: the first token when nothing waits, the gaps of a lone sequence, the pause."""
    d = problem.demand
    return first_token_s(pre, d) + gaps_s(dec, d) + problem.think_s


def first_token_s(pre: Server, d: Demand) -> Array:
    """Mean first token of each prefill server when nothing waits."""
    return latency.ttft_mean(DISCIPLINES["prefill"](means_only(pre), d, np.full(len(pre.chunk), size.IDLE)))


def gaps_s(dec: Server, d: Demand) -> Array:
    """Mean gaps of an answer that each decode server gives alone."""
    return np.asarray(d.gaps * DISCIPLINES["decode"](means_only(dec), d, np.ones(len(dec.chunk))).gap_mean_s)


def idle_s(problem: Problem, start: Servers, gaps: Servers) -> tuple[Array, Array]:
    """First token and gaps of every prefill and decode candidate when nothing waits, which :func:`turn_s` adds up; of an open
    loop, which has no turns, none.
    """
    if problem.open_loop or problem.saturate:
        return np.zeros(0), np.zeros(0)
    out = []
    for servers, part in ((start, first_token_s), (gaps, gaps_s)):
        assert servers.block is not None  # it has candidates
        rows, of = np.unique(servers.row, return_inverse=True)
        out.append(part(take(servers.block.server, rows), problem.demand)[of])
    return out[0], out[1]


def price(kinds: tuple[Kind, Kind], starting: Array, decoding: Array) -> tuple[Array, Array]:
    """$/h and W of so many accelerators of each role."""
    first, second = kinds
    if first is second:  # one product: equal counts cost exactly the same whatever they do
        devices = starting + decoding
        return devices * first.plan.price_per_hour, devices * first.facts.tdp_w
    cost = starting * first.plan.price_per_hour + decoding * second.plan.price_per_hour
    return cost, starting * first.facts.tdp_w + decoding * second.facts.tdp_w


def role_of(name: str, block: Block, servers: Servers, index: int, count: float, load: float) -> RoleChoice:
    """``count`` of a role's servers that carry ``load`` together."""
    return RoleChoice(
        role=name,  # type: ignore[arg-type]
        block=block,
        row=int(servers.row[index]),
        limit=int(servers.limit[index]),
        replicas=int(count),
        sustained=float(servers.rate[index]),
        load=float(load / count),
        level_cap=float(servers.level[index]),
    )


def joined(problem: Problem, pre: Block, pre_row: Index, dec: Block, dec_row: Index, load_p: Array, load_d: Array) -> Point:
    """What a client of each pair sees: the first token of the prefill role, the gaps of the decode role."""
    d = problem.demand
    p_rows, d_rows = take(pre.server, pre_row), take(dec.server, dec_row)
    n = len(load_p)
    p_level = size.level_at(DISCIPLINES["prefill"], p_rows, d, "rate", load_p, np.full(n, BUSIEST))
    d_level = size.level_at(DISCIPLINES["decode"], d_rows, d, "rate", load_d, np.full(n, BATCH_LIMITS[-1]))
    return combine(DISCIPLINES["prefill"](p_rows, d, p_level), DISCIPLINES["decode"](d_rows, d, d_level))
