"""Stalls of a replica that computes prompts first: against drawn streams, one prompt after the other."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from servegen.service import arrivals, queueing
from servegen.service.demand import Demand
from servegen.service.server import server
from servegen.solve.space import build, chunks_for
from tests.solver.specs import problem

Array = NDArray[np.float64]

#: Mean gaps that a decode step and an answer take without stalls.
STEP, ANSWER = 0.1, 20.0


def stream(rng: np.random.Generator, cv2: float, servers: int, count: int) -> Array:
    """Arrivals at one of ``servers``, to which gamma gaps of ``cv2`` are dealt out at random; in mean gaps of this one."""
    times = np.cumsum(rng.gamma(1.0 / cv2, cv2 / servers, count * servers))
    return np.asarray(times[rng.integers(servers, size=len(times)) == 0])


def stalls(times: Array, services: Array) -> Iterator[tuple[int, int]]:
    """Prompts of each stall, and the sequences that it finds running."""
    now = decoded = 0.0
    begun: list[float] = []  # by the time decoded until then
    first = done = 0
    while done < len(times):
        steps = max(np.floor((times[done] - now) / STEP), 0.0) + 1.0  # up to the one in which the next prompt comes
        now, decoded = now + steps * STEP, decoded + steps * STEP
        while first < len(begun) and begun[first] < decoded - ANSWER:
            first += 1
        running, before = len(begun) - first, done
        while done < len(times) and times[done] <= now:
            now += services[done]
            done += 1
        begun += [decoded] * (done - before)
        yield done - before, running


def replica(cv2: float, servers: int) -> Demand:
    d = problem(traffic="{rate: 6/s, isl: 1000, osl: 100}").demand
    seen = 1.0 + (cv2 - 1.0) / servers
    if servers == 1:
        return dataclasses.replace(d, arrival_cv2=seen, queue_cv2=seen)
    one = np.array([seen])
    return dataclasses.replace(d, arrival_cv2=one, queue_cv2=one, dealt=np.array([float(servers)]))


@pytest.mark.parametrize("spread", [0.0, 1.0], ids=["alike", "exponential"])
@pytest.mark.parametrize(("cv2", "servers"), [(1.0, 1), (2.25, 1), (4.0, 1), (4.0, 4), (9.0, 1), (9.0, 4)])
@pytest.mark.parametrize("busy", [0.1, 0.4])
def test_a_stall_has_as_many_prompts_as_drawn_ones(cv2: float, servers: int, busy: float, spread: float) -> None:
    rng = np.random.default_rng(11)
    times = stream(rng, cv2, servers, 60_000)
    services = busy * (rng.exponential(size=len(times)) if spread else np.ones(len(times)))
    prompts, running = np.array(list(stalls(times, services))[200:], dtype=np.float64).T
    d, arrived, load = replica(cv2, servers), np.array([STEP]), np.array([busy])
    together = queueing.together(arrived, d)
    rest = together - 1.0 if cv2 == 1.0 else arrived / 2.0
    found = arrivals.waits(load, d.arrival_cv2, np.array([spread]), d.dealt)
    period = queueing.period(d, load, found, rest, np.array([spread]))
    assert float(period[0]) == pytest.approx(prompts.mean(), rel=0.01 if cv2 == 1.0 else 0.08)
    # Of an answer's time without stalls, of which a part of 1 - busy is left.
    level = np.array([ANSWER / (1.0 - busy)])
    stands = queueing.stands(level, queueing.company(d, level), period * (1.0 - busy) - rest)
    assert float(stands[0]) == pytest.approx(running.mean(), rel=0.02 if cv2 == 1.0 else 0.07)
    if not spread:
        hazard = queueing.hazard(d, arrived / (1.0 + together), load)
        lone = np.exp(-hazard * load) / together
        assert float(lone[0]) == pytest.approx(np.mean(prompts == 1.0), abs=0.01 if cv2 == 1.0 else 0.05)


@pytest.mark.parametrize("servers", [1.0, 2.0, 8.0, 64.0])
@pytest.mark.parametrize("cv2", [1.5, 4.0, 16.0])
def test_the_chance_of_a_wait_of_a_dealt_stream_solves_its_equation(cv2: float, servers: float) -> None:
    busy = np.array([0.001, 0.01, 0.1, 0.5, 0.9, 0.99])
    seen = 1.0 + (cv2 - 1.0) / servers
    gamma = arrivals.waits(busy, seen, 1.0)
    w = arrivals.waits(busy, seen, 1.0, np.full(6, servers))
    gap = (1.0 + (1.0 - w) * cv2 / servers / busy) ** (-1.0 / cv2)
    np.testing.assert_allclose(w, gap / servers / (1.0 - (1.0 - 1.0 / servers) * gap), rtol=1e-4)
    assert np.all(w >= gamma - 1e-9) and np.all(np.diff(w) > 0)


def test_a_poisson_stream_that_is_dealt_out_is_one_again() -> None:
    busy = np.linspace(0.01, 0.99, 30)
    np.testing.assert_array_equal(arrivals.waits(busy, 1.0, 1.0, np.full(30, 8.0)), busy)
    x = np.geomspace(1e-3, 10.0, 30)
    np.testing.assert_array_equal(arrivals.none_after_one(x, 1.0, np.full(30, 8.0)), np.exp(-x))


@pytest.mark.parametrize(("cv2", "servers"), [(1.5, 4), (2.25, 2), (2.25, 8), (4.0, 3), (9.0, 3), (16.0, 2), (16.0, 8)])
def test_gaps_of_a_dealt_stream_are_a_geometric_number_of_its_own(cv2: float, servers: int) -> None:
    x = np.geomspace(1e-3, 12.0, 60)
    seen, n = np.full_like(x, 1.0 + (cv2 - 1.0) / servers), np.full_like(x, float(servers))
    none = arrivals.none_after_one(x, seen, n)
    assert np.all(np.diff(none) < 0)
    drawn = np.random.default_rng(1).gamma(1.0 / cv2, cv2 / servers, 400_000 * servers)
    ends = np.cumsum(drawn)[np.random.default_rng(2).random(len(drawn)) < 1.0 / servers]
    gaps = np.diff(ends)
    np.testing.assert_allclose(none, [np.mean(gaps > v) for v in x], atol=0.014)  # of which 0.003 are chance
    some = arrivals.some_within(x, seen, n)
    np.testing.assert_allclose(some, [np.mean(np.minimum(gaps, v)) / np.mean(gaps) for v in x], atol=0.035)


def test_the_number_that_a_gap_sees_varies_as_two_halves_or_as_all() -> None:
    p = problem(traffic="{rate: 6/s, isl: 1000, osl: 100, burstiness: 3}")
    rows = build(p, p.engines[0], p.pool[0], chunks_for(p), Counter())
    assert rows is not None
    s = server(rows.terms, rows.chunk, 0.0, p.demand)
    none, many = np.full(len(s.chunk), 1e-6), np.full(len(s.chunk), 1e6)
    alone = s.terms.decode_s(np.ones_like(none), s.kv_s)  # which no number lengthens
    np.testing.assert_allclose(queueing.seen_std(s, p.demand, none, none + 9.0, alone) ** 2, 8.0 * (1.0 + 4.0), rtol=1e-4)
    np.testing.assert_allclose(queueing.seen_std(s, p.demand, many, many + 9.0, alone) ** 2, 1e6 * (1.0 + 8.0), rtol=1e-4)
