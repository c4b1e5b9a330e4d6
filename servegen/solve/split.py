"""Disaggregated serving: prefill servers hand the KV cache to decode servers over the declared fabric.

Each role has its own TP, chunk or batch limit and count; both serve one weight and one KV precision. First tokens are the
prefill role's, gaps the decode role's, so each is sized by its own bounds here; ``pairs`` puts them together.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.roofline.collectives import handoff_s
from servegen.roofline.step import take
from servegen.service import size
from servegen.service.disciplines import DISCIPLINES, PREFILL_SLOTS, means_only
from servegen.service.point import Point
from servegen.service.server import server
from servegen.service.size import Slo
from servegen.solve.candidate import Block
from servegen.solve.frame import Frame, RoleFrame, largest, level_limits, within_memory
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
#: More than any TP, by which a configuration and the TP of its peers are one number.
PEERS = 1 << 20
#: Share of the time that a prefill server can be busy at the most.
BUSIEST = 1.0 - 1e-6


@record
class Servers:
    """Candidates of one role, flat: shape (n,). Empty where none is left.

    ``rate`` is what one server sustains, ``level`` where it then stands, ``peer`` the TP of the servers that it hands over to
    or takes over from (0 = any). ``stage`` is the last hurdle that some candidate took (see
    :class:`servegen.solve.aggregate.Outcome`); ``block`` is None where no configuration can exist.
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


def joining(slo: Slo) -> Slo:
    """The bounds that neither role answers for alone: on whole requests, and on the share of them that meets all."""
    return Slo(tuple(b for b in slo.bounds if b.metric == "e2e"), slo.attainment, slo.jointly)


def refused(problem: Problem, rejected: Counter[str]) -> Counter[str]:
    """Where a role counts what cannot exist: aside where the aggregated search has counted the same configurations."""
    return rejected if problem.topology == "disaggregated" else Counter()


def _rows(
    problem: Problem,
    engine: EngineOption,
    kind: Kind,
    chunks: tuple[int, ...],
    refusals: Counter[str],
    made: Mapping[int, Rows | None],
) -> Rows | None:
    """The rows of a role, without pipelines: of those that were made for aggregated serving, where they were."""
    if kind.index not in made:
        return build(problem, engine, kind, chunks, refusals, split=True)
    rows = made[kind.index]
    if rows is None:
        return None
    index = np.flatnonzero(rows.devices == rows.tp)
    if chunks == chunks_for(problem):
        return rows.at(index) if len(index) else None
    index = index[rows.chunk[index] == chunks_for(problem)[0]]
    first = rows.at(np.repeat(index, len(chunks)))
    return dataclasses.replace(first, chunk=np.tile(np.array(chunks, dtype=np.float64), len(index))) if len(index) else None


def starts(
    problem: Problem,
    engine: EngineOption,
    kind: Kind,
    peers: tuple[int, ...],
    fabric: float,
    rejected: Counter[str],
    made: Mapping[int, Rows | None],
) -> RoleFrame | None:
    """All prefill servers, one per (configuration, chunk, TP of the decode server); None if there is none."""
    rows = _rows(problem, engine, kind, chunks_for(problem), refused(problem, rejected), made)
    if rows is None or not peers:
        return None
    # As many links carry a hand-over as the narrower side has devices: beside all wider peers a server is the same.
    server_of, peer = np.tile(np.arange(len(rows)), len(peers)), np.repeat(np.array(peers), len(rows))
    narrow = np.minimum(rows.tp[server_of], peer)
    _, first, row = np.unique(server_of + len(rows) * narrow, return_index=True, return_inverse=True)
    rows, narrow = rows.at(server_of[first]), narrow[first]
    links = fabric * narrow / rows.groups  # a group of attention has its own
    slots = np.array([PREFILL_SLOTS])
    room = budget_of(problem, engine, rows, slots, handoff=True)
    _, _, longest = occupancy(problem, rows)
    fits = (room.pool[:, 0] > 0) & (longest <= room.pool[:, 0]) & (kept_bytes(problem, rows) <= room.pool[:, 0])
    request_s = 2.0 * engine.facts.request_s.value  # both servers take the request in
    srv = server(rows.terms, rows.chunk, request_s, problem.demand, _handoff(problem, rows, links))
    high = np.full(len(rows), BUSIEST)
    block = Block(problem, "prefill", engine, kind, rows, srv, slots, high)
    frame = Frame(block, fits[:, None], high[:1, None], np.zeros_like(first))
    return RoleFrame(frame, row.reshape(-1), peer, handed_per_s(problem, rows, links))


def gaps(
    problem: Problem, engine: EngineOption, kind: Kind, fabric: float, rejected: Counter[str], made: Mapping[int, Rows | None]
) -> RoleFrame | None:
    """All decode servers, one per (configuration, batch limit); None if there is none."""
    refusals = refused(problem, rejected)
    rows = _rows(problem, engine, kind, DECODE_CHUNKS, refusals, made)
    if rows is None:
        return None
    room = budget_of(problem, engine, rows, BATCH_LIMITS, handoff=True)
    fits = within_memory(problem, rows, room, refusals, cached=False)
    srv = server(rows.terms, rows.chunk, 0.0, problem.demand)
    kinds, of = level_limits(problem, rows)
    block = Block(problem, "decode", engine, kind, rows, srv, BATCH_LIMITS, largest(fits, kinds[of]))
    handed = handed_per_s(problem, rows, fabric * rows.tp / rows.groups)
    each = np.arange(len(rows))
    return RoleFrame(Frame(block, fits, kinds, of), each, np.zeros_like(each), handed)


def within_bounds(problem: Problem, side: RoleFrame | None, rejected: Counter[str]) -> Servers:
    """The servers of a role that meet its bounds: prefill servers those on first tokens, decode servers those on gaps."""
    if side is None:
        return Servers(0, None, NONE, NONE, NOTHING, NOTHING, NONE)
    block, fits, d = side.frame.block, side.frame.fits, problem.demand
    answers = START if block.discipline == "prefill" else GAPS
    limit, at_idle = side.frame.within(problem, problem.slo.touches(answers))
    block = dataclasses.replace(block, problem=problem, level_limit=limit)
    for bound, broken in at_idle.items():
        rejected[f"split: {bound}: missed even by a single request"] += int(np.sum(fits.sum(axis=1)[side.row] * broken[side.row]))
    within = fits & (limit > 0)[:, None]
    of, column = np.nonzero(within[side.row])
    if not len(of):
        return Servers(2 if fits.any() else 1, block, NONE, NONE, NOTHING, NOTHING, NONE)
    row = side.row[of]
    level = np.minimum(side.frame.levels[row, column], limit[row])
    step, lean, handed = DISCIPLINES[block.discipline], means_only(block.server, rates_only=True), side.handed[row]
    rate = step(take(lean, row), d, level).rate
    if (held := np.flatnonzero(handed < rate)).size:  # the fabric holds these back, at a lower level
        rate[held] = handed[held]
        level[held] = size.level_at(step, take(block.server, row[held]), d, "rate", handed[held], level[held])
    return Servers(3, block, row, column, level, rate, side.peer[of])


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
        gap_skew=gaps.gap_skew,
        stall_share=gaps.stall_share,
        stall_low_s=gaps.stall_low_s,
        stall_high_s=gaps.stall_high_s,
        stall_weights=gaps.stall_weights,
        joined=gaps.joined,
        joined_least_s=gaps.joined_least_s,
        joined_s=gaps.joined_s,
        joined_cv2=gaps.joined_cv2,
        stall_most_s=gaps.stall_most_s,
        gap_mean_s=gaps.gap_mean_s,
        burst=gaps.burst,
    )
