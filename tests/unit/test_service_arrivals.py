"""Gamma renewal arrivals: against drawn streams, against their equations, and at their limits."""

from __future__ import annotations

import numpy as np
import pytest

from servegen.service import arrivals, size
from servegen.service.demand import Demand
from tests.solver.specs import problem

X = np.array([0.1, 0.5, 1.0, 3.0])


@pytest.mark.parametrize("cv", [0.5, 1.0, 1.5, 2.0, 4.0])
def test_chances_are_those_of_a_drawn_stream(cv: float) -> None:
    rng = np.random.default_rng(7)
    gaps = rng.gamma(cv**-2.0, cv**2.0, 300_000)
    times = np.cumsum(gaps)
    looks = rng.uniform(0.0, times[-1000], 100_000)
    following = times[np.searchsorted(times, looks)] - looks
    for i, x in enumerate(X):
        assert arrivals.none_after_one(X, cv**2)[i] == pytest.approx(np.mean(gaps > x), abs=0.01)
        assert arrivals.some_within(X, cv**2)[i] == pytest.approx(np.mean(following < x), abs=0.01)


@pytest.mark.parametrize("cv2", [0.25, 1.0, 2.25, 16.0])
def test_a_table_for_each_row_is_the_table_of_all(cv2: float) -> None:
    np.testing.assert_array_equal(arrivals.some_within(X, np.full_like(X, cv2)), arrivals.some_within(X, cv2))
    np.testing.assert_allclose(arrivals.company(X, np.full_like(X, cv2)), arrivals.company(X, cv2), rtol=1e-14)


@pytest.mark.parametrize("cv2", [1.5, 4.0, 16.0])
def test_the_chance_of_a_wait_solves_its_equation(cv2: float) -> None:
    busy = np.array([0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.9999])
    w = arrivals.waits(busy, cv2, 1.0)
    np.testing.assert_allclose(w, (1.0 + (1.0 - w) * cv2 / busy) ** (-1.0 / cv2), rtol=1e-9)
    assert np.all(w > busy) and np.all(np.diff(w) > 0)


def test_poisson_arrivals_wait_for_a_busy_server_and_regular_ones_less() -> None:
    busy = np.linspace(0.01, 0.99, 30)
    np.testing.assert_array_equal(arrivals.waits(busy, 1.0, 0.7), busy)
    for cv2 in (0.0, 0.25, 0.5):
        seldom = arrivals.waits(busy, cv2, 1.0)
        assert np.all((seldom >= 0.0) & (seldom <= busy)) and np.all(np.diff(seldom) >= 0.0)


def test_company_grows_to_half_of_what_the_variation_adds() -> None:
    assert np.all(arrivals.company(X, 1.0) == 0.0)
    np.testing.assert_allclose(arrivals.company(np.array([40.0]), 4.0), 1.5, rtol=0.01)
    assert np.all(np.diff(arrivals.company(np.linspace(0.001, 50.0, 200), 16.0)) >= -1e-9)


@pytest.mark.parametrize("cv2", [2.25, 4.0, 9.0, 16.0])
def test_company_is_the_renewal_function_beyond_a_poisson_stream(cv2: float) -> None:
    times = np.cumsum(np.random.default_rng(3).gamma(1.0 / cv2, cv2, 400_000))
    x = np.array([0.05, 0.2, 1.0, 3.0, 10.0])
    seen = [np.mean(np.searchsorted(times, times[:-5000] + v, side="right") - np.arange(len(times) - 5000) - 1.0) - v for v in x]
    np.testing.assert_allclose(arrivals.company(x, cv2), seen, rtol=0.05 if cv2 > 2.25 else 0.09, atol=0.03)


@pytest.mark.parametrize(("prompts", "fit"), [(1.5, 2), (2.8, 3), (4.0, 1), (6.0, 9)])
def test_a_burst_of_more_prompts_than_a_step_holds_takes_more_steps(prompts: float, fit: int) -> None:
    number = np.random.default_rng(4).geometric(1.0 / prompts, 400_000)
    steps = np.mean(np.maximum(number / fit, 1.0)) - 1.0
    found = float(arrivals.overflow(np.array([prompts]), np.array([1.0 / fit]), 1e9)[0])
    assert found == pytest.approx(steps if fit > 1 else 0.0, rel=0.02, abs=1e-3)  # of whole steps it is asked elsewhere


def test_a_router_evens_out_what_each_replica_sees() -> None:
    d: Demand = problem(traffic="{rate: 6/s, isl: 1000, osl: 100, burstiness: 2}").demand
    np.testing.assert_allclose(size.at_replica(d, np.array([1.0, 4.0]), evened=np.array([True, True])).arrival_cv2, [4.0, 1.0])
    np.testing.assert_allclose(size.at_replica(d, np.array([1.0, 4.0]), evened=np.array([False, False])).arrival_cv2, [4.0, 1.75])
    closed = problem(traffic="{concurrency: 40, isl: 1000, osl: 100}").demand
    assert size.at_replica(closed, np.array([4.0]), evened=np.array([False])) is closed


def test_bursts_need_more_slots() -> None:
    limits = np.array([4.0, 32.0, 256.0])
    calm, bursty = size.slot_level(limits), size.slot_level(limits, 3.0)
    assert np.all((bursty > 0) & (bursty < calm))
