"""Aggregated serving: every replica prefills and decodes."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.roofline.step import take
from servegen.service import size
from servegen.service.disciplines import DISCIPLINES, means_only
from servegen.service.latency import pace_percentile, ttft_percentile
from servegen.solve.alike import begins
from servegen.solve.candidate import Block, Candidate, RoleChoice, leaders, three_digits
from servegen.solve.carried import RISING, Carried
from servegen.solve.frame import Frame, RoleFrame, frames
from servegen.solve.problem import EngineOption, Kind, Problem
from servegen.solve.space import BATCH_LIMITS, Rows, chunks_for, replicas_that_fit

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Index = NDArray[np.int64]


@record
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


@record
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
    stock: Stock | None = None  # from stage 3 on, where two groups are tried
    frame: Frame | None = None  # what it was sized from, of an aggregated one
    sides: tuple[RoleFrame, RoleFrame] | None = None  # of a split one


def aggregated(
    problem: Problem, engine: EngineOption, kind: Kind, rejected: Counter[str]
) -> tuple[Rows | None, list[Outcome]]:
    """The rows of an engine on a kind, None if there is none, and every aggregated candidate of them, an outcome for each
    discipline that the engine has."""
    if no_power(problem, kind, rejected):
        return None, []
    *others, last = problem.by_replicas
    rows, found = frames(last, engine, kind, rejected)
    if rows is None:
        return None, []
    out = [sized(part, frame, Counter()) for part in others for frame in frames(part, engine, kind, Counter(), rows)[1]]
    return rows, [*out, *(sized(last, frame, rejected) for frame in found)]


def sized(problem: Problem, frame: Frame, rejected: Counter[str]) -> Outcome:
    """The candidates of a frame, each with the replicas that carry the load within the bounds."""
    block, fits, levels = frame.block, frame.fits, frame.levels
    limit, at_idle = frame.within(problem, problem.slo)
    block = dataclasses.replace(block, problem=problem, level_limit=limit)
    kind, rows = block.kind, block.rows
    searched = int(fits.sum()) if problem.replicas != "one" else 0  # the same are searched as several
    if not fits.any():
        return Outcome((), 0, 1, 0.0, block, frame=frame)
    alive = fits & (limit > 0)[:, None]
    _count_idle(rejected, at_idle, fits)
    if not alive.any():
        return Outcome((), searched, 2, 0.0, block, frame=frame)
    alive, copies, column = _distinct(problem, alive, levels >= limit[:, None])
    level = np.minimum(levels[:, : alive.shape[1]], limit[:, None])
    several = problem.groups and len(problem.pool) > 1 and problem.replicas != "one"
    rising = block.discipline in RISING and problem.open_loop and not (problem.saturate and problem.objective == "latency")
    carried = Carried.of(problem, block, level, alive, whole=several or not rising)
    most = _most_replicas(problem, kind, rows.devices)[:, None]
    replicas, enough = _enough(problem, carried, most)
    # Who carries less needs no fewer: of those that are not known only the ones before the first that suffice may or may not.
    if carried.fill(carried.before(enough & (np.cumsum(enough, axis=1) == 1))):
        replicas, enough = _enough(problem, carried, most)
    short = alive & ~carried.next_known(enough)
    alike = copies * short[np.arange(len(copies)), column]
    rejected["pool: more accelerators needed than there are"] += int(np.sum(short) + np.sum(alike))
    best_load = float(np.max(most * problem.utilization * carried.load))
    stock = Stock(block, alive, level, carried.load, carried.rate, most[:, 0]) if several else None
    if not enough.any():
        return Outcome((), searched, 3, best_load, block, stock=stock, frame=frame)
    found = _best_of_each(problem, carried, most, replicas, enough)
    return Outcome(found, searched, 4, best_load, block, stock=stock, frame=frame)


def _distinct(problem: Problem, alive: Mask, capped: Mask) -> tuple[Mask, Index, Index]:
    """Of candidates (rows, limits) those that carry what no one before them in their row does, and the columns up to the last of
    them; of each row how many others there are, and in which column the one stands that they are like.

    Batch limits that allow more than the bounds do (``capped``) are all alike, and the least of them is preferred; not so in a
    closed loop, whose users hold slots.
    """
    if not problem.open_loop:
        none = np.zeros(len(alive), dtype=np.int64)
        return alive, none, none
    held = alive & capped
    any_held, column = held.any(axis=1), held.argmax(axis=1)
    distinct = alive & (np.arange(alive.shape[1]) <= np.where(any_held, column, alive.shape[1])[:, None])
    width = int(np.flatnonzero(distinct.any(axis=0))[-1]) + 1
    return distinct[:, :width], np.count_nonzero(alive, axis=1) - np.count_nonzero(distinct, axis=1), column


def least_objective(problem: Problem, frame: Frame) -> Array:
    """What no candidate of a row costs less than, whatever its bounds, shape (rows,); -inf where that is not known beforehand."""
    block, d = frame.block, problem.demand
    if problem.objective == "latency" or problem.saturate:
        return np.full(len(block.rows), -math.inf)
    p = DISCIPLINES[block.discipline](means_only(block.server), d, block.level_limit)
    carried, rate = size.load(problem.load_kind, p, d, problem.think_s), p.rate
    if not problem.open_loop:
        carried = np.minimum(carried, np.max(np.where(frame.fits, BATCH_LIMITS, 0.0), axis=1) + rate * problem.think_s)
    carried, rate = carried * (1.0 + ROUNDING), rate * (1.0 + ROUNDING)
    most = _most_replicas(problem, block.kind, block.rows.devices)
    replicas = _replicas(problem, carried, most)
    each = block.kind.facts.tdp_w if problem.objective == "energy" else block.kind.plan.price_per_hour
    if problem.objective == "throughput":
        least = -three_digits(replicas * rate * problem.utilization * d.osl_mean)
    else:
        least = (replicas + problem.spares) * block.rows.devices * each
    return np.where(frame.fits.any(axis=1) & (replicas >= 1) & (replicas <= most), least, math.inf)


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


def _most_replicas(problem: Problem, kind: Kind, each: Array) -> Array:
    """Replicas without spares, of ``each`` accelerators, that the pool and maxAccelerators allow."""
    most = replicas_that_fit(kind, each)
    if problem.max_accelerators:
        most = np.minimum(most, np.floor(problem.max_accelerators / each))
    most = most - problem.spares
    return np.minimum(most, 1.0) if problem.replicas == "one" else most


def _replicas(problem: Problem, carried: Array, most: Array) -> Array:
    """Replicas that carry the load at the utilisation; all that there are when yield or latency is the objective."""
    if problem.full:
        return np.broadcast_to(most, carried.shape).astype(np.float64)
    need = np.ceil(problem.load / np.maximum(problem.utilization * carried, 1e-12) - 1e-9)
    need = np.maximum(need, float(problem.least_replicas))
    if problem.objective != "latency":
        return need
    useful = most if problem.open_loop else np.minimum(most, np.ceil(problem.load))
    return np.where(need <= most, np.maximum(need, useful), need)


def _enough(problem: Problem, carried: Carried, most: Array) -> tuple[Array, Mask]:
    """Replicas of each candidate, shape (rows, limits), and whether the pool holds as many and they carry the load; of those
    that are known."""
    replicas = np.where(carried.known, _replicas(problem, carried.load, most), 0.0)
    held = carried.known & (replicas >= problem.least_replicas) & (replicas <= most)
    return replicas, held & (problem.saturate | (replicas * problem.utilization * carried.load >= problem.load * (1 - 1e-9)))


def _best_of_each(problem: Problem, carried: Carried, most: Array, replicas: Array, enough: Mask) -> tuple[Candidate, ...]:
    """The best (chunk, batch limit) of every configuration."""
    block, load, rate, level = carried.block, carried.load, carried.rate, carried.level
    kind, chunks, width = block.kind, len(chunks_for(problem)), level.shape[1]
    full = problem.full
    each = kind.facts.tdp_w if problem.objective == "energy" else kind.plan.price_per_hour
    latencies = _latency_keys(problem, block, enough, replicas, load, level) if problem.objective == "latency" else ()

    def led(replicas: Array, enough: Mask, latencies: tuple[Array, ...]) -> tuple[Array, Array, tuple[Array, ...], Mask]:
        """Headroom, accelerators and objective of the candidates, and those of each configuration that none is better than."""
        headroom, devices = replicas * load, (replicas + problem.spares) * block.rows.devices[:, None]
        if not problem.open_loop:  # a closed loop never holds more requests than it has users
            headroom = np.minimum(headroom, problem.load / problem.utilization)
        objective = latencies
        if problem.objective == "throughput":
            objective = (-three_digits(_output(problem, replicas, load, rate)),)
        elif problem.saturate and not latencies:
            objective = (three_digits(devices * each / np.maximum(_output(problem, replicas, load, rate), 1e-300)),)
        elif not latencies:
            objective = (devices * each,)
        keys = tuple(k.reshape(-1, chunks * width) for k in (*objective, devices))
        first = leaders(enough.reshape(-1, chunks * width), keys, headroom.reshape(-1, chunks * width))
        return headroom, devices, objective, first

    headroom, devices, objective, first = led(replicas, enough, latencies)
    # A candidate that is not known is no better than the next that is; where it is as good it is preferred.
    asked, latencies = carried.before(first.reshape(enough.shape)), tuple(carried.next_known(k) for k in latencies)
    if carried.fill(asked):
        replicas, enough = _enough(problem, carried, most)
        headroom, devices, objective, first = led(replicas, enough, latencies)
    places = [(int(c) * chunks + int(k) // width, int(k) % width) for c, k in enumerate(first.argmax(axis=1)) if first[c, k]]
    at = tuple(np.array(places, dtype=np.int64).reshape(-1, 2).T)
    if problem.open_loop or full:
        output = _output(problem, replicas[at], load[at], rate[at])
    else:
        output = _closed_loop_output(problem, block, at, replicas, level)
    out = []
    for (row, column), yields in zip(places, output.tolist(), strict=True):
        n = int(replicas[row, column])
        sized = float(problem.utilization * load[row, column]) if full else problem.load / n
        role = RoleChoice("serve", block, row, column, n, float(load[row, column]), sized, float(level[row, column]))
        out.append(
            Candidate(
                "aggregated",
                block.engine,
                (role,),
                tuple(float(k[row, column]) for k in objective),
                int(devices[row, column]),
                float(devices[row, column] * kind.plan.price_per_hour),
                float(devices[row, column] * kind.facts.tdp_w),
                yields,
                float(headroom[row, column]),
            )
        )
    return tuple(out)


def _output(problem: Problem, replicas: Array, carried: Array, rate: Array) -> Array:
    """Output tokens/s of so many replicas, each of which carries so much at ``rate`` requests/s."""
    share = problem.utilization if problem.full else problem.load / np.maximum(replicas * carried, 1e-300)
    return np.asarray(replicas * rate * share * problem.demand.osl_mean)


def _closed_loop_output(problem: Problem, block: Block, places: tuple[Index, ...], replicas: Array, level: Array) -> Array:
    """Output tokens/s of the ``places`` (rows, limits): a closed loop's rate is no share of what a full one carries."""
    row, column = places
    lean, step, n = take(means_only(block.server), row), DISCIPLINES[block.discipline], replicas[row, column]
    at = size.level_at(step, lean, problem.demand, problem.load_kind, problem.load / n, level[row, column], problem.think_s)
    return np.asarray(n * step(lean, problem.demand, at).rate * problem.demand.osl_mean)


#: Relative room for rounding in a bound from above.
ROUNDING = 1e-9
#: Batch limits of a row that are compared when the pool is saturated: latency rises with them, so the best is among the least.
LEAST_LIMITS = 16


def _latency_keys(
    problem: Problem, block: Block, mask: Mask, replicas: Array, carried: Array, level: Array
) -> tuple[Array, Array]:
    """p95 pace (ITL, or TPOT where tokens may come in bursts) and p95 TTFT at the sized load, inf where the pace loses anyway.

    They depend on the row and the load of a replica, so each such pair is computed once.
    """
    if problem.saturate:
        mask = mask & (np.cumsum(mask, axis=1) <= LEAST_LIMITS)
    row, column = np.nonzero(mask)
    load = problem.utilization * carried[row, column] if problem.saturate else problem.load / replicas[row, column]
    # Neighbours of one row and load are one question; limits that leave as many replicas stand side by side.
    new = begins(row, load)
    first, inverse = np.flatnonzero(new), np.cumsum(new) - 1
    index, target = row[first], load[first]
    srv, step, d = take(block.server, index), DISCIPLINES[block.discipline], problem.demand
    high = level[row, column][first] if problem.saturate else block.level_limit[index]
    at = size.level_at(step, srv, d, problem.load_kind, target, high, problem.think_s)
    p = step(srv, d, at)
    itl, ttft = np.full(mask.shape, np.inf), np.full(mask.shape, np.inf)
    paces = three_digits(pace_percentile(0.95, p, d))
    # TTFT decides between candidates of a configuration that keep its best pace.
    config, least = index // len(chunks_for(problem)), np.full(mask.shape[0], np.inf)
    np.minimum.at(least, config, paces)
    best, firsts = np.flatnonzero(paces == least[config]), np.full(len(paces), np.inf)
    firsts[best] = three_digits(ttft_percentile(0.95, take(p, best)))
    itl[row, column], ttft[row, column] = paces[inverse], firsts[inverse]
    return itl, ttft
