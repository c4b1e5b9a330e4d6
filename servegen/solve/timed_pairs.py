"""All pairs of a prefill and a decode configuration, where how loaded they are decides: bounds on whole requests, and latency.

First tokens are the prefill servers', gaps the decode servers', and either depends on its own load alone. What several ways to
serve have in common is computed once, for many pairs at a time. Ways are tried from the best on until one is on time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

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
from servegen.solve.pair import MISSED, Pair
from servegen.solve.problem import Problem
from servegen.solve.space import BATCH_LIMITS
from servegen.solve.split import BUSIEST, Array, Index, Mask, combine
from servegen.solve.ways import ANY, Needs, Ways, filling

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
    """Ways of several ``pairs``, flat: ``way[k]`` is one of pair ``of[k]``."""

    problem: Problem
    pairs: Sequence[Pair]
    of: Index
    way: Ways

    @classmethod
    def join(cls, pairs: Sequence[Pair], ways: Sequence[Ways]) -> Field:
        """The ways of each of the pairs."""
        of = np.repeat(np.arange(len(pairs)), [len(w) for w in ways])
        columns = zip(*(vars(w).values() for w in ways), strict=True)
        return cls(pairs[0].problem, pairs, of, Ways(*(np.concatenate(column) for column in columns)))

    def at(self, some: Index) -> Field:
        return Field(self.problem, self.pairs, self.of[some], take(self.way, some))

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
        """Which keep the ``bounds``; those that do not are counted by the bound they break."""
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

    def best(self, bounds: Slo, late: Counter[str]) -> tuple[dict[int, Best], int]:
        """The best way of each pair that has one on time, by the pair; and how many candidates were tried for it in vain."""
        way, fast, asked = self.way, self.problem.objective == "latency", _any(bounds)
        if not len(way):
            return {}, 0
        keys = (self.paces(),) if fast else (way.objective, way.devices, -way.headroom)
        order = np.lexsort((*keys[::-1], self.of))
        # Equals are tried together where what decides between them is looked at afterwards.
        more_decides = fast or bool((way.j == ANY).any())
        ends = np.flatnonzero(np.append(begins(*(key[order] for key in (self.of, *keys)))[1:], True)) if more_decides else order
        begin, end = (np.searchsorted(self.of[order], np.arange(len(self.pairs)), side=side) for side in ("left", "right"))
        running, many, vain = np.flatnonzero(begin < end), FIRST if asked else 1, 0
        out: dict[int, Best] = {}
        while len(running):
            stop = np.minimum(begin[running] + many, end[running])
            if more_decides:
                stop = ends[np.searchsorted(ends, stop - 1)] + 1
            some = order[_ranges(begin[running], stop)]
            begin[running], many = stop, many * GROWTH
            ranks = [key[some] for key in keys]
            if fast:
                ranks += [self.at(some).first_tokens(), way.devices[some], -way.headroom[some]]
                again = np.lexsort((*ranks[::-1], self.of[some]))
                some, ranks = some[again], [rank[again] for rank in ranks]
            fine = np.flatnonzero(self.at(some).on_time(bounds, late)) if asked else np.arange(len(some))
            of = self.of[some[fine]]
            alike = np.cumsum(begins(of, *(rank[fine] for rank in ranks)))
            tried = np.full(len(self.pairs), len(some))
            for at in np.flatnonzero(np.diff(of, prepend=-1)).tolist():
                equals = fine[at : np.searchsorted(alike, alike[at], side="right")]
                tried[of[at]] = equals[0]
                objective = ranks[:2] if fast else ranks[:1]
                out[int(of[at])] = Best(some[equals], tuple(float(rank[equals[0]]) for rank in objective))
            vain += int(way.candidates[some[np.arange(len(some)) < tried[self.of[some]]]].sum())
            running = np.array([k for k in running.tolist() if k not in out and begin[k] < end[k]], dtype=np.int64)
        return out, vain


@record
class Best:
    """The best ways of a pair, equals in their order, and what is minimised."""

    ways: Index
    objective: tuple[float, ...]

    def candidate(self, field: Field, pair: Pair, needs: Needs | None) -> Candidate:
        """The first of them by its candidates; ``needs`` chooses the decode one where it is any that is enough."""
        some = take(field.way, self.ways if needs else self.ways[:1])
        columns = zip(*(c.tolist() for c in (some.i, some.j, some.x, some.y, some.load, some.headroom)), strict=True)
        first = min((i, needs.decode(i, x, y, spare) if needs else j, x, y, load) for i, j, x, y, load, spare in columns)
        return pair.candidate(*first, self.objective)


def timed(problem: Problem, pairs: Sequence[Pair], rejected: Counter[str], late: Counter[str]) -> list[Candidate]:
    """The best candidate of each of the ``pairs`` that carries the load within the bounds, in their order."""
    whole = Slo(tuple(b for b in problem.slo.bounds if b.metric == "e2e"), problem.slo.attainment, problem.slo.jointly)
    held = []
    for pair in pairs:
        if pair.front.any:
            held.append(pair)
        else:
            rejected["split: more accelerators needed than there are"] += pair.searched
    choose = _filled if problem.saturate or problem.objective == "throughput" else _needed
    return [best for group in _groups(held) for best in choose(group, whole, rejected, late)]


def _groups(pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
    """The pairs in groups of about :data:`GROUP` candidates."""
    start = many = 0
    for stop, pair in enumerate(pairs, 1):
        many += pair.searched
        if many >= GROUP or stop == len(pairs):
            yield pairs[start:stop]
            start, many = stop, 0


def _filled(pairs: Sequence[Pair], whole: Slo, rejected: Counter[str], late: Counter[str]) -> list[Candidate]:
    """The best of each pair where the pool yields what it can."""
    field = Field.join(pairs, [filling(pair) for pair in pairs])
    found, vain = field.best(whole, late)
    rejected[MISSED] += sum(pair.searched for pair in pairs) - int(field.way.candidates.sum()) + vain
    return [found[k].candidate(field, pair, None) for k, pair in enumerate(pairs) if k in found]


def _needed(pairs: Sequence[Pair], whole: Slo, rejected: Counter[str], late: Counter[str]) -> list[Candidate]:
    """The best of each pair where a load is asked for: of ways on ever more servers, until one is on time."""
    needs = [Needs.of(pair) for pair in pairs]
    parts, running, out = [need.ways() for need in needs], list(range(len(pairs))), dict[int, Candidate]()
    while running:
        more = {k: ways for k in running if (ways := next(parts[k], None)) is not None}
        if more:
            field = Field.join([pairs[k] for k in more], list(more.values()))
            found, _ = field.best(whole, late)
            out |= {k: found[at].candidate(field, pairs[k], needs[k]) for at, k in enumerate(more) if at in found}
        running = [k for k in more if k not in out]
    for k, (pair, need) in enumerate(zip(pairs, needs, strict=True)):
        rejected[MISSED] += pair.searched - (need.held if k in out else 0)
    return [out[k] for k in sorted(out)]


def _any(bounds: Slo) -> bool:
    return bool(bounds.bounds) or not np.isnan(bounds.attainment)


def _ranges(start: Index, stop: Index) -> Index:
    """All whole numbers of the ranges, one after the other; none is empty."""
    step = np.ones(int(np.sum(stop - start)), dtype=np.int64)
    step[0] = start[0]
    step[np.cumsum(stop - start)[:-1]] = start[1:] - stop[:-1] + 1
    return np.cumsum(step)
