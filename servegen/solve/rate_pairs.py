"""All pairs of a prefill and a decode configuration at once, where rates alone decide how many servers of each there are.

So many of a role carry the load whatever the other role is. The fewest of both cost the least, and where the pool does not hold
them it holds no more either: what is best follows from each role's own columns, and only ties are looked at pair by pair.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from servegen.solve.candidate import Block, Candidate, three_digits
from servegen.solve.counts import frontier
from servegen.solve.pair import MISSED, price, role_of
from servegen.solve.problem import Problem
from servegen.solve.split import PEERS, Array, Index, Mask, Servers

#: From here on more of a load never has less to three digits; below, a power of ten can lose its last bit.
RISING = 1e-4
#: Tied candidates that are compared at a time.
AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Side:
    """The servers of one role by a ``key``, shape (keys,): ``size`` is how many have it, ``least`` how many of them at the least
    carry the load, ``many`` how many take each of ``numbers`` to carry it, shape (keys, numbers).

    ``tied`` are the servers that ``least`` are enough of, by key, ``ties`` of each from ``first`` on: ``carried`` is what so
    many sustain, ``digits`` three digits of that, shape (tied,). Those with no more digits than one before them are left out.
    """

    key: Index
    size: Index
    least: Array
    numbers: Array
    many: Array
    tied: Index
    first: Index
    ties: Index
    carried: Array
    digits: Array

    @classmethod
    def by(cls, keys: Index, rate: Array, problem: Problem) -> Side:
        """The servers by ``keys`` (servers,), each at its ``rate``."""
        key, of, size = np.unique(keys, return_inverse=True, return_counts=True)
        need = np.maximum(np.ceil(problem.load / (problem.utilization * rate) - 1e-9), 1.0)
        numbers, which = np.unique(need, return_inverse=True)
        many = np.bincount(of * len(numbers) + which, minlength=len(key) * len(numbers)).reshape(len(key), -1)
        least = numbers[(many > 0).argmax(axis=1)]
        tied = np.flatnonzero(need == least[of])
        tied = tied[np.argsort(of[tied], kind="stable")]
        carried = need[tied] * rate[tied]
        rank = np.unique(three_digits(carried), return_inverse=True)[1] + of[tied] * len(tied)
        most = np.maximum.accumulate(rank)
        more = np.append(True, rank[1:] > most[:-1]) | (carried < RISING)
        tied, carried = tied[more], carried[more]
        ties = np.bincount(of[tied], minlength=len(key))
        digits = three_digits(carried)
        return cls(key, size, least, numbers, many.astype(np.float64), tied, np.cumsum(ties) - ties, ties, carried, digits)


def rates_decide(problem: Problem) -> bool:
    """Whether no bound, and nothing that is minimised, depends on how loaded the servers of a pair are."""
    whole = any(b.metric == "e2e" for b in problem.slo.bounds) or not np.isnan(problem.slo.attainment)
    return problem.open_loop and not problem.saturate and not whole and problem.objective in ("cost", "energy")


@dataclass(frozen=True)
class Pairs:
    """Pairs of a key of prefill servers, ``a`` of ``one``, and a key of decode servers, ``b`` of ``two``, of ``tp_p`` and
    ``tp_d`` devices each. Shapes (pairs,)."""

    problem: Problem
    start: Servers
    gaps: Servers
    blocks: tuple[Block, Block]
    one: Side
    two: Side
    a: Index
    b: Index
    tp_p: Index
    tp_d: Index

    @classmethod
    def of(cls, problem: Problem, start: Servers, gaps: Servers, together: Mask) -> Pairs:
        """Those to put ``together``, by configuration of the first and then of the second."""
        pre, dec = start.block, gaps.block
        assert pre is not None and dec is not None  # both have candidates
        one = Side.by(pre.rows.config[start.row] * PEERS + start.peer, start.rate, problem)
        two = Side.by(dec.rows.config[gaps.row], gaps.rate, problem)
        i, peer, j = one.key // PEERS, one.key % PEERS, two.key
        tp_p, tp_d = (np.array([c.tp for c in block.rows.lowered.configs]) for block in (pre, dec))
        a, b = np.nonzero(together[i[:, None], j] & (peer[:, None] == tp_d[j]))
        order = np.lexsort((j[b], i[a]))
        a, b = a[order], b[order]
        return cls(problem, start, gaps, (pre, dec), one, two, a, b, tp_p[i[a]], tp_d[j[b]])

    @property
    def sizes(self) -> Index:
        """Candidates of each pair."""
        return self.one.size[self.a] * self.two.size[self.b]

    @property
    def cells(self) -> Index:
        """Those of them that tie for the fewest servers."""
        return self.one.ties[self.a] * self.two.ties[self.b]

    def at(self, some: Index) -> Pairs:
        """Some of the pairs."""
        a, b, tp_p, tp_d = (column[some] for column in (self.a, self.b, self.tp_p, self.tp_d))
        return dataclasses.replace(self, a=a, b=b, tp_p=tp_p, tp_d=tp_d)

    def held(self, rejected: Counter[str]) -> Index:
        """Candidates of each pair that the pool holds."""
        problem, one, two = self.problem, self.one, self.two
        kinds = self.blocks[0].kind, self.blocks[1].kind
        every, out = self.sizes, np.zeros(len(self.a), dtype=np.int64)
        where = self.tp_p * PEERS + self.tp_d
        for value in np.unique(where).tolist():
            some = np.flatnonzero(where == value)
            front = frontier(kinds, value // PEERS, value % PEERS, problem.spares, problem.max_accelerators)
            if not front.any:
                rejected["split: more accelerators needed than there are"] += int(every[some].sum())
                continue
            p, of_p = np.unique(self.a[some], return_inverse=True)
            q, of_q = np.unique(self.b[some], return_inverse=True)
            # Whole numbers far below 2^53: the products are exact in any order.
            holds = front.holds(one.numbers[:, None], two.numbers[None, :]).astype(np.float64)
            out[some] = (one.many[p] @ holds @ two.many[q].T)[of_p, of_q]
            rejected[MISSED] += int(np.sum(every[some] - out[some]))
        return out

    def first(self) -> tuple[Index, Index]:
        """Of each pair's ties the first with the most headroom to three digits: places in ``tied`` of each side."""
        one, two, cells = self.one, self.two, self.cells
        begin = np.cumsum(cells) - cells
        pair = np.repeat(np.arange(len(cells)), cells)
        row, column = np.divmod(np.arange(len(pair)) - begin[pair], two.ties[self.b][pair])
        p, q = one.first[self.a][pair] + row, two.first[self.b][pair] + column
        digits = np.where(one.carried[p] <= two.carried[q], one.digits[p], two.digits[q])
        best = np.flatnonzero(digits == np.maximum.reduceat(digits, begin)[pair])
        at = best[np.searchsorted(best, begin)]
        return p[at], q[at]

    def candidates(self) -> Iterator[Candidate]:
        """The best of each pair, all of which the pool holds."""
        problem, (pre, dec), (p, q) = self.problem, self.blocks, self.first()
        x, y = self.one.least[self.a], self.two.least[self.b]
        starting, decoding = (x + problem.spares) * self.tp_p, (y + problem.spares) * self.tp_d
        cost, watts = price((pre.kind, dec.kind), starting, decoding)
        carried = np.minimum(self.one.carried[p], self.two.carried[q])
        load = np.minimum(problem.load, carried)
        figures = cost, watts, starting + decoding, load * problem.demand.osl_mean, carried, load
        servers = self.one.tied[p], x, self.two.tied[q], y
        columns = zip(*(c.tolist() for c in (*figures, *servers)), strict=True)
        for per_h, power, devices, output, headroom, rate, i, n, j, m in columns:
            roles = role_of("prefill", pre, self.start, i, n, rate), role_of("decode", dec, self.gaps, j, m, rate)
            least = (per_h if problem.objective == "cost" else power,)
            yield Candidate("disaggregated", pre.engine, roles, least, int(devices), per_h, power, output, headroom)


def rated(
    problem: Problem, start: Servers, gaps: Servers, together: Mask, rejected: Counter[str]
) -> tuple[list[Candidate], int]:
    """The best candidate of each pair of configurations that has one, and how many candidates there were. ``together`` are the
    pairs that are asked for, shape (prefill, decode configurations)."""
    pairs = Pairs.of(problem, start, gaps, together)
    holding = pairs.at(np.flatnonzero(pairs.held(rejected)))
    part = np.cumsum(holding.cells) // AT_ONCE
    parts = (holding.at(np.flatnonzero(part == n)) for n in np.unique(part))
    return [c for some in parts for c in some.candidates()], int(pairs.sizes.sum())
