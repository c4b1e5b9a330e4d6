"""Disaggregated serving: prefill servers hand the KV cache to decode servers over the declared fabric.

Each role has its own TP, chunk or batch limit and count; both serve one weight and one KV precision. First tokens are the
prefill role's, gaps the decode role's, so each is sized by its own bounds here; ``pairs`` puts them together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servegen.roofline.collectives import handoff_s
from servegen.roofline.step import take
from servegen.service import size
from servegen.service.disciplines import DISCIPLINES, PREFILL_SLOTS, means_only
from servegen.service.point import Point
from servegen.service.server import server
from servegen.solve.aggregate import by_row, level_limits, within_memory
from servegen.solve.candidate import Block
from servegen.solve.kept import kept_bytes
from servegen.solve.problem import EngineOption, Kind, Problem
from servegen.solve.space import BATCH_LIMITS, Rows, budget_of, build, chunks_for, occupancy

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Index = NDArray[np.int64]

START = frozenset({"ttft"})
GAPS = frozenset({"itl", "tpot"})
#: A decode server prefills nothing; its chunk only sets the engine's reserve, so the least is taken.
DECODE_CHUNKS = (512,)
#: Share of the time that a prefill server can be busy at the most.
BUSIEST = 1.0 - 1e-6


@dataclass(frozen=True)
class Servers:
    """Candidates of one role, flat: shape (n,). Empty where none is left.

    ``rate`` is what one server sustains, ``level`` where it then stands, ``peer`` the TP of the servers that it hands over to
    or takes over from (0 = any). ``stage`` is the last hurdle that some candidate
    took (see :class:`servegen.solve.aggregate.Outcome`); ``block`` is None where no configuration can exist.
    """

    stage: int
    block: Block | None
    row: Index
    limit: Index
    level: Array
    rate: Array
    peer: Index


NONE = np.zeros(0, dtype=np.int64)
NOTHING = np.zeros(0)


def fabric_between(start: Kind, gaps: Kind) -> float:
    """Bytes/s per accelerator between the roles: the slower declared fabric; 0 = none.

    Pods on one node do not see each other's devices, so the links inside it carry nothing between them.
    """
    return min(start.plan.fabric_bytes_per_s, gaps.plan.fabric_bytes_per_s)


def prefills(
    problem: Problem, engine: EngineOption, kind: Kind, peers: tuple[int, ...], fabric: float, rejected: Counter[str]
) -> Servers:
    """Prefill servers that meet the bounds on first tokens, one per (configuration, chunk, TP of the decode server)."""
    rows = build(problem, engine, kind, chunks_for(problem), Counter(), split=True)
    if rows is None or not peers:
        return Servers(0, None, NONE, NONE, NOTHING, NOTHING, NONE)
    d = problem.demand
    peer = np.repeat(np.array(peers), len(rows))
    rows = rows.at(np.tile(np.arange(len(rows)), len(peers)))
    # As many links carry a hand-over as the narrower side has devices; a group of attention has its own.
    links = fabric * np.minimum(rows.tp, peer) / rows.groups
    slots = np.array([PREFILL_SLOTS])
    room = budget_of(problem, engine, rows, slots, handoff=True)
    _, _, longest = occupancy(problem, rows)
    fits = (room.pool[:, 0] > 0) & (longest <= room.pool[:, 0]) & (kept_bytes(problem, rows) <= room.pool[:, 0])
    request_s = 2.0 * engine.facts.request_s.value  # both servers take the request in
    srv = server(rows.terms, rows.chunk, request_s, d, _handoff(problem, rows, links))
    high = np.full(len(rows), BUSIEST)
    factors = by_row(problem, engine, kind, rows)
    limit, at_idle = size.largest_level(DISCIPLINES["prefill"], srv, d, problem.slo.touches(START), high, factors)
    block = Block(problem, "prefill", engine, kind, rows, srv, room, slots, limit)
    for bound, broken in at_idle.items():
        rejected[f"split: {bound}: missed even by a single request"] += int(np.sum(broken & fits))
    alive = np.flatnonzero(fits & (limit > 0)).astype(np.int64)
    if not len(alive):
        return Servers(2 if fits.any() else 1, block, NONE, NONE, NOTHING, NOTHING, NONE)
    rate = DISCIPLINES["prefill"](take(means_only(srv), alive), d, limit[alive]).rate
    rate = np.minimum(rate, handed_per_s(problem, rows, links)[alive])
    return Servers(3, block, alive, np.zeros_like(alive), limit[alive], rate, peer[alive])


def handed_per_s(problem: Problem, rows: Rows, links: Array) -> Array:
    """Requests/s whose KV each group's ``links`` bytes/s of each row can hand over, one after the other."""
    kv_bytes = rows.memory.sequence_bytes(problem.demand.total_mean) * rows.tp / rows.groups
    return rows.groups / handoff_s(kv_bytes, links)


def _handoff(problem: Problem, rows: Rows, links: Array) -> Array:
    """Seconds of the hand-off that prefilling does not hide, at each edge of the prompt lengths: (rows, edges).

    KV follows chunk by chunk, so what is left is the last chunk's transfer, or the backlog of a fabric slower than prefill.
    """
    d = problem.demand
    kv_bytes = np.stack([rows.memory.sequence_bytes(float(t)) for t in d.total_edges], axis=1)
    kv_bytes = kv_bytes * (rows.tp / rows.groups)[:, None]
    whole = handoff_s(kv_bytes, links[:, None])
    chunks = np.ceil(d.uncached_edges[None, :] * rows.groups[:, None] / rows.chunk[:, None])
    prefill = rows.terms.prefill_s(d.uncached_edges, d.total_edges, rows.chunk)
    return np.maximum.accumulate(np.maximum(whole / chunks, whole - prefill), axis=1)


def decodes(problem: Problem, engine: EngineOption, kind: Kind, fabric: float, rejected: Counter[str]) -> Servers:
    """Decode servers that meet the bounds on gaps, one per (configuration, batch limit)."""
    rows = build(problem, engine, kind, DECODE_CHUNKS, Counter(), split=True)
    if rows is None:
        return Servers(0, None, NONE, NONE, NOTHING, NOTHING, NONE)
    d = problem.demand
    room = budget_of(problem, engine, rows, BATCH_LIMITS, handoff=True)
    fits = within_memory(problem, rows, room, Counter(), cached=False)
    srv = server(rows.terms, rows.chunk, 0.0, d)
    levels = level_limits(problem, rows)
    high = np.where(fits.any(axis=1), np.max(np.where(fits, levels, 0.0), axis=1), levels[:, 0])
    factors = by_row(problem, engine, kind, rows)
    limit, at_idle = size.largest_level(DISCIPLINES["decode"], srv, d, problem.slo.touches(GAPS), high, factors)
    block = Block(problem, "decode", engine, kind, rows, srv, room, BATCH_LIMITS, limit)
    for bound, broken in at_idle.items():
        rejected[f"split: {bound}: missed even by a single request"] += int(fits[broken].sum())
    row, column = np.nonzero(fits & (limit > 0)[:, None])
    if not len(row):
        return Servers(2 if fits.any() else 1, block, NONE, NONE, NOTHING, NOTHING, NONE)
    level = np.minimum(levels[row, column], limit[row])
    rate = DISCIPLINES["decode"](take(means_only(srv), row), d, level).rate
    rate = np.minimum(rate, handed_per_s(problem, rows, fabric * rows.tp / rows.groups)[row])
    return Servers(3, block, row, column, level, rate, np.zeros_like(row))


def combine(start: Point, gaps: Point) -> Point:
    """One point from the two roles' points."""
    return Point(
        level=gaps.level,
        seen=gaps.seen,
        rate=np.minimum(start.rate, gaps.rate),
        const_s=start.const_s,
        rest_s=start.rest_s,
        busy=start.busy,
        delayed=start.delayed,
        wait_s=start.wait_s,
        wait_cv2=start.wait_cv2,
        service_edges_s=start.service_edges_s,
        service_mean_s=start.service_mean_s,
        gap_s=gaps.gap_s,
        gap_sd_s=gaps.gap_sd_s,
        stall_share=gaps.stall_share,
        stall_edges_s=gaps.stall_edges_s,
        stall_weights=gaps.stall_weights,
        joined=gaps.joined,
        joined_least_s=gaps.joined_least_s,
        joined_s=gaps.joined_s,
        joined_cv2=gaps.joined_cv2,
        stall_most_s=gaps.stall_most_s,
        gap_mean_s=gaps.gap_mean_s,
        burst=gaps.burst,
    )
