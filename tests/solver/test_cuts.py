"""The search against the plain solver where a replica is cut into more than TP: over nodes, stages, groups, ranks of experts."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servegen.service.server import batching_gain, server
from servegen.solve.problem import Problem
from servegen.solve.search import search
from servegen.solve.space import budget_of, build
from tests.solver.plain import Found, best_aggregated
from tests.solver.plain_cut import Cut, cuts, drafting_cuts
from tests.solver.plain_memory import memory
from tests.solver.plain_replica import Replica
from tests.solver.plain_split import best_of_all, best_split
from tests.solver.plain_step import stepping
from tests.solver.plain_traffic import EDGES, traffic
from tests.solver.specs import LLAMA_8B, LLAMA_70B, problem_of, reduced, spec_text

SMALL = ((2, 8, 32, 128), (1024, 8192))
SETTINGS = {"suppress_health_check": [HealthCheck.too_slow]}
MODELS = (LLAMA_8B, LLAMA_70B, LLAMA_70B, "Qwen/Qwen3-32B", "meta-llama/Llama-3.1-405B-Instruct")
EXPERTS = ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B", "mistralai/Mixtral-8x7B-Instruct-v0.1", "Qwen/Qwen3-235B-A22B-FP8")
LENGTHS = (
    "isl: 200, osl: 40",
    "isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}",
    "isl: {p50: 4000, p99: 16000}, osl: 300",
)
LOADS = (
    "",
    "rate: 0.2/s",
    "rate: 2/s",
    "rate: 12/s",
    "rate: 6/s, prefix: {hitRate: 0.4}",
    "concurrency: 40",
    "users: {active: 60, thinkTime: 6s}",
)
BOUNDS = (
    "{}",
    "{ttft: {p95: 4s}, itl: {p95: 100ms}}",
    "{itl: {p99: 1s}, tpot: {p95: 60ms}}",
    "{e2e: {p95: 60s}, ttft: {mean: 2s}}",
    "{ttft: {p95: 5s}, tpot: {p90: 80ms}, attainment: 0.9}",
    "{tpot: {mean: 60ms}}",
)
#: What may be demanded of a cut, on nodes of ``per`` devices: TP over nodes, stages over and inside nodes, groups and ranks of
#: experts in models that have some.
CUTS = {
    "dense": (
        "",
        "tp: [{twice}]",
        "tp: [{per}], pp: [2]",
        "tp: [{per}, {twice}], pp: [2, 4]",
        "tp: [{half}], pp: [2, 4]",
        "tp: [{half}], pp: [3, 6]",
        "tp: [1], pp: [2, 3]",
    ),
    "experts": (
        "",
        "tp: [{twice}]",
        "dp: [2]",
        "dp: [4, 8]",
        "tp: [{per}], dp: [{per}]",
        "ep: [2, 4]",
        "dp: [2], ep: [{per}]",
        "tp: [{twice}], dp: [2, {twice}]",
        "tp: [{per}], pp: [2], dp: [1, 2], ep: [1, {per}]",
    ),
}
OTHERS = ("", "", "kvCache: [bf16, fp8]", "spareReplicas: 1", "maxAccelerators: 16", "utilization: 0.6", "confidence: low")
#: Of dense models; models with experts state what their heads are.
DRAFTS = (
    "{method: eagle3, draft: org/head, steps: 3, acceptance: 0.7}",
    "{method: eagle, draft: org/head, steps: 1, acceptance: 0.4}",
    "{method: ngram, steps: 2, acceptance: 0.5}",
)
HEADS = (
    "{method: eagle3, draft: org/head, draftConfig: head.json, steps: 2, acceptance: 0.8}",
    "{method: eagle, draft: org/head, draftConfig: head.json, steps: 1, acceptance: 0.6}",
    "{method: ngram, steps: 2, acceptance: 0.5}",
)
HEAD = {
    "hidden_size": 4096,
    "target_hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12288,
    "draft_vocab_size": 32000,
}


@st.composite
def questions(draw: st.DrawFn, models: Sequence[str], *, topology: str = "", draft: bool = False) -> str:
    """A spec as text over several nodes that a fabric joins."""
    routed = models is EXPERTS
    nodes, per = draw(st.sampled_from((2, 3, 4))), draw(st.sampled_from((2, 4, 4, 8)))
    accelerator, fabric = draw(st.sampled_from(("h100", "h200", "l40s", "mi300x"))), draw(st.sampled_from(("400Gbps", "50Gbps")))
    parts = [draw(st.sampled_from(CUTS["experts" if routed else "dense"])), draw(st.sampled_from(OTHERS))]
    parts.append(f"engines: [{draw(st.sampled_from(('sglang', 'sglang', 'vllm', 'vllm, sglang')))}]")
    parts.append(f"topology: {topology or draw(st.sampled_from(('aggregated', 'auto', 'disaggregated')))}")
    stated = ", ".join(p for p in parts if p).format(per=per, twice=2 * per, half=max(per // 2, 1))
    traffic = ", ".join(p for p in (draw(st.sampled_from(LOADS)), draw(st.sampled_from(LENGTHS))) if p)
    return spec_text(
        model=draw(st.sampled_from(models[:2] if routed and draft else models)),
        more_model=f", speculative: {draw(st.sampled_from(HEADS if routed else DRAFTS))}" if draft else "",
        traffic=f"{{{traffic}}}",
        slo=draw(st.sampled_from(BOUNDS)),
        pool=f"[{{accelerator: {accelerator}, nodes: {nodes}, perNode: {per}, fabric: {{bandwidth: {fabric}}}, price: 2/h}}]",
        objective=draw(st.sampled_from(("cost", "energy", "throughput", "latency"))),
        constraints=f"{{{stated}}}",
        deploy="{image: 'registry/image:1', modelCache: {claim: weights}}",
    )


def plainly(question: Problem) -> Found | None:
    of = {"auto": best_of_all, "disaggregated": best_split, "aggregated": best_aggregated}[question.topology]
    return of(question, *SMALL)


def agree(texts: st.SearchStrategy[str], examples: int, where: Path, share: float = 1 / 8) -> None:
    """The search and the plain solver answer the same, and a ``share`` of the questions has an answer that is cut otherwise."""
    cut = 0

    @given(text=texts)
    @settings(max_examples=examples, **SETTINGS)
    def agreed(text: str) -> None:
        nonlocal cut
        question = problem_of(text, str(where / "asked.yaml"))
        with reduced(*SMALL):
            best = search(question).best
        plain = plainly(question)
        found = None if best is None else (best.name, tuple(r.replicas for r in best.roles), best.devices)
        assert found == (None if plain is None else (plain.name, plain.replicas, plain.devices))
        if best is not None and plain is not None:
            assert best.key(question)[:-1] == pytest.approx(plain.key[:-1], rel=1e-6)  # objective and headroom as well
            per = question.pool[0].plan.per_node
            cut += any(r.devices > per or r.shape.pp * r.shape.dp * r.shape.ep > 1 for r in best.roles)

    (where / "head.json").write_text(json.dumps(HEAD))
    agreed()
    assert cut >= examples * share


@given(
    text=st.one_of(questions(MODELS), questions(EXPERTS), questions(MODELS, draft=True), questions(EXPERTS, draft=True)),
    data=st.data(),
)
@settings(max_examples=60, **SETTINGS)
def test_memory_and_steps_of_every_cut_are_the_same(text: str, data: st.DataObject) -> None:
    """Not only where it decides the optimum: bytes and seconds of any row that the search builds."""
    with tempfile.TemporaryDirectory() as where:
        Path(where, "head.json").write_text(json.dumps(HEAD))
        question = problem_of(text, str(Path(where) / "asked.yaml"))
    engine, kind = data.draw(st.sampled_from(question.engines)), question.pool[0]
    chunk, handoff = data.draw(st.sampled_from((512, 4096))), data.draw(st.booleans())
    limits = np.array([8.0, 64.0, 512.0])
    rows = build(question, engine, kind, (chunk,), Counter())
    cuts_known = {
        (option.precision, kv, drafting)
        for option in engine.weights
        for kv in engine.kv
        for cut in cuts(question, engine, kind, option, kv)
        for drafting in drafting_cuts(question, engine, kind, cut, "prefill-first")
    }
    if rows is None:
        assert not cuts_known
        return
    configs = rows.lowered.configs
    of_rows = [(c.weights, c.kv, Cut(c.tp, c.pp, c.dp, c.ep, c.drafted)) for c in configs]
    assert set(of_rows) == cuts_known
    room = budget_of(question, engine, rows, limits, handoff)
    srv = server(rows.terms, rows.chunk, 0.0, question.demand)
    load = traffic(question)
    for row in data.draw(st.lists(st.integers(0, len(configs) - 1), min_size=1, max_size=12, unique=True)):
        weights, kv, cut = of_rows[row]
        of = question, kind, engine.facts, weights, kv, cut
        for i, limit in enumerate(limits):
            m = memory(*of, chunk, int(limit), handoff)
            assert m.weights == pytest.approx(rows.memory.weight_bytes[row], rel=1e-9)
            assert m.token == pytest.approx(rows.memory.token_bytes[row], rel=1e-9)
            assert m.pool == pytest.approx(room.pool[row, i], rel=1e-6, abs=1.0)
            seconds = rows.terms.decode_s(np.full(len(configs), limit), srv.kv_s)[row]
            assert stepping(*of).decode(limit, load.held) == pytest.approx(seconds, rel=1e-9)
        replica = Replica(stepping(*of), chunk, load, 0.0, [0.0] * len(EDGES))
        assert replica.prefill == pytest.approx(srv.prefill_mean_s[row], rel=1e-9)
        assert replica.later_mean == pytest.approx(srv.extra_mean_s[row], rel=1e-9)
        for prompts in (1.0, 2.5, 20.0):
            gain = batching_gain(srv, question.demand, np.full(len(configs), prompts))[row]
            assert replica.gain(prompts) == pytest.approx(gain, rel=1e-9)


ALL = [(MODELS, False), (EXPERTS, False), (MODELS, True), (EXPERTS, True)]


@pytest.mark.parametrize(("models", "draft"), ALL)
def test_the_search_finds_the_optimum_over_nodes_stages_and_groups(models: Sequence[str], draft: bool, tmp_path: Path) -> None:
    agree(questions(models, draft=draft), 50 if models is MODELS else 10, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["aggregated", "disaggregated", "auto"])
@pytest.mark.parametrize(("models", "draft"), ALL)
def test_the_search_finds_the_optimum_of_many_more_cuts(
    models: Sequence[str], draft: bool, topology: str, tmp_path: Path
) -> None:
    # A role of a split has no stages, and those of dense models no groups: what is left is TP over nodes.
    share = 1 / 8 if topology != "disaggregated" else 1 / 100 if models is MODELS else 1 / 20
    agree(questions(models, draft=draft, topology=topology), 200 if models is MODELS else 50, tmp_path, share)
