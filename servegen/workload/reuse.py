"""What a prefix cache of a given size finds of a trace's prompts: stack distances of its blocks (Mattson et al. 1970).

An LRU cache holds a block exactly where fewer other blocks than it has room for were used since the block's last use, so one
pass over the trace gives the hits of every size. A prompt's blocks are used from the last to the first, for the last ones are
evicted first, and a block is found only behind those that lead to it (their hashes are chained).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.workload.lengths import NODE_EDGES, Lengths
from servegen.workload.trace import HASH_BLOCK_TOKENS, TraceRequests

Ints = NDArray[np.int64]

#: Least share of a prompt's blocks that must be known for a router to follow them (sglang-router --cache-threshold).
FOLLOWED = 0.3
#: Of which cache a request comes to when nothing leads it there: the same draw in every run.
_SEED = 0


@record
class Found:
    """Prompts of which a cache holds a part: ``share`` of all their tokens. ``computed`` are the tokens that are left of one, at
    least 1; ``cached_by_bin`` how many are found, on average, of those that leave a number in each bin of NODE_EDGES.
    """

    share: float
    computed: Lengths
    cached_by_bin: tuple[float, ...]


class Reuse:
    """The prompts of a hashed trace. Shapes: n requests, b blocks of all of them, those of a prompt from its head on."""

    def __init__(self, requests: TraceRequests) -> None:
        """ValueError where the trace has no hashes."""
        if requests.hashes is None:
            raise ValueError("the trace has no hashes")
        self._hashes: Sequence[tuple[int, ...]] = requests.hashes
        self._tokens = requests.input_tokens
        counts = np.array([len(row) for row in requests.hashes], dtype=np.int64)
        self._owner = np.repeat(np.arange(len(counts)), counts)
        ids: dict[int, int] = {}  # hashes may be of any size
        self._ids = np.array([ids.setdefault(b, len(ids)) for row in requests.hashes for b in row], dtype=np.int64)
        ends = np.cumsum(counts)
        place = np.arange(len(self._owner)) - np.repeat(ends - counts, counts)
        self._deep_first = np.lexsort((-place, self._owner))  # blocks in the order of use
        self._distances: dict[tuple[int, bool], Ints] = {}
        self._shares: dict[tuple[float, int, bool], float] = {}
        self.unbounded = self.share(math.inf, 1)

    def cached_tokens(self, room_tokens: float, caches: int, follows: bool = False) -> Ints:
        """Tokens of each prompt that a cache of ``room_tokens`` finds, shape (n,), where the requests come to one of ``caches``
        equal ones: at random, or where most of the prompt lies if they ``follow`` it.
        """
        key = (caches, follows and caches > 1)
        if key not in self._distances:
            self._distances[key] = self._distance(*key)
        found = self._distances[key] < min(room_tokens / HASH_BLOCK_TOKENS, len(self._owner) + 1)
        leading = np.bincount(self._owner[found], minlength=len(self._tokens))
        return np.minimum(leading * HASH_BLOCK_TOKENS, self._tokens)

    def share(self, room_tokens: float, caches: int, follows: bool = False) -> float:
        """Share of all prompt tokens that is found, in [0, 1)."""
        key = (room_tokens, caches, follows)
        if key not in self._shares:
            self._shares[key] = float(self.cached_tokens(*key).sum() / self._tokens.sum())
        return self._shares[key]

    def found(self, room_tokens: float, caches: int, follows: bool = False) -> Found:
        """The prompts as such a cache leaves them."""
        cached = self.cached_tokens(room_tokens, caches, follows)
        left = np.maximum(self._tokens - cached, 1)
        ends = np.rint(np.array(NODE_EDGES) * len(left)).astype(np.int64)
        sums = np.concatenate(([0], np.cumsum((self._tokens - left)[np.argsort(left, kind="stable")])))
        by_bin = np.diff(sums[ends]) / np.maximum(np.diff(ends), 1)
        share = self.share(room_tokens, caches, follows)
        return Found(share, Lengths.empirical(left), tuple(float(b) for b in by_bin))

    def _distance(self, caches: int, follows: bool) -> Ints:
        """Blocks that a cache must hold beside a block, and beside those before it in its prompt, for it to be found: (b,).

        Where a block was not used before it is more than there are blocks.
        """
        request_cache = self._followed(caches) if follows else self._drawn(caches)
        # One cache after the other, so that one pass serves all: what belongs to another is never in between.
        at = self._deep_first[np.argsort(request_cache[self._owner[self._deep_first]], kind="stable")]
        owner, cache = self._owner[at], request_cache[self._owner[at]]
        before = _last_use(self._ids[at] + cache * (int(self._ids.max(initial=0)) + 1))
        starts = np.maximum.accumulate(np.where(np.diff(owner, prepend=-1) != 0, np.arange(len(at)), 0))
        # Uses in between, less those of blocks that were used in between already.
        between = starts - before - 1 - _inversions(before)
        known = before >= 0
        distance = np.empty(len(at), dtype=np.int64)
        distance[at] = np.where(known, np.maximum(between, 0), np.iinfo(np.int64).max)
        return _rising(distance, self._owner)

    def _drawn(self, caches: int) -> Ints:
        rng = np.random.Generator(np.random.PCG64(_SEED))
        return np.floor(rng.random(len(self._tokens)) * caches).astype(np.int64)

    def _followed(self, caches: int) -> Ints:
        """The cache that holds the longest known part of each prompt, or one after the other where too little is known."""
        home: dict[int, int] = {}
        out = np.zeros(len(self._hashes), dtype=np.int64)
        turn = 0
        for i, blocks in enumerate(self._hashes):
            known = next((n for n, block in enumerate(blocks) if block not in home), len(blocks))
            if known and known >= FOLLOWED * len(blocks):
                cache = home[blocks[known - 1]]
            else:
                cache, turn = turn % caches, turn + 1
            out[i] = cache
            home.update(dict.fromkeys(blocks, cache))
        return out


def _last_use(keys: Ints) -> Ints:
    """Where each key stood last before, -1 where it did not."""
    order = np.argsort(keys, kind="stable")
    same = keys[order[1:]] == keys[order[:-1]]
    out = np.full(len(keys), -1, dtype=np.int64)
    out[order[1:][same]] = order[:-1][same]
    return out


def _inversions(values: Ints) -> Ints:
    """For each value of 0 and more how many before it are larger; of equal ones none counts. 0 for a negative one.

    A radix sort from the highest bit on that counts as it goes: O(n log n) in whole columns.
    """
    found = np.zeros(len(values), dtype=np.int64)
    at = np.flatnonzero(values >= 0)
    rank = np.empty(len(at), dtype=np.int64)
    rank[np.argsort(values[at], kind="stable")] = np.arange(len(at))
    place = np.arange(len(at))
    counted = np.zeros(len(at), dtype=np.int64)  # of each place, moved with its rank
    for bit in reversed(range(len(at).bit_length())):
        high = (rank >> bit) & 1
        first = rank >> (bit + 1) << (bit + 1)  # ranks are dense: where the group of equal higher bits begins
        highs = np.cumsum(high) - high  # high ones before each place, ...
        ahead = highs - highs[first]  # ... and of those the ones in its group
        counted += np.where(high == 0, ahead, 0)
        # Low ones first, then high ones, each in their order.
        to = np.where(high == 0, place - ahead, first + (1 << bit) + ahead)
        rank, counted, at = _moved(rank, to), _moved(counted, to), _moved(at, to)
    found[at] = counted
    return found


def _moved(values: Ints, to: Ints) -> Ints:
    out = np.empty_like(values)
    out[to] = values
    return out


def _rising(distance: Ints, owner: Ints) -> Ints:
    """The largest of each prompt's distances from its head up to each block."""
    most = len(distance) + 1  # as good as never
    rising = np.maximum.accumulate(owner * (most + 1) + np.minimum(distance, most))
    return np.asarray(rising - owner * (most + 1))
