"""Disaggregated serving: every pair of a prefill and a decode configuration."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from servegen.lower import Config
from servegen.service import latency
from servegen.solve.aggregate import ROUNDING, Outcome, no_power
from servegen.solve.candidate import Block, Candidate
from servegen.solve.counts import Frontier, frontier
from servegen.solve.field import CELLS, Loaded, joined
from servegen.solve.frame import RoleFrame
from servegen.solve.pair import Pair, idle_s
from servegen.solve.problem import EngineOption, Kind, Problem
from servegen.solve.rate_pairs import rated, rates_decide
from servegen.solve.space import Rows
from servegen.solve.split import PEERS, Array, Index, Mask, Servers, fabric_between, gaps, starts, within_bounds
from servegen.solve.timed_pairs import timed

#: Rounds of rate -> duration -> rate of a closed loop; the duration hardly depends on the rate below the sized load.
LOOP_ROUNDS = 3


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
    assert pre.block is not None and dec.block is not None  # both reached stage 3
    together = _alike(pre.block, dec.block)
    if keep is not None:
        together &= keep
    late = Counter[str]()
    if rates_decide(problem):
        found, searched = rated(problem, pre, dec, together, rejected)
        pairs = [] if found else _configurations(problem, pre, dec, together)
    else:
        pairs = _configurations(problem, pre, dec, together)
        found = timed(problem, pairs, rejected, late)
        searched = sum(pair.searched for pair in pairs)
    most = 0.0 if found else max((pair.most() for pair in pairs), default=0.0)
    if not problem.open_loop and not problem.full:
        found = turning(problem, found)
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
    alike = _alike(pre, dec)
    for j, c in enumerate(dec.rows.lowered.configs):
        prefilling = np.zeros(shape[0])
        mine = first.peer == c.tp
        np.maximum.at(prefilling, first.config[mine], starting[mine])
        for i in np.flatnonzero((prefilling * decoding[j] > 0) & alike[:, j]):
            other = pre.rows.lowered.configs[i]
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


def _alike(pre: Block, dec: Block) -> Mask:
    """Which configurations of two roles are of equal precision, draft alike and, where the engine hands the model's state over
    between such only, have one TP; shape (prefill, decode)."""
    equal = any(group.attention.kind in pre.engine.facts.equal_tp for group in pre.problem.model.layers)
    numbers: dict[tuple[object, ...], int] = {}

    def number(c: Config) -> int:
        cut = (c.tp, c.dp) if equal else ()  # attention groups split their devices' share of it anew
        return numbers.setdefault((c.weights, c.kv, c.drafted, *cut), len(numbers))

    first, second = (np.array([number(c) for c in block.rows.lowered.configs]) for block in (pre, dec))
    return np.asarray(first[:, None] == second)


def _front(problem: Problem, kinds: tuple[Kind, Kind], tp_p: int, tp_d: int, made: dict[tuple[int, int], Frontier]) -> Frontier:
    """The counts that the pool holds, each sizes' ``made`` once."""
    if (tp_p, tp_d) not in made:
        made[tp_p, tp_d] = frontier(kinds, tp_p, tp_d, problem.spares, problem.max_accelerators)
    return made[tp_p, tp_d]


def _configurations(problem: Problem, start: Servers, gaps: Servers, together: Mask) -> list[Pair]:
    """The pairs of a prefill and a decode configuration to put ``together``."""
    assert start.block is not None and gaps.block is not None  # both reached stage 3
    pre, dec = start.block.rows, gaps.block.rows
    kinds, fronts = (start.block.kind, gaps.block.kind), dict[tuple[int, int], Frontier]()
    starting = _by_value(pre.config[start.row] * PEERS + start.peer)
    out = []
    decoding = _by_value(dec.config[gaps.row])
    idle = idle_s(problem, start, gaps)
    for i, first in enumerate(pre.lowered.configs):
        for j, q in decoding.items():
            second = dec.lowered.configs[j]
            p = starting.get(i * PEERS + second.tp)
            if p is not None and together[i, j]:
                front = _front(problem, kinds, first.tp, second.tp, fronts)
                out.append(Pair(problem, start.block, gaps.block, start, gaps, p, q, front, idle))
    return out


def _by_value(values: Index) -> dict[int, Index]:
    """Where each value stands, ascending."""
    order = np.argsort(values, kind="stable")
    found, first = np.unique(values[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, first[1:]), strict=True))


def turning(problem: Problem, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The same candidates, of two blocks' servers, at the rates at which their closed loops really turn."""
    if not candidates:
        return []
    blocks = [r.block for r in candidates[0].roles]
    pre, dec = (np.array([c.roles[i].row for c in candidates]) for i in range(2))
    x, y = (np.array([float(c.roles[i].replicas) for c in candidates]) for i in range(2))
    rate = np.array([c.roles[0].load * c.roles[0].replicas for c in candidates])
    for start in range(0, len(rate), CELLS):
        some = slice(start, start + CELLS)
        for _ in range(LOOP_ROUNDS):
            first, second = Loaded(blocks[0], pre[some], rate[some] / x[some]), Loaded(blocks[1], dec[some], rate[some] / y[some])
            p = joined(problem, first, second)
            rate[some] = problem.load / (latency.e2e_mean(p, problem.demand) + problem.think_s)
    return [_at_rate(problem, c, r) for c, r in zip(candidates, rate.tolist(), strict=True)]


def _at_rate(problem: Problem, c: Candidate, rate: float) -> Candidate:
    """The candidate at so many requests/s."""
    roles = tuple(dataclasses.replace(r, load=min(rate / r.replicas, r.sustained)) for r in c.roles)
    return dataclasses.replace(c, roles=roles, output_tokens_per_s=rate * problem.demand.osl_mean)
