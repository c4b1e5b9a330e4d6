"""Aggregated serving: every replica prefills and decodes."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servegen.roofline import memory as mem
from servegen.roofline.step import take
from servegen.service import size
from servegen.service.disciplines import DISCIPLINES, means_only
from servegen.service.latency import pace_exceeds, quantile, ttft_exceeds
from servegen.service.server import server
from servegen.solve.bands import pessimism
from servegen.solve.budget import Budget
from servegen.solve.candidate import Block, Candidate, RoleChoice, first_best, three_digits
from servegen.solve.kept import kept_bytes, level_cap, running
from servegen.solve.problem import EngineOption, Kind, Problem
from servegen.solve.space import (
    BATCH_LIMITS,
    KV_SLACK,
    Rows,
    budget_of,
    build,
    chunks_for,
    occupancy,
    replicas_that_fit,
)

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Stock:
    """What one replica of every (row, batch limit) of a block carries within the bounds; ``most`` replicas fit beside spares.

    Shapes (rows, limits), ``most`` (rows,).
    """

    block: Block
    alive: Mask
    level: Array
    carried: Array
    rate: Array
    most: Array


@dataclass(frozen=True)
class Outcome:
    """What a block found: the best candidate of each configuration, and how far the others came.

    ``stage`` is the last hurdle that some candidate took: 0 none, 1 exists, 2 fits the memory, 3 meets the bounds when
    idle, 4 fits the pool. ``most`` is the largest load that the pool carried in any candidate; ``late`` the bound that
    those missed which it did carry.
    """

    candidates: tuple[Candidate, ...]
    searched: int
    stage: int
    most: float
    block: Block | None
    late: str = ""
    stock: Stock | None = None  # from stage 3 on


def within_memory(problem: Problem, rows: Rows, room: Budget, rejected: Counter[str], cached: bool = True) -> Mask:
    """Candidates (rows, limits) whose weights, longest request and full batch fit, and what a prefix cache must keep.

    Not ``cached`` are decode servers, which have no such cache.
    """
    mean, std, longest = (column[:, None] for column in occupancy(problem, rows))
    whole = room.fits & (longest <= room.pool)
    mine = BATCH_LIMITS[None, :] / rows.groups[:, None]
    pool = room.pool
    if cached:
        pool, *one = running(problem, rows, room.pool)
        mean, std = (column[:, None] for column in one)
    batch = whole & (mine <= mem.largest_batch(pool, mean, std, KV_SLACK)) & (mine == np.floor(mine))
    rejected["memory: the weights and the engine's reserve do not fit"] += int(np.sum(~room.fits))
    rejected["memory: the KV pool cannot hold the longest request"] += int(np.sum(room.fits & ~whole))
    rejected["memory: the KV pool cannot hold the batch limit"] += int(np.sum(whole & ~batch))
    if cached and problem.kept_tokens:
        keeps = batch & (kept_bytes(problem, rows)[:, None] < room.pool)
        rejected["memory: the KV pool cannot keep the prompts that are to be found again"] += int(np.sum(batch & ~keeps))
        batch = keeps
    return np.asarray(batch & ~np.isin(BATCH_LIMITS, problem.without_limits))


def level_limits(problem: Problem, rows: Rows, static: bool = False) -> Array:
    """Largest mean number of sequences at each batch limit: below it when slots must be free, else all of it.

    Requests in flight vary with open arrivals and with users who think; a stated concurrency is what it is. Attention groups
    have their slots apart. Shape (rows, limits).
    """
    shape = (len(rows), len(BATCH_LIMITS))
    if not problem.bounded_start or problem.load_kind == "concurrency":
        return np.broadcast_to(BATCH_LIMITS, shape)
    mine = {g: BATCH_LIMITS / g for g in np.unique(rows.groups)}
    by_groups = {g: g * size.slot_level(limit, size.peak(problem.demand, static, limit)) for g, limit in mine.items()}
    return np.stack([by_groups[g] for g in rows.groups])


def aggregated(problem: Problem, engine: EngineOption, kind: Kind, rejected: Counter[str]) -> list[Outcome]:
    """Every aggregated candidate of an engine on a kind, an outcome for each discipline that the engine has."""
    if no_power(problem, kind, rejected):
        return []
    disciplines, d = engine.facts.schedulers, problem.demand
    outcomes = []
    seen: Counter[str] = Counter()
    rows = build(problem, engine, kind, chunks_for(problem), seen)
    if rows is not None:
        room = budget_of(problem, engine, rows, BATCH_LIMITS)
        fits = within_memory(problem, rows, room, seen)
        srv = server(rows.terms, rows.chunk, engine.facts.request_s.value, d)
        levels = np.minimum(level_limits(problem, rows, disciplines == ("static",)), level_cap(problem, rows, room.pool))
        high = np.where(fits.any(axis=1), np.max(np.where(fits, levels, 0.0), axis=1), levels[:, 0])
        factors = by_row(problem, engine, kind, rows)
        for x in disciplines:
            block = Block(problem, x, engine, kind, rows, srv, room, BATCH_LIMITS, high)
            able, mine, bands = _scheduled(block, fits, rejected), levels, factors
            if x == "mixed" and not rows.terms.plain:
                whole = np.flatnonzero((rows.groups == 1.0) & (rows.devices == rows.tp))
                reason = "mixed chunks: not predicted with pipeline stages or attention groups"
                rejected[reason] += int(able.sum() - able[whole].sum())
                block, able, mine = _only(block, whole), able[whole], levels[whole]
                bands = {metric: factor[whole] for metric, factor in factors.items()}
            limit, at_idle = size.largest_level(DISCIPLINES[x], block.server, d, problem.slo, block.level_limit, bands)
            block = dataclasses.replace(block, level_limit=limit)
            outcomes.append(_sized(problem, block, able, mine, at_idle, rejected))
    for reason, n in seen.items():  # memory asks nothing of a discipline, but each has its candidates
        rejected[reason] += n * len(disciplines)
    return outcomes


def _scheduled(block: Block, fits: Mask, rejected: Counter[str]) -> Mask:
    """Of the candidates those whose drafting the discipline allows."""
    rounds, engine = block.rows.terms.rounds, block.engine.facts
    if rounds is None or block.discipline in engine.drafting_schedulers:
        return fits
    able: Mask = fits & (rounds.drafted == 0)[:, None]
    rejected[f"speculation: {engine.id} does not draft with {block.discipline} scheduling"] += int(np.sum(fits & ~able))
    return able


def by_row(problem: Problem, engine: EngineOption, kind: Kind, rows: Rows) -> dict[str, Array]:
    """:func:`servegen.solve.bands.pessimism` of each row, shape (rows,)."""
    near, far = (pessimism(problem, engine.facts, kind.facts, cut) for cut in (False, True))
    cut = rows.is_cut(kind)
    return {metric: np.where(cut, far[metric], factor) for metric, factor in near.items()}


def _only(block: Block, index: NDArray[np.int64]) -> Block:
    """The rows of ``index``, all chunks of some configurations."""
    srv, room = take(block.server, index), take(block.budget, index)
    return dataclasses.replace(block, rows=block.rows.at(index), server=srv, budget=room, level_limit=block.level_limit[index])


def _sized(
    problem: Problem, block: Block, fits: Mask, levels: Array, at_idle: dict[str, Mask], rejected: Counter[str]
) -> Outcome:
    """The candidates of a block, each with the replicas that carry the load."""
    kind, rows, limit = block.kind, block.rows, block.level_limit
    if not fits.any():
        return Outcome((), 0, 1, 0.0, block)
    alive = fits & (limit > 0)[:, None]
    _count_idle(rejected, at_idle, fits)
    if not alive.any():
        return Outcome((), int(fits.sum()), 2, 0.0, block)
    level = np.minimum(levels, limit[:, None])
    carried, rate = _sustained(problem, block, level, alive)
    most = _most_replicas(problem, kind, rows.devices)[:, None]
    replicas = np.where(alive, _replicas(problem, carried, most), 0.0)
    in_pool = alive & (replicas >= 1) & (replicas <= most)
    enough = in_pool & (problem.saturate | (replicas * problem.utilization * carried >= problem.load * (1 - 1e-9)))
    rejected["pool: more accelerators needed than there are"] += int(np.sum(alive & ~enough))
    best_load = float(np.max(np.where(alive, most * problem.utilization * carried, 0.0)))
    stock = Stock(block, alive, level, carried, rate, most[:, 0])
    if not enough.any():
        return Outcome((), int(fits.sum()), 3, best_load, block, stock=stock)
    found = _best_of_each(problem, block, enough, replicas, carried, rate, level)
    return Outcome(found, int(fits.sum()), 4, best_load, block, stock=stock)


def no_power(problem: Problem, kind: Kind, rejected: Counter[str]) -> bool:
    """Whether the objective is energy and the accelerator's power is not published."""
    unknown = problem.objective == "energy" and math.isnan(kind.facts.tdp_w)
    if unknown:
        rejected[f"energy: the power of {kind.facts.id} is not published"] += 1
    return unknown


def _count_idle(rejected: Counter[str], at_idle: dict[str, Mask], fits: Mask) -> None:
    """Candidates that break a bound although idle; each counts for the first bound it breaks."""
    seen = np.zeros(len(fits), dtype=bool)
    for bound, broken in at_idle.items():
        now = broken & ~seen
        seen |= now
        rejected[f"{bound}: missed even by a single request"] += int(fits[now].sum())


def _sustained(problem: Problem, block: Block, level: Array, alive: Mask) -> tuple[Array, Array]:
    """Load and rate that one replica carries at ``level``, shape (rows, limits); 0 where not alive."""
    # Limits that allow more than the bounds do are all alike: each row's first of them stands for the others.
    capped = np.cumsum(level >= block.level_limit[:, None], axis=1)
    row, column = np.nonzero(capped <= 1)
    lean = take(means_only(block.server, rates_only=problem.load_kind == "rate"), row)
    p = DISCIPLINES[block.discipline](lean, problem.demand, level[row, column])
    carried, rate = np.zeros(level.shape), np.zeros(level.shape)
    carried[row, column] = size.load(problem.load_kind, p, problem.demand, problem.think_s)
    rate[row, column] = p.rate
    last = np.minimum(np.sum(capped == 0, axis=1), level.shape[1] - 1)[:, None]
    carried = np.where(capped > 1, np.take_along_axis(carried, last, axis=1), carried)
    rate = np.where(capped > 1, np.take_along_axis(rate, last, axis=1), rate)
    if not problem.open_loop:  # those who are served hold a slot; only those who think hold none
        carried = np.minimum(carried, BATCH_LIMITS + rate * problem.think_s)
    return np.where(alive, carried, 0.0), np.where(alive, rate, 0.0)


def _most_replicas(problem: Problem, kind: Kind, each: Array) -> Array:
    """Replicas without spares, of ``each`` accelerators, that the pool and maxAccelerators allow."""
    most = replicas_that_fit(kind, each)
    if problem.max_accelerators:
        most = np.minimum(most, np.floor(problem.max_accelerators / each))
    return most - problem.spares


def _replicas(problem: Problem, carried: Array, most: Array) -> Array:
    """Replicas that carry the load at the utilisation; all that there are when yield or latency is the objective."""
    if problem.saturate or problem.objective == "throughput":
        return np.broadcast_to(most, carried.shape).astype(np.float64)
    need = np.maximum(np.ceil(problem.load / np.maximum(problem.utilization * carried, 1e-12) - 1e-9), 1.0)
    if problem.objective != "latency":
        return need
    useful = most if problem.open_loop else np.minimum(most, np.ceil(problem.load))
    return np.where(need <= most, np.maximum(need, useful), need)


def _best_of_each(
    problem: Problem, block: Block, mask: Mask, replicas: Array, carried: Array, rate: Array, level: Array
) -> tuple[Candidate, ...]:
    """The best (chunk, batch limit) of every configuration."""
    kind = block.kind
    devices = (replicas + problem.spares) * block.rows.devices[:, None]
    cost, watts = devices * kind.plan.price_per_hour, devices * kind.facts.tdp_w
    full = problem.saturate or problem.objective == "throughput"
    share = problem.utilization if full else problem.load / np.maximum(replicas * carried, 1e-300)
    output = replicas * rate * share * problem.demand.osl_mean
    headroom = replicas * carried
    if not problem.open_loop:  # a closed loop never holds more requests than it has users
        headroom = np.minimum(headroom, problem.load / problem.utilization)
    objective: tuple[Array, ...]
    if problem.objective == "latency":
        objective = _latency_keys(problem, block, mask, replicas, carried, level)
    elif problem.objective == "throughput":
        objective = (-three_digits(output),)
    else:
        spent = cost if problem.objective == "cost" else watts
        objective = (three_digits(spent / np.maximum(output, 1e-300)) if problem.saturate else spent,)
    chunks = len(chunks_for(problem))

    def grouped(a: Any) -> Any:
        """(configs, chunks*limits) from (rows, limits)."""
        return a.reshape(-1, chunks * a.shape[1])

    keys = tuple(grouped(k) for k in (*objective, devices, -three_digits(headroom)))
    any_left, best = first_best(grouped(mask), keys)
    configs = np.nonzero(any_left)[0]
    places = [(int(c) * chunks + int(best[c]) // len(BATCH_LIMITS), int(best[c]) % len(BATCH_LIMITS)) for c in configs]
    if not problem.open_loop and not full:
        output = _closed_loop_output(problem, block, places, replicas, level, output)
    out = []
    for row, column in places:
        n = int(replicas[row, column])
        sized = float(problem.utilization * carried[row, column]) if full else problem.load / n
        role = RoleChoice("serve", block, row, column, n, float(carried[row, column]), sized, float(level[row, column]))
        out.append(
            Candidate(
                "aggregated",
                block.engine,
                (role,),
                tuple(float(k[row, column]) for k in objective),
                int(devices[row, column]),
                float(cost[row, column]),
                float(watts[row, column]),
                float(output[row, column]),
                float(headroom[row, column]),
            )
        )
    return tuple(out)


def _closed_loop_output(
    problem: Problem, block: Block, places: list[tuple[int, int]], replicas: Array, level: Array, output: Array
) -> Array:
    """Output tokens/s of the places that were chosen: a closed loop's rate is no share of what a full one carries."""
    row, column = np.array([p[0] for p in places]), np.array([p[1] for p in places])
    lean, step, n = take(means_only(block.server), row), DISCIPLINES[block.discipline], replicas[row, column]
    at = size.level_at(step, lean, problem.demand, problem.load_kind, problem.load / n, level[row, column], problem.think_s)
    exact = output.copy()
    exact[row, column] = n * step(lean, problem.demand, at).rate * problem.demand.osl_mean
    return exact


#: Batch limits of a row that are compared when the pool is saturated: latency rises with them, so the best is among the least.
LEAST_LIMITS = 16


def _latency_keys(
    problem: Problem, block: Block, mask: Mask, replicas: Array, carried: Array, level: Array
) -> tuple[Array, Array]:
    """p95 pace (ITL, or TPOT where tokens may come in bursts) and p95 TTFT at the sized load.

    They depend on the row and the load of a replica, so each such pair is computed once.
    """
    if problem.saturate:
        mask = mask & (np.cumsum(mask, axis=1) <= LEAST_LIMITS)
    row, column = np.nonzero(mask)
    load = problem.utilization * carried[row, column] if problem.saturate else problem.load / replicas[row, column]
    pairs, first, inverse = np.unique(np.stack([row.astype(np.float64), load]), axis=1, return_index=True, return_inverse=True)
    index, target = pairs[0].astype(np.int64), pairs[1]
    srv, step, d = take(block.server, index), DISCIPLINES[block.discipline], problem.demand
    high = level[row, column][first] if problem.saturate else block.level_limit[index]
    at = size.level_at(step, srv, d, problem.load_kind, target, high, problem.think_s)
    p = step(srv, d, at)
    itl, ttft = np.full(mask.shape, np.inf), np.full(mask.shape, np.inf)
    inverse = inverse.reshape(-1)
    itl[row, column] = three_digits(quantile(lambda t: pace_exceeds(p, t, d), 0.95, len(index)))[inverse]
    ttft[row, column] = three_digits(quantile(lambda t: ttft_exceeds(p, t), 0.95, len(index)))[inverse]
    return itl, ttft
