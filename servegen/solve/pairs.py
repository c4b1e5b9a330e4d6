"""Prefill and decode servers put together: how many of each, and what a client of the pair sees."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from servegen.lower import Config
from servegen.roofline.step import join, take
from servegen.service import latency, size
from servegen.service.disciplines import DISCIPLINES, means_only
from servegen.service.point import Point
from servegen.service.server import Server
from servegen.service.size import Slo
from servegen.solve.aggregate import ROUNDING, Outcome, no_power
from servegen.solve.bands import pessimism
from servegen.solve.candidate import Block, Candidate, RoleChoice, first_best, three_digits
from servegen.solve.counts import Frontier, fewest, fill, frontier, spans
from servegen.solve.frame import RoleFrame
from servegen.solve.problem import EngineOption, Kind, Problem
from servegen.solve.space import BATCH_LIMITS, Rows
from servegen.solve.split import BUSIEST, Array, Index, Mask, Servers, combine, fabric_between, gaps, starts, within_bounds

#: Rounds of rate -> duration -> rate of a closed loop; the duration hardly depends on the rate below the sized load.
LOOP_ROUNDS = 3
#: More than any TP, by which a configuration and the TP of its peers are one number.
PEERS = 1 << 20
#: Counts of each role that are compared when latency is the objective: between more of them it differs by less than it is known.
SPREAD = 16


def disaggregated(
    problem: Problem, engine: EngineOption, kinds: tuple[Kind, Kind], rejected: Counter[str], made: Mapping[int, Rows | None]
) -> Outcome:
    """Every split candidate of an engine that prefills on the first kind and decodes on the second (which may be the same).

    ``made`` are the engine's aggregated rows by the kind's index, where those were searched.
    """
    if any(no_power(problem, kind, rejected) for kind in kinds):
        return Outcome((), 0, 0, 0.0, None)
    fabric = fabric_between(*kinds)
    if not engine.facts.disaggregation or fabric == 0.0:
        rejected["split: the engine cannot hand KV over" if fabric else "split: no fabric is declared"] += 1
        return Outcome((), 0, 0, 0.0, None)
    second = gaps(problem, engine, kinds[1], fabric, rejected, made)
    peers = tuple(sorted({int(tp) for tp in second.frame.block.rows.tp})) if second else ()
    return paired(problem, starts(problem, engine, kinds[0], peers, fabric, rejected, made), second, rejected)


def paired(
    problem: Problem, first: RoleFrame | None, second: RoleFrame | None, rejected: Counter[str], keep: Mask | None = None
) -> Outcome:
    """Every pair of a prefill and a decode server, or those of the pairs of configurations to ``keep``."""
    dec = within_bounds(problem, second, rejected)
    pre = within_bounds(problem, first, rejected)
    sides = (first, second) if first and second else None
    least = min((pre, dec), key=lambda s: s.stage)
    if least.stage < 3:
        return Outcome((), len(pre.row) + len(dec.row), least.stage, 0.0, least.block, sides=sides)
    found: list[Candidate] = []
    searched, late = 0, Counter[str]()
    pairs = _configurations(problem, pre, dec, keep)
    for pair in pairs:
        searched += len(pair.p) * len(pair.q)
        best = pair.best(rejected, late)
        found += [best] if best else []
    most = 0.0 if found else max((pair.most() for pair in pairs), default=0.0)
    if not problem.open_loop and not problem.saturate and problem.objective != "throughput":
        found = [turning(problem, c) for c in found]
    missed = max(sorted(late), key=lambda b: late[b], default="")
    return Outcome(tuple(found), searched, 4 if found else 3, most, None, missed, sides=sides)


def least_spend(problem: Problem, first: RoleFrame, second: RoleFrame) -> Array:
    """What no pair of a prefill and a decode configuration costs less than, whatever its bounds, shape (prefill, decode); inf
    where the pool does not hold it, -inf where that is not known beforehand.
    """
    shape = first.frame.configs, second.frame.configs
    if problem.objective not in ("cost", "energy") or problem.saturate or not problem.open_loop:
        return np.full(shape, -math.inf)
    pre, dec = first.frame.block, second.frame.block
    decoding = np.zeros(shape[1])
    np.maximum.at(decoding, dec.rows.config, second.most())
    starting, out = first.most()[first.row], np.full(shape, math.inf)
    fronts: dict[tuple[int, int], Frontier] = {}
    for j, c in enumerate(dec.rows.lowered.configs):
        prefilling = np.zeros(shape[0])
        mine = first.peer == c.tp
        np.maximum.at(prefilling, first.config[mine], starting[mine])
        for i in np.flatnonzero(prefilling * decoding[j]):
            other = pre.rows.lowered.configs[i]
            if not _alike(other, c):
                continue
            front = _front(problem, (pre.kind, dec.kind), other.tp, c.tp, fronts)
            x, y = (
                max(math.ceil(problem.load / (problem.utilization * rate) * (1.0 - ROUNDING) - 1e-9), 1)
                for rate in (prefilling[i], decoding[j])
            )
            if front.any and bool(front.holds(np.array(float(x)), np.array(float(y)))):
                devices = (x + problem.spares) * other.tp, (y + problem.spares) * c.tp
                out[i, j] = sum(n * _spend(problem, b.kind) for n, b in zip(devices, (pre, dec), strict=True))
    return out


def _spend(problem: Problem, kind: Kind) -> float:
    """$/h or W of an accelerator."""
    return kind.facts.tdp_w if problem.objective == "energy" else kind.plan.price_per_hour


def _alike(first: Config, second: Config) -> bool:
    """Whether two roles' configurations are of equal precision and draft alike."""
    return (first.weights, first.kv, first.drafted) == (second.weights, second.kv, second.drafted)


def _front(problem: Problem, kinds: tuple[Kind, Kind], tp_p: int, tp_d: int, made: dict[tuple[int, int], Frontier]) -> Frontier:
    """The counts that the pool holds, each sizes' ``made`` once."""
    if (tp_p, tp_d) not in made:
        made[tp_p, tp_d] = frontier(kinds, tp_p, tp_d, problem.spares, problem.max_accelerators)
    return made[tp_p, tp_d]


def _configurations(problem: Problem, start: Servers, gaps: Servers, keep: Mask | None) -> list[Pair]:
    """Pairs of a prefill and a decode configuration that are alike."""
    assert start.block is not None and gaps.block is not None  # both reached stage 3
    pre, dec = start.block.rows, gaps.block.rows
    kinds, fronts = (start.block.kind, gaps.block.kind), dict[tuple[int, int], Frontier]()
    starting = _by_value(pre.config[start.row] * PEERS + start.peer)
    out = []
    decoding = _by_value(dec.config[gaps.row])
    for i, first in enumerate(pre.lowered.configs):
        for j, q in decoding.items():
            second = dec.lowered.configs[j]
            p = starting.get(i * PEERS + second.tp)
            if p is not None and _alike(first, second) and (keep is None or keep[i, j]):
                front = _front(problem, kinds, first.tp, second.tp, fronts)
                out.append(Pair(problem, start.block, gaps.block, start, gaps, p, q, front))
    return out


def _by_value(values: Index) -> dict[int, Index]:
    """Where each value stands, ascending."""
    order = np.argsort(values, kind="stable")
    found, first = np.unique(values[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, first[1:]), strict=True))


@dataclass(frozen=True)
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
        rejected["split: more accelerators needed than there are, or a bound missed at the load"] += int(np.sum(~enough))
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

        First tokens depend on the prefill candidate and x only, gaps on y only, so each is computed once.
        """
        fast = self.problem.objective == "latency"
        xs, ys = spans(self.front, float(need_x.min()), float(need_y.min()), SPREAD if fast else 0)
        shape = need_y.shape
        if not len(xs) or not len(ys):
            return np.ones(shape), np.ones(shape), np.zeros(shape, dtype=bool), ()
        rows = len(self.p), len(xs), len(ys)
        i, a, b = (v.reshape(-1) for v in np.indices(rows))
        start = self._starts(np.repeat(np.arange(len(self.p)), len(xs)), (rate[:, None] / xs).reshape(-1))
        gaps = [self._gaps(rate[k] / ys) for k in range(len(self.p))]
        point = combine(take(start, i * len(xs) + a), take(join(gaps), i * len(ys) + b))
        good = ~self._misses(point, late).reshape(rows) & self.front.holds(xs[:, None], ys[None, :])
        good &= (xs[None, :] >= need_x[:, None])[:, :, None]
        devices = np.broadcast_to(xs[:, None] * self.front.tp_p + ys[None, :] * self.front.tp_d, rows)
        keys = (*(three_digits(v).reshape(rows) for v in self._p95(point)), devices) if fast else (devices,)
        x, y, enough = np.ones(shape), np.ones(shape), np.zeros(shape, dtype=bool)
        extra = (np.full(shape, np.inf), np.full(shape, np.inf)) if fast else ()
        for need in set(need_y.ravel().tolist()):
            flat = (good & (ys >= need)).reshape(len(self.p), -1)
            some, best = first_best(flat, tuple(k.reshape(len(self.p), -1) for k in keys))
            at = need_y == need
            x = np.where(at, xs[best // len(ys)][:, None], x)
            y = np.where(at, ys[best % len(ys)][:, None], y)
            enough = np.where(at, some[:, None], enough)
            for e, k in zip(extra, keys, strict=False):
                e[:] = np.where(at, k.reshape(len(self.p), -1)[np.arange(len(self.p)), best][:, None], e)
        return x, y, enough, extra

    def _starts(self, index: Index, load: Array) -> Point:
        """Prefill candidates ``index`` at ``load`` requests/s each."""
        rows = take(self.pre.server, self.start.row[self.p[index]])
        d, step = self.problem.demand, DISCIPLINES["prefill"]
        return step(rows, d, size.level_at(step, rows, d, "rate", load, np.full(len(load), BUSIEST)))

    def _gaps(self, load: Array) -> Point:
        """The decode configuration at ``load`` requests/s each."""
        rows = take(self.dec.server, np.full(len(load), self.gaps.row[self.q[0]]))
        d, step = self.problem.demand, DISCIPLINES["decode"]
        return step(rows, d, size.level_at(step, rows, d, "rate", load, np.full(len(load), BATCH_LIMITS[-1])))

    def _rate(self) -> Array:
        """Requests/s of the load, shape (p, q). A closed loop is fastest when nothing waits: that rate is the safe one."""
        shape = (len(self.p), len(self.q))
        if self.problem.saturate or self.problem.open_loop:
            return np.full(shape, self.problem.load)
        pre = take(self.pre.server, self.start.row[self.p])
        turn = turn_s(self.problem, pre, take(self.dec.server, self.gaps.row[self.q[:1]]))
        return np.broadcast_to((self.problem.load / turn)[:, None], shape)

    def _whole(self) -> Slo:
        """The bounds that neither role answers for alone."""
        slo = self.problem.slo
        return Slo(tuple(b for b in slo.bounds if b.metric == "e2e"), slo.attainment, slo.jointly)

    def _misses(self, point: Point, late: Counter[str]) -> Mask:
        """Rows that break a bound on whole requests."""
        sides = (self.pre, self.start.row[self.p]), (self.dec, self.gaps.row[self.q])
        ends = [
            pessimism(self.problem, b.engine.facts, b.kind.facts, bool(b.rows.is_cut(b.kind)[rows].any())) for b, rows in sides
        ]
        factors = {metric: max(end[metric] for end in ends) for metric in ends[0]}
        broken = size.violations(point, self.problem.demand, self._whole(), factors)
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
        pace = latency.percentile_of(lambda some, t: latency.pace_exceeds(some, t, self.problem.demand), 0.95, point)
        return pace, latency.percentile_of(latency.ttft_exceeds, 0.95, point)

    def _candidate(self, x: Array, y: Array, enough: Mask, extra: tuple[Array, ...]) -> Candidate:
        """The best of the candidates that are ``enough``."""
        problem, first, second = self.problem, self.pre.kind, self.dec.kind
        rate_p, rate_d = self.rates
        carried = np.minimum(x * rate_p, y * rate_d)
        starting, decoding = (x + problem.spares) * self.front.tp_p, (y + problem.spares) * self.front.tp_d
        devices = starting + decoding
        if first is second:  # one product: equal counts cost exactly the same whatever they do
            cost, watts = devices * first.plan.price_per_hour, devices * first.facts.tdp_w
        else:
            cost = starting * first.plan.price_per_hour + decoding * second.plan.price_per_hour
            watts = starting * first.facts.tdp_w + decoding * second.facts.tdp_w
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
            _role("prefill", self.pre, self.start, self.p[i], x[i, j], load[i, j]),
            _role("decode", self.dec, self.gaps, self.q[j], y[i, j], load[i, j]),
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
    idle = latency.ttft_mean(DISCIPLINES["prefill"](means_only(pre), d, np.full(len(pre.chunk), size.IDLE)))
    return idle + d.gaps * DISCIPLINES["decode"](means_only(dec), d, np.ones(1)).gap_mean_s + problem.think_s


def _role(name: str, block: Block, servers: Servers, index: int, count: float, load: float) -> RoleChoice:
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


def turning(problem: Problem, c: Candidate) -> Candidate:
    """The same candidate at the rate at which its closed loop really turns."""
    first, second = c.roles
    pre, dec = np.array([first.row]), np.array([second.row])
    rate = np.array([first.load * first.replicas])
    for _ in range(LOOP_ROUNDS):
        p = joined(problem, first.block, pre, second.block, dec, rate / first.replicas, rate / second.replicas)
        rate = problem.load / (latency.e2e_mean(p, problem.demand) + problem.think_s)
    roles = tuple(dataclasses.replace(r, load=min(float(rate[0]) / r.replicas, r.sustained)) for r in c.roles)
    return dataclasses.replace(c, roles=roles, output_tokens_per_s=float(rate[0]) * problem.demand.osl_mean)
