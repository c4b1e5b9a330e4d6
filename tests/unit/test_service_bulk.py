"""Steps that take all who wait: the table against a plain simulation of such a server."""

from __future__ import annotations

import numpy as np
import pytest

from servegen.service import bulk


def simulate(arrived: float, cv: float, count: int = 120_000) -> tuple[float, float, float]:
    """Busy share, prompts of a step, and others of a prompt's step, of a server whose steps are one unit long."""
    shape = 1.0 / cv**2
    times = np.cumsum(np.random.default_rng(7).gamma(shape, 1.0 / (shape * arrived), count)).tolist()
    now, first, steps, pairs = 0.0, 0, 0, 0
    while first < count:
        now = max(now, times[first])
        last = first + 1
        while last < count and times[last] <= now:
            last += 1
        pairs += (last - first) * (last - first - 1)
        first, now, steps = last, now + 1.0, steps + 1
    return steps / now, count / steps, pairs / count


@pytest.mark.parametrize("cv", [0.5, 1.0, 1.5, 2.5, 4.0])
@pytest.mark.parametrize("arrived", [0.2, 0.7, 2.0])
def test_the_table_is_what_a_simulation_counts(arrived: float, cv: float) -> None:
    busy, prompts, others = simulate(arrived, cv)
    found = bulk.per_step(np.array([busy]), cv * cv)
    if busy < 0.99:  # beyond, prompts depend on the idle time that is left
        np.testing.assert_allclose(found[0], prompts, rtol=0.03)
        np.testing.assert_allclose(found[1], others, rtol=0.04, atol=0.02)


@pytest.mark.parametrize("cv2", [0.0, 0.25, 1.0, 4.0, 100.0])
def test_more_share_a_step_of_a_busier_server(cv2: float) -> None:
    prompts, others = bulk.per_step(np.linspace(1e-4, 1.0, 2000), cv2)
    assert np.all(np.diff(prompts) >= -1e-9) and np.all(np.diff(others) >= -1e-9)
    assert prompts[0] >= 1.0 and others[0] >= 0.0
    assert prompts[0] < 1.0 + 0.7 * max(cv2, 1.0)


def test_regular_arrivals_share_no_step() -> None:
    prompts, others = bulk.per_step(np.array([0.3, 0.99]), 0.0)
    assert prompts.tolist() == [1.0, 1.0] and others.tolist() == [0.0, 0.0]


def test_rows_of_their_own_burstiness_are_looked_up_one_by_one() -> None:
    busy, cv2 = np.array([0.3, 0.5, 0.7]), np.array([1.0, 4.0, 1.0])
    together = bulk.per_step(busy, cv2)
    for i in range(3):
        alone = bulk.per_step(busy[i : i + 1], float(cv2[i]))
        assert together[0][i] == alone[0][0] and together[1][i] == alone[1][0]
