"""What the candidates of one role are before any bound is asked of them: the same at both ends of the band."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.roofline import memory as mem
from servegen.roofline.step import take
from servegen.service import size
from servegen.service.disciplines import DISCIPLINES, means_only
from servegen.service.server import server
from servegen.service.size import Slo
from servegen.solve.bands import pessimism
from servegen.solve.budget import Budget
from servegen.solve.candidate import Block
from servegen.solve.kept import kept_bytes, level_cap, running
from servegen.solve.problem import EngineOption, Kind, Problem
from servegen.solve.space import BATCH_LIMITS, KV_SLACK, Rows, budget_of, build, chunks_for, occupancy

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@record
class Frame:
    """Candidates (rows, limits) of a block: those that ``fits`` the memory, each with the largest of ``levels`` that its batch
    limit allows. The block's own ``level_limit`` is the largest of each row; bounds only lower it.

    Rows have few kinds of levels: what is kept is each kind once, shape (kinds, limits), and the kind ``of`` each row.
    """

    block: Block
    fits: Mask
    kinds: Array
    of: NDArray[np.int64]

    @property
    def levels(self) -> Array:
        """The largest level that each candidate's batch limit allows, shape (rows, limits)."""
        return self.kinds[self.of]

    @property
    def configs(self) -> int:
        return len(self.block.rows.lowered.configs)

    def within(self, problem: Problem, slo: Slo) -> tuple[Array, dict[str, Mask]]:
        """Largest level of each row within the bounds, 0 where there is none or nothing fits; and those that even an idle replica
        breaks. The confidence is that of ``problem``."""
        block, some = self.block, np.flatnonzero(self.fits.any(axis=1))
        if not len(some):
            return np.zeros(len(block.rows)), {}
        factors = {m: f[some] for m, f in by_row(problem, block.engine, block.kind, block.rows).items()}
        srv, high, step = take(block.server, some), block.level_limit[some], DISCIPLINES[block.discipline]
        limit = np.zeros(len(block.rows))
        limit[some], at_idle = size.largest_level(step, srv, problem.demand, slo, high, factors)
        broken = {bound: np.zeros(len(limit), dtype=bool) for bound in at_idle}
        for bound, flags in at_idle.items():
            broken[bound][some] = flags
        return limit, broken

    def only(self, keep: Mask) -> Frame:
        """The rows of the configurations to ``keep``, shape (configs,), all chunks of each."""
        return self.at(np.flatnonzero(keep[self.block.rows.config]))

    def at(self, index: NDArray[np.int64]) -> Frame:
        """The rows of ``index``."""
        block = self.block
        srv, rows, high = take(block.server, index), block.rows.at(index), block.level_limit[index]
        block = dataclasses.replace(block, rows=rows, server=srv, level_limit=high)
        return dataclasses.replace(self, block=block, fits=self.fits[index], of=self.of[index])


@record
class RoleFrame:
    """The servers of a role of a split, shape (servers,): each is a ``row`` of the frame beside servers of the TP ``peer`` (0 is
    any). ``handed`` is what the fabric hands on at the most, requests/s of each row. A prefill server has one limit.
    """

    frame: Frame
    row: NDArray[np.int64]
    peer: NDArray[np.int64]
    handed: Array

    @property
    def config(self) -> NDArray[np.int64]:
        """Each server's configuration."""
        return self.frame.block.rows.config[self.row]

    def of(self, keep: Mask) -> RoleFrame:
        """The configurations to ``keep``."""
        rows, servers = keep[self.frame.block.rows.config], keep[self.config]
        place = np.cumsum(rows) - 1
        index = np.flatnonzero(rows)
        return RoleFrame(self.frame.at(index), place[self.row[servers]], self.peer[servers], self.handed[index])

    def most(self) -> Array:
        """Requests/s that a row's server can sustain whatever the bounds, shape (rows,); 0 where it does not fit."""
        block = self.frame.block
        lean, step = means_only(block.server, rates_only=True), DISCIPLINES[block.discipline]
        free = step(lean, block.problem.demand, block.level_limit).rate
        return np.where(self.frame.fits.any(axis=1), np.minimum(free, self.handed), 0.0)


def frames(
    problem: Problem, engine: EngineOption, kind: Kind, rejected: Counter[str], made: Rows | None = None
) -> tuple[Rows | None, list[Frame]]:
    """The rows of an engine on a kind, None if there is none, and their aggregated candidates, a frame for each discipline that
    the engine has. Rows that are ``made`` already are taken."""
    disciplines, d = engine.facts.schedulers, problem.demand
    seen: Counter[str] = Counter()
    rows = build(problem, engine, kind, chunks_for(problem), seen) if made is None else made
    out: list[Frame] = []
    if rows is not None:
        room = budget_of(problem, engine, rows, BATCH_LIMITS)
        fits = within_memory(problem, rows, room, seen)
        srv = server(rows.terms, rows.chunk, engine.facts.request_s.value, d)
        kinds, of = level_limits(problem, rows, disciplines == ("static",))
        if problem.kept_tokens:
            kinds, of = np.minimum(kinds[of], level_cap(problem, rows, room.pool)), np.arange(len(rows))
        for x in disciplines:
            block = Block(problem, x, engine, kind, rows, srv, BATCH_LIMITS, largest(fits, kinds[of]))
            frame = Frame(block, _scheduled(block, fits, rejected), kinds, of)
            if x == "mixed" and not rows.terms.plain:
                whole = np.flatnonzero((rows.groups == 1.0) & (rows.devices == rows.tp))
                reason = "mixed chunks: not predicted with pipeline stages or attention groups"
                rejected[reason] += int(frame.fits.sum() - frame.fits[whole].sum())
                frame = frame.at(whole)
            out.append(frame)
    for reason, n in seen.items():  # memory asks nothing of a discipline, but each has its candidates
        rejected[reason] += n * len(disciplines)
    return rows, out


def largest(fits: Mask, levels: Array) -> Array:
    """The largest level of each row's candidates that fit, the first one's where none does."""
    return np.where(fits.any(axis=1), np.max(np.where(fits, levels, 0.0), axis=1), levels[:, 0])


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


def level_limits(problem: Problem, rows: Rows, static: bool = False) -> tuple[Array, NDArray[np.int64]]:
    """Largest mean number of sequences at each batch limit: below it when slots must be free, else all of it.

    Requests in flight vary with open arrivals, with users who think, and among several replicas; a stated concurrency is what
    it is. Attention groups have their slots apart. The kinds of levels, shape (kinds, limits), and each row's, shape (rows,).
    """
    if not problem.bounded_start or (problem.load_kind == "concurrency" and problem.replicas != "several"):
        return BATCH_LIMITS[None, :], np.zeros(len(rows), dtype=np.int64)
    groups, of = np.unique(rows.groups, return_inverse=True)
    mine = [BATCH_LIMITS / g for g in groups]
    levels = [g * size.slot_level(x, size.peak(problem.demand, static, x)) for g, x in zip(groups, mine, strict=True)]
    return np.stack(levels), of


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
