"""All pairs of a prefill and a decode configuration at once, where rates alone decide how many servers of each there are.

So many of a role carry the load whatever the other role is. The fewest of both cost the least, and where the pool does not hold
them it holds no more either: what is best follows from each role's own columns, and only ties are looked at pair by pair.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator

import numpy as np

from servegen.record import record
from servegen.solve.candidate import DECADES, Block, Candidate, three_digits
from servegen.solve.counts import frontier
from servegen.solve.pair import MISSED, price, role_of
from servegen.solve.problem import Problem
from servegen.solve.split import PEERS, Array, Index, Mask, Servers, joining


@record
class Side:
    """The servers of one role by a ``key``, shape (keys,): ``size`` is how many have it, ``least`` how many of them at the least
    carry the load, ``many`` how many take each of ``numbers`` to carry it, shape (keys, numbers).

    ``tied`` are the servers that ``least`` are enough of, those of a key together, but none that has no more headroom to three
    digits than one before it: ``carried`` is what so many sustain, ``place`` how its digits stand among all ``digits``, beyond
    those of the keys before. Shapes (tied,) and (digits,), all ascending; ``most`` is the most of a key.
    """

    key: Index
    size: Index
    least: Array
    numbers: Array
    many: Array
    tied: Index
    carried: Array
    place: Index
    digits: Array
    most: Array

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
        digits, rank = np.unique(three_digits(carried), return_inverse=True)
        place = of[tied] * len(digits) + rank
        more = np.append(True, place[1:] > np.maximum.accumulate(place)[:-1])
        tied, carried, place = tied[more], carried[more], place[more]
        last = np.searchsorted(of[tied], np.arange(len(key)), side="right") - 1
        most = digits[place[last] % len(digits)]
        return cls(key, size, least, numbers, many.astype(np.float64), tied, carried, place, digits, most)

    def first(self, some: Index, least: Array) -> Index:
        """Of each of ``some`` keys the first of ``tied`` with so many digits at the least, which it has."""
        return np.searchsorted(self.place, some * len(self.digits) + np.searchsorted(self.digits, least))


def rates_decide(problem: Problem) -> bool:
    """Whether no bound, and nothing that is minimised, depends on how loaded the servers of a pair are. (Of next to no load the
    digits are not told.)"""
    told = problem.open_loop and problem.load > 2.0 * DECADES[0]
    return told and problem.objective in ("cost", "energy") and not joining(problem.slo).any


@record
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
        for value in sorted(set(where.tolist())):  # np.unique would import numpy.ma
            some = np.flatnonzero(where == value)
            front = frontier(kinds, value // PEERS, value % PEERS, problem.spares, problem.max_accelerators)
            if not front.any:
                rejected["split: more accelerators needed than there are"] += int(every[some].sum())
                continue
            if bool(front.holds(one.numbers[-1], two.numbers[-1])):
                out[some] = every[some]
                continue
            # Whole numbers far below 2^53: sums of products are exact in any order.
            holds = front.holds(one.numbers[:, None], two.numbers[None, :]).astype(np.float64)
            out[some] = np.sum((one.many[self.a[some]] @ holds) * two.many[self.b[some]], axis=1)
            rejected[MISSED] += int(np.sum(every[some] - out[some]))
        return out

    def candidates(self) -> Iterator[Candidate]:
        """The best of each pair, all of which the pool holds: of those that take the fewest servers the first with the most
        headroom to three digits."""
        problem, (pre, dec), one, two = self.problem, self.blocks, self.one, self.two
        most = np.minimum(one.most[self.a], two.most[self.b])
        p, q = one.first(self.a, most), two.first(self.b, most)
        x, y = one.least[self.a], two.least[self.b]
        starting, decoding = (x + problem.spares) * self.tp_p, (y + problem.spares) * self.tp_d
        cost, watts = price((pre.kind, dec.kind), starting, decoding)
        carried = np.minimum(one.carried[p], two.carried[q])
        load = np.minimum(problem.load, carried)
        figures = cost, watts, starting + decoding, load * problem.demand.osl_mean, carried, load
        servers = one.tied[p], x, two.tied[q], y
        # Pairs have servers in common, and each a role that is the same in all of them.
        first = functools.cache(functools.partial(role_of, "prefill", pre, self.start))
        second = functools.cache(functools.partial(role_of, "decode", dec, self.gaps))
        columns = zip(*(c.tolist() for c in (*figures, *servers)), strict=True)
        for per_h, power, devices, output, headroom, rate, i, n, j, m in columns:
            roles, least = (first(i, n, rate), second(j, m, rate)), (per_h if problem.objective == "cost" else power,)
            yield Candidate("disaggregated", pre.engine, roles, least, int(devices), per_h, power, output, headroom)


def rated(
    problem: Problem, start: Servers, gaps: Servers, together: Mask, rejected: Counter[str]
) -> tuple[list[Candidate], int]:
    """The best candidate of each pair of configurations that has one, and how many candidates there were. ``together`` are the
    pairs that are asked for, shape (prefill, decode configurations)."""
    pairs = Pairs.of(problem, start, gaps, together)
    return list(pairs.at(np.flatnonzero(pairs.held(rejected))).candidates()), int(pairs.sizes.sum())
