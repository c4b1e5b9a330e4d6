"""Aggregated serving by two groups of replicas, each on its own kind of accelerator, behind one router.

What the groups share: engine, weights and KV precision, drafting, for clients must not see which of them answered. What each
has of its own: shape, chunk, batch limit, discipline, count, and the spares that every role keeps.

The router sends a request to the emptier of two replicas that it draws, so all replicas hold about as many requests at a time.
So both groups are sized at one number of requests in flight: the smaller of what their bounds allow. A faster replica turns
the same number over sooner, and by that gets its larger share.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.roofline.step import take
from servegen.service import size
from servegen.service.demand import Demand
from servegen.service.disciplines import DISCIPLINES, means_only
from servegen.solve.aggregate import Outcome, Stock
from servegen.solve.candidate import Candidate, RoleChoice, three_digits
from servegen.solve.problem import EngineOption, Kind, Problem
from servegen.solve.routing import fully_used, shared_out, usable
from servegen.solve.space import shape_of

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Index = NDArray[np.int64]

#: Relative difference below which two objectives, or two levels, are the same.
SAME = 1e-9


@record
class Side:
    """The rows of one configuration (precision, shape) of an engine on a kind, over all disciplines: each at the batch limit
    that carries the most, the smallest of equals.

    Shapes (rows,); ``flight`` is the mean number of requests in a replica, waiting ones counted, at the largest ``level``
    within the bounds, ``carried`` and ``rate`` what it carries there. ``spend`` is what a replica costs: $/h or W.
    """

    kind: Kind
    config: tuple[str, str, int]  # weights, KV cache, tokens drafted
    tp: int
    devices: int
    spend: float
    most: float
    stocks: tuple[Stock, ...]
    of: Index  # into stocks
    row: Index
    limit: Index
    level: Array
    flight: Array
    carried: Array
    rate: Array

    def at(self, d: Demand, index: Index, flight: Array) -> tuple[Array, Array]:
        """Level and rate of rows ``index`` with ``flight`` requests in each replica, which is at most what they hold."""
        level, rate = self.level[index].copy(), self.rate[index].copy()
        held = self.flight[index] > flight * (1.0 + SAME)
        for k, stock in enumerate(self.stocks):
            some = np.flatnonzero(held & (self.of[index] == k))
            if len(some):
                srv, step = take(means_only(stock.block.server), self.row[index[some]]), DISCIPLINES[stock.block.discipline]
                level[some] = size.level_at(step, srv, d, "concurrency", flight[some], level[some])
                rate[some] = step(srv, d, level[some]).rate
        return level, rate


@record
class Counts:
    """Replicas without spares, shape (pairs, counts of the first side); ``ok`` where they carry the load and fit.

    ``used`` is the part of what they sustain that the router lets through.
    """

    x: Array
    y: Array
    ok: Mask
    used: Array


def grouped(problem: Problem, outcomes: Sequence[Outcome]) -> Outcome:
    """The best pair of groups of every pair of configurations, as far as it beats every one-kind candidate of ``outcomes``.

    Exhaustive: a pair is passed over only where what bounds it from below is no better than what is known. Nothing is looked
    for where no pair of groups can win:
    - latency is the objective: a client of a mixture waits as long as the slower group makes it, the better one alone is best;
    - cost or power per token of a saturated pool: that of a mixture lies between those of its kinds (a mediant).
    """
    if problem.objective == "latency" or (problem.saturate and problem.objective != "throughput"):
        return Outcome((), 0, 0, 0.0, None)
    known = min((c.objective[0] for o in outcomes for c in o.candidates if c.topology == "aggregated"), default=math.inf)
    found: list[Candidate] = []
    searched = 0
    for engine, first, second in _pairs_of_kinds(problem, outcomes):
        new, looked = _of_kinds(problem, engine, first, second, known)
        found, searched = found + new, searched + looked
    return Outcome(tuple(found), searched, 4 if found else 0, 0.0, None)


def most(problem: Problem, outcomes: Sequence[Outcome]) -> float:
    """The largest load that two groups carry within the bounds on all that the pool has."""
    best = 0.0
    for _, first, second in _pairs_of_kinds(problem, outcomes):
        for a, b in _matching(first, second):
            pair = Pair.of(problem, a, b)
            counts = _fill(problem, a, b, pair.carried, pair.rates)
            load = counts.used * (counts.x * pair.carried[0] + counts.y * pair.carried[1])
            best = max(best, float(np.max(np.where(counts.ok, load, 0.0), initial=0.0)) * problem.utilization)
    return best


def _pairs_of_kinds(
    problem: Problem, outcomes: Sequence[Outcome]
) -> Iterator[tuple[EngineOption, tuple[Side, ...], tuple[Side, ...]]]:
    """Every pair of kinds on which an engine that has a router can serve, in the pool's order."""
    for engine in problem.engines:
        if not engine.facts.disaggregation:  # the router that joins the roles of a split is the one that balances groups
            continue
        stocks = [o.stock for o in outcomes if o.stock is not None and o.stock.block.engine is engine]
        kinds = [k for k in problem.pool if any(s.block.kind is k for s in stocks)]
        sides = [_sides(problem, tuple(s for s in stocks if s.block.kind is k)) for k in kinds]
        for i in range(len(kinds)):
            for j in range(i + 1, len(kinds)):
                yield engine, sides[i], sides[j]


def _matching(first: Sequence[Side], second: Sequence[Side]) -> list[tuple[Side, Side]]:
    return [(a, b) for a in first for b in second if a.config == b.config]


def _sides(problem: Problem, stocks: tuple[Stock, ...]) -> tuple[Side, ...]:
    """The configurations of one kind that meet the bounds when idle and fit it."""
    columns: dict[tuple[str, str, int, object], list[tuple[int, int, int]]] = {}
    figures = []
    for k, stock in enumerate(stocks):
        rows, alive = stock.block.rows, np.flatnonzero(stock.alive.any(axis=1) & (stock.most >= 1.0))
        # A larger batch limit never carries less and costs nothing: of each row the least one that carries the most is enough.
        limit = np.where(stock.alive[alive], stock.carried[alive], -1.0).argmax(axis=1)
        level, rate = stock.level[alive, limit], stock.rate[alive, limit]
        lean, step = take(means_only(stock.block.server), alive), DISCIPLINES[stock.block.discipline]
        flight = size.load("concurrency", step(lean, problem.demand, level), problem.demand)
        if not problem.open_loop:
            flight = np.minimum(flight, stock.block.limits[limit])
        figures.append((alive, limit, level, flight, stock.carried[alive, limit], rate))
        for i, row in enumerate(alive):
            c = rows.lowered.configs[int(rows.config[row])]
            columns.setdefault((c.weights, c.kv, c.drafted, shape_of(c)), []).append((k, i, int(row)))
    out = []
    for (weights, kv, drafted, _), places in columns.items():
        k0, _, row0 = places[0]
        kind, devices = stocks[k0].block.kind, float(stocks[k0].block.rows.devices[row0])
        each = kind.facts.tdp_w if problem.objective == "energy" else kind.plan.price_per_hour
        picked = [np.array([figures[k][f][i] for k, i, _ in places]) for f in range(6)]
        out.append(
            Side(
                kind, (weights, kv, drafted), int(stocks[k0].block.rows.tp[row0]), int(devices), devices * each,
                float(stocks[k0].most[row0]), stocks, np.array([k for k, _, _ in places]), picked[0], picked[1],
                *(p.astype(np.float64) for p in picked[2:]),
            )
        )  # fmt: skip
    return tuple(out)


@record
class Pair:
    """Rows of two sides put together, shape (pairs,): ``level``, ``carried`` (shape (pairs, 1)) and ``rates`` of each."""

    i: Index
    j: Index
    flight: Array
    level: tuple[Array, Array]
    carried: tuple[Array, Array]
    rates: tuple[Array, Array]

    @classmethod
    def of(cls, problem: Problem, a: Side, b: Side, keep: Mask | None = None) -> Pair:
        """All pairs of rows, or those to ``keep``, at the number in flight that the first of the two groups may hold."""
        i, j = (v.reshape(-1) for v in np.indices((len(a.row), len(b.row))))
        if keep is not None:
            i, j = i[keep], j[keep]
        flight = np.minimum(a.flight[i], b.flight[j])
        sides = [(side, index, *side.at(problem.demand, index, flight)) for side, index in ((a, i), (b, j))]
        carried = [
            np.where(side.flight[index] <= flight * (1.0 + SAME), side.carried[index], _load(problem, rate, flight))[:, None]
            for side, index, _, rate in sides
        ]
        (_, _, x_level, x_rate), (_, _, y_level, y_rate) = sides
        return cls(i, j, flight, (x_level, y_level), (carried[0], carried[1]), (x_rate[:, None], y_rate[:, None]))


def _load(problem: Problem, rate: Array, flight: Array) -> Array:
    """What a replica with ``flight`` requests in it carries, in the unit of the load: those who think are in none."""
    return rate if problem.open_loop else flight + rate * problem.think_s


def _of_kinds(
    problem: Problem, engine: EngineOption, first: Sequence[Side], second: Sequence[Side], known: float
) -> tuple[list[Candidate], int]:
    """The best of each pair of configurations that is better than ``known``, and how many pairs of rows there were.

    A row at its own bounds carries at least what it carries beside another. So the objective with each configuration's largest
    load, and no condition on how the router draws, is never worse than any of its pairs: where that does not beat the best
    that is known, none of them does.
    """
    matching = _matching(first, second)
    bounds = []
    for a, b in matching:
        loads = tuple(np.array([[float(s.carried.max())]]) for s in (a, b))
        rates = tuple(np.array([[float(s.rate.max())]]) for s in (a, b))
        bounds.append(_least(problem, a, b, (loads[0], loads[1]), (rates[0], rates[1]), routed=False))
    found: list[Candidate] = []
    best = math.inf
    for at in sorted(range(len(matching)), key=lambda n: (bounds[n], n)):
        if not _wins(bounds[at], known, best):
            break
        a, b = matching[at]
        i, j = (v.reshape(-1) for v in np.indices((len(a.row), len(b.row))))
        loads = (a.carried[i][:, None], b.carried[j][:, None])
        rates = (a.rate[i][:, None], b.rate[j][:, None])
        objective, ok = _objectives(problem, a, b, loads, rates, routed=False)[:2]
        keep = _wins(np.where(ok, objective, np.inf).min(axis=1, initial=np.inf), known, best)
        if keep.any():
            one = _best(problem, engine, a, b, Pair.of(problem, a, b, keep), known)
            found += [one] if one else []
            best = min([best, *(c.objective[0] for c in found)])
    return found, sum(len(a.row) * len(b.row) for a, b in matching)


def _wins(objective: Array | float, known: float, best: float = math.inf) -> Mask:
    """Whether an objective is better than ``known``, that of one kind, and no worse than ``best``, that of two groups."""
    beats = objective < known - SAME * abs(known) if math.isfinite(known) else np.isfinite(objective)
    return np.asarray(beats & (objective <= best + SAME * abs(best)) if math.isfinite(best) else beats)


def _least(
    problem: Problem, a: Side, b: Side, carried: tuple[Array, Array], rates: tuple[Array, Array], routed: bool
) -> float:
    objective, ok = _objectives(problem, a, b, carried, rates, routed)[:2]
    return float(np.min(np.where(ok, objective, np.inf), initial=np.inf))


def _objectives(
    problem: Problem, a: Side, b: Side, carried: tuple[Array, Array], rates: tuple[Array, Array], routed: bool = True
) -> tuple[Array, Mask, Counts]:
    """What is minimised, of every pair (first axis) and count of the first group (second axis)."""
    spares = problem.spares
    if problem.full:
        counts = _fill(problem, a, b, carried, rates, routed)
        output = problem.utilization * problem.demand.osl_mean * counts.used * (counts.x * rates[0] + counts.y * rates[1])
        return np.asarray(-three_digits(output)), counts.ok, counts
    counts = _cover(problem, a, b, carried, rates, routed)
    return (counts.x + spares) * a.spend + (counts.y + spares) * b.spend, counts.ok, counts


def _room(problem: Problem, a: Side, b: Side, x: Array) -> Array:
    """Most replicas of the second group beside ``x`` of the first."""
    if not problem.max_accelerators:
        return np.full_like(x, b.most)
    left = problem.max_accelerators - (x + problem.spares) * a.devices
    return np.asarray(np.minimum(b.most, np.floor(left / b.devices) - problem.spares))


def _cover(
    problem: Problem, a: Side, b: Side, carried: tuple[Array, Array], rates: tuple[Array, Array], routed: bool
) -> Counts:
    """For every count of the first group the fewest of the second that carry the rest."""
    need = problem.load / problem.utilization
    # As many of the first group as carry the load alone are a candidate of that kind, and a cheaper one.
    alone = float(np.max(np.ceil(need / carried[0] - SAME)))
    x = np.arange(1.0, max(min(a.most, alone - 1.0), 1.0) + 1.0)[None, :]
    y = np.maximum(np.ceil((need - x * carried[0]) / carried[1] - SAME), 1.0)
    high = _room(problem, a, b, x)
    used = np.ones_like(y)
    if routed:
        used = usable(x, y, rates)
        # More of the second group are drawn more often, and yet carry more: the next count that does is looked for one by one.
        while (short := (y <= high) & (used * (x * carried[0] + y * carried[1]) < need * (1.0 - SAME))).any():
            y = y + short
            used = usable(x, y, rates)
    return Counts(np.broadcast_to(x, y.shape), y, (y <= high) & (x <= a.most), used)


def _fill(
    problem: Problem, a: Side, b: Side, carried: tuple[Array, Array], rates: tuple[Array, Array], routed: bool = True
) -> Counts:
    """For every count of the first group the most of the second that there is room for, or as many as the router uses fully.

    Up to there more of the second group always yield more; from there on a few more are drawn too often, and then again the more
    the better: in between no count is the best. Only those that carry the load are ``ok``.
    """
    x = np.broadcast_to(np.arange(1.0, a.most + 1.0)[None, :], (len(rates[0]), int(a.most)))
    y = _room(problem, a, b, x)
    if routed:
        turn = fully_used(x, rates[0] / rates[1])
        x, y = np.tile(x, 3), np.concatenate([y, np.minimum(np.floor(turn), y), np.minimum(np.ceil(turn), y)], axis=1)
    used = usable(x, np.maximum(y, 1.0), rates) if routed else np.ones_like(y)
    need = problem.load / problem.utilization if problem.objective == "throughput" else 0.0
    enough = used * (x * carried[0] + y * carried[1]) >= need * (1.0 - SAME)
    return Counts(x, y, (y >= 1.0) & enough, used)


def _best(problem: Problem, engine: EngineOption, a: Side, b: Side, pair: Pair, known: float) -> Candidate | None:
    """The best of the pairs of two configurations that beats ``known``, by the total order."""
    objective, ok, counts = _objectives(problem, a, b, pair.carried, pair.rates)
    ok = ok & _wins(objective, known)
    if not ok.any():
        return None
    devices = (counts.x + problem.spares) * a.devices + (counts.y + problem.spares) * b.devices
    headroom = counts.used * (counts.x * pair.carried[0] + counts.y * pair.carried[1])
    if not problem.open_loop:  # a closed loop never holds more requests than it has users
        headroom = np.minimum(headroom, problem.load / problem.utilization)
    for key in (objective, devices, -three_digits(headroom)):
        value = np.where(ok, key, np.inf)
        ok = ok & (value <= value.min())
    tied = [
        _candidate(problem, engine, (a, b), pair, int(p), (int(counts.x[p, n]), int(counts.y[p, n])), float(objective[p, n]))
        for p, n in np.argwhere(ok)
    ]
    return min(tied, key=lambda c: (c.key(problem), c.roles[0].replicas))


def _candidate(
    problem: Problem,
    engine: EngineOption,
    sides: tuple[Side, Side],
    pair: Pair,
    at: int,
    counts: tuple[int, int],
    objective: float,
) -> Candidate:
    carried = tuple(float(c[at, 0]) for c in pair.carried)
    rates = tuple(float(r[at, 0]) for r in pair.rates)
    shares, loads, part = shared_out(counts, rates, carried, problem.load)
    whole = part * sum(n * c for n, c in zip(counts, carried, strict=True))
    if problem.full:
        shares, loads, _ = shared_out(counts, rates, carried, problem.utilization * whole)
    roles = []
    for k, side in enumerate(sides):
        index = int((pair.i, pair.j)[k][at])
        stock, row = side.stocks[int(side.of[index])], int(side.row[index])
        level = float(pair.level[k][at])
        held = float(side.flight[index]) > float(pair.flight[at]) * (1.0 + SAME)
        # Of a group that is held the least batch limit will do that holds as many.
        enough = stock.alive[row] & (stock.level[row] >= level * (1.0 - SAME))
        if not problem.open_loop:
            enough &= stock.block.limits >= float(pair.flight[at]) * (1.0 - SAME)
        limit = int(enough.argmax()) if held else int(side.limit[index])
        roles.append(
            RoleChoice("serve", stock.block, row, limit, counts[k], carried[k], loads[k], level, True, held, shares[k])
        )
    devices = [(n + problem.spares) * s.devices for n, s in zip(counts, sides, strict=True)]
    output = problem.utilization * part * sum(n * r for n, r in zip(counts, rates, strict=True)) * problem.demand.osl_mean
    chosen = Candidate(
        topology="aggregated",
        engine=engine,
        roles=tuple(roles),
        objective=(objective,),
        devices=sum(devices),
        cost_per_h=sum(n * s.kind.plan.price_per_hour for n, s in zip(devices, sides, strict=True)),
        watts=sum(n * s.kind.facts.tdp_w for n, s in zip(devices, sides, strict=True)),
        output_tokens_per_s=output if problem.full else problem.load * problem.demand.osl_mean,
        headroom=whole if problem.open_loop else min(whole, problem.load / problem.utilization),
    )
    return chosen if problem.open_loop or problem.full else _turning(problem, chosen)


def _turning(problem: Problem, c: Candidate) -> Candidate:
    """The same candidate with the rates at which its closed loop turns at the sized load."""
    rates = []
    for r in c.roles:
        srv, step = take(means_only(r.block.server), np.array([r.row])), DISCIPLINES[r.block.discipline]
        load, cap = np.array([r.load]), np.array([r.level_cap])
        level = size.level_at(step, srv, problem.demand, problem.load_kind, load, cap, problem.think_s)
        rates.append(r.replicas * float(step(srv, problem.demand, level).rate[0]))
    roles = tuple(dataclasses.replace(r, share=rate / sum(rates)) for r, rate in zip(c.roles, rates, strict=True))
    return dataclasses.replace(c, roles=roles, output_tokens_per_s=sum(rates) * problem.demand.osl_mean)
