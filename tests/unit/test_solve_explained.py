"""The decision walked through: the next-best of each dimension is what a search without the chosen value finds."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.explanation import Explanation, NextBest
from servegen.plan import Plan, Verification
from servegen.solve.candidate import Candidate
from servegen.solve.explain import summary
from servegen.solve.explained import explained
from servegen.solve.predict import candidate_points, p95
from servegen.solve.problem import Problem
from servegen.solve.search import choose, search, solve
from servegen.solve.space import BATCH_LIMITS, CHUNKS
from servegen.solve.verify import EASE, sized
from tests.solver.specs import LENGTHS, LLAMA_8B, LLAMA_70B, problem, reduced

KINDS = ["h100", "h200"]
LIMITS, SIZES = [1, 4, 8, 16, 32, 64, 128, 256], [512, 2048, 8192]
SLOW = f"{{rate: 1/s, {LENGTHS}}}"
PRECISIONS = {"weights": ["bf16", "fp8"], "kvCache": ["bf16", "fp8"]}


def asked(rate: str = "6/s", kinds: list[str] = KINDS, topology: str = "auto", **constraints: object) -> Problem:
    stated = {"topology": topology, **PRECISIONS, **constraints}
    pool = ", ".join(f"{{accelerator: {k}, nodes: 2, perNode: 8, fabric: {{bandwidth: 400Gbps}}}}" for k in kinds)
    return problem(
        model=LLAMA_70B,
        slo="{ttft: {p95: 2s}, itl: {p95: 40ms}}",
        traffic=f"{{rate: {rate}, {LENGTHS}}}",
        pool=f"[{pool}]",
        constraints="{" + ", ".join(f"{k}: {_flow(v)}" for k, v in stated.items()) + "}",
    )


def _flow(value: object) -> str:
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list) else str(value)


def walked(question: Problem) -> tuple[Plan, Explanation, Candidate]:
    plan, best = solve(question), search(question).best
    assert best is not None
    return plan, explained(question, plan), best


def row(found: Explanation, dimension: str) -> NextBest:
    return next(n for n in found.next_best if n.dimension == dimension)


def same(n: NextBest, best: Candidate, question: Problem) -> None:
    assert n.summary == summary(best)
    assert (n.devices, n.cost_per_hour, n.output_tokens_per_second) == (
        best.devices,
        best.cost_per_h,
        best.output_tokens_per_s,
    )
    ttft, itl = p95(candidate_points(question, [best]))
    assert (n.ttft_p95_s, n.itl_p95_s) == (pytest.approx(float(ttft[0])), pytest.approx(float(itl[0])))


def others(values: list[str], chosen: str) -> list[str]:
    return [v for v in values if v != chosen]


RESTRICTED: dict[str, Callable[[Candidate, str], Problem]] = {
    "weights": lambda c, r: asked(r, weights=others(["bf16", "fp8"], c.config[0])),
    "KV cache": lambda c, r: asked(r, kvCache=others(["bf16", "fp8"], c.config[1])),
    "topology": lambda c, r: asked(r, topology=others(["aggregated", "disaggregated"], c.topology)[0]),
}


@pytest.mark.parametrize("rate", ["2/s", "12/s"])
@pytest.mark.parametrize("dimension", sorted(RESTRICTED))
def test_the_next_best_is_what_a_search_without_the_chosen_value_finds(dimension: str, rate: str) -> None:
    """Each restriction is what a user would write in the spec."""
    with reduced(LIMITS, SIZES):
        question = asked(rate)
        _, found, chosen = walked(question)
        best = search(RESTRICTED[dimension](chosen, rate)).best
        assert best is not None
        same(row(found, dimension), best, question)


ROLES: dict[str, tuple[list[object], Callable[[Candidate], set[object]], Callable[[list[object], str], Problem]]] = {
    "TP": ([1, 2, 4, 8], lambda c: {r.tp for r in c.roles}, lambda v, r: asked(r, tp=v)),
    "accelerator": (
        list(KINDS),
        lambda c: {k.facts.id.partition("-")[0] for k in c.kinds},
        lambda v, r: asked(r, kinds=[str(k) for k in v]),
    ),
}


@pytest.mark.parametrize("rate", ["2/s", "12/s"])
@pytest.mark.parametrize("dimension", sorted(ROLES))
def test_the_next_best_of_what_roles_choose_for_themselves(dimension: str, rate: str) -> None:
    """A split may use two values at once: the best of the searches over every one and two of them, the chosen ones left out."""
    values, of, restricted = ROLES[dimension]
    with reduced(LIMITS, SIZES):
        question = asked(rate)
        _, found, chosen = walked(question)
        subsets = [list(v) for n in (1, 2) for v in itertools.combinations(values, n) if set(v) != of(chosen)]
        apart = [c for v in subsets for c in search(restricted(v, rate)).candidates if of(c) == set(v)]
        best, _ = choose(question, tuple(apart))
        assert best is not None
        same(row(found, dimension), best, question)


@pytest.mark.parametrize("topology", ["aggregated", "disaggregated"])
def test_the_next_best_chunk_and_batch_limit_are_what_a_space_without_them_holds(topology: str) -> None:
    with reduced(LIMITS, SIZES):
        question = asked(topology=topology, kinds=["h100"])
        _, found, chosen = walked(question)
    limit, chunk = chosen.roles[-1].batch_limit, chosen.roles[0].chunk
    for dimension, limits, chunks in (
        ("batch limit", [x for x in LIMITS if x != limit], SIZES),
        ("prefill chunk", LIMITS, [x for x in SIZES if x != chunk]),
    ):
        with reduced(limits, chunks):
            best = search(question).best
            assert best is not None
            same(row(found, dimension), best, question)
    assert len(BATCH_LIMITS) > len(LIMITS) and len(CHUNKS) > len(SIZES)  # the real space is back


def test_the_next_best_discipline_is_what_an_engine_without_the_chosen_one_does() -> None:
    question = asked(topology="aggregated", kinds=["h100"])
    with reduced(LIMITS, SIZES):
        _, found, chosen = walked(question)
        engine = question.engines[0]
        kept = tuple(s for s in engine.facts.schedulers if s != chosen.roles[0].block.discipline)
        engines = (dataclasses.replace(engine, facts=dataclasses.replace(engine.facts, schedulers=kept)),)
        best = search(dataclasses.replace(question, engines=engines)).best
        assert best is not None
        same(row(found, "discipline"), best, question)


def test_what_cannot_be_is_said_with_its_reason() -> None:
    question = asked(kinds=["h100"], weights=["fp8"], kvCache=["bf16"], tp=[2], topology="aggregated")
    _, found, _ = walked(question)
    said = {n.dimension: n.why_lost for n in found.next_best if not n.summary}
    assert said["weights"] == "no other precision is allowed and can be loaded (constraints.weights)"
    assert said["KV cache"] == "constraints.kvCache allows no other"
    assert said["TP"] == "constraints.tp allows no other"
    assert said["topology"] == "constraints.topology allows no other"
    assert said["accelerator"] == "hardware.pool has no other kind"
    node = "[{accelerator: h100, nodes: 1, perNode: 8}]"
    _, found, _ = walked(problem(model=LLAMA_8B, slo="{itl: {p95: 7ms}}", pool=node, constraints="{tp: [1]}", traffic=SLOW))
    assert row(found, "weights").chosen == "fp8"
    assert row(found, "weights").why_lost.startswith("even a single request misses itl.p95 of 7 ms")
    assert row(found, "topology").why_lost == "no configuration can exist: split: no fabric is declared"


def one_replica(rate: str, spares: int = 0, utilization: float = 0.85) -> Problem:
    """Only the number of replicas is free."""
    return problem(
        model=LLAMA_8B,
        slo="{ttft: {p95: 500ms}, itl: {p95: 30ms}}",
        traffic=f"{{rate: {rate}, {LENGTHS}}}",
        constraints=f"{{weights: [bf16], tp: [1], topology: aggregated, spareReplicas: {spares}, utilization: {utilization}}}",
    )


@given(st.integers(3, 60), st.sampled_from([0.5, 0.7, 0.85, 1.0]))
@settings(max_examples=25, deadline=None)
def test_one_replica_less_breaks_what_a_search_with_fewer_accelerators_misses(rate: int, utilization: float) -> None:
    question = one_replica(f"{rate}/s", utilization=utilization)
    with reduced([64], [2048]):
        plan, found, chosen = walked(question)
        (fewer,) = found.fewer
        n = chosen.roles[0].replicas
        assert fewer.replicas == n - 1
        if n == 1:
            assert fewer.breaks == ("load",)
            return
        assert fewer.breaks
        less = dataclasses.replace(question, max_accelerators=n - 1)
        assert search(less).best is None
        # Without the margin they would do exactly where only the margin is said to break.
        name = chosen.name
        bare = [c for c in search(dataclasses.replace(less, utilization=1.0)).candidates if c.name == name]
        assert bool(bare) == (fewer.breaks == ("utilization",))
        assert fewer.utilization == pytest.approx(plan.choice.roles[0].utilization * n / (n - 1))


def test_one_replica_more_costs_what_it_costs_and_needs_room() -> None:
    question = one_replica("30/s")
    plan, found, _ = walked(question)
    n = row(found, "replicas")
    price = question.pool[0].plan.price_per_hour
    assert n.value == str(plan.choice.roles[0].replicas + 1)
    assert n.cost_per_hour == pytest.approx(plan.choice.cost_per_hour + price)
    assert n.ttft_p95_s < plan.prediction.ttft.p95 and n.itl_p95_s <= plan.prediction.itl.p95
    full = dataclasses.replace(question, max_accelerators=plan.choice.devices)
    _, found, _ = walked(full)
    assert row(found, "replicas").why_lost == "maxAccelerators leaves no room for one more of 1"


@pytest.mark.parametrize("confidence", ["best", "low"])
def test_a_binding_bound_has_its_slack(confidence: str) -> None:
    question = problem(slo="{ttft: {p95: 600ms}, itl: {p95: 50ms}}", constraints=f"{{confidence: {confidence}}}")
    plan, found, _ = walked(question)
    assert tuple(b.constraint for b in found.binding) == plan.binding
    for b in found.binding:
        assert b.text
        if b.constraint in plan.slo:
            assert b.slack == pytest.approx(b.allowed - b.found) and b.slack >= 0
            predicted = plan.prediction.bounds[b.constraint]
            assert b.found == pytest.approx(predicted) if confidence == "best" else b.found > predicted


@pytest.mark.parametrize("objective", ["throughput", "latency", "energy"])
def test_other_objectives_are_explained_too(objective: str) -> None:
    question = problem(objective=objective, slo="{itl: {p95: 60ms}}", pool="[{accelerator: h100, nodes: 1, perNode: 8}]")
    with reduced(LIMITS, SIZES):
        _, found, _ = walked(question)
    assert {n.dimension for n in found.next_best} >= {"weights", "TP", "batch limit", "replicas"}
    if objective == "throughput":
        assert all(f.breaks in (("output",), ("load",)) for f in found.fewer)


def test_a_plan_that_a_replay_enlarged_is_explained_as_it_stands() -> None:
    question = one_replica("60/s")
    smaller = dataclasses.replace(question, utilization=question.utilization * EASE * EASE)
    record = Verification("poisson", 1000, 0, smaller.utilization, ("missed", "sized anew", "kept"))
    plan = dataclasses.replace(solve(smaller), verification=record)
    assert plan.choice.roles != solve(question).choice.roles
    assert search(sized(question, plan)).best is not None
    found = explained(question, plan)
    assert found.fewer[0].replicas == plan.choice.roles[0].replicas - 1
    assert not math.isnan(found.fewer[0].utilization)


@pytest.mark.parametrize("traffic", ["concurrency: 40", "users: {active: 90, thinkTime: 8s}"])
@pytest.mark.parametrize("topology", ["aggregated", "disaggregated"])
def test_one_replica_less_of_a_closed_loop_is_held_against_the_load_it_was_sized_for(topology: str, traffic: str) -> None:
    """A split is sized for the fastest that the loop could turn, not for the rate at which it then turns."""
    question = problem(
        traffic=f"{{{traffic}, {LENGTHS}}}", slo="{ttft: {p95: 2s}, itl: {p95: 60ms}}", constraints=f"{{topology: {topology}}}"
    )
    with reduced(LIMITS, SIZES):
        _, found, chosen = walked(question)
    assert [f.role for f in found.fewer] == [r.role for r in chosen.roles]
    assert all(f.breaks for f in found.fewer)
