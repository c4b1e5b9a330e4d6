"""Prefix hits are those of the room that a plan leaves its caches: what the search counts on, and what a replay then finds."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from servegen.cli.app import run as servegen
from servegen.codec import to_jsonable
from servegen.errors import InfeasibleError, SpecError
from servegen.plan import Plan, dumps, loads
from servegen.report.progress import noted
from servegen.solve.arrivals import Traffic
from servegen.solve.explained import explained
from servegen.solve.problem import Problem
from servegen.solve.replay import of_lock, of_problem, requests, run
from servegen.solve.reuse import left
from servegen.solve.search import search, solve
from servegen.workload import Reuse, trace_requests
from tests.solver.specs import LLAMA_8B, problem, problem_of, spec_text

BLOCK = 512
TOGETHER = "{topology: aggregated, tp: [1]}"


def write_conversations(folder: Path, at_once: int, turns: int = 8, rate: float = 2.0, n: int = 1500) -> None:
    """``n`` requests of conversations of which ``at_once`` are under way, each turn 2 blocks longer than the one before."""
    rng = np.random.Generator(np.random.PCG64(7))
    state: dict[int, list[int]] = {}
    at, fresh, lines = 0.0, 0, []
    for _ in range(n):
        at += rng.exponential(1.0 / rate)
        who = int(rng.integers(at_once))
        blocks = state.get(who, [])
        blocks = [*(blocks if len(blocks) < 2 * turns else []), fresh, fresh + 1]
        fresh += 2
        state[who] = blocks
        tokens = len(blocks) * BLOCK
        lines.append({"timestamp": round(at * 1000), "input_length": tokens, "output_length": 100, "hash_ids": blocks})
    (folder / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def traced(folder: Path, traffic: str = "{trace: t.jsonl}", slo: str = "{ttft: 3s, itl: 80ms}", **stated: str) -> Problem:
    text = spec_text(**{"model": LLAMA_8B, "traffic": traffic, "slo": slo, "constraints": TOGETHER, **stated})
    return problem_of(text, str(folder / "spec.yaml"))


def replayed(question: Problem, plan: Plan) -> tuple[float, float]:
    """Hit share and p95 TTFT of a replay of the trace."""
    of = of_problem(question, plan)
    result = run(of, requests(of, Traffic()))
    assert question.trace is not None and result.completed == result.requests
    return result.cached_tokens / int(question.trace.input_tokens.sum()), result.ttft.p95


@pytest.mark.parametrize("at_once", [10, 60, 200])
def test_the_replay_finds_what_the_plan_counts_on(tmp_path: Path, at_once: int) -> None:
    write_conversations(tmp_path, at_once)
    question = traced(tmp_path)
    plan = solve(question)
    hit, ttft = replayed(question, plan)
    assert plan.traffic.prefix_source == "trace"
    assert plan.traffic.prefix_hit == pytest.approx(hit, abs=0.04)
    assert plan.prediction.ttft.p95 == pytest.approx(ttft, rel=0.25)
    assert plan.traffic.prefix_hit <= plan.traffic.prefix_unbounded == pytest.approx(question.workload.prefix_hit)


def test_a_cache_too_small_cannot_hit(tmp_path: Path) -> None:
    """More conversations take turns than the pool holds: the share of an unbounded cache is not to be had."""
    found = {}
    for at_once in (10, 300):
        write_conversations(tmp_path, at_once)
        found[at_once] = solve(traced(tmp_path, pool="[{accelerator: h100, nodes: 1, perNode: 1}]")).traffic
    assert found[10].prefix_hit > 0.9 * found[10].prefix_unbounded
    assert found[300].prefix_hit < 0.5 * found[300].prefix_unbounded
    assert found[300].prefix_kept_tokens < 300 * 8 * BLOCK


def test_more_memory_finds_more(tmp_path: Path) -> None:
    write_conversations(tmp_path, 150)
    small, large = (solve(traced(tmp_path, pool=f"[{{accelerator: {a}, nodes: 1, perNode: 1}}]")) for a in ("h100", "h200"))
    assert small.traffic.prefix_hit < large.traffic.prefix_hit
    assert small.traffic.prefix_kept_tokens < large.traffic.prefix_kept_tokens
    assert small.traffic.prefix_unbounded == large.traffic.prefix_unbounded


def test_what_is_kept_fits_beside_what_runs(tmp_path: Path) -> None:
    write_conversations(tmp_path, 200)
    question = traced(tmp_path)
    for c in search(question).candidates:
        assert c.problem.kept_tokens <= left(c) * (1 + 1e-9)
        assert c.problem.workload.prefix_hit <= question.workload.prefix_hit + 1e-12


def test_routes_at_random_find_less_than_routes_that_follow(tmp_path: Path) -> None:
    write_conversations(tmp_path, 30, rate=60.0)
    fabric = "[{accelerator: h100, nodes: 2, perNode: 8, fabric: {bandwidth: 400Gbps}}]"
    together = solve(traced(tmp_path, pool=fabric))
    split = solve(traced(tmp_path, pool=fabric, constraints="{topology: disaggregated, tp: [1]}"))
    assert together.traffic.prefix_caches > 1 and split.traffic.prefix_caches > 1
    assert together.traffic.prefix_spread < split.traffic.prefix_spread
    assert together.traffic.prefix_caches == together.choice.roles[0].replicas
    words = " ".join(together.why)
    assert "the spread over replicas bounds it most" in words and "at random, as a Service spreads requests" in words
    hit, _ = replayed(traced(tmp_path, pool=fabric), together)
    assert together.traffic.prefix_hit == pytest.approx(hit, abs=0.04)
    hit, _ = replayed(traced(tmp_path, pool=fabric), split)
    assert split.traffic.prefix_hit == pytest.approx(hit, abs=0.06)


def test_the_plan_says_what_its_hits_rest_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_conversations(tmp_path, 200)
    question = traced(tmp_path)
    plan = solve(question)
    assert to_jsonable(loads(dumps(plan)).traffic) == to_jsonable(plan.traffic)
    assert f"and a single one {plan.traffic.prefix_unbounded * 100:.1f} %" in " ".join(plan.why)
    assert of_lock(loads(dumps(plan))).workload.prefix_hit == pytest.approx(plan.traffic.prefix_hit)
    assert explained(question, plan).next_best
    text = spec_text(model=LLAMA_8B, traffic="{trace: t.jsonl}", slo="{ttft: 3s, itl: 80ms}", constraints=TOGETHER)
    (tmp_path / "chat.yaml").write_text(text)
    for form in ("text", "markdown"):
        assert servegen(["plan", str(tmp_path / "chat.yaml"), "-o", form]) == 0
        assert "the same without a bound on the cache" in capsys.readouterr().out
    assert servegen(["plan", str(tmp_path / "chat.yaml"), "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)["prefixCache"]
    assert (shown["source"], shown["caches"]) == ("trace", plan.traffic.prefix_caches)
    assert 0 < shown["hitShare"] <= shown["spreadShare"] <= shown["unboundedShare"]


def test_a_load_beyond_the_pool_is_still_explained(tmp_path: Path) -> None:
    write_conversations(tmp_path, 100, rate=60.0)
    with pytest.raises(InfeasibleError) as caught:
        solve(traced(tmp_path, pool="[{accelerator: h100, nodes: 1, perNode: 2}]"))
    assert caught.value.bound == "pool"
    assert any(f.key == "hardware.pool.0.nodes" for f in caught.value.fixes)


def test_a_trace_whose_sharing_is_declared_takes_that(tmp_path: Path) -> None:
    write_conversations(tmp_path, 200)
    plan = solve(traced(tmp_path, "{trace: t.jsonl, prefix: {hitRate: 0.25}}"))
    assert plan.traffic.prefix_source == "hitRate" and plan.traffic.prefix_hit == pytest.approx(0.25)


# ---- what a spec declares

SHARED = "{{rate: 6/s, isl: 2000, osl: 200, prefix: {{{}}}}}"
BARE = "{rate: 6/s, isl: 2000, osl: 200}"
STATIC = {
    "model": LLAMA_8B,
    "deploy": "{image: 'registry/image:1', modelCache: {claim: weights}}",
    "constraints": "{engines: [megatron], weights: [bf16]}",
}


def test_a_head_that_all_share_is_held_once() -> None:
    """A replica holds it once, so more requests run; and no more than that is saved."""
    stated = {
        "model": LLAMA_8B,
        "constraints": "{topology: aggregated, tp: [1]}",
        "objective": "throughput",
        "pool": "[{accelerator: l40s, nodes: 1, perNode: 1}]",
    }
    plans = {}
    for prefix in ("shared: 1900", "hitRate: 0.95"):
        plans[prefix] = solve(problem(**stated, traffic=f"{{isl: 2000, osl: 200, prefix: {{{prefix}}}}}"))
    limit = {p: plan.choice.roles[0].max_running_requests for p, plan in plans.items()}
    assert limit["shared: 1900"] > limit["hitRate: 0.95"]
    role = plans["shared: 1900"].choice.roles[0]
    assert 1900 + limit["shared: 1900"] * (2000 - 1900) <= role.memory.kv_tokens
    assert "holds once" in " ".join(plans["shared: 1900"].why)
    assert plans["shared: 1900"].traffic.prefix_source == "shared"


def test_the_replay_holds_a_shared_head_once() -> None:
    stated = {
        "model": LLAMA_8B,
        "constraints": "{topology: aggregated, tp: [1]}",
        "slo": "{ttft: 2s, itl: 60ms}",
        "pool": "[{accelerator: l40s, nodes: 2, perNode: 8}]",
        "traffic": SHARED.format("shared: 1900"),
    }
    question = problem(**stated)
    plan = solve(question)
    of = of_problem(question, plan)
    result = run(of, requests(of, Traffic(requests=2000)))
    assert result.ttft.p95 == pytest.approx(plan.prediction.ttft.p95, rel=0.35)
    assert result.kv_peak <= 1.0


def test_an_engine_without_a_prefix_cache_computes_every_prompt() -> None:
    bare = solve(problem(**STATIC, traffic=BARE))
    for prefix in ("shared: 1500", "hitRate: 0.75"):
        question = problem(**STATIC, traffic=SHARED.format(prefix))
        plan = solve(question)
        assert (plan.choice, plan.prediction) == (bare.choice, bare.prediction)
        assert plan.traffic.prefix_hit == 0.0
        assert any("megatron, as it is launched, keeps no prefix cache" in w for w in plan.why)
        of = of_problem(question, plan)
        assert run(of, requests(of, Traffic(requests=50))).cached_tokens == 0


def test_engines_with_and_without_a_cache_are_compared_each_by_its_own_demand() -> None:
    both = {**STATIC, "constraints": "{engines: [megatron, sglang], weights: [bf16], topology: aggregated}"}
    seen = search(problem(**both, traffic=SHARED.format("hitRate: 0.75")))
    hits = {c.engine.facts.id: c.problem.workload.hit_share() for c in seen.candidates}
    assert hits == {"megatron": 0.0, "sglang": pytest.approx(0.75)}
    plan = solve(problem(**both, traffic=SHARED.format("hitRate: 0.75")))
    assert plan.choice.engine == "sglang" and plan.traffic.prefix_hit == pytest.approx(0.75)


def test_a_declared_share_has_room_for_what_a_prompt_finds() -> None:
    plan = solve(problem(model=LLAMA_8B, traffic=SHARED.format("hitRate: 0.5")))
    assert plan.traffic.prefix_kept_tokens == pytest.approx(0.5 * 2000)
    assert "The spec states that 50.0 % of the prompt tokens are found" in " ".join(plan.why)


def test_a_head_longer_than_the_traces_prompts_is_refused(tmp_path: Path) -> None:
    write_conversations(tmp_path, 10)
    with pytest.raises(SpecError, match="above the trace's mean prompt"):
        traced(tmp_path, "{trace: t.jsonl, prefix: {shared: 50000}}")


# ---- the terminal is told, and nobody else


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_told_what_takes_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stderr in (io.StringIO(), Terminal()):
        monkeypatch.setattr(sys, "stderr", stderr)
        with noted("sizing for t.jsonl"):
            pass
        assert ("sizing for t.jsonl" in stderr.getvalue()) is stderr.isatty()


# ---- the published trace, where it is at hand

SHARED_DATA = os.environ.get("SERVEGEN_REFERENCE_DATA", "")


@pytest.mark.skipif(not SHARED_DATA, reason="SERVEGEN_REFERENCE_DATA does not name a folder of reference data")
@pytest.mark.parametrize(
    "constraints", [TOGETHER, "{topology: aggregated, tp: [2]}", "{topology: aggregated}", "{topology: disaggregated}"]
)
def test_the_conversations_of_mooncake(tmp_path: Path, constraints: str) -> None:
    trace = Path(SHARED_DATA) / "data" / "traces" / "mooncake_conversation.jsonl"
    shutil.copy(trace, tmp_path / "t.jsonl")
    stated = {"constraints": constraints, "more_model": ", contextLength: 131072", "slo": "{ttft: 10s, itl: 100ms}"}
    question = traced(tmp_path, **stated)
    plan = solve(question)
    hit, ttft = replayed(question, plan)
    assert plan.traffic.prefix_unbounded == pytest.approx(0.374, abs=5e-4)
    assert plan.traffic.prefix_hit == pytest.approx(hit, abs=0.02)
    # The same trace without its hashes is off as far: its clock ticks every 3 s, and steps that mix prompts and decodes are taken
    # for shorter than they are. A split's queue is planned for each prefill server apart, which its router makes shorter.
    assert ttft <= plan.prediction.ttft.p95 * 1.4
    if plan.choice.topology == "aggregated":
        assert ttft >= plan.prediction.ttft.p95 * 0.8


def test_published_hit_potential_of_mooncake() -> None:
    """Token-weighted hits of an LRU cache over the published conversations: 36.2, 21.5 and 4.5 % at 50k, 10k and 1k blocks."""
    if not SHARED_DATA:
        pytest.skip("SERVEGEN_REFERENCE_DATA does not name a folder of reference data")
    reuse = Reuse(trace_requests(Path(SHARED_DATA) / "data" / "traces" / "mooncake_conversation.jsonl"))
    shares = [reuse.share(blocks * BLOCK, 1) for blocks in (50_000, 10_000, 1_000)]
    assert shares == pytest.approx([0.362, 0.215, 0.045], abs=1e-3)
