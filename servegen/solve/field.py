"""Ways to serve with many pairs, looked at together: what a client of each sees, and the best of each pair that is on time.

First tokens are the prefill servers', gaps the decode servers', and either depends on its own load alone. What several ways to
serve have in common is computed once, for many pairs at a time. Ways are tried from the best on until one is on time.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from servegen.record import record
from servegen.roofline.step import take
from servegen.service import latency, size
from servegen.service.demand import Demand
from servegen.service.disciplines import DISCIPLINES
from servegen.service.point import Point
from servegen.service.size import Slo
from servegen.solve.alike import begins
from servegen.solve.candidate import Block, Candidate, three_digits
from servegen.solve.pair import Pair
from servegen.solve.problem import Problem
from servegen.solve.space import BATCH_LIMITS
from servegen.solve.split import BUSIEST, Array, Index, Mask, combine
from servegen.solve.ways import ANY, Needs, Ways

#: Candidates of the pairs that are looked at together, about.
GROUP = 1 << 16
#: Points that are computed at a time, at the most: many more, and what is computed leaves the processor's cache.
CELLS = 2048
#: So many times as many ways are looked at together: they have most of their servers' points in common.
SHARED = 8
#: Ways of each pair that are tried first, and how many times as many then. Where nothing is to be tried the first is the best.
FIRST, GROWTH = 16, 8
#: The highest level of a role's servers.
HIGHEST = {"prefill": BUSIEST, "decode": float(BATCH_LIMITS[-1])}


@record
class Loaded:
    """Servers of one role, rows of ``block``, each at a load in requests/s; shape (n,)."""

    block: Block
    row: Index
    load: Array

    def point(self, demand: Demand) -> Point:
        """What each of them shows."""
        step, high = DISCIPLINES[self.block.discipline], HIGHEST[self.block.discipline]
        srv = take(self.block.server, self.row)
        return step(srv, demand, size.level_at(step, srv, demand, "rate", self.load, np.full(len(self.load), high)))

    def once(self) -> tuple[Loaded, Index]:
        """Each that differs once, and which of them each is."""
        order = np.lexsort((self.load, self.row))
        row, load = self.row[order], self.load[order]
        new = begins(row, load)
        of = np.empty_like(order)
        of[order] = np.cumsum(new) - 1
        return Loaded(self.block, row[new], load[new]), of

    def at(self, some: slice) -> Loaded:
        return Loaded(self.block, self.row[some], self.load[some])


def _parts(count: int, each: int) -> Iterator[slice]:
    return (slice(start, start + each) for start in range(0, count, each))


def joined(problem: Problem, first: Loaded, second: Loaded) -> Point:
    """What a client of each pair sees: the first token of the prefill server, the gaps of the decode server."""
    (starting, i), (decoding, j) = first.once(), second.once()
    return combine(take(starting.point(problem.demand), i), take(decoding.point(problem.demand), j))


@record
class Field:
    """Ways of several ``pairs``, flat: ``way[k]`` is one of pair ``of[k]``. Of those that are the ``fastest`` latencies decide,
    else what they take."""

    problem: Problem
    pairs: Sequence[Pair]
    of: Index
    way: Ways
    fastest: bool

    @classmethod
    def join(cls, pairs: Sequence[Pair], ways: Sequence[Ways], fastest: bool = False) -> Field:
        """The ways of each of the pairs."""
        of = np.repeat(np.arange(len(pairs)), [len(w) for w in ways])
        columns = zip(*(vars(w).values() for w in ways), strict=True)
        return cls(pairs[0].problem, pairs, of, Ways(*(np.concatenate(column) for column in columns)), fastest)

    def at(self, some: Index) -> Field:
        return dataclasses.replace(self, of=self.of[some], way=take(self.way, some))

    def loaded(self, some: Index, load: Array) -> Field:
        """Some of the ways, each at a ``load`` in requests/s, shape (some,)."""
        return dataclasses.replace(self, of=self.of[some], way=dataclasses.replace(take(self.way, some), load=load))

    @property
    def starting(self) -> Loaded:
        pair = self.pairs[0]
        begin = np.cumsum([0, *(len(p.p) for p in self.pairs)])
        rows = np.concatenate([p.start.row[p.p] for p in self.pairs])
        return Loaded(pair.pre, rows[begin[self.of] + self.way.i], self.way.load / self.way.x)

    @property
    def decoding(self) -> Loaded:
        rows = np.array([p.gaps.row[p.q[0]] for p in self.pairs])
        return Loaded(self.pairs[0].dec, rows[self.of], self.way.load / self.way.y)

    def paces(self) -> Array:
        """95th percentile of the pace of tokens, to three digits, shape (n,)."""
        d, (decoding, of) = self.problem.demand, self.decoding.once()
        parts = [latency.pace_percentile(0.95, decoding.at(s).point(d), d) for s in _parts(len(decoding.row), CELLS)]
        return three_digits(np.concatenate(parts))[of]

    def first_tokens(self) -> Array:
        """95th percentile of the first token, to three digits, shape (n,)."""
        d, (starting, of) = self.problem.demand, self.starting.once()
        parts = [latency.ttft_percentile(0.95, starting.at(s).point(d)) for s in _parts(len(starting.row), CELLS)]
        return three_digits(np.concatenate(parts))[of]

    def on_time(self, bounds: Slo, late: Counter[str]) -> Mask:
        """Which keep the ``bounds``, and would with the most servers of either role: the lowest load that breaks a bound counts.
        Those that do not are counted by the bound they break."""
        out, way = self._kept(bounds, late), self.way
        for x, y in ((way.x, way.most_y), (way.most_x, way.y)):
            again = np.flatnonzero(out & ((x != way.x) | (y != way.y)))
            if len(again):
                more = dataclasses.replace(self, way=dataclasses.replace(way, x=x, y=y))
                out[again] = more.at(again)._kept(bounds, late)
        return out

    def _kept(self, bounds: Slo, late: Counter[str]) -> Mask:
        """Which keep the ``bounds`` with the servers that they have."""
        starting, decoding, factors = self.starting, self.decoding, [p.factors for p in self.pairs]
        each = {metric: np.array([f[metric] for f in factors])[self.of] for metric in factors[0]}
        out = np.ones(len(self.of), dtype=bool)
        for some in _parts(len(self.of), CELLS * SHARED):
            point = joined(self.problem, starting.at(some), decoding.at(some))
            pessimism = {metric: factor[some] for metric, factor in each.items()}
            for bound, broken in size.violations(point, self.problem.demand, bounds, pessimism).items():
                late[bound] += int(np.sum(broken))
                out[some] &= ~broken
        return out

    def best(self, bounds: Slo, late: Counter[str]) -> dict[int, Best]:
        """The best way of each pair that has one on time, by the pair."""
        if not len(self.way):
            return {}
        line, many, out = Line.of(self), FIRST if bounds.any else 1, dict[int, Best]()
        while len(running := line.running(out)):
            some, ranks = self._ranked(line.next(running, many), line.keys)
            fine = np.flatnonzero(self.at(some).on_time(bounds, late)) if bounds.any else np.arange(len(some))
            out |= self._firsts(some[fine], [rank[fine] for rank in ranks])
            many *= GROWTH
        return out

    def _ranked(self, some: Index, keys: Sequence[Array]) -> tuple[Index, list[Array]]:
        """The ways of ``some``, pair by pair, in order; and what that is by: the ``keys``, and where many have these in common as
        latencies decide, what is computed for those alone that are tried together."""
        ranks = [key[some] for key in keys]
        if not self.fastest:
            return some, ranks
        ranks += [self.at(some).first_tokens(), self.way.devices[some], -self.way.headroom[some]]
        order = np.lexsort((*ranks[::-1], self.of[some]))
        return some[order], [rank[order] for rank in ranks]

    def _firsts(self, some: Index, ranks: Sequence[Array]) -> dict[int, Best]:
        """The first of the ways of ``some`` of each pair, and those that are its equals by all ``ranks``."""
        of = self.of[some]
        alike = np.cumsum(begins(of, *ranks))
        objective = ranks[: 2 if self.fastest else 1]
        out = {}
        for at in np.flatnonzero(np.diff(of, prepend=-1)).tolist():
            equals = some[at : np.searchsorted(alike, alike[at], side="right")]
            out[int(of[at])] = Best(equals, tuple(float(rank[at]) for rank in objective))
        return out


@dataclass(eq=False)
class Line:
    """The ways of each pair of a field in the ``order`` in which they are tried, by ``keys``. From ``begin`` to ``end``
    stand those of a pair that are left; at one of ``ends`` those that no equal follows.
    """

    keys: Sequence[Array]
    order: Index
    begin: Index
    end: Index
    ends: Index

    @classmethod
    def of(cls, field: Field) -> Line:
        way = field.way
        keys = (field.paces(),) if field.fastest else (way.objective, way.devices, -way.headroom)
        order = np.lexsort((*keys[::-1], field.of))
        sides: tuple[Literal["left", "right"], ...] = ("left", "right")
        begin, end = (np.searchsorted(field.of[order], np.arange(len(field.pairs)), side=side) for side in sides)
        last = np.append(begins(*(key[order] for key in (field.of, *keys)))[1:], True)
        # Equals are tried together where what decides between them is looked at afterwards.
        more_decides = field.fastest or bool((way.j == ANY).any())
        return cls(keys, order, begin, end, np.flatnonzero(last) if more_decides else np.arange(len(order)))

    def running(self, done: Mapping[int, Best]) -> Index:
        """The pairs that have ways left and are not ``done``."""
        return np.array([k for k in np.flatnonzero(self.begin < self.end).tolist() if k not in done], dtype=np.int64)

    def next(self, pairs: Index, many: int) -> Index:
        """About so ``many`` ways of each of the ``pairs``, and no more of them twice."""
        start = self.begin[pairs]
        stop = np.minimum(start + many, self.end[pairs])
        stop = self.ends[np.searchsorted(self.ends, stop - 1)] + 1
        self.begin[pairs] = stop
        return self.order[_ranges(start, stop)]


@record
class Best:
    """The best ways of a pair, equals in their order, and what is minimised."""

    ways: Index
    objective: tuple[float, ...]

    def chosen(self, field: Field, needs: Needs | None) -> Chosen:
        """The first of them by its candidates; ``needs`` chooses the decode one where it is any that is enough."""
        some = take(field.way, self.ways if needs else self.ways[:1])
        columns = zip(*(c.tolist() for c in (some.i, some.j, some.x, some.y, some.load, some.headroom)), strict=True)
        first = min((i, needs.decode(i, x, y, spare) if needs else j, x, y, load) for i, j, x, y, load, spare in columns)
        return Chosen(*first, self.objective)


@record
class Chosen:
    """``x`` servers of prefill candidate ``i`` and ``y`` of decode candidate ``j`` of a pair, at ``load`` requests/s."""

    i: int
    j: int
    x: float
    y: float
    load: float
    objective: tuple[float, ...]

    def candidate(self, pair: Pair) -> Candidate:
        return pair.candidate(self.i, self.j, self.x, self.y, self.load, self.objective)


def on_time(needs: Sequence[Needs], bounds: Slo, late: Counter[str]) -> dict[int, Chosen]:
    """The best way with what is needed of each pair that has one on time: of ways on ever more servers, until one is. Of pairs
    whose first ways are all late those counts are left out of the rest that are late beside the most servers of the other role.
    """
    out = _tried(dict(enumerate(needs)), bounds, late, first=True)
    rest = {k: need for k, need in enumerate(needs) if k not in out}
    if rest and bounds.any:
        edges = [need.edges() for need in rest.values()]
        fine = Field.join([need.pair for need in rest.values()], edges)._kept(bounds, late)
        parts = np.split(fine, np.cumsum([len(edge) for edge in edges])[:-1])
        rest = {k: need.within(part) for (k, need), part in zip(rest.items(), parts, strict=True)}
    return out | (_tried(rest, bounds, late) if rest else {})


def _tried(needs: Mapping[int, Needs], bounds: Slo, late: Counter[str], first: bool = False) -> dict[int, Chosen]:
    """The best way of each, in parts until one is on time, or of the ``first`` part alone."""
    parts, out = {k: need.ways() for k, need in needs.items()}, dict[int, Chosen]()
    while more := {k: ways for k, part in parts.items() if k not in out and (ways := next(part, None)) is not None}:
        field = Field.join([needs[k].pair for k in more], list(more.values()), all(needs[k].fastest for k in more))
        found = field.best(bounds, late)
        out |= {k: found[at].chosen(field, needs[k]) for at, k in enumerate(more) if at in found}
        if first:
            break
        parts = {k: parts[k] for k in more}
    return out


def _ranges(start: Index, stop: Index) -> Index:
    """All whole numbers of the ranges, one after the other; none is empty."""
    step = np.ones(int(np.sum(stop - start)), dtype=np.int64)
    step[0] = start[0]
    step[np.cumsum(stop - start)[:-1]] = start[1:] - stop[:-1] + 1
    return np.cumsum(step)


def groups(pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
    """The pairs in groups of about :data:`GROUP` candidates."""
    start = many = 0
    for stop, pair in enumerate(pairs, 1):
        many += pair.searched
        if many >= GROUP or stop == len(pairs):
            yield pairs[start:stop]
            start, many = stop, 0
