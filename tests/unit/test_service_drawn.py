"""A draw of two servers: known limits, exact small cases, and the order that nature has."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegen.service import drawn, size
from tests.solver.specs import problem as asked

BUSY = np.linspace(0.0, 1.0, 101)


def test_two_servers_are_as_the_birth_and_death_process_says() -> None:
    """Of two servers the weights of none, one and both busy are 1, 2r and 2r^2."""
    for r in (0.1, 0.5, 2.0):
        weights = np.array([1.0, 2.0 * r, 2.0 * r * r])
        chance = weights / weights.sum()
        busy = np.array([chance[1] / 2.0 + chance[2]])
        np.testing.assert_allclose(drawn.busy_both(busy, 2.0), chance[2], rtol=1e-3)


def test_of_many_servers_two_know_nothing_of_each_other() -> None:
    np.testing.assert_allclose(drawn.busy_both(BUSY, 500.0), BUSY**2, atol=4e-3)


@pytest.mark.parametrize("servers", [2.0, 3.0, 4.0, 7.0, 30.0])
def test_the_chance_lies_between_strangers_and_a_full_queue(servers: float) -> None:
    both = drawn.busy_both(BUSY, servers)
    assert np.all(np.diff(both) >= 0.0)
    assert np.all(both >= BUSY**2 - 1e-3)
    assert np.all(both <= 2.0 * BUSY**2 / (1.0 + BUSY) + 1e-3)  # both of two busy, had they one queue (Erlang)
    assert both[-1] == pytest.approx(1.0, abs=1e-3)


@given(st.floats(0.01, 0.99), st.integers(2, 40), st.floats(0.0, 60.0))
def test_bursts_lead_from_a_draw_to_a_queue(busy: float, servers: int, cv2: float) -> None:
    d = dataclasses.replace(asked(traffic="{concurrency: 60, isl: 1000, osl: 100}").demand, arrival_cv2=cv2, queue_cv2=cv2)
    seen = size.at_replica(d, np.array([float(servers), 1.0]), np.array([True, True]))
    both, again = drawn.met(np.full(2, busy), seen)
    assert 0.0 <= again[0] <= both[0] + 1e-12 <= busy + 1e-3
    assert both[1] == again[1] == busy  # nobody draws of one server
    if cv2 >= servers:
        assert both[0] == pytest.approx(busy) and again[0] == pytest.approx(busy)
    if cv2 <= 1.0:
        power = 2.0 - 2.0 / servers
        places = np.cumsum(np.minimum(power ** np.minimum(np.arange(1.0, 2000.0), 20.0), max(servers / 2.0, power)))
        assert again[0] / (1.0 - again[0]) == pytest.approx(float(np.sum(both[0] ** places)), rel=0.01)
        assert math.isclose(both[0], float(drawn.busy_both(np.array([busy]), float(servers))[0]))
