"""Where nothing bounds first tokens a pool may be filled to its slots, and requests wait for one."""

from __future__ import annotations

import dataclasses
import math

import pytest

from servegen.plan import Plan
from servegen.solve.arrivals import Traffic
from servegen.solve.problem import Problem
from servegen.solve.replay import of_problem, requests, run
from servegen.solve.search import search, solve
from tests.solver.specs import problem


def asked(engine: str, load: str = "") -> Problem:
    return problem(
        model="Qwen/Qwen3-14B",
        slo="{itl: {p95: 250ms}}",
        traffic=f"{{{load}isl: {{mean: 1500, p95: 4000}}, osl: {{mean: 300, p95: 700}}}}",
        pool="[{accelerator: h100, nodes: 1, perNode: 4}]",
        objective="cost" if load else "throughput",
        constraints=f"{{engines: [{engine}], utilization: 1.0, weights: [bf16], tp: [1]}}",
        deploy="{image: 'registry/image:1', modelCache: {claim: weights}}",
    )


def at(engine: str, share: float) -> tuple[Problem, Plan]:
    """The plan of a load that is so much of what the pool carries at the most."""
    most = search(asked(engine)).best
    assert most is not None
    question = asked(engine, f"rate: {most.headroom * share:.6f}/s, ")
    return question, solve(question)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_who_waits_for_a_slot_waits_longer_the_fuller_the_pool_is(engine: str) -> None:
    first = [at(engine, share)[1].prediction.ttft.p95 for share in (0.8, 0.9, 0.95, 0.98, 0.995)]
    assert first == sorted(first)
    assert first[-1] > 10 * first[0]


@pytest.mark.parametrize(("share", "near"), [(0.85, 0.25), (0.95, 0.5)])
def test_a_pool_that_is_nearly_full_is_predicted_as_it_replays(share: float, near: float) -> None:
    question, plan = at("vllm", share)
    subject = of_problem(question, plan)
    replayed = run(subject, requests(subject, Traffic("", 12_000, 1)), 1)
    assert plan.prediction.ttft.p95 == pytest.approx(replayed.ttft.p95, rel=near)


def test_a_queue_that_grows_for_ever_has_no_first_token() -> None:
    question, _ = at("vllm", 0.9)
    most = search(asked("vllm")).best
    assert most is not None
    plan = solve(dataclasses.replace(question, load=most.headroom))
    assert plan.prediction.utilization == pytest.approx(1.0)
    for of in (plan.prediction.ttft, plan.prediction.e2e):
        assert all(math.isnan(value) for value in (of.mean, of.p50, of.p95, of.p99))
    assert plan.prediction.itl.p95 < 0.25
    assert any("grows for ever" in note for note in plan.notes)
    assert not any("grows for ever" in note for note in at("vllm", 0.9)[1].notes)
