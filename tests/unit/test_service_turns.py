"""Closed loops: whose ends are the next beginnings, on one replica, and behind the router of a split."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from servegen.plan import Plan
from servegen.service import size, turns
from servegen.service.point import without_edges
from servegen.service.waiting import Work
from servegen.simulate.result import Result
from servegen.solve.arrivals import Traffic
from servegen.solve.problem import Problem
from servegen.solve.replay import of_problem, requests, run
from servegen.solve.search import solve
from tests.solver.specs import LLAMA_8B, LLAMA_70B, scheduling
from tests.solver.specs import problem as asked

CHAT = "isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}"
NARROW = "isl: {mean: 1024, p95: 1130}, osl: {mean: 256, p95: 282}"
EQUAL = "isl: 1024, osl: 256"
SHORT = "isl: {mean: 150, p95: 400}, osl: {mean: 50, p95: 120}"
RAG = "isl: {mean: 3500, p95: 7000}, osl: {mean: 150, p95: 350}"
DEPLOY = "{image: 'registry/image:1', modelCache: {claim: weights}}"
ONE = np.ones(1)


def loop(scheduler: str, model: str, accelerator: str, users: int, lengths: str) -> Problem:
    """So many requests in flight in one replica that schedules like this."""
    stated = asked(
        model=model,
        slo="{ttft: {p95: 20s}, itl: {p95: 900ms}}",
        traffic=f"{{concurrency: {users}, {lengths}}}",
        pool=f"[{{accelerator: {accelerator}, nodes: 1, perNode: 1}}]",
        constraints="{engines: [sglang], utilization: 1.0, tp: [1], topology: aggregated}",
        deploy=DEPLOY,
    )
    return scheduling(stated, scheduler)


def replayed(problem: Problem, plan: Plan, seed: int = 1, count: int = 24_000) -> Result:
    subject = of_problem(problem, plan)
    return run(subject, requests(subject, Traffic("", count, seed)), seed)


@pytest.mark.parametrize(
    ("scheduler", "model", "accelerator", "users", "lengths"),
    [
        ("prefill-first", LLAMA_8B, "l40s", 60, CHAT),
        ("prefill-first", LLAMA_8B, "l40s", 60, NARROW),
        ("prefill-first", LLAMA_70B, "mi300x", 150, CHAT),
        ("prefill-first", LLAMA_8B, "h100", 128, SHORT),
        ("prefill-first", "openai/gpt-oss-20b", "h100", 48, "isl: {mean: 2000, p95: 6000}, osl: {mean: 40, p95: 120}"),
        ("mixed", LLAMA_8B, "h100", 32, CHAT),
        ("mixed", LLAMA_8B, "h100", 120, CHAT),  # more than can begin: the others wait
        ("mixed", LLAMA_8B, "l40s", 60, NARROW),
        ("mixed", LLAMA_8B, "l40s", 60, EQUAL),
        ("mixed", "openai/gpt-oss-20b", "h100", 48, "isl: {mean: 2000, p95: 6000}, osl: {mean: 40, p95: 120}"),
    ],
)
def test_one_replica_of_a_closed_loop_is_predicted_as_it_replays(
    scheduler: str, model: str, accelerator: str, users: int, lengths: str
) -> None:
    problem = loop(scheduler, model, accelerator, users, lengths)
    plan = solve(problem)
    found = replayed(problem, plan)
    assert 0.9 <= plan.prediction.ttft.p95 / found.ttft.p95 <= 1.2
    assert 0.88 <= plan.prediction.ttft.mean / found.ttft.mean <= 1.15
    assert plan.prediction.itl.mean == pytest.approx(found.itl.mean, rel=0.1)


@pytest.mark.parametrize(("model", "accelerator", "users"), [(LLAMA_8B, "l40s", 60), (LLAMA_70B, "mi300x", 150)])
def test_requests_of_one_length_march_in_the_step_in_which_they_began(model: str, accelerator: str, users: int) -> None:
    """How many march together is drawn when they begin, and stays: what is predicted is what beginnings give on average."""
    problem = loop("prefill-first", model, accelerator, users, EQUAL)
    plan = solve(problem)
    found = [replayed(problem, plan, seed, 20 * users).ttft for seed in range(1, 7)]
    assert max(f.p95 for f in found) > 1.5 * min(f.p95 for f in found)
    assert plan.prediction.ttft.mean == pytest.approx(np.mean([f.mean for f in found]), rel=0.2)
    assert plan.prediction.ttft.p95 == pytest.approx(np.mean([f.p95 for f in found]), rel=0.2)


@pytest.mark.parametrize(("scheduler", "rises"), [("prefill-first", False), ("mixed", True)])
def test_first_tokens_go_evenly_from_equal_lengths_to_spread_ones(scheduler: str, rises: bool) -> None:
    """A stall keeps together who began together; mixed steps let them end one after the other, like clockwork."""
    p95 = []
    for more in (0.0, 0.3, 1.0, 3.0, 10.0, 40.0):
        lengths = "isl: 1024, osl: 256" if not more else f"isl: 1024, osl: {{mean: 256, p95: {256 + more}}}"
        p95.append(solve(loop(scheduler, LLAMA_8B, "l40s", 60, lengths)).prediction.ttft.p95)
    assert p95 == sorted(p95, reverse=not rises)
    assert max(p95) > 1.5 * min(p95)
    assert max(abs(np.diff(np.log(p95)))) < 0.6 * abs(np.log(p95[-1] / p95[0]))


def work(each: float, cv2: float = 0.0, third: float = 1.0) -> Work:
    return Work(each * ONE, each * ONE, ONE, cv2 * ONE, third * ONE, 0.0 * ONE)


@pytest.mark.parametrize("ends", [0.05, 0.3, 1.0, 3.0])
def test_who_ends_in_a_step_waits_for_those_of_the_step_before_it_or_for_a_step(ends: float) -> None:
    rng = np.random.default_rng(1)
    step, each = 0.02, 0.05
    waits, stalls, several, waiting = [], 0, 0, 0
    steps = 60_000
    for ended in rng.poisson(ends, steps):
        # Those who wait are computed behind this step, and those who end with it behind them.
        stalls, several = stalls + (waiting > 0), several + (waiting > 0 and waiting + ended > 1)
        before = waiting * each if waiting else step
        waits += [before + k * each for k in range(ended)]
        waiting = 0 if waiting else ended
    seen = turns._mixed(work(each), ends * ONE, step * ONE)
    beyond = np.array(waits) - step
    np.testing.assert_allclose(seen.stalls, stalls / steps, rtol=0.03)
    np.testing.assert_allclose(seen.several, several / stalls, rtol=0.05, atol=0.01)
    np.testing.assert_allclose(seen.mean, beyond.mean(), rtol=0.05)
    np.testing.assert_allclose(seen.square, (beyond**2).mean(), rtol=0.06)
    np.testing.assert_allclose(seen.some, (beyond > 1e-9).mean(), rtol=0.05)


@pytest.mark.parametrize(("busy", "cv2"), [(0.2, 0.0), (0.5, 0.0), (0.5, 1.0)])
def test_a_march_is_as_long_as_the_busy_period_that_it_began_in(busy: float, cv2: float) -> None:
    rng = np.random.default_rng(2)
    places: list[int] = []
    for _ in range(40_000):
        n, behind = 0, 1
        while behind:
            n, behind = n + 1, behind - 1 + rng.poisson(busy * (rng.exponential() if cv2 else 1.0))
        places += range(n)
    seen = turns._marching(work(1.0, cv2, 6.0 if cv2 else 1.0), 1e9 * ONE, 0.0 * ONE, busy * ONE)
    # The seconds of exponential prompts vary by as much as they last.
    square = np.mean(np.square(places)) + cv2 * np.mean(places)
    np.testing.assert_allclose(seen.mean, np.mean(places), rtol=0.05)
    np.testing.assert_allclose(seen.square, square, rtol=0.12)
    np.testing.assert_allclose(seen.some, np.mean(np.array(places) > 0), rtol=0.03)


def test_no_more_march_together_than_there_are_users() -> None:
    for users in (1.0, 5.0, 60.0):
        seen = turns._marching(work(1.0), users * ONE, users / 100.0 * ONE, 0.99 * ONE)
        assert 0.0 <= float(seen.mean[0]) <= (users - 1.0) / 2.0
        assert float(seen.square[0]) <= (users - 1.0) * (2.0 * users - 1.0) / 6.0
        assert 0.0 <= float(seen.some[0]) <= 1.0


@pytest.mark.parametrize(
    ("model", "accelerator", "nodes", "load", "lengths"),
    [
        (LLAMA_8B, "h100", 1, "concurrency: 200", CHAT),
        (LLAMA_8B, "h100", 1, "concurrency: 200", EQUAL),  # which would hardly ever meet, had they turns
        (LLAMA_8B, "h100", 1, "rate: 60/s", "isl: 2000, osl: 300"),
        (LLAMA_70B, "h200", 2, "concurrency: 150", NARROW),
        (LLAMA_70B, "h200", 2, "users: {active: 180, thinkTime: 10s}", RAG),
    ],
)
def test_what_the_router_of_a_split_leaves_of_waiting_is_predicted_as_it_replays(
    model: str, accelerator: str, nodes: int, load: str, lengths: str
) -> None:
    problem = asked(
        model=model,
        slo="{ttft: {p95: 3s}, itl: {p95: 40ms}}",
        traffic=f"{{{load}, {lengths}}}",
        pool=f"[{{accelerator: {accelerator}, nodes: {nodes}, perNode: 8, fabric: {{bandwidth: 400Gbps}}}}]",
        constraints="{engines: [sglang], utilization: 0.85, topology: disaggregated}",
        deploy=DEPLOY,
    )
    plan = solve(problem)
    assert plan.choice.roles[0].replicas > 1
    found = replayed(problem, plan, count=30_000)
    assert 0.9 <= plan.prediction.ttft.p95 / found.ttft.p95 <= 1.2
    assert plan.prediction.itl.p95 == pytest.approx(found.itl.p95, rel=0.1)


def test_a_replica_among_several_sees_its_share_of_a_closed_loop_at_random() -> None:
    d = asked(traffic="{concurrency: 60, isl: 1000, osl: 100}").demand
    seen = size.at_replica(d, np.array([4.0, 4.0]), np.array([True, False]))
    np.testing.assert_allclose(seen.queue_cv2, [0.25, 1.0])
    assert seen.drawn.tolist() == [4.0, 1.0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("scheduler", "accelerator", "devices", "users", "lengths", "itl"),
    [
        ("prefill-first", "h100", 2, 200, EQUAL, "80ms"),  # in bursts
        ("prefill-first", "l40s", 4, 120, EQUAL, "200ms"),
        ("prefill-first", "h100", 2, 200, CHAT, "80ms"),  # as strangers
        ("mixed", "l40s", 4, 120, EQUAL, "60ms"),  # steadily
    ],
)
def test_what_several_replicas_send_back_is_dealt_out_to_all(
    scheduler: str, accelerator: str, devices: int, users: int, lengths: str, itl: str
) -> None:
    problem = asked(
        model=LLAMA_8B,
        slo=f"{{ttft: {{p95: 2s}}, itl: {{p95: {itl}}}}}",
        traffic=f"{{concurrency: {users}, {lengths}}}",
        pool=f"[{{accelerator: {accelerator}, nodes: 1, perNode: {devices}}}]",
        constraints="{engines: [sglang], utilization: 0.85, topology: aggregated}",
        deploy=DEPLOY,
    )
    (engine,) = problem.engines
    only = dataclasses.replace(engine, facts=dataclasses.replace(engine.facts, schedulers=(scheduler,)))
    problem = dataclasses.replace(problem, engines=(only,))
    plan = solve(problem)
    assert plan.choice.roles[0].replicas > 1
    found = replayed(problem, plan, count=20_000)
    assert 0.9 <= plan.prediction.ttft.p95 / found.ttft.p95 <= 1.25


def test_what_comes_back_of_equal_answers_is_a_busy_period_and_of_others_that_of_strangers() -> None:
    """Without company in a decode step, prompts of one length: E[n^2]/E[n] is 1/(1 - b)^2."""
    d = asked(traffic="{concurrency: 60, isl: 1000, osl: 100}").demand
    spread = asked(traffic="{concurrency: 60, isl: 1000, osl: {mean: 100, p95: 200}}").demand
    replicas = np.array([1.0, 2.0, 10.0])
    zeros = np.zeros(3)
    means = dict.fromkeys(("level", "seen", "rate", "busy", "service_mean_s", "gap_s", "gap_mean_s"), zeros)
    first = dict.fromkeys(("const_s", "rest_s", "delayed", "wait_s", "wait_cv2"), zeros)
    p = dataclasses.replace(without_edges(None, **means, **first), busy=zeros + 0.4, level=zeros + 1e-6)
    burst = 1.0 / 0.6**2 - 1.0
    np.testing.assert_allclose(turns.dealt(d, p, zeros, True, replicas), 1.0 + burst / replicas, atol=0.026)
    np.testing.assert_allclose(turns.dealt(d, p, zeros, False, replicas), 1.0 - 0.16 / replicas, atol=0.026)
    assert turns.dealt(d, p, zeros + 1.0, False, replicas).tolist() == [1.0] * 3  # exponential prompts leave as they come
    p = dataclasses.replace(p, level=zeros + 10.0)
    for stalls in (True, False):
        assert turns.dealt(spread, p, zeros, stalls, replicas).tolist() == [1.0] * 3
