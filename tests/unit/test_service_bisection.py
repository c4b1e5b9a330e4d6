"""Several halvings in one call come to the very brackets of one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from servegen.service import latency
from servegen.service.bisection import at_once, halved
from tests.unit.quantiles import quantile


@pytest.mark.parametrize("halvings", [1, 2, 7, 32])
@pytest.mark.parametrize("rows", [1, 3, 200, 4000])
@pytest.mark.parametrize("rising", [True, False])
def test_the_brackets_are_the_same_bit_by_bit(rows: int, halvings: int, rising: bool) -> None:
    goal = np.random.default_rng(rows).uniform(0.0, 1.0, rows)
    low, high = np.full(rows, -0.3), np.full(rows, 1.7)
    found = halved(lambda i: lambda x: x > goal[i] if rising else x < goal[i], low, high, halvings, rising)
    for _ in range(halvings):
        middle = (low + high) / 2.0
        up = middle > goal
        low, high = np.where(up, low, middle), np.where(up, middle, high)
    assert np.array_equal(found[0], low) and np.array_equal(found[1], high)


def test_few_rows_are_halved_more_at_once_than_many() -> None:
    assert at_once(1, 32) > at_once(4000, 32) == 1


def test_a_quantile_is_that_of_plain_halving() -> None:
    mean, asked = np.array([0.02, 1.0, 300.0]), np.array([0.5, 0.95, 0.99])
    found = latency.quantile_of(lambda i: lambda t: np.exp(-t / mean[i]), asked, 3)
    assert np.array_equal(found, quantile(lambda t: np.exp(-t / mean), asked, 3))
    assert found == pytest.approx(-mean * np.log(1.0 - asked), rel=1e-6)
