"""What prefix caches find of a trace: the stack distances against caches that are played out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegen.simulate.prefix import PrefixCache
from servegen.workload import HASH_BLOCK_TOKENS, Reuse, TraceRequests, prefix_hit_share

#: Turns of a few conversations, each a path down a tree of blocks: by conversation, and how deep.
TURNS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans()), min_size=2, max_size=40)


def chained(turns: list[tuple[int, int, bool]], tail: int = 0) -> TraceRequests:
    """Prompts whose first block all share where the flag says so; hashes are chained as real ones are."""
    ids: dict[tuple[object, ...], int] = {}
    rows = []
    for name, depth, common in turns:
        path: tuple[object, ...] = ()
        row = []
        for place in range(depth):
            path = (*path, "head" if common and place == 0 else (name, place))
            row.append(ids.setdefault(path, len(ids) * 10**20 + 3))  # hashes may be larger than a machine word
        rows.append(tuple(row))
    tokens = np.array([HASH_BLOCK_TOKENS * len(row) - tail for row in rows])
    n = np.arange(len(rows))
    return TraceRequests(n * 1.0, tokens, np.ones_like(n), tuple(rows))


def played(trace: TraceRequests, room: int, which: list[int]) -> float:
    """Share that LRU caches of ``room`` blocks find, request i going to cache ``which[i]``."""
    caches = {c: PrefixCache(HASH_BLOCK_TOKENS) for c in which}
    hit = 0
    assert trace.hashes is not None
    for blocks, tokens, c in zip(trace.hashes, trace.input_tokens.tolist(), which, strict=True):
        cache = caches[c]
        hit += min(cache.match(blocks) * HASH_BLOCK_TOKENS, tokens)
        cache.lock(blocks)
        cache.release(blocks)
        cache.evict(max(cache.idle - room, 0))
    return hit / int(trace.input_tokens.sum())


@given(turns=TURNS, room=st.integers(0, 30), tail=st.integers(0, 511))
def test_one_cache_finds_what_an_lru_cache_finds(turns: list[tuple[int, int, bool]], room: int, tail: int) -> None:
    trace = chained(turns, tail)
    assert Reuse(trace).share(room * HASH_BLOCK_TOKENS, 1) == pytest.approx(played(trace, room, [0] * len(turns)))


@given(turns=TURNS, room=st.integers(0, 30), caches=st.integers(2, 5))
def test_several_caches_find_what_each_holds(turns: list[tuple[int, int, bool]], room: int, caches: int) -> None:
    trace = chained(turns)
    reuse = Reuse(trace)
    drawn = np.random.Generator(np.random.PCG64(0)).random(len(turns))
    which = np.floor(drawn * caches).astype(int).tolist()
    assert reuse.share(room * HASH_BLOCK_TOKENS, caches) == pytest.approx(played(trace, room, which))


@given(turns=TURNS, caches=st.integers(1, 5), follows=st.booleans())
def test_more_room_never_finds_less(turns: list[tuple[int, int, bool]], caches: int, follows: bool) -> None:
    trace = chained(turns)
    reuse = Reuse(trace)
    shares = [reuse.share(blocks * HASH_BLOCK_TOKENS, caches, follows) for blocks in (0, 1, 3, 9, 27, math.inf)]
    assert shares == sorted(shares) and shares[0] == 0.0
    assert shares[-1] <= reuse.unbounded == pytest.approx(prefix_hit_share(trace))


def test_a_router_that_follows_keeps_conversations_together() -> None:
    """Two conversations on two caches: at random each turn may land where nothing is known of it."""
    turns = [(name, 2 + turn, False) for turn in range(20) for name in (0, 1)]
    reuse = Reuse(chained(turns))
    assert reuse.share(math.inf, 2, follows=True) == pytest.approx(reuse.unbounded)
    assert reuse.share(math.inf, 2) < reuse.unbounded
    # Together they need the room of both, apart each its own.
    room = 21 * HASH_BLOCK_TOKENS
    assert reuse.share(room, 1) < reuse.share(room, 2, follows=True)


@given(turns=TURNS, room=st.integers(0, 30))
def test_the_prompts_that_are_left_add_up(turns: list[tuple[int, int, bool]], room: int) -> None:
    trace = chained(turns)
    reuse = Reuse(trace)
    found = reuse.found(room * HASH_BLOCK_TOKENS, 1)
    cached = reuse.cached_tokens(room * HASH_BLOCK_TOKENS, 1)
    left = np.maximum(trace.input_tokens - cached, 1)
    assert found.computed.mean == pytest.approx(left.mean())
    assert found.share == reuse.share(room * HASH_BLOCK_TOKENS, 1)
    assert all(0 <= b <= trace.input_tokens.max() for b in found.cached_by_bin)


def test_what_is_found_counts_with_those_who_find_it() -> None:
    """One request of many is long and new; the short ones find all but their last block."""
    turns = [(0, 4, False)] * 399 + [(1, 6, False)]
    found = Reuse(chained(turns, tail=1)).found(math.inf, 1)
    assert found.cached_by_bin[0] == pytest.approx(4 * 512 - 2)
    assert found.cached_by_bin[-1] < found.cached_by_bin[0]


def test_hashes_are_needed() -> None:
    with pytest.raises(ValueError, match="no hashes"):
        Reuse(TraceRequests(np.zeros(1), np.ones(1, dtype=np.int64), np.ones(1, dtype=np.int64), None))
