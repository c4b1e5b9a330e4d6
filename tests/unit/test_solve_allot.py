"""The choice of a fleet's options: integer programs against trying every combination."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.solve.allot import Contender, allot, fits
from servegen.solve.options import NOTHING, Option
from tests.unit.test_solve_packing import nodes_by_filling

pytest.importorskip("scipy")

PRICES = (1.0, 2.5)


def kinds(*sizes: tuple[int, int]) -> list[Any]:
    """A pool of (nodes, devices in a node)."""
    return [SimpleNamespace(index=i, plan=SimpleNamespace(nodes=n, per_node=g)) for i, (n, g) in enumerate(sizes)]


def option(uses: dict[tuple[int, int], int], share: float, rank: int) -> Option:
    spent = sum(PRICES[kind] * size * count for (kind, size), count in uses.items())
    devices = sum(size * count for (_, size), count in uses.items())
    return Option(None, (), share, tuple(sorted(uses.items())), spent, devices, (-share, spent, devices, rank))


def holds(chosen: tuple[Option, ...], pool: list[Any]) -> bool:
    for kind in pool:
        servers: dict[int, int] = {}
        for o in chosen:
            for (at, size), count in o.uses:
                if at == kind.index:
                    servers[size] = servers.get(size, 0) + count
        if nodes_by_filling(servers, kind.plan.per_node) > kind.plan.nodes:
            return False
    return True


def order(chosen: tuple[Option, ...], members: list[Contender]) -> tuple[Any, ...]:
    """What the allotment minimises, spelt out."""
    levels = sorted({m.priority for m in members}, reverse=True)
    unmet = [sum(1.0 - o.share for o, m in zip(chosen, members, strict=True) if m.priority == p) for p in levels]
    by_priority = sorted(range(len(members)), key=lambda i: -members[i].priority)
    return (
        *(round(u, 6) for u in unmet),
        round(sum(o.spent for o in chosen), 6),
        sum(o.devices for o in chosen),
        *(chosen[i].key for i in by_priority),
    )


PLACES = st.tuples(st.integers(0, 1), st.sampled_from((1, 2, 3, 4, 8)))
USES = st.dictionaries(PLACES, st.integers(1, 2), min_size=1, max_size=2)
SHARES = st.sampled_from((0.25, 0.5, 0.8, 1.0, 1.0))
OPTIONS = st.lists(st.tuples(USES, SHARES), min_size=1, max_size=4)
MEMBERS = st.lists(st.tuples(st.integers(0, 2), OPTIONS, st.booleans()), min_size=1, max_size=3)
POOLS = st.tuples(st.tuples(st.integers(1, 3), st.sampled_from((4, 6, 8))), st.tuples(st.integers(1, 3), st.sampled_from((3, 8))))


@settings(deadline=None, max_examples=80)
@given(MEMBERS, POOLS)
def test_the_allotment_is_the_best_of_all_combinations(stated: list[Any], sizes: Any) -> None:
    pool = kinds(*sizes)
    members = []
    for priority, options, optional in stated:
        found = [option(uses, share, rank) for rank, (uses, share) in enumerate(options)]
        members.append(Contender(priority, (*found, NOTHING) if optional else tuple(found)))
    possible = [c for c in itertools.product(*(m.options for m in members)) if holds(c, pool)]
    found_best = allot(members, pool)
    assert fits(members, pool) == bool(possible)
    if not possible:
        assert found_best is None
        return
    assert found_best is not None
    assert holds(tuple(found_best), pool)
    assert order(tuple(found_best), members) == min(order(c, members) for c in possible)


def test_a_higher_priority_is_met_first() -> None:
    pool = kinds((1, 8))
    whole, half = option({(0, 8): 1}, 1.0, 0), option({(0, 4): 1}, 0.5, 1)
    low, high = Contender(1, (whole, half, NOTHING)), Contender(2, (whole, half, NOTHING))
    assert allot([low, high], pool) == [NOTHING, whole]
    assert allot([high, low], pool) == [whole, NOTHING]


def test_among_equals_the_least_sum_counts_and_the_first_comes_first() -> None:
    pool = kinds((1, 8))
    cheap = Contender(0, (option({(0, 4): 1}, 0.9, 0), NOTHING))
    dear = Contender(0, (option({(0, 8): 1}, 1.0, 0), option({(0, 4): 1}, 0.5, 1), NOTHING))
    assert allot([dear, cheap], pool) == [dear.options[1], cheap.options[0]]  # 0.6 unmet instead of 1.0
    twin = Contender(0, (option({(0, 8): 1}, 1.0, 0), NOTHING))
    assert allot([twin, twin], pool) == [twin.options[0], NOTHING]
