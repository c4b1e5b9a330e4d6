"""Packing servers onto nodes: the rows of the integer program against filling nodes one by one."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.solve.packing import least_nodes, packing

SIZES = st.dictionaries(st.integers(1, 12), st.integers(0, 4), min_size=1, max_size=3)


def nodes_by_filling(servers: dict[int, int], per_node: int) -> int:
    """The fewest nodes, by trying every way to fill one after the other."""
    whole = sum(count * math.ceil(size / per_node) for size, count in servers.items() if size > per_node)
    sizes = sorted(size for size in servers if size <= per_node)

    @functools.cache
    def least(left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        best = sum(left)
        for fill in itertools.product(*(range(n + 1) for n in left)):
            room = per_node - sum(n * size for n, size in zip(fill, sizes, strict=True))
            full = all(n == have or room < size for n, have, size in zip(fill, left, sizes, strict=True))
            if any(fill) and room >= 0 and full:  # a node that could hold one more is never better
                best = min(best, 1 + least(tuple(a - b for a, b in zip(left, fill, strict=True))))
        return best

    return whole + least(tuple(servers[size] for size in sizes))


@settings(deadline=None, max_examples=100)
@given(SIZES, st.integers(1, 12))
def test_the_fewest_nodes_are_those_of_filling_them_one_by_one(servers: dict[int, int], per_node: int) -> None:
    sizes = frozenset(size for size, count in servers.items() if count)
    if packing(sizes, per_node).arcs:
        pytest.importorskip("scipy")
    assert least_nodes(servers, per_node) == nodes_by_filling(servers, per_node)


@pytest.mark.parametrize(
    ("servers", "per_node", "nodes"),
    [
        ({}, 8, 0),
        ({4: 3, 2: 1, 1: 2}, 8, 2),
        ({8: 1, 1: 1}, 8, 2),
        ({4: 3}, 7, 3),  # 12 devices of 21, and yet one server a node
        ({2: 6, 1: 3}, 5, 3),  # the fifth device of a node only ever holds a single one
        ({16: 2, 4: 1}, 8, 5),
        ({6: 2, 1: 4}, 8, 2),
    ],
)
def test_some_packings(servers: dict[int, int], per_node: int, nodes: int) -> None:
    assert least_nodes(servers, per_node) == nodes


def test_sizes_that_do_not_divide_each_other() -> None:
    pytest.importorskip("scipy")
    assert packing(frozenset({3, 2}), 8).arcs
    assert least_nodes({3: 2, 2: 1}, 8) == 1
    assert least_nodes({3: 4, 2: 1}, 8) == 2
    assert least_nodes({3: 5, 2: 1}, 8) == 3
    assert least_nodes({6: 3, 4: 3}, 8) == 5  # 30 devices would go on four nodes if they were cut


def test_large_nodes_with_odd_sizes_stay_small_programs() -> None:
    form = packing(frozenset({3, 7, 64, 100, 512}), 1024)
    assert len(form.arcs) <= 5 * 1024
