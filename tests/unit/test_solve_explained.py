"""The decision walked through: the next-best of each dimension is what a search without the chosen value finds."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.explanation import Explanation, NextBest
from servegen.plan import Plan, Verification
from servegen.solve.candidate import Candidate, first_of
from servegen.solve.explain import COMPARED, summary
from servegen.solve.explained import explained
from servegen.solve.predict import candidate_points, p95
from servegen.solve.problem import Problem
from servegen.solve.search import choose, lost, search, solve
from servegen.solve.search import explained as planned
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
    ttft, itl = p95(candidate_points(question, [best]), question.demand)
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


MOE = "Qwen/Qwen3-235B-A22B"
H200 = "[{accelerator: h200, nodes: 2, perNode: 8, fabric: {bandwidth: 400Gbps}}]"
#: A pair of H100 is almost too small for the weights alone.
PAIRS = "[{accelerator: h100, nodes: 8, perNode: 2, fabric: {bandwidth: 400Gbps}}]"


def long_prompts(tokens: int, constraints: str = "{weights: [bf16]}") -> Problem:
    return problem(pool=PAIRS, traffic=f"{{rate: 0.05/s, isl: {tokens}, osl: 100}}", constraints=constraints)


def routed(**constraints: object) -> Problem:
    stated = ", ".join(f"{k}: {_flow(v)}" for k, v in {"weights": ["fp8"], **constraints}.items())
    checkpoints = f", checkpoints: {{bf16: {MOE}, fp8: {MOE}-FP8}}"
    slo, traffic = "{ttft: {p95: 2s}, itl: {p95: 60ms}}", f"{{rate: 6/s, {LENGTHS}}}"
    return problem(model=MOE, more_model=checkpoints, pool=H200, slo=slo, traffic=traffic, constraints=f"{{{stated}}}")


CUTS = {"PP": "pp", "attention DP": "dp", "EP": "ep"}


@pytest.mark.parametrize("dimension", CUTS)
def test_the_next_best_of_another_cut_is_the_best_that_is_cut_otherwise(dimension: str) -> None:
    field = CUTS[dimension]

    def of(c: Candidate) -> set[int]:
        return {getattr(r.shape, field) for r in c.roles}

    with reduced(LIMITS, SIZES):
        question = routed()
        _, found, chosen = walked(question)
        every = search(question).candidates
        best, _ = choose(question, tuple(c for c in every if of(c) != of(chosen)))
        assert best is not None
        same(row(found, dimension), best, question)
        assert row(found, dimension).value == " + ".join(map(str, sorted(of(best))))
        assert row(found, dimension).why_lost == lost(question, chosen, best)


def test_a_cut_that_the_spec_states_has_no_other() -> None:
    with reduced(LIMITS, SIZES):
        _, found, _ = walked(routed(pp=[1], dp=[1], ep=[1], topology="aggregated"))
    for dimension, key in CUTS.items():
        assert row(found, dimension).why_lost == f"constraints.{key} allows no other" and not row(found, dimension).summary


def test_a_cut_that_a_free_search_does_not_try_is_not_the_next_best() -> None:
    """Eight accelerators hold no pipeline over whole nodes. One inside a node they do, but only a spec that states PP gets it."""
    node = "topology: aggregated, weights: [bf16], maxAccelerators: 8"
    _, found, _ = walked(problem(constraints=f"{{{node}}}", traffic=SLOW))
    assert row(found, "PP").chosen == "1" and not row(found, "PP").summary
    assert row(found, "PP").why_lost == "nothing that is tried without it meets the spec"
    assert search(problem(constraints=f"{{{node}, pp: [2]}}", traffic=SLOW)).best is not None


def test_no_cut_that_the_search_does_not_try_is_shown() -> None:
    """A model without experts on a node has no stages, attention groups or ranks of experts to choose."""
    _, found, _ = walked(one_replica("3/s"))
    assert not {n.dimension for n in found.next_best} & {*CUTS}
    node = "[{accelerator: h200, nodes: 1, perNode: 8}]"
    question = dataclasses.replace(routed(ep=[1, 4]), pool=problem(pool=node).pool)
    with reduced(LIMITS, SIZES):
        _, found, chosen = walked(dataclasses.replace(question, eps=()))
        assert {n.dimension for n in found.next_best} & {*CUTS} == {"attention DP", "EP"}
        assert {r.shape.ep for r in chosen.roles} == {1}


def test_the_best_of_the_other_topology_stands_beside_the_choice() -> None:
    """Five aggregated plans come before the best split one."""
    question = long_prompts(4000)
    plan, seen = solve(question), search(question)
    assert seen.best is not None and plan.choice.topology == "aggregated"
    other = first_of(question, (c for c in seen.candidates if c.topology == "disaggregated"))
    assert other is not None
    assert sum(c.key(question) < other.key(question) for c in seen.candidates) > 5
    (shown,) = (a for a in plan.alternatives if a.topology == "disaggregated")
    assert (shown.name, shown.summary) == (other.name, summary(other))
    assert shown.why_lost == f"costs ${other.cost_per_h:.2f}/h instead of ${seen.best.cost_per_h:.2f}/h"
    assert not any("to compare with" in w for w in plan.why)


def test_a_topology_that_has_nothing_is_said_to_have_nothing() -> None:
    for constraints, told in (("{}", True), ("{topology: aggregated}", False)):
        plan = solve(problem(pool="[{accelerator: h100, nodes: 1, perNode: 8}]", constraints=constraints))
        assert ("There is no split plan to compare with: no fabric is declared." in plan.why) == told
    plan = solve(long_prompts(12000, "{weights: [bf16], tp: [2]}"))
    (said,) = sentences(plan, "No split plan meets the spec, so there is none to compare with: ")
    assert said.endswith(": no configuration fits the accelerators' memory.")
    plan = solve(long_prompts(12000, "{weights: [bf16], tp: [2], pp: [2]}"))
    assert any(w.endswith("a role of a split is not cut into stages, as constraints.pp asks.") for w in plan.why)


def test_a_split_without_a_rival_says_what_the_rivals_lack() -> None:
    slo, pool = "{ttft: {p95: 2s}, itl: {p99: 15ms}}", "[{accelerator: h100, nodes: 2, perNode: 8, fabric: {bandwidth: 400Gbps}}]"
    plan = solve(problem(slo=slo, pool=pool, traffic=f"{{rate: 6/s, {LENGTHS}}}"))
    assert plan.choice.topology == "disaggregated" and not any(a.topology == "aggregated" for a in plan.alternatives)
    (said,) = (w for w in plan.why if w.startswith("No aggregated plan meets the spec, so there is none to compare with: "))
    assert "requests/s within the bounds" in said or "itl.p99" in said


def sentences(plan: Plan, *begins: str) -> list[str]:
    return [w for w in plan.why if w.startswith(begins)]


def test_why_a_replica_spans_nodes_and_is_a_pipeline() -> None:
    (spans,) = sentences(solve(long_prompts(12000)), "A replica spans 2 nodes: ")
    figures = [float(x) for x in re.findall(r"([\d.]+) GB", spans)]
    device, weights, engine, left, longest = figures
    assert device - weights - engine == pytest.approx(left, abs=0.1) and left < longest
    assert "on one node of 2 x h100-sxm-80gb" in spans and "bf16 weights" in spans
    (stages,) = sentences(solve(long_prompts(12000)), "A replica is a pipeline of 2 stages (PP)")
    assert "; the best plan without that is sglang on h100" in stages and stages.endswith(": same cost with a higher TP.")
    (stages,) = sentences(solve(long_prompts(12000, "{weights: [bf16], pp: [2]}")), "A replica is a pipeline of 2 stages (PP)")
    assert stages.endswith("(PP), as constraints.pp asks.")
    (spans,) = sentences(solve(long_prompts(12000, "{weights: [bf16], tp: [2], pp: [2]}")), "A replica spans 2 nodes: ")
    assert spans.endswith("the constraints allow none within one.")


def test_weights_that_no_node_holds_are_the_reason() -> None:
    one = "[{accelerator: h100, nodes: 8, perNode: 1, fabric: {bandwidth: 400Gbps}}]"
    plan = solve(problem(pool=one, constraints="{weights: [bf16]}", traffic=f"{{rate: 0.1/s, {LENGTHS}}}"))
    nodes = plan.choice.roles[0].devices
    (spans,) = sentences(plan, f"A replica spans {nodes} nodes: ")
    assert nodes > 1 and re.search(r"a device of 85\.0 GB would have to hold 141\.\d GB of bf16 weights\.$", spans)


def test_a_replica_over_nodes_costs_less_than_one_that_keeps_to_a_node() -> None:
    """And the best aggregated plan is shown, however many split ones come first."""
    slo, lengths = "{ttft: 5s, itl: 33ms}", "isl: {mean: 4000, p95: 12000}, osl: {mean: 800, p95: 2000}"
    pool = "[{accelerator: h200, nodes: 8, perNode: 8, fabric: {bandwidth: 400Gbps}}]"
    question = problem(model="deepseek-ai/DeepSeek-V3", slo=slo, pool=pool, traffic=f"{{rate: 10/s, {lengths}}}")
    plan, seen = solve(question), search(question)
    assert seen.best is not None

    def beside(of: Callable[[Candidate], bool]) -> str:
        best, _ = choose(question, tuple(c for c in seen.candidates if of(c)))
        assert best is not None and seen.best is not None
        return f"{summary(best)}: {lost(question, seen.best, best)}."

    together = first_of(question, (c for c in seen.candidates if c.topology == "aggregated"))
    assert together is not None and sum(c.key(question) < together.key(question) for c in seen.candidates) > COMPARED
    assert [a.name for a in plan.alternatives if a.topology == "aggregated"] == [together.name]
    (spans,) = sentences(plan, "A decode server spans 2 nodes: ")
    assert spans.endswith("keep to one node each is " + beside(lambda c: all(r.devices <= 8 for r in c.roles)))
    groups = sentences(plan, "A prefill server computes attention in ", "A decode server computes attention in ")
    cut = [r.role for r in plan.choice.roles if r.dp > 1]
    assert cut
    for said, role in zip(groups, cut, strict=True):
        without = beside(lambda c, role=role: all(r.shape.dp == 1 for r in c.roles if r.role in (role, "serve")))
        assert said.endswith(f"(attention DP); the best plan without that is {without}")


@pytest.mark.parametrize(("key", "words"), [("dp", "computes attention in 4 groups"), ("ep", "spreads its experts over 4 ranks")])
def test_a_cut_that_the_spec_asks_for_is_its_reason(key: str, words: str) -> None:
    plan = solve(routed(topology="aggregated", **{key: [4]}))
    (said,) = sentences(plan, f"A replica {words}")
    assert said.endswith(f", as constraints.{key} asks.")
    assert not sentences(solve(routed(topology="aggregated", dp=[1], ep=[1])), "A replica computes", "A replica spreads")


def test_what_only_a_fleet_can_have_decided_lost_nothing() -> None:
    """A member may be given less than the best that it could have alone."""
    question = long_prompts(4000)
    seen = search(question)
    given = first_of(question, (c for c in seen.candidates if c.roles[0].shape.pp == 2))
    assert given is not None and seen.best is not None and given is not seen.best
    said = sentences(planned(question, seen, given), "A replica spans 2 nodes: ", "A replica is a pipeline of 2 stages")
    assert len(said) == 2 and all(w.endswith(f" is {summary(seen.best)}: better for this model alone.") for w in said)


def test_what_costs_nothing_is_no_percentage_cheaper() -> None:
    free = "{accelerator: a100-sxm-80gb, nodes: 2, perNode: 8, price: 0/h}"
    paid = "{accelerator: h100, nodes: 1, perNode: 8, price: 2/h}"
    question = problem(
        model=LLAMA_8B,
        traffic="{isl: 200, osl: 500}",
        pool=f"[{free}, {paid}]",
        constraints="{engines: [sglang], topology: aggregated}",
    )
    plan = solve(question)
    assert plan.choice.cost_per_hour == 0.0
    paying = [c for c in search(question).candidates if c.cost_per_h > 0.0]
    best = search(question).best
    assert paying and best is not None
    assert all("%" not in lost(question, best, c) for c in paying)
