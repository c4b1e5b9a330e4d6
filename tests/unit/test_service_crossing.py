"""Where functions cross a bound is found in the cell that one halving after the other comes to, whatever they look like."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from servegen.service import latency
from servegen.service.crossing import NARROW, WIDE, Index, Measure, crossing, excess, searched
from tests.unit.quantiles import quantile

Array = NDArray[np.float64]
CELLS = 8**6
ENDS: Array = np.array([0.0, CELLS])
#: Rising functions of 0 to 1, each of which a search by interpolation has its own trouble with.
SHAPES = {
    "line": lambda x: x,
    "steep": lambda x: np.exp(40.0 * x) - 1.0,
    "flat": lambda x: x**9,
    "kinked": lambda x: np.maximum(0.1 * x, 5.0 * x - 3.0),
    "step": lambda x: np.where(x > 0.6180339887, 1.0 + x, 0.01 * x),
    "wall": lambda x: np.where(x > 0.3333333, np.inf, x),
    "plateau": lambda x: np.where(x < 0.2, x, np.where(x < 0.8, 0.2, x - 0.6)),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-400.0 * (x - 0.7))),
}


def halved(shape: str, goal: float) -> int:
    """The last edge that is not above the goal."""
    low, high = 0, CELLS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if SHAPES[shape](np.float64(middle / CELLS)) > goal else (middle, high)
    return low


def made(shape: str, goal: Array, calls: list[int]) -> Callable[[Index], Measure]:
    def make(index: Index) -> Measure:
        def measure(edge: Array) -> tuple[NDArray[np.bool_], Array]:
            calls.append(len(edge))
            value = SHAPES[shape](edge / CELLS)
            return value > goal[index], excess(value, goal[index])

        return measure

    return make


@pytest.mark.parametrize("shape", SHAPES)
@given(
    goals=st.lists(st.floats(min_value=1e-6, max_value=0.9), min_size=1, max_size=40),
    inner=st.lists(st.floats(min_value=0.01, max_value=0.99), max_size=6, unique=True),
)
def test_the_cell_is_that_of_halving(shape: str, goals: list[float], inner: list[float]) -> None:
    calls: list[int] = []
    tried = [0.0, *sorted({float(int(x * CELLS)) for x in inner} - {0.0, float(CELLS)}), float(CELLS)]
    found = searched(made(shape, np.array(goals), calls), len(goals), np.array(tried))
    expected = [halved(shape, goal) if SHAPES[shape](np.float64(1.0)) > goal else CELLS for goal in goals]
    assert found.tolist() == expected
    # No function takes more than an even split and a try in turns would.
    assert len(calls) <= 1 + 2 * 6 + 1


def test_a_row_does_not_depend_on_those_beside_it() -> None:
    goals = np.linspace(0.001, 0.9, 300)
    together = searched(made("kinked", goals, []), 300, ENDS)
    alone = [searched(made("kinked", goals[i : i + 1], []), 1, ENDS)[0] for i in range(0, 300, 37)]
    assert together[::37].tolist() == alone


def test_a_row_that_is_above_at_the_first_edge_or_at_none_is_not_searched() -> None:
    calls: list[int] = []
    tried = np.array([0.0, CELLS / 2.0, CELLS])
    over = np.array([[True, True, True], [False, False, False], [True, False, False]])
    found = crossing(made("line", np.ones(3), calls), tried, over, np.where(over, 1.0, -1.0))
    assert found.tolist() == [-1.0, CELLS, -1.0] and not calls


@pytest.mark.parametrize("errors", [WIDE, NARROW])
def test_of_several_crossings_the_first_that_the_edges_tell_of_is_found(errors: Array) -> None:
    """Above its bound from 0.3 to 0.5 and from 0.9 on; at the last edge, or not."""

    def make(index: Index) -> Measure:
        def measure(edge: Array) -> tuple[NDArray[np.bool_], Array]:
            x = edge / CELLS
            value = np.where((x > 0.3) & (x < 0.5) | (x > 0.9), 2.0, 0.5) * (1.0 + x)
            return value > 1.0 + x, excess(value, 1.0 + x)

        return measure

    for inner, at in (([0.4], 0.3), ([0.6], 0.9), ([0.2, 0.45, 0.95], 0.3)):
        tried = np.floor(np.array([0.0, *inner, 1.0]) * CELLS)
        assert searched(make, 1, tried, errors)[0] == np.floor(at * CELLS)


def test_a_quantile_is_that_of_plain_halving() -> None:
    mean, asked = np.array([0.02, 1.0, 300.0]), np.array([0.5, 0.95, 0.99])
    found = latency.quantile_of(lambda i: lambda t: np.exp(-t / mean[i]), asked, 3)
    assert found == pytest.approx(quantile(lambda t: np.exp(-t / mean), asked, 3), rel=1e-12)
    assert found == pytest.approx(-mean * np.log(1.0 - asked), rel=1e-6)
