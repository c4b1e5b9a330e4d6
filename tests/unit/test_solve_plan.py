"""What every plan promises: bounds kept, memory that adds up, a pool that holds it, and costs that move the right way."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.catalog.facts import AcceleratorFacts
from servegen.codec import dumps
from servegen.errors import InfeasibleError
from servegen.plan import Plan, loads
from servegen.roofline.step import take
from servegen.service import latency, size
from servegen.service.disciplines import DISCIPLINES
from servegen.solve import aggregate
from servegen.solve.bands import pessimism
from servegen.solve.candidate import three_digits
from servegen.solve.predict import candidate_points
from servegen.solve.problem import Problem
from servegen.solve.search import Searched, search, solve
from servegen.solve.space import chunks_for, occupancy
from tests.solver.specs import CHAT, FABRIC, LENGTHS, LLAMA_8B, LLAMA_70B, problem, reduced
from tests.unit.quantiles import quantile

DEPLOY = "{image: 'registry/image:1', modelCache: {claim: weights}}"
BOUNDS = {
    "none": "{}",
    "chat": "{ttft: {p95: 1s}, itl: {p95: 50ms}}",
    "whole": "{e2e: {p95: 25s}, tpot: {p95: 60ms}}",
    "means": "{ttft: {mean: 800ms}, itl: {mean: 45ms}, e2e: {mean: 15s}}",
    "tails": "{ttft: {p50: 500ms, p99: 5s}, itl: {p50: 45ms, p95: 500ms}}",
    "together": "{ttft: {p95: 2s}, tpot: {p90: 50ms}, attainment: 0.9}",
}
LOADS = {
    "rate": CHAT,
    "bursts": f"{{rate: 3/s, burstiness: 2.0, {LENGTHS}}}",
    "concurrency": f"{{concurrency: 40, {LENGTHS}}}",
    "users": f"{{users: {{active: 90, thinkTime: 8s}}, {LENGTHS}}}",
    "saturate": f"{{{LENGTHS}}}",
    "prefix": f"{{rate: 6/s, prefix: {{hitRate: 0.4}}, {LENGTHS}}}",
}


def check(question: Problem, plan: Plan) -> None:
    """Every promise of a plan that can be checked from the plan and the question."""
    pool = [k.devices for k in question.pool]
    assert plan.choice.devices == sum(r.total_devices for r in plan.choice.roles)
    most = min(pool[plan.choice.roles[0].pool], question.max_accelerators or math.inf)
    assert plan.choice.devices <= most
    price = question.pool[plan.choice.roles[0].pool].plan.price_per_hour
    assert plan.choice.cost_per_hour == pytest.approx(price * plan.choice.devices)
    tokens = plan.prediction.output_tokens_per_second
    assert plan.choice.cost_per_million_output_tokens == pytest.approx(plan.choice.cost_per_hour / 3600 / tokens * 1e6)
    for role in plan.choice.roles:
        m = role.memory
        parts = m.activation_bytes + m.graph_bytes + m.collective_bytes + m.runtime_bytes
        assert m.weight_bytes + m.kv_pool_bytes + parts == pytest.approx(m.usable_bytes, rel=1e-9)
        assert min(m.activation_bytes, m.graph_bytes, m.collective_bytes, m.runtime_bytes, m.kv_pool_bytes) >= 0
        # The engine takes its fraction of what is left once its processes and their communicator are up.
        rule = next(e.facts.memory for e in question.engines if e.facts.id == plan.choice.engine)
        setup = rule.setup_parallel_bytes if role.tp > 1 else rule.setup_bytes
        assert role.mem_fraction_static * (m.usable_bytes - setup) == pytest.approx(m.weight_bytes + m.kv_pool_bytes, rel=1e-9)
        slack = 1e-9 if question.open_loop or role.role == "serve" else 0.02
        assert role.utilization <= question.utilization * (1 + slack)
        if question.model.layers[0].attention.kind == "full" and len(question.model.layers) == 1:
            assert role.context_length <= m.kv_tokens
            if role.role != "prefill":
                assert role.max_running_requests * question.demand.held_mean <= m.kv_tokens
    p = plan.prediction
    for q in (p.ttft, p.itl, p.e2e):
        assert 0 < q.p50 <= q.p95 <= q.p99 and q.mean > 0
    assert p.utilization == max(r.utilization for r in plan.choice.roles)
    assert plan.searched > 0 and plan.feasible
    assert all(n > 0 for n in plan.rejected.values())
    assert loads(dumps(plan)) is not None
    bounds = {b.id: b for b in question.slo.bounds}
    for name, quantiles in {"ttft": p.ttft, "itl": p.itl, "e2e": p.e2e}.items():
        for statistic in ("mean", "p50", "p95", "p99"):
            if f"{name}.{statistic}" in bounds and question.confidence == "best":
                assert getattr(quantiles, statistic) <= bounds[f"{name}.{statistic}"].seconds * (1 + 1e-6)


def points(question: Problem, seen: Searched, routed: bool = True) -> size.Point:
    return candidate_points(question, seen.candidates, routed).point


QUESTIONS = [
    (engine, topology, load, bounds)
    for engine, topology in (("sglang", "aggregated"), ("sglang", "disaggregated"), ("vllm", "aggregated"))
    for load in LOADS
    for bounds in BOUNDS
    if topology == "aggregated"
    or bounds in ("none", "chat", "tails")
    or load == "rate"  # splits with whole requests take their time
]


@pytest.mark.parametrize(("engine", "topology", "load", "bounds"), QUESTIONS)
def test_plans_keep_their_promises(engine: str, topology: str, load: str, bounds: str) -> None:
    question = problem(traffic=LOADS[load], slo=BOUNDS[bounds], constraints=f"{{engines: [{engine}], topology: {topology}}}")
    try:
        check(question, solve(question))
    except InfeasibleError as error:
        assert error.fixes or error.bound


@pytest.mark.parametrize("bounds", [b for b in BOUNDS if b != "none"])
@pytest.mark.parametrize("load", ["bursts", "users"])
@pytest.mark.parametrize("topology", ["aggregated", "disaggregated"])
@pytest.mark.parametrize(("engine", "confidence"), [("sglang", "best"), ("vllm", "best"), ("sglang", "low")])
def test_every_candidate_meets_every_bound_at_its_load(
    confidence: str, engine: str, topology: str, load: str, bounds: str
) -> None:
    """Found again from the percentiles, not from the chances that sizing used."""
    question = problem(
        traffic=LOADS[load],
        slo=BOUNDS[bounds],
        constraints=f"{{engines: [{engine}], topology: {topology}, confidence: {confidence}}}",
    )
    seen = search(question)
    if not seen.candidates:
        return
    p, d = points(question, seen), question.demand
    for b in question.slo.bounds:
        if math.isnan(b.probability):
            found = size.mean(b.metric, p, d)
        else:
            found = quantile(lambda t, b=b: size.exceeds(b.metric, p, d, t), b.probability, len(p.level))  # type: ignore[misc]
        factors = [
            pessimism(question, c.roles[0].block.engine.facts, c.roles[0].block.kind.facts).get(b.metric, 1.0)
            for c in seen.candidates
        ]
        # Levels and times are found on a grid.
        assert np.all(found * factors <= b.seconds * (1 + 1e-6)), b.id
    if not math.isnan(question.slo.attainment):
        assert np.all(size.attainment(p, d, question.slo.jointly, {}) >= question.slo.attainment - 1e-9)


@pytest.mark.parametrize(
    ("model", "lengths", "seconds"),
    [(LLAMA_8B, "isl: {mean: 200, p95: 500}, osl: {mean: 900, p95: 2000}", s) for s in (17, 17.5, 18, 19, 21)]
    + [(LLAMA_70B, "isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}", s) for s in (24, 26, 28)],
)
@pytest.mark.parametrize("rate", [0.25, 0.3, 1.0])
def test_static_batches_meet_a_bound_that_is_broken_at_half_a_load_and_kept_at_all_of_it(
    model: str, lengths: str, seconds: float, rate: float
) -> None:
    """A burst waits longest for a batch when few are in it beside the one that it waits for."""
    question = problem(
        model=model,
        traffic=f"{{rate: {rate}/s, burstiness: 2.5, {lengths}}}",
        slo=f"{{e2e: {{p95: {seconds}s}}}}",
        constraints="{engines: [megatron], topology: aggregated, confidence: best}",
        deploy="{image: 'registry/image:1', modelCache: {claim: weights}}",
    )
    seen = search(question)
    p = points(question, seen, False)
    assert seen.candidates
    missed = size.exceeds("e2e", p, question.demand, np.full(len(p.level), seconds))
    assert np.all(missed <= 0.05), [c.name for c, m in zip(seen.candidates, missed, strict=True) if m > 0.05]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("more_model", ["", ", speculative: {method: eagle3, draft: own/head, steps: 4, acceptance: 0.7}"])
def test_first_tokens_are_told_of_all_candidates_of_a_configuration_that_keep_its_best_pace(
    monkeypatch: pytest.MonkeyPatch, engine: str, more_model: str
) -> None:
    asked: list[tuple[tuple[Any, ...], tuple[Any, Any]]] = []
    real = aggregate._latency_keys

    def keys(*of: Any) -> tuple[Any, Any]:
        asked.append((of, real(*of)))
        return asked[-1][1]

    monkeypatch.setattr(aggregate, "_latency_keys", keys)
    constraints = f"{{engines: [{engine}], topology: aggregated}}"
    question = problem(model=LLAMA_70B, more_model=more_model, constraints=constraints)
    search(dataclasses.replace(question, objective="latency"))
    assert asked
    for (one, block, mask, replicas, _, _), (itl, ttft) in asked:
        d, step = one.demand, DISCIPLINES[block.discipline]
        chunks = len(chunks_for(one))
        best = np.where(mask, itl, np.inf).reshape(-1, chunks * mask.shape[1]).min(axis=1).repeat(chunks)[:, None]
        told = mask & (itl == best)
        assert np.all(np.isinf(ttft[~told])) and np.all(np.isfinite(ttft[told]))
        row, column = (i[:: max(len(i) // 400, 1)] for i in np.nonzero(mask))
        srv = take(block.server, row)
        level = size.level_at(step, srv, d, one.load_kind, one.load / replicas[row, column], block.level_limit[row])
        p = step(srv, d, level)
        np.testing.assert_allclose(itl[row, column], three_digits(latency.pace_percentile(0.95, p, d)), rtol=2e-3)
        some = told[row, column]
        first = three_digits(latency.percentile_of(latency.ttft_exceeds, 0.95, p))
        np.testing.assert_allclose(ttft[row, column][some], first[some], rtol=2e-3)


@pytest.mark.parametrize("load", ["concurrency", "users"])
@pytest.mark.parametrize("bounds", ["none", "chat"])
@pytest.mark.parametrize(
    ("topology", "objective"), [("aggregated", "cost"), ("aggregated", "latency"), ("disaggregated", "cost")]
)
def test_a_closed_loop_obeys_littles_law(load: str, bounds: str, topology: str, objective: str) -> None:
    """Rate x (duration + pause) is the number of users."""
    question = problem(traffic=LOADS[load], slo=BOUNDS[bounds], objective=objective, constraints=f"{{topology: {topology}}}")
    plan = solve(question)
    cycle = plan.prediction.e2e.mean + question.think_s
    assert plan.prediction.output_tokens_per_second / question.demand.osl_mean * cycle == pytest.approx(question.load, rel=0.02)


def test_a_split_closed_loop_keeps_its_utilization() -> None:
    question = problem(traffic=LOADS["concurrency"], constraints="{topology: disaggregated}")
    assert all(r.utilization <= question.utilization * (1 + 1e-9) for r in solve(question).choice.roles)


@pytest.mark.parametrize("traffic", ["concurrency: 40", "users: {active: 90, thinkTime: 8s}", "rate: 4/s", "rate: 0.01/s"])
@pytest.mark.parametrize("lengths", [LENGTHS, "isl: 8000, osl: 20", "isl: 100, osl: 1500"])
def test_every_aggregated_candidate_carries_its_load(traffic: str, lengths: str) -> None:
    question = problem(model=LLAMA_8B, traffic=f"{{{traffic}, {lengths}}}", constraints="{topology: aggregated}")
    seen = search(question)
    p = points(question, seen)
    carried = size.load(question.load_kind, p, question.demand, question.think_s)
    replicas = np.array([c.roles[0].replicas for c in seen.candidates])
    np.testing.assert_allclose(carried * replicas, question.load, rtol=1e-5)
    # Sizing does not count on what several replicas of a stated concurrency send back evenly, or in bursts.
    dealt = question.load_kind == "concurrency" and "mean" not in lengths
    np.testing.assert_allclose(
        [c.output_tokens_per_s for c in seen.candidates],
        p.rate * replicas * question.demand.osl_mean,
        rtol=0.11 if dealt else 1e-4,
    )


@pytest.mark.parametrize(("engine", "topology"), [("sglang", "aggregated"), ("vllm", "aggregated"), ("sglang", "disaggregated")])
@pytest.mark.parametrize(("load", "bounds"), [("rate", "none"), ("rate", "chat"), ("concurrency", "none"), ("users", "chat")])
def test_latency_plans_are_ranked_by_the_latency_that_they_predict(engine: str, topology: str, load: str, bounds: str) -> None:
    question = problem(
        traffic=LOADS[load], slo=BOUNDS[bounds], objective="latency", constraints=f"{{engines: [{engine}], topology: {topology}}}"
    )
    seen = search(question)
    p = points(question, seen, routed=False)  # ranks take every replica as if bursts reached it whole
    n = len(p.level)
    itl = quantile(lambda t: latency.itl_exceeds(p, t), 0.95, n)
    ttft = quantile(lambda t: latency.ttft_exceeds(p, t), 0.95, n)
    # A split closed loop is ranked at the fastest rate it could turn at, so only from above.
    exact = topology == "aggregated" or load == "rate"
    for c, i, t in zip(seen.candidates, itl, ttft, strict=True):
        assert c.objective[0] >= i * 0.99 and c.objective[1] >= t * 0.99
        if exact:
            assert c.objective == pytest.approx((i, t), rel=0.006)
    best = min(c.objective for c in seen.candidates)
    assert seen.best is not None and seen.best.objective == best


def test_saturating_latency_plans_too() -> None:
    question = problem(traffic=LOADS["saturate"], objective="latency", constraints="{topology: aggregated}")
    seen = search(question)
    p = points(question, seen, routed=False)  # ranks take every replica as if bursts reached it whole
    itl = quantile(lambda t: latency.itl_exceeds(p, t), 0.95, len(p.level))
    for c, i in zip(seen.candidates, itl, strict=True):
        assert c.objective[0] == pytest.approx(i, rel=0.006)


@pytest.mark.parametrize("engine", ["sglang", "vllm", "megatron"])
@pytest.mark.parametrize("topology", ["aggregated", "disaggregated"])
@pytest.mark.parametrize("prompt", [200, 8000, 100_000])
def test_no_gap_is_shorter_than_the_ideal_step_of_the_one_who_waits_for_it(engine: str, topology: str, prompt: int) -> None:
    """A pool that is almost always idle still reads the weights and the whole context of its only request."""
    if topology == "disaggregated" and engine == "megatron":
        pytest.skip("Megatron's engine does not split")
    question = problem(
        model=LLAMA_8B,
        traffic=f"{{rate: 0.001/s, isl: {prompt}, osl: 200}}",
        constraints=f"{{engines: [{engine}], topology: {topology}, weights: [bf16], tp: [1]}}",
        deploy=DEPLOY,
    )
    plan = solve(question)
    facts = question.pool[0].facts
    held = prompt + 100
    bytes_read = question.model.weight_bytes("bf16") - question.model.vocab_size * question.model.hidden_size * 2
    alone = (bytes_read + held * 32 * 8 * 2 * 128 * 2) / facts.hbm_bytes_per_s
    assert plan.prediction.itl.p50 >= plan.prediction.floor["step_time_s"] >= alone * 0.98


# ---- which way costs move ------------------------------------------------------------------------------------------------


def cost(question: Problem) -> float:
    best = search(question).best
    return math.inf if best is None else best.cost_per_h


def scaled(question: Problem, factor: float) -> Problem:
    """The same bounds, all looser by ``factor``."""

    def looser(bounds: tuple[size.Bound, ...]) -> tuple[size.Bound, ...]:
        return tuple(dataclasses.replace(b, seconds=b.seconds * factor) for b in bounds)

    slo = size.Slo(looser(question.slo.bounds), question.slo.attainment, looser(question.slo.jointly))
    return dataclasses.replace(question, slo=slo)


def with_facts(question: Problem, change: dict[str, float]) -> Problem:
    """The same pool of devices that are ``change`` times as good."""

    def better(facts: AcceleratorFacts) -> AcceleratorFacts:
        return dataclasses.replace(facts, **{k: getattr(facts, k) * v for k, v in change.items()})

    return dataclasses.replace(question, pool=tuple(dataclasses.replace(k, facts=better(k.facts)) for k in question.pool))


def with_price(question: Problem, factor: float) -> Problem:
    def cheaper(price: float) -> float:
        return price * factor

    kinds = [
        dataclasses.replace(k, plan=dataclasses.replace(k.plan, price_per_hour=cheaper(k.plan.price_per_hour)))
        for k in question.pool
    ]
    return dataclasses.replace(question, pool=tuple(kinds))


questions = st.builds(
    lambda model, accelerator, rate, lengths, slo, topology, engine: problem(
        model=model,
        traffic=f"{{rate: {rate}, {lengths}}}",
        slo=slo,
        pool=f"[{{accelerator: {accelerator}, nodes: 3, perNode: 8, fabric: {{bandwidth: 400Gbps}}}}]",
        constraints=f"{{topology: {topology}, engines: [{engine}], kvCache: [bf16, fp8]}}",
    ),
    model=st.sampled_from([LLAMA_8B, LLAMA_70B, "Qwen/Qwen3-32B"]),
    accelerator=st.sampled_from(["h100", "h200", "l40s", "a100-sxm-80gb"]),
    rate=st.sampled_from(["0.3/s", "2/s", "7/s"]),
    lengths=st.sampled_from([LENGTHS, "isl: 3000, osl: 150", "isl: {mean: 300, p95: 900}, osl: {mean: 500, p95: 1200}"]),
    slo=st.sampled_from(["{ttft: {p95: 900ms}, itl: {p95: 45ms}}", "{ttft: {p99: 3s}, tpot: {p95: 35ms}}", "{itl: {p50: 30ms}}"]),
    topology=st.sampled_from(["aggregated", "disaggregated"]),
    engine=st.sampled_from(["sglang", "vllm"]),
)


@given(question=questions, factor=st.sampled_from([1.02, 1.2, 1.7, 3.0]))
@settings(max_examples=14)
def test_looser_bounds_never_cost_more(question: Problem, factor: float) -> None:
    assert cost(scaled(question, factor)) <= cost(question) * (1 + 1e-9)


@given(question=questions, share=st.sampled_from([0.98, 0.7, 0.3, 0.01]))
@settings(max_examples=14)
def test_a_lower_rate_never_costs_more(question: Problem, share: float) -> None:
    assert cost(dataclasses.replace(question, load=question.load * share)) <= cost(question) * (1 + 1e-9)


def test_a_lower_rate_never_costs_more_with_a_bound_on_whole_requests() -> None:
    lengths = "isl: {mean: 4000, p95: 12000}, osl: {mean: 50, p95: 100}"
    costs = [
        cost(
            problem(
                model=LLAMA_8B,
                traffic=f"{{rate: {rate}/s, {lengths}}}",
                slo="{e2e: 1.5s}",
                constraints="{topology: disaggregated, weights: [fp8], tp: [1, 2]}",
            )
        )
        for rate in (22.5, 24.0)
    ]
    assert costs[0] <= costs[1] < math.inf


def test_a_bound_on_whole_requests_may_need_many_more_servers_than_the_rate() -> None:
    """39 prefill and 14 decode servers of 128 keep it; the rate alone needs 14 and 6."""
    question = problem(
        model=LLAMA_8B,
        traffic="{rate: 120/s, isl: {mean: 4000, p95: 12000}, osl: {mean: 50, p95: 100}}",
        slo="{e2e: 1.0s}",
        pool="[{accelerator: h100, nodes: 16, perNode: 8, fabric: {bandwidth: 400Gbps}}]",
        constraints="{topology: disaggregated, weights: [fp8], tp: [1]}",
    )
    with reduced((48,), (8192,)):
        assert math.isfinite(cost(question))


@given(
    question=questions,
    change=st.sampled_from(
        [
            {"hbm_bytes_per_s": 1.1},
            {"hbm_bytes_per_s": 2.0},
            {"usable_bytes": 1.05},
            {"usable_bytes": 1.25},
            {"link_bytes_per_s": 2.0},
        ]
    ),
)
@settings(max_examples=14)
def test_better_devices_never_cost_more(question: Problem, change: dict[str, float]) -> None:
    assert cost(with_facts(question, change)) <= cost(question) * (1 + 1e-9)


@given(question=questions, factor=st.sampled_from([0.3, 0.9]))
@settings(max_examples=8)
def test_the_price_scales_the_cost(question: Problem, factor: float) -> None:
    before = cost(question)
    assert cost(with_price(question, factor)) == (pytest.approx(before * factor) if math.isfinite(before) else before)


@given(question=questions)
@settings(max_examples=6)
def test_freedom_never_costs(question: Problem) -> None:
    """A larger pool, a higher utilisation, fewer spares, the better end of the band, and both topologies."""
    base = cost(question)
    (kind,) = question.pool
    wider = dataclasses.replace(kind, plan=dataclasses.replace(kind.plan, nodes=kind.plan.nodes + 2))
    assert cost(dataclasses.replace(question, pool=(wider,))) <= base * (1 + 1e-9)
    assert cost(dataclasses.replace(question, utilization=1.0)) <= base * (1 + 1e-9)
    assert cost(dataclasses.replace(question, spares=1)) >= base
    assert cost(dataclasses.replace(question, confidence="low")) >= base * (1 - 1e-9)
    assert cost(dataclasses.replace(question, topology="auto", gain=1.0)) <= base * (1 + 1e-9)


def test_a_split_must_gain_what_the_spec_asks() -> None:
    question = problem(
        traffic="{rate: 2.2/s, isl: {mean: 6000, p95: 12000}, osl: {mean: 400, p95: 900}}",
        slo="{ttft: 4s, itl: {p95: 20ms, p99: 30ms}}",
    )
    seen = search(question)
    assert seen.gain > 1.2
    for gain, topology in ((seen.gain * 0.999, "disaggregated"), (seen.gain * 1.001, "aggregated")):
        best = search(dataclasses.replace(question, gain=gain)).best
        assert best is not None and best.topology == topology


def answers() -> Iterator[tuple[str, Problem]]:
    for load in ("rate", "saturate"):
        for topology in ("aggregated", "auto"):
            yield f"{load}, {topology}", problem(traffic=LOADS[load], slo=BOUNDS["chat"], constraints=f"{{topology: {topology}}}")


@pytest.mark.parametrize(("name", "question"), list(answers()))
def test_the_same_question_has_the_same_answer(name: str, question: Problem) -> None:
    assert dumps(solve(question)) == dumps(solve(question))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_order_of_the_pool_and_of_the_engines_does_not_matter(order: tuple[int, ...]) -> None:
    kinds = [
        "{accelerator: h100, nodes: 2, perNode: 8}",
        "{accelerator: l40s, nodes: 8, perNode: 4}",
        "{accelerator: h200, nodes: 1, perNode: 8}",
    ]
    question = problem(
        slo=BOUNDS["chat"],
        pool=f"[{', '.join(kinds[i] for i in order)}]",
        constraints="{engines: [vllm, sglang], topology: aggregated}",
    )
    plain = problem(
        slo=BOUNDS["chat"], pool=f"[{', '.join(kinds)}]", constraints="{engines: [sglang, vllm], topology: aggregated}"
    )
    mine, other = search(question).best, search(plain).best
    assert mine is not None and other is not None
    assert (mine.name, mine.devices, mine.cost_per_h) == (other.name, other.devices, other.cost_per_h)


@pytest.mark.parametrize("objective", ["cost", "throughput", "latency", "energy"])
def test_the_choice_is_the_least_by_the_total_order(objective: str) -> None:
    question = problem(slo=BOUNDS["chat"], objective=objective, constraints="{disaggregationGain: 1.0}")
    seen = search(question)
    assert seen.best is not None
    mine = [c for c in seen.candidates if c.topology == seen.best.topology]
    assert seen.best.key(question) == min(c.key(question) for c in mine)
    assert len({c.name for c in seen.candidates}) == len(seen.candidates)


def test_candidates_are_counted_once_each() -> None:
    """Configurations whose latency was computed, whatever the number of replicas."""
    small, large = (
        problem(traffic=f"{{rate: {r}/s, {LENGTHS}}}", slo=BOUNDS["chat"], constraints="{topology: aggregated}") for r in (0.1, 9)
    )
    assert search(small).searched == search(large).searched > 1000


def test_occupancy_counts_windows_once() -> None:
    """Half of gemma's layers see a window: a long request holds less than tokens x bytes per token."""
    question = problem(model="google/gemma-3-27b-it", constraints="{topology: aggregated}")
    block = search(question).outcomes[0].block
    assert block is not None
    mean, _, longest = occupancy(question, block.rows)
    assert np.all(longest < block.rows.memory.token_bytes * question.context_length)
    assert np.all(mean <= block.rows.memory.token_bytes * question.demand.held_mean)


def test_the_pool_field_names_the_entry() -> None:
    plan = solve(
        problem(slo=BOUNDS["chat"], pool="[{accelerator: l40s, nodes: 1, perNode: 1}, {accelerator: h100, nodes: 2, perNode: 8}]")
    )
    assert {r.pool for r in plan.choice.roles} == {1}
    assert plan.pool[1].accelerator == plan.choice.roles[0].accelerator == "h100-sxm-80gb"


def test_default_pool_is_enough() -> None:
    assert problem(pool=FABRIC).pool[0].devices == 16


@pytest.mark.parametrize(
    ("model", "engine", "equal"),
    [
        ("openai/gpt-oss-120b", "sglang", True),  # windows
        ("google/gemma-3-27b-it", "sglang", True),
        ("openai/gpt-oss-120b", "vllm", False),
        ("Qwen/Qwen3-32B", "sglang", False),
    ],
)
def test_state_that_goes_between_equal_servers_only_stays_between_such(model: str, engine: str, equal: bool) -> None:
    question = problem(
        model=model,
        slo="{ttft: {p95: 2s}, itl: {p95: 40ms}}",
        traffic="{rate: 9/s, isl: {mean: 3000, p95: 6000}, osl: {mean: 256, p95: 600}}",
        pool="[{accelerator: h100, nodes: 3, perNode: 8, fabric: {bandwidth: 400Gbps}}]",
        constraints=f"{{engines: [{engine}], topology: disaggregated}}",
        deploy="{image: 'registry/image:1', modelCache: {claim: weights}}",
    )
    pairs = [[(r.tp, r.config.dp) for r in c.roles] for c in search(question).candidates]
    assert pairs
    assert all(first == second for first, second in pairs) == equal


def test_of_equals_a_split_of_one_tp_is_preferred() -> None:
    question = problem(constraints="{topology: disaggregated, weights: [fp8]}")
    seen = search(question)
    one, other = (next(c for c in seen.candidates if (c.roles[0].tp == c.roles[1].tp) == same) for same in (True, False))
    other = dataclasses.replace(other, objective=one.objective, devices=one.devices)
    assert one.key(question) < other.key(question)


@pytest.mark.parametrize("burstiness", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("objective", ["cost", "throughput"])
def test_a_plan_keeps_its_own_bounds_however_steady_arrivals_are(burstiness: float, objective: str) -> None:
    """A Service deals arrivals out by chance: each of several replicas sees steadiness as little as bursts."""
    load = "rate: 60/s, " if objective == "cost" else ""
    asked = problem(
        model="Qwen/Qwen3-32B",
        slo="{ttft: {p95: 500ms}}",
        traffic=f"{{{load}isl: 1024, osl: 256, burstiness: {burstiness}}}",
        pool="[{accelerator: h100, nodes: 5, perNode: 8}]",
        objective=objective,
        constraints="{engines: [sglang]}",
    )
    plan = solve(asked)
    assert plan.prediction.ttft.p95 <= 0.5 and plan.choice.roles[0].replicas > 1
