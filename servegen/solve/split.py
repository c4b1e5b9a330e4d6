"""Disaggregated serving: prefill servers hand the KV cache to decode servers over the declared fabric.

Each role has its own TP, chunk or batch limit and count; both serve one weight and one KV precision. First tokens are the
prefill role's, gaps the decode role's, so each is sized by its own bounds; whole requests are checked on the pair.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servegen.roofline.collectives import handoff_s
from servegen.roofline.step import take
from servegen.service import latency, size
from servegen.service.disciplines import DISCIPLINES, Point, means_only
from servegen.service.server import Server, server
from servegen.service.size import Slo
from servegen.solve.aggregate import Outcome, level_limits, within_memory
from servegen.solve.bands import pessimism
from servegen.solve.candidate import Block, Candidate, RoleChoice, first_best, three_digits
from servegen.solve.problem import EngineOption, Kind, Problem
from servegen.solve.space import BATCH_LIMITS, Rows, both_fit, budget, build, chunks_for, occupancy, replicas_that_fit

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Index = NDArray[np.int64]

START = frozenset({"ttft"})
GAPS = frozenset({"itl", "tpot"})
#: A prefill server decodes nothing, but keeps prompts until their KV is handed over.
PREFILL_SLOTS = 64.0
#: Rounds of rate -> duration -> rate of a closed loop; the duration hardly depends on the rate below the sized load.
LOOP_ROUNDS = 3
#: A decode server prefills nothing; its chunk only sets the engine's reserve, so the least is taken.
DECODE_CHUNKS = (512,)


@dataclass(frozen=True)
class Decodes:
    """Decode candidates that meet their bounds, flat: shape (n,)."""

    block: Block
    row: Index
    limit: Index
    level: Array
    rate: Array


@dataclass(frozen=True)
class Prefills:
    """Prefill candidates, one per row: shape (n,)."""

    block: Block
    row: Index
    limit: Index
    rate: Array


def fabric_between(kind: Kind) -> float:
    """Bytes/s per accelerator between the roles: the declared fabric, or the scale-up link if all stand in one node; 0 = none."""
    if kind.plan.fabric_bytes_per_s:
        return kind.plan.fabric_bytes_per_s
    return kind.facts.link_bytes_per_s if kind.plan.nodes == 1 else 0.0


def disaggregated(problem: Problem, engine: EngineOption, kind: Kind, rejected: Counter[str]) -> Outcome:
    """Every split candidate of an engine on a kind."""
    fabric = fabric_between(kind)
    if not engine.facts.disaggregation or fabric == 0.0:
        rejected["split: the engine cannot hand KV over" if fabric else "split: no fabric is declared between nodes"] += 1
        return Outcome((), 0, 0, 0.0, None)
    decode = _decodes(problem, engine, kind, rejected)
    prefill = _prefills(problem, engine, kind, fabric, rejected)
    searched = sum(len(p.row) for p in (prefill,) if p) + sum(len(d.row) for d in (decode,) if d)
    if prefill is None or decode is None:
        return Outcome((), searched, 2, 0.0, None)
    candidates, pairs, most = _pairs(problem, engine, kind, prefill, decode, rejected)
    if not problem.open_loop and not problem.saturate and problem.objective != "throughput":
        candidates = _closed(problem, candidates)
    return Outcome(candidates, pairs, 4 if candidates else 3, most, None)


def _prefills(problem: Problem, engine: EngineOption, kind: Kind, fabric: float, rejected: Counter[str]) -> Prefills | None:
    rows = build(problem, engine, kind, chunks_for(problem), Counter())
    if rows is None:
        return None
    d = problem.demand
    slots = np.array([PREFILL_SLOTS])
    room = budget(problem, engine, rows, slots, handoff=True)
    _, _, longest = occupancy(problem, rows)
    fits = (room.pool[:, 0] > 0) & (longest <= room.pool[:, 0])
    request_s = 2.0 * engine.facts.request_s.value  # both servers take the request in
    srv = server(rows.terms, rows.chunk, request_s, d, _handoff(problem, rows, fabric))
    high = np.full(len(rows), 1.0 - 1e-6)
    limit, at_idle = size.largest_level(
        DISCIPLINES["prefill"], srv, d, problem.slo.touches(START), high, pessimism(problem, engine.facts, kind.facts)
    )
    for bound, broken in at_idle.items():
        rejected[f"split: {bound}: missed even by a single request"] += int(np.sum(broken & fits))
    alive = np.nonzero(fits & (limit > 0))[0]
    if not len(alive):
        return None
    block = Block("prefill", engine, kind, rows, srv, room, slots, limit)
    rate = DISCIPLINES["prefill"](take(means_only(srv), alive), d, limit[alive]).rate
    return Prefills(block, alive, np.zeros_like(alive), rate)


def _handoff(problem: Problem, rows: Rows, fabric: float) -> Array:
    """Seconds of the hand-off that prefilling does not hide, at each edge of the prompt lengths: (rows, edges).

    KV follows chunk by chunk, so what is left is the last chunk's transfer, or the backlog of a fabric slower than prefill.
    """
    d = problem.demand
    kv_bytes = np.stack([rows.memory.sequence_bytes(float(t)) for t in d.total_edges], axis=1) * rows.tp[:, None]
    whole = handoff_s(kv_bytes, fabric * rows.tp[:, None])
    chunks = np.ceil(d.uncached_edges[None, :] / rows.chunk[:, None])
    prefill = rows.terms.prefill_s(d.uncached_edges, d.total_edges, rows.chunk)
    return np.maximum.accumulate(np.maximum(whole / chunks, whole - prefill), axis=1)


def _decodes(problem: Problem, engine: EngineOption, kind: Kind, rejected: Counter[str]) -> Decodes | None:
    rows = build(problem, engine, kind, DECODE_CHUNKS, Counter())
    if rows is None:
        return None
    d = problem.demand
    room = budget(problem, engine, rows, BATCH_LIMITS, handoff=True)
    fits = within_memory(problem, rows, room, Counter())
    srv = server(rows.terms, rows.chunk, 0.0, d)
    levels = level_limits(problem)
    high = np.where(fits.any(axis=1), np.max(np.where(fits, levels, 0.0), axis=1), levels[0])
    limit, at_idle = size.largest_level(
        DISCIPLINES["decode"], srv, d, problem.slo.touches(GAPS), high, pessimism(problem, engine.facts, kind.facts)
    )
    alive = fits & (limit > 0)[:, None]
    for bound, broken in at_idle.items():
        rejected[f"split: {bound}: missed even by a single request"] += int(fits[broken.astype(bool)].sum())
    if not alive.any():
        return None
    row, column = np.nonzero(alive)
    level = np.minimum(levels[column], limit[row])
    block = Block("decode", engine, kind, rows, srv, room, BATCH_LIMITS, limit)
    rate = DISCIPLINES["decode"](take(means_only(srv), row), d, level).rate
    return Decodes(block, row, column, level, rate)


def _pairs(
    problem: Problem, engine: EngineOption, kind: Kind, prefill: Prefills, decode: Decodes, rejected: Counter[str]
) -> tuple[tuple[Candidate, ...], int, float]:
    """Best pair for every (prefill configuration, decode configuration) of equal precision; pairs computed; most load carried."""
    found: list[Candidate] = []
    searched, most = 0, 0.0
    pre, dec = prefill.block.rows, decode.block.rows
    for p_config, p_terms in enumerate(pre.lowered.configs):
        p = np.flatnonzero(pre.config[prefill.row] == p_config).astype(np.int64)
        for d_config, d_terms in enumerate(dec.lowered.configs):
            q = np.flatnonzero(dec.config[decode.row] == d_config).astype(np.int64)
            if (p_terms.weights, p_terms.kv) != (d_terms.weights, d_terms.kv) or not len(p) or not len(q):
                continue
            searched += len(p) * len(q)
            candidate, carried = _best_pair(problem, engine, kind, prefill, decode, p, q, rejected)
            most = max(most, carried)
            found += [candidate] if candidate else []
    return tuple(found), searched, most


def _best_pair(
    problem: Problem,
    engine: EngineOption,
    kind: Kind,
    prefill: Prefills,
    decode: Decodes,
    p: Index,
    q: Index,
    rejected: Counter[str],
) -> tuple[Candidate | None, float]:
    """The best of (p x q) of one configuration pair, and the most load that the pool carries with any of them."""
    tp_p = float(prefill.block.rows.tp[prefill.row[p[0]]])
    tp_d = float(decode.block.rows.tp[decode.row[q[0]]])
    rate_p, rate_d = np.broadcast_arrays(prefill.rate[p][:, None], decode.rate[q][None, :])
    u, d = problem.utilization, problem.demand
    rate = _rate_of(problem, prefill, decode, p, q)
    fill = problem.saturate or problem.objective in ("throughput", "latency")
    x, y = (
        _fill(problem, kind, rate_p, rate_d, tp_p, tp_d)
        if fill
        else (np.ceil(rate / (u * rate_p) - 1e-9), np.ceil(rate / (u * rate_d) - 1e-9))
    )
    x, y = np.maximum(x, 1.0), np.maximum(y, 1.0)
    fits = _packs(problem, kind, x, y, tp_p, tp_d)
    carried = np.minimum(x * rate_p, y * rate_d)
    x_most, y_most = _fill(problem, kind, rate_p, rate_d, tp_p, tp_d)
    usable = _packs(problem, kind, x_most, y_most, tp_p, tp_d) & (x_most >= 1) & (y_most >= 1)
    most = float(np.max(np.where(usable, u * np.minimum(x_most * rate_p, y_most * rate_d), 0.0)))
    enough = fits if problem.saturate else fits & (u * carried >= rate * (1 - 1e-9))
    rejected["split: more accelerators needed than there are"] += int(np.sum(~enough))
    enough &= _whole_requests(problem, prefill, decode, p, q, x, y, u * carried if problem.saturate else rate, rejected)
    if not enough.any():
        return None, most
    devices = (x + problem.spares) * tp_p + (y + problem.spares) * tp_d
    cost, watts = devices * kind.plan.price_per_hour, devices * kind.facts.tdp_w
    load = u * carried if problem.saturate or problem.objective == "throughput" else rate
    output = load * d.osl_mean
    if problem.objective == "throughput":
        keys: tuple[Array, ...] = (-three_digits(output),)
    elif problem.objective == "latency":
        keys = _latency(problem, prefill, decode, p, q, load / x, load / y)
    else:
        spent = cost if problem.objective == "cost" else watts
        keys = (spent / output if problem.saturate else spent,)
    _, best = first_best(enough.reshape(1, -1), tuple(k.reshape(1, -1) for k in (*keys, devices, -three_digits(carried))))
    i, j = divmod(int(best[0]), len(q))
    pre_row, dec_row = int(prefill.row[p[i]]), int(decode.row[q[j]])
    first = RoleChoice(
        role="prefill",
        block=prefill.block,
        row=pre_row,
        limit=int(prefill.limit[p[i]]),
        replicas=int(x[i, j]),
        sustained=float(rate_p[i, j]),
        load=float(load[i, j] / x[i, j]),
        level_cap=float(prefill.block.level_limit[pre_row]),
    )
    second = RoleChoice(
        role="decode",
        block=decode.block,
        row=dec_row,
        limit=int(decode.limit[q[j]]),
        replicas=int(y[i, j]),
        sustained=float(rate_d[i, j]),
        load=float(load[i, j] / y[i, j]),
        level_cap=float(decode.level[q[j]]),
    )
    return Candidate(
        "disaggregated",
        engine,
        kind,
        (first, second),
        tuple(float(k[i, j]) for k in keys),
        int(devices[i, j]),
        float(cost[i, j]),
        float(watts[i, j]),
        float(output[i, j]),
        float(carried[i, j]),
    ), most


def _closed(problem: Problem, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """The same candidates at the rate at which their closed loop really turns; they were sized for the fastest it could."""
    out = []
    for c in candidates:
        first, second = c.roles
        pre, dec = np.array([first.row]), np.array([second.row])
        rate = np.array([first.load * first.replicas])
        for _ in range(LOOP_ROUNDS):
            p = joined(problem, first.block.server, pre, second.block.server, dec, rate / first.replicas, rate / second.replicas)
            rate = problem.load / (latency.e2e_mean(p, problem.demand) + problem.think_s)
        roles = tuple(dataclasses.replace(r, load=float(rate[0]) / r.replicas) for r in c.roles)
        out.append(dataclasses.replace(c, roles=roles, output_tokens_per_s=float(rate[0]) * problem.demand.osl_mean))
    return tuple(out)


def _rate_of(problem: Problem, prefill: Prefills, decode: Decodes, p: Index, q: Index) -> Array:
    """Requests/s of the load on each pair. A closed loop is fastest when nothing waits: that rate is the safe one."""
    shape = (len(p), len(q))
    if problem.saturate or problem.open_loop:
        return np.full(shape, problem.load)
    start = _mean_start(prefill, prefill.row[p], problem, np.full(len(p), size.IDLE))
    step = decode.block.server.terms.decode_s(np.ones(len(decode.block.rows)), decode.block.server.kv_s)[decode.row[q]]
    return problem.load / (start[:, None] + problem.demand.gaps * step[None, :] + problem.think_s)


def _mean_start(prefill: Prefills, rows: Index, problem: Problem, level: Array) -> Array:
    return latency.ttft_mean(DISCIPLINES["prefill"](take(means_only(prefill.block.server), rows), problem.demand, level))


def _fill(problem: Problem, kind: Kind, rate_p: Array, rate_d: Array, tp_p: float, tp_d: float) -> tuple[Array, Array]:
    """Counts that fill the pool in balance: of the two integers around the ideal number of prefill servers the better."""
    total = float(problem.max_accelerators or kind.devices)
    total = min(total, kind.devices) - problem.spares * (tp_p + tp_d)
    ideal = total * rate_d / (tp_p * rate_d + tp_d * rate_p)
    best_x, best_y, best = np.zeros_like(ideal), np.zeros_like(ideal), np.full_like(ideal, -1.0)
    for x in (np.floor(ideal), np.ceil(ideal)):
        x = np.clip(x, 1.0, max(float(replicas_that_fit(kind, np.array(tp_p))), 1.0))
        y = np.maximum(np.floor((total - x * tp_p) / tp_d), 0.0)
        carried = np.minimum(x * rate_p, y * rate_d)
        better = carried > best
        best_x, best_y, best = np.where(better, x, best_x), np.where(better, y, best_y), np.where(better, carried, best)
    return best_x, best_y


def _packs(problem: Problem, kind: Kind, x: Array, y: Array, tp_p: float, tp_d: float) -> Mask:
    """Whether the nodes, and maxAccelerators, hold x prefill and y decode servers and their spares."""
    x, y = x + problem.spares, y + problem.spares
    if tp_p >= tp_d:
        fits = both_fit(kind, np.full_like(x, tp_p), x, np.full_like(x, tp_d), y)
    else:
        fits = both_fit(kind, np.full_like(x, tp_d), y, np.full_like(x, tp_p), x)
    if problem.max_accelerators:
        fits &= x * tp_p + y * tp_d <= problem.max_accelerators
    return fits


def _whole_requests(
    problem: Problem,
    prefill: Prefills,
    decode: Decodes,
    p: Index,
    q: Index,
    x: Array,
    y: Array,
    rate: Array,
    rejected: Counter[str],
) -> Mask:
    """Pairs that also meet the bounds on whole requests, at the sized load; all of them when there are none."""
    ends = tuple(b for b in problem.slo.bounds if b.metric == "e2e")
    if not ends and np.isnan(problem.slo.attainment):
        return np.ones(x.shape, dtype=bool)
    i, j = (a.reshape(-1) for a in np.indices(x.shape))
    point = joined(
        problem,
        prefill.block.server,
        prefill.row[p][i],
        decode.block.server,
        decode.row[q][j],
        (rate / x).reshape(-1),
        (rate / y).reshape(-1),
    )
    slo = Slo(ends, problem.slo.attainment, problem.slo.jointly)
    broken = size.violations(point, problem.demand, slo, pessimism(problem, prefill.block.engine.facts, prefill.block.kind.facts))
    for bound, flags in broken.items():
        rejected[f"split: {bound}: missed at the sized load"] += int(np.sum(flags))
    return np.asarray(~np.logical_or.reduce(list(broken.values())).reshape(x.shape))


def joined(problem: Problem, pre: Server, pre_row: Index, dec: Server, dec_row: Index, load_p: Array, load_d: Array) -> Point:
    """What a client of the pair sees: the first token of the prefill role, the gaps of the decode role."""
    d = problem.demand
    p_rows, d_rows = take(pre, pre_row), take(dec, dec_row)
    n = len(load_p)
    p_level = size.level_at(DISCIPLINES["prefill"], p_rows, d, "rate", load_p, np.full(n, 1.0 - 1e-6))
    d_level = size.level_at(DISCIPLINES["decode"], d_rows, d, "rate", load_d, np.full(n, BATCH_LIMITS[-1]))
    return combine(DISCIPLINES["prefill"](p_rows, d, p_level), DISCIPLINES["decode"](d_rows, d, d_level))


def combine(start: Point, gaps: Point) -> Point:
    """One point from the two roles' points."""
    return Point(
        level=gaps.level,
        rate=np.minimum(start.rate, gaps.rate),
        const_s=start.const_s,
        const_mean_s=start.const_mean_s,
        busy=start.busy,
        wait_s=start.wait_s,
        service_edges_s=start.service_edges_s,
        service_mean_s=start.service_mean_s,
        gap_s=gaps.gap_s,
        gap_sd_s=gaps.gap_sd_s,
        stall_share=gaps.stall_share,
        stall_edges_s=gaps.stall_edges_s,
        stall_weights=gaps.stall_weights,
        gap_mean_s=gaps.gap_mean_s,
    )


def _latency(
    problem: Problem, prefill: Prefills, decode: Decodes, p: Index, q: Index, load_p: Array, load_d: Array
) -> tuple[Array, Array]:
    """p95 ITL and TTFT of every pair at the sized load."""
    i, j = (a.reshape(-1) for a in np.indices(load_p.shape))
    point = joined(
        problem,
        prefill.block.server,
        prefill.row[p][i],
        decode.block.server,
        decode.row[q][j],
        load_p.reshape(-1),
        load_d.reshape(-1),
    )
    n = len(i)
    itl = latency.quantile(lambda t: latency.itl_exceeds(point, t), 0.95, n)
    ttft = latency.quantile(lambda t: latency.ttft_exceeds(point, t), 0.95, n)
    return three_digits(itl).reshape(load_p.shape), three_digits(ttft).reshape(load_p.shape)
