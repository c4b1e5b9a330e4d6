"""Waterfalls: parts that sum to the prediction, none of them negative, on top of the ideal roofline."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.catalog.facts import Constant
from servegen.codec import dumps
from servegen.lower import lower
from servegen.plan import Plan, loads
from servegen.rationale import Waterfall
from servegen.roofline.speculation import Rounds
from servegen.roofline.step import StepTerms
from servegen.service.demand import EDGES
from servegen.service.size import Bound
from servegen.solve.candidate import Candidate
from servegen.solve.predict import Seen, role_points, statistics
from servegen.solve.problem import Problem
from servegen.solve.resolve import PROBABILITIES
from servegen.solve.search import search, solve
from servegen.solve.waterfall import COMMUNICATION, DRAFT_COMMUNICATION, DRAFT_LAUNCH, EFFECTS, LAUNCH, stages, waterfalls
from tests.solver.specs import FABRIC, LENGTHS, LLAMA_8B, problem, reduced

BOUNDS = {
    "none": "{}",
    "chat": "{ttft: {p95: 1s}, itl: {p95: 50ms}}",
    "whole": "{e2e: {p95: 25s}, tpot: {p95: 60ms}}",
    "means": "{ttft: {mean: 800ms}, itl: {mean: 45ms}, e2e: {mean: 15s}}",
    "tails": "{ttft: {p50: 500ms, p99: 5s}, itl: {p50: 45ms, p99: 500ms}}",
}
LOADS = {
    "rate": f"{{rate: 6/s, {LENGTHS}}}",
    "few": f"{{rate: 0.5/s, {LENGTHS}}}",
    "idle": f"{{rate: 0.01/s, {LENGTHS}}}",
    "bursts": f"{{rate: 3/s, burstiness: 2.0, {LENGTHS}}}",
    "users": f"{{users: {{active: 90, thinkTime: 8s}}, {LENGTHS}}}",
    "saturate": f"{{{LENGTHS}}}",
    "prefix": f"{{rate: 6/s, prefix: {{hitRate: 0.4}}, {LENGTHS}}}",
}
ENGINES = [("sglang", "aggregated"), ("sglang", "disaggregated"), ("vllm", "aggregated"), ("megatron", "aggregated")]


def asked(engine: str, topology: str, load: str, bounds: str, model: str = LLAMA_8B) -> Problem:
    deploy = "{image: 'registry/image:1', modelCache: {claim: weights}}" if engine == "megatron" else "{}"
    constraints = f"{{engines: [{engine}], topology: {topology}}}"
    return problem(
        model=model, traffic=LOADS[load], slo=BOUNDS[bounds], pool=FABRIC, constraints=constraints, deploy=deploy
    )


def best_of(question: Problem) -> Candidate:
    best = search(question).best
    assert best is not None
    return best


def of(plan: Plan, metric: str) -> Waterfall:
    return next(w for w in plan.waterfalls if w.metric == metric)


def part(w: Waterfall, name: str) -> float:
    return next(e.adds_s for e in w.effects if e.name == name)


def bound_of(w: Waterfall) -> Bound:
    return Bound(f"{w.metric}.{w.statistic}", w.metric, PROBABILITIES[w.statistic], math.inf)  # type: ignore[arg-type]


@given(st.sampled_from(ENGINES), st.sampled_from(sorted(LOADS)), st.sampled_from(sorted(BOUNDS)))
@settings(max_examples=40, deadline=None)
def test_parts_sum_to_the_prediction_and_none_is_negative(served: tuple[str, str], load: str, bounds: str) -> None:
    question = asked(*served, load, bounds)
    with reduced([1, 8, 32, 64, 128, 256], [512, 2048, 8192]):
        seen = search(question)
        if seen.best is None:
            return
        plan = solve(question)
        rows = Seen.join([(p, (1.0,)) for p in stages(question, seen.best.roles, role_points(question, seen.best.roles))])
    named = {b.metric for b in question.slo.bounds}
    assert [w.metric for w in plan.waterfalls] == [m for m in ("ttft", "itl", "tpot", "e2e") if m in named | {"ttft", "itl"}]
    for w in plan.waterfalls:
        known = plan.prediction.bounds.get(f"{w.metric}.{w.statistic}")
        assert w.total_s == (getattr(getattr(plan.prediction, w.metric), w.statistic) if known is None else known)
        assert math.isclose(w.floor_s + math.fsum(e.adds_s for e in w.effects), w.total_s, rel_tol=1e-12)
        assert tuple(e.name for e in w.effects) == EFFECTS
        assert w.floor_s > 0 and all(e.adds_s >= 0 for e in w.effects)
        # The physics itself rises from stage to stage; taking the larger of two only hides the rounding of percentiles, and that
        # the median of steps that vary lies below their mean where bursts skew them.
        raw = statistics(bound_of(w), rows, question.demand)
        below = 0.03 if question.demand.arrival_cv2 != 1.0 and w.statistic == "p50" else 1e-6
        assert np.all(np.diff(raw) >= -below * w.total_s)
        assert math.isclose(raw[-1], w.total_s, rel_tol=1e-6)


@pytest.mark.parametrize("bounds", ["chat", "tails", "means"])
@pytest.mark.parametrize(("engine", "topology"), ENGINES)
def test_the_floor_is_the_ideal_roofline(engine: str, topology: str, bounds: str) -> None:
    question = asked(engine, topology, "few" if engine == "megatron" else "rate", bounds)  # a static batch is waited for
    plan, chosen, d = solve(question), best_of(question), question.demand
    first = chosen.roles[0]
    config = first.block.rows.lowered.configs[int(first.block.rows.config[first.row])]
    ideal = lower(question.model, first.block.engine.facts, [config], "ideal").terms
    # A percentile of steps that do not vary is found to two nanoseconds.
    assert of(plan, "itl").floor_s == pytest.approx(plan.prediction.floor["step_time_s"], abs=3e-9)
    w = of(plan, "ttft")
    if w.statistic == "mean":
        uncached, total, weights = d.uncached_fine, d.total_fine, d.fine_weights
    else:
        at = list(EDGES).index(PROBABILITIES[w.statistic])
        uncached, total, weights = d.uncached_edges[[at]], d.total_edges[[at]], np.ones(1)
    alone = ideal.prefill_s(uncached, total, np.array([float(first.chunk)]))
    if first.block.discipline == "mixed":  # chunks are filled evenly, so there are fewer of them than whole ones
        steps = np.maximum(uncached / first.chunk, 1.0)
        fixed = steps * np.maximum(ideal.weight_s, ideal.token_flop_s * uncached / steps)
        alone = (fixed + uncached * ideal.token_wire_s)[None, :] + ideal.attention_s(total, total - uncached)
    if first.block.discipline == "static":  # a batch takes what its members take on average
        attention = ideal.attention_s(d.total_fine, d.total_fine - d.uncached_fine) @ d.fine_weights
        alone = np.full_like(alone, float((ideal.chunk_s(np.array([d.uncached_mean])) + attention)[0]))
    tolerance = 1e-6 if w.statistic != "mean" or first.block.discipline != "mixed" else 0.05
    assert w.floor_s == pytest.approx(float(alone[0] @ weights), rel=tolerance)


def test_every_term_of_a_step_stands_for_one_effect() -> None:
    """A term that is added to the step must be told apart here: what is in neither list counts as efficiency."""
    efficiency = {"weight_s", "expert_s", "expert_idle", "token_flop_s", "token_read_s", "state_s", "pair_s", "window"}
    efficiency |= {"group_flop_s", "expert_spread"}
    shape = {"stages", "groups"}  # the same at every stage
    told = efficiency | shape | set(LAUNCH) | set(COMMUNICATION)
    assert {f.name for f in dataclasses.fields(StepTerms)} == told | {"rounds"}
    drafting = {"state_s", "token_read_s", "pair_s", "window", "draft"}
    shape = {"drafted", "acceptance", "tokens", "tokens_square"}
    assert {f.name for f in dataclasses.fields(Rounds)} == drafting | shape | set(DRAFT_LAUNCH) | set(DRAFT_COMMUNICATION)


@pytest.mark.parametrize(
    ("constants", "effect"),
    [
        (("step_s", "layer_s", "sequence_s"), "launch"),
        (("request_s",), "request"),
        (("allreduce_latency_factor",), "communication"),
    ],
)
def test_an_effect_vanishes_with_its_constants(constants: tuple[str, ...], effect: str) -> None:
    def without(question: Problem) -> Problem:
        none = Constant(0.0, 0.0, 1, "a test")
        engines = tuple(
            dataclasses.replace(
                e, facts=dataclasses.replace(e.facts, **dict.fromkeys(constants, none), allreduce_bandwidth_factor=fast)
            )
            for e in question.engines
        )
        return dataclasses.replace(question, engines=engines)

    fast = Constant(1e6, 0.0, 1, "a test")  # the link limits it
    question = dataclasses.replace(asked("sglang", "aggregated", "rate", "chat", "meta-llama/Llama-3.1-70B-Instruct"), tps=(4,))
    with_it, without_it = solve(question), solve(without(question))
    metric = "ttft" if effect == "request" else "itl"
    assert part(of(with_it, metric), effect) > 0
    assert part(of(without_it, metric), effect) <= 1e-6 * of(without_it, metric).total_s


def test_a_split_counts_its_hand_over_and_both_servers_handling() -> None:
    split, whole = (solve(asked("sglang", t, "rate", "chat")) for t in ("disaggregated", "aggregated"))
    assert part(of(split, "ttft"), "handoff") > 0 == part(of(whole, "ttft"), "handoff")
    once = part(of(whole, "ttft"), "request")
    assert part(of(split, "ttft"), "request") == pytest.approx(2 * once, rel=1e-5)
    assert part(of(split, "itl"), "interference") <= 1e-6 * of(split, "itl").total_s < part(of(whole, "itl"), "interference")


def test_nothing_waits_when_next_to_nothing_comes() -> None:
    plan = solve(asked("sglang", "aggregated", "idle", "chat"))
    assert part(of(plan, "ttft"), "queueing") < 0.01 * of(plan, "ttft").total_s
    busy = solve(asked("sglang", "aggregated", "bursts", "chat"))
    assert part(of(busy, "ttft"), "queueing") > 0.05 * of(busy, "ttft").total_s


def test_the_tightest_bound_gives_the_statistic() -> None:
    question = asked("sglang", "aggregated", "rate", "tails")
    plan = solve(question)
    for w in plan.waterfalls:
        stated = [b for b in question.slo.bounds if b.metric == w.metric]
        shares = {b.id: plan.prediction.bounds[b.id] / b.seconds for b in stated}
        assert shares[f"{w.metric}.{w.statistic}"] == max(shares.values())


def test_waterfalls_of_a_choice_do_not_depend_on_the_rest_of_the_plan_and_survive_the_lock() -> None:
    question = asked("sglang", "aggregated", "rate", "chat")
    plan, chosen = solve(question), best_of(question)
    assert waterfalls(question, chosen, role_points(question, chosen.roles), plan.prediction) == plan.waterfalls
    again = loads(dumps(plan)).waterfalls
    for w in again:
        assert w.floor_s + math.fsum(e.adds_s for e in w.effects) == pytest.approx(w.total_s, rel=1e-8)
