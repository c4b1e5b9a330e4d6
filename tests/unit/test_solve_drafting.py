"""Speculative decoding in the search: when it is chosen, what it costs, what is refused, and that a replay agrees."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servegen.codec import dumps
from servegen.compile import compile_spec
from servegen.engines.contract import load_contract
from servegen.engines.registry import get_engine
from servegen.errors import CatalogError, InfeasibleError, SpecError
from servegen.lower import Config, lower
from servegen.plan import Plan, loads
from servegen.roofline.step import take
from servegen.simulate.result import Result
from servegen.solve.arrivals import Traffic
from servegen.solve.drafting import lower_drafting
from servegen.solve.explain import summary
from servegen.solve.nextbest import next_best
from servegen.solve.problem import Problem
from servegen.solve.replay import Subject, of_lock, of_problem, requests, run
from servegen.solve.search import search, solve
from servegen.spec.load import loads as load_spec
from tests.solver.specs import LENGTHS, LLAMA_8B, LLAMA_70B, problem, problem_of, spec_text

AGGREGATED = "{topology: aggregated}"
EAGLE3 = "method: eagle3, draft: own/head"
QUICK = "{tpot: {p95: 14ms}}"


def asked(
    how: str = EAGLE3, steps: int = 4, acceptance: float = 0.7, model: str = LLAMA_70B, **stated: Any
) -> Problem:
    more = f", speculative: {{{how}, steps: {steps}, acceptance: {acceptance}}}"
    return problem(model=model, more_model=more, **stated)


def replayed(subject: Subject, n: int) -> Result:
    return run(subject, requests(subject, Traffic(requests=n)))


def drafted(plan: Plan) -> int:
    assert plan.speculative is not None
    return plan.speculative.drafted


# ---- when it pays -----------------------------------------------------------------------------------------------------


def test_it_saves_accelerators_where_tokens_must_come_quickly() -> None:
    quick = "{tpot: {p95: 16ms}}"
    plan = solve(asked(slo=quick, constraints=AGGREGATED))
    plain = solve(problem(slo=quick, constraints=AGGREGATED))
    assert drafted(plan) > 0
    assert plan.choice.cost_per_hour < plain.choice.cost_per_hour
    assert plan.prediction.tpot is not None and plan.prediction.tpot.p95 <= 0.016
    assert any("without drafting" in sentence for sentence in plan.why)
    assert any("speculative decoding" in c for c in plan.prediction.extrapolated)


def test_it_stays_off_where_the_batch_is_bound_by_compute() -> None:
    saturated = {"traffic": "{isl: 1024, osl: 256}", "objective": "throughput", "constraints": AGGREGATED}
    plan, plain = solve(asked(**saturated)), solve(problem(**saturated))
    assert drafted(plan) == 0
    (role,), (without,) = plan.choice.roles, plain.choice.roles
    for name in ("tp", "replicas", "max_running_requests", "chunked_prefill_size", "mixed_chunk", "mem_fraction_static"):
        assert getattr(role, name) == getattr(without, name)
    assert role.breakdown_s == pytest.approx(without.breakdown_s) and role.memory == without.memory
    assert any("does not pay" in sentence for sentence in plan.why)
    assert "speculative decoding" not in str(plan.prediction.extrapolated)


def test_latency_is_the_pace_of_answers() -> None:
    quick = {"objective": "latency", "traffic": f"{{rate: 1/s, {LENGTHS}}}", "constraints": AGGREGATED}
    plan, plain = solve(asked(**quick)), solve(problem(**quick))
    assert drafted(plan) == 4
    assert plan.prediction.itl.mean < 0.6 * plain.prediction.itl.mean
    assert plan.prediction.itl.p95 > plain.prediction.itl.p95  # a gap of a round is longer than a step


@pytest.mark.parametrize("topology", ["aggregated", "auto"])
@pytest.mark.parametrize("slo", ["{tpot: {p95: 12ms}}", QUICK, "{ttft: {p95: 900ms}, tpot: {p95: 18ms}}", "{itl: {p95: 30ms}}"])
def test_what_does_not_draft_is_judged_as_if_nothing_could(slo: str, topology: str) -> None:
    constraints = f"{{topology: {topology}}}"
    able, plain = search(asked(slo=slo, constraints=constraints)), search(problem(slo=slo, constraints=constraints))
    undrafted = [c for c in able.candidates if not c.drafted]
    assert [c.name for c in undrafted] == [c.name for c in plain.candidates]
    for one, other in zip(undrafted, plain.candidates, strict=True):
        assert (one.objective, one.devices) == (other.objective, other.devices)
        assert one.headroom == pytest.approx(other.headroom, rel=1e-9)


def test_a_bound_on_gaps_counts_every_gap() -> None:
    """A round may last longer than a gap may, whatever it yields."""
    question = asked(
        slo="{itl: {p95: 8.5ms}}",
        traffic=f"{{rate: 1/s, {LENGTHS}}}",
        constraints="{topology: aggregated, tp: [8], weights: [fp8]}",
    )
    seen = search(question)
    assert seen.best is not None and seen.best.drafted == 0
    assert not any(c.drafted for c in seen.candidates)
    assert seen.rejected["itl.p95: missed even by a single request"] > 0


@pytest.mark.parametrize("objective", ["cost", "latency"])
def test_more_acceptance_is_never_worse(objective: str) -> None:
    worth = []
    for acceptance in (0.05, 0.3, 0.5, 0.7, 0.9, 1.0):
        best = search(asked(acceptance=acceptance, slo=QUICK, objective=objective, constraints=AGGREGATED)).best
        worth.append(best.objective[0] if best else float("inf"))
    assert worth == sorted(worth, reverse=True)
    assert worth[-1] < worth[0]


def test_more_steps_allowed_is_never_worse() -> None:
    quick = {"objective": "latency", "traffic": f"{{rate: 1/s, {LENGTHS}}}", "constraints": AGGREGATED}
    worth = [search(asked(steps=steps, **quick)).best for steps in (1, 2, 4, 8)]
    figures = [best.objective[0] for best in worth if best]
    assert len(figures) == 4 and figures == sorted(figures, reverse=True)


def test_the_draft_takes_room_from_the_pool() -> None:
    only = {"slo": QUICK, "constraints": "{topology: aggregated, tp: [4], weights: [fp8]}"}
    heavy = solve(asked("method: standalone, draft: meta-llama/Llama-3.2-3B-Instruct", acceptance=0.9, **only))
    light = solve(asked("method: ngram", acceptance=0.9, **only))
    assert drafted(heavy) and drafted(light)
    memories = [plan.choice.roles[0].memory for plan in (heavy, light)]
    assert memories[0].draft_bytes > memories[1].draft_bytes
    # Besides what steps as long as each plan's own take.
    room = [m.kv_pool_bytes + m.activation_bytes + m.runtime_bytes for m in memories]
    assert room[0] < room[1]
    assert memories[0].kv_bytes_per_token > memories[1].kv_bytes_per_token
    for m in memories:
        parts = m.weight_bytes, m.kv_pool_bytes, m.activation_bytes, m.graph_bytes, m.collective_bytes, m.runtime_bytes
        assert sum(parts) + m.draft_bytes == pytest.approx(m.usable_bytes)
        assert m.runtime_bytes > 0
    assert heavy.choice.roles[0].checkpoint_bytes > light.choice.roles[0].checkpoint_bytes


# ---- engines ----------------------------------------------------------------------------------------------------------


def test_schedulers_and_engines_that_do_not_draft_are_refused_with_a_reason() -> None:
    seen = search(asked(slo="{tpot: {p95: 40ms}}", constraints="{topology: aggregated, engines: [sglang, vllm]}"))
    assert seen.rejected["speculation: sglang does not draft with mixed scheduling"] > 0
    assert seen.rejected["speculation: vllm with eagle3 is not predicted"] > 0
    assert not any(c.drafted and (c.engine.facts.id == "vllm" or "mixed" in c.name) for c in seen.candidates)
    assert any(not c.drafted and "mixed" in c.name for c in seen.candidates)


def test_a_draft_that_no_tp_divides_is_refused_with_a_reason() -> None:
    """Qwen2.5-0.5B has 14 heads, which four devices cannot share."""
    seen = search(
        asked("method: standalone, draft: Qwen/Qwen2.5-0.5B", model="Qwen/Qwen2.5-14B-Instruct", constraints=AGGREGATED)
    )
    assert any(reason.startswith("draft: heads: 14 query heads") for reason in seen.rejected)
    assert {c.roles[0].tp for c in seen.candidates if c.drafted} <= {1, 2}
    assert {c.roles[0].tp for c in seen.candidates} > {1, 2}


METHODS = {
    EAGLE3: ("EAGLE3", "own/head", LLAMA_70B),
    "method: eagle, draft: own/head": ("EAGLE", "own/head", LLAMA_70B),
    "method: standalone, draft: meta-llama/Llama-3.2-1B-Instruct": (
        "STANDALONE",
        "meta-llama/Llama-3.2-1B-Instruct",
        LLAMA_70B,
    ),
    "method: nextn": ("NEXTN", "Qwen/Qwen3.5-27B", "Qwen/Qwen3.5-27B"),
    "method: ngram": ("NGRAM", None, LLAMA_70B),
}


@pytest.mark.parametrize("topology", ["aggregated", "disaggregated"])
@pytest.mark.parametrize("how", METHODS)
def test_the_flags_are_the_engine_s_own(how: str, topology: str) -> None:
    algorithm, draft, model = METHODS[how]
    plan = solve(asked(how, steps=3, acceptance=0.9, model=model, slo=QUICK, constraints=f"{{topology: {topology}}}"))
    ahead = drafted(plan)
    assert ahead > 0
    servers = [launch for launch in get_engine("sglang").launches(plan) if launch.role is not None]
    assert len(servers) == (1 if topology == "aggregated" else 2)
    for launch in servers:
        flags = {a.flag: a.values[0] if a.values else None for a in launch.args}
        assert flags["--speculative-algorithm"] == algorithm
        assert flags["--speculative-num-draft-tokens"] == str(ahead + 1)
        assert flags.get("--speculative-draft-model-path") == draft
        assert ("--speculative-num-steps" in flags) == (draft is not None)
        if draft is not None:
            assert (flags["--speculative-num-steps"], flags["--speculative-eagle-topk"]) == (str(ahead), "1")
            own = flags.get("--speculative-draft-model-quantization")
            assert own == ("unquant" if "--quantization" in flags else None)
        contract = load_contract(launch.contract)
        assert not [d for a in launch.args for d in contract.check_arg(a)]


def test_a_plan_that_does_not_draft_has_no_such_flag() -> None:
    plan = solve(asked(acceptance=0.01, slo="{}", constraints=AGGREGATED))
    assert drafted(plan) == 0
    (serve,) = get_engine("sglang").launches(plan)
    assert not any("speculative" in word for word in serve.argv())


def test_a_bundle_is_rendered_and_holds(tmp_path: Path) -> None:
    text = spec_text(
        more_model=f", speculative: {{{EAGLE3}, steps: 4, acceptance: 0.7}}", slo=QUICK, deploy="{modelCache: {size: 400GiB}}"
    )
    done = compile_spec(load_spec(text, str(tmp_path / "asked.yaml"))[0], until="validate")  # raises where anything is wrong
    assert done.bundle is not None
    page = next(t for path, t in done.bundle.files.items() if str(path).endswith("PLAN.md"))
    assert "draft model and its graphs" in page and "TPOT" in page


# ---- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "how", "key", "word"),
    [
        (LLAMA_8B, "method: nextn", "method", "no multi-token-prediction layer"),
        (LLAMA_8B, "method: standalone, draft: own/small", "draft", "the catalogue has no model 'own/small'"),
        (LLAMA_8B, "method: standalone, draft: Qwen/Qwen3-0.6B", "draft", "vocabulary"),
        ("Qwen/Qwen3-30B-A3B", EAGLE3, "draft", "does not follow from"),
        (LLAMA_8B, f"{EAGLE3}, draftConfig: missing.json", "draftConfig", "there is no file missing.json"),
    ],
)
def test_a_draft_that_is_not_known_says_what_to_give(model: str, how: str, key: str, word: str) -> None:
    with pytest.raises(SpecError) as caught:
        asked(how, model=model)
    (found,) = caught.value.diagnostics
    assert word in found.message and found.where is not None and found.where.line == 5
    column = spec_text(model=model, more_model=f", speculative: {{{how}").splitlines()[4].index(f"{key}:")
    assert found.where.column > column
    assert found.hint


HEAD = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336}


def test_the_draft_s_config_decides(tmp_path: Path) -> None:
    plans = []
    for vocabulary in (32000, 128256):
        (tmp_path / "head.json").write_text(json.dumps({**HEAD, "draft_vocab_size": vocabulary}))
        text = spec_text(
            model=LLAMA_8B,
            more_model=f", speculative: {{{EAGLE3}, draftConfig: head.json, steps: 3, acceptance: 0.8}}",
            objective="latency",
            constraints=AGGREGATED,
        )
        question = problem_of(text, str(tmp_path / "asked.yaml"))
        assert not question.notes  # nothing was assumed
        plans.append(solve(question))
    narrow, wide = plans
    assert "model.speculative.draftConfig" in narrow.inputs
    assert narrow.prediction.itl.mean < wide.prediction.itl.mean
    with pytest.raises(CatalogError, match="own/head"):
        of_lock(narrow)


def test_a_head_without_a_config_is_noted() -> None:
    assert any("own/head is taken as one layer" in note for note in asked(model=LLAMA_8B).notes)


# ---- replays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["aggregated", "disaggregated"])
@pytest.mark.parametrize("how", [EAGLE3, "method: ngram"])
def test_a_replay_agrees_with_what_the_plan_predicts(how: str, topology: str) -> None:
    question = asked(
        how,
        slo="{ttft: {p95: 1s}, tpot: {p95: 11ms}}",
        traffic=f"{{rate: 2/s, {LENGTHS}}}",
        constraints=f"{{topology: {topology}, tp: [4], weights: [fp8]}}",
    )
    plan = solve(question)
    assert drafted(plan) > 0 and plan.prediction.tpot is not None
    found = replayed(of_problem(question, plan), 4000)
    assert found.completed == 4000
    for measured, predicted in (
        (found.tpot.mean, plan.prediction.tpot.mean),
        (found.tpot.p95, plan.prediction.tpot.p95),
        (found.itl.mean, plan.prediction.itl.mean),
        (found.itl.p95, plan.prediction.itl.p95),
        (found.e2e.mean, plan.prediction.e2e.mean),
    ):
        assert measured == pytest.approx(predicted, rel=0.1)
    assert found.ttft.p95 == pytest.approx(plan.prediction.ttft.p95, rel=0.1)


NODES = "[{accelerator: h200, nodes: 2, perNode: 8, fabric: {bandwidth: 400Gbps}}]"


@pytest.mark.parametrize("groups", [1, 8])
def test_experts_and_attention_groups_draft_too(groups: int) -> None:
    question = asked(
        "method: nextn",
        steps=2,
        acceptance=0.85,
        model="deepseek-ai/DeepSeek-V3",
        slo="{tpot: {p95: 60ms}}",
        traffic=f"{{rate: 12/s, {LENGTHS}}}",
        pool=NODES,
        objective="latency",
        constraints=f"{{topology: aggregated, tp: [8], dp: [{groups}], ep: [8]}}",
    )
    plan = solve(question)
    assert drafted(plan) > 0 and plan.choice.roles[0].dp == groups
    found = replayed(of_problem(question, plan), 3000)
    assert found.itl.mean == pytest.approx(plan.prediction.itl.mean, rel=0.1)
    assert found.itl.p95 <= 1.15 * plan.prediction.itl.p95  # a percentile near the share of stalled gaps moves fast with it


def test_each_attention_group_drafts_for_itself(tmp_path: Path) -> None:
    """A head without experts has all of its matrices in every group (SGLang patches its TP group with the attention's)."""
    head = {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 12288}
    (tmp_path / "head.json").write_text(json.dumps(head))
    text = spec_text(
        model="Qwen/Qwen3-30B-A3B",
        more_model=f", speculative: {{{EAGLE3}, draftConfig: head.json, steps: 3, acceptance: 0.8}}",
        pool=NODES,
    )
    question = problem_of(text, str(tmp_path / "asked.yaml"))
    asked_of = question.speculation
    assert asked_of is not None and asked_of.draft is not None
    engine, acc = question.engines[0].facts, question.pool[0].facts
    rows = [Config(acc, "bf16", "bf16", 8, dp=dp, drafted=3) for dp in (1, 2, 8)]
    lowered = lower_drafting(question.model, engine, rows, asked_of)
    rounds, memory = lowered.terms.rounds, lowered.memory.draft
    assert rounds is not None and memory is not None
    alone = lower(asked_of.draft, engine, [Config(acc, "bf16", "bf16", 8 // dp) for dp in (1, 2, 8)])
    reserve = engine.drafts["eagle3"]
    np.testing.assert_allclose(memory.weight_bytes, np.maximum(alone.memory.weight_bytes, reserve))
    for tokens in (1.0, 64.0, 4096.0):  # whatever the other groups do
        busiest = np.full(3, tokens)
        np.testing.assert_allclose(rounds.draft.gemm_s(busiest * [1, 2, 8], busiest), alone.terms.gemm_s(busiest))
    # A lone sequence is drafted for by one group's devices, and never faster than by all of them.
    one = np.ones(3)
    assert (np.diff(rounds.draft.gemm_s(one, one)) > 0).all()


def test_stages_and_some_methods_in_groups_are_refused_with_a_reason() -> None:
    stated = {"model": "deepseek-ai/DeepSeek-V3", "pool": NODES, "traffic": f"{{rate: 2/s, {LENGTHS}}}"}
    seen = search(asked("method: ngram", **stated, constraints=AGGREGATED))
    assert seen.rejected["speculation: sglang does not draft over pipeline stages"] > 0
    assert seen.rejected["speculation: sglang does not draft with ngram in attention groups"] > 0
    assert not any(c.drafted and (c.roles[0].shape.pp > 1 or c.roles[0].shape.dp > 1) for c in seen.candidates)


def test_a_lock_replays_as_its_spec() -> None:
    question = asked(slo=QUICK, constraints=AGGREGATED)
    plan = solve(question)
    again = loads(dumps(plan))
    assert again.speculative == loads(dumps(plan)).speculative and drafted(again) == drafted(plan)
    one, other = (replayed(s, 500) for s in (of_problem(question, plan), of_lock(again)))
    assert one.tpot.p95 == pytest.approx(other.tpot.p95, rel=1e-6)


def test_an_impossible_bound_is_infeasible_with_drafting_too() -> None:
    with pytest.raises(InfeasibleError):
        solve(asked(slo="{tpot: {p95: 1ms}}", constraints=AGGREGATED))


def test_the_low_end_of_the_band_is_that_of_drafting() -> None:
    question = asked(slo="{tpot: {p95: 20ms}}", constraints="{topology: aggregated, confidence: low}")
    plan, best = solve(question), solve(dataclasses.replace(question, confidence="best"))
    assert plan.choice.cost_per_hour >= best.choice.cost_per_hour
    assert plan.prediction.tpot is not None and plan.prediction.tpot.p95 <= 0.020 / 1.5


# ---- explanations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["aggregated", "disaggregated"])
def test_a_waterfall_tells_where_the_pace_of_a_round_comes_from(topology: str) -> None:
    plan = solve(asked(slo="{tpot: {p95: 14ms}, itl: {mean: 13ms}}", constraints=f"{{topology: {topology}}}"))
    assert drafted(plan) > 0
    found = {w.metric: w for w in plan.waterfalls}
    assert {"itl", "tpot"} <= set(found)
    for w in (found["itl"], found["tpot"]):
        adds = {e.name: e.adds_s for e in w.effects}
        assert w.floor_s + sum(adds.values()) == pytest.approx(w.total_s)
        assert min(adds.values()) >= 0 and adds["launch"] > 0 and adds["efficiency"] > 0 and w.floor_s > 0
    mean = found["itl"]
    role = next(r for r in plan.choice.roles if r.role != "prefill")
    assert plan.speculative is not None
    # The floor is the ideal round, shared by the tokens that it yields of an answer.
    assert mean.floor_s == pytest.approx(plan.prediction.floor["step_time_s"] / plan.speculative.tokens_per_step, rel=0.02)
    assert role.step_time_s > plan.prediction.floor["step_time_s"]


def test_the_next_best_number_of_drafted_tokens() -> None:
    question = asked(slo=QUICK, objective="latency", constraints=AGGREGATED)
    seen = search(question)
    assert seen.best is not None and question.speculation is not None
    found = {n.dimension: n for n in next_best(question, seen.best, seen)}["drafted tokens"]
    assert found.chosen == "4" and found.value == "3"
    left = dataclasses.replace(question, speculation=dataclasses.replace(question.speculation, without=(4,)))
    best = search(left).best
    assert best is not None and summary(best) == found.summary
    plain = problem(slo="{}", constraints=AGGREGATED)
    seen = search(plain)
    assert seen.best is not None
    assert "drafted tokens" not in {n.dimension for n in next_best(plain, seen.best, seen)}


def test_what_is_lowered_once_is_what_is_lowered_for_each() -> None:
    """A row's coefficients do not depend on the rows beside it, whatever those draft."""
    question = asked(steps=8)
    h100 = question.pool[0].facts
    configs = [
        Config(h100, weights, "bf16", tp, drafted=n) for tp in (4, 8) for weights in ("bf16", "fp8") for n in (0, 1, 8)
    ]
    engine = question.engines[0].facts
    together = lower_drafting(question.model, engine, configs, question.speculation)
    for i, config in enumerate(configs):
        alone = lower_drafting(question.model, engine, [config], question.speculation)
        for part, whole in ((alone.terms, together.terms), (alone.memory, together.memory)):
            _assert_close(dataclasses.asdict(part), dataclasses.asdict(take(whole, np.array([i]))))


def _assert_close(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, dict):
            _assert_close(value, other[name])
        elif value is None:
            assert other[name] is None
        else:
            np.testing.assert_allclose(value, other[name], rtol=1e-14, err_msg=name)
