"""The search against the plain solver: the same optimum, replica for replica, on reduced spaces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.solve.problem import Problem
from servegen.solve.search import search
from servegen.solve.space import BATCH_LIMITS
from servegen.solve.space import CHUNKS as CHUNKS_KNOWN
from tests.solver.plain import Found, best_aggregated
from tests.solver.plain_split import best_split
from tests.solver.specs import LLAMA_8B, LLAMA_70B, problem, reduced

LIMITS = (1, 3, 8, 16, 32, 48, 96, 192, 384, 1024)
CHUNKS = (512, 2048, 8192)
FEW = ((4, 16, 48, 160), (1024, 8192))

models = st.sampled_from([LLAMA_8B, LLAMA_70B, "Qwen/Qwen3-32B"])
accelerators = st.sampled_from(["h100", "l40s", "a100-sxm-80gb", "h200"])
prompts = st.sampled_from(["200", "{mean: 1024, p95: 3000}", "{mean: 4000, p95: 9000}"])
answers = st.sampled_from(["40", "{mean: 256, p95: 600}", "{mean: 900, p95: 2000}"])
bounds = st.sampled_from(
    [
        "{}",
        "{ttft: {p95: 700ms}, itl: {p95: 60ms}}",
        "{ttft: {p50: 400ms, p99: 4s}}",
        "{itl: {p99: 200ms}, tpot: {p95: 40ms}}",
        "{e2e: {p95: 25s}, ttft: {mean: 600ms}}",
        "{ttft: {p95: 1s}, tpot: {p90: 35ms}, attainment: 0.9}",
        "{itl: {mean: 30ms}, e2e: {mean: 14s}}",
    ]
)


def answer(question: Problem) -> tuple[str, tuple[int, ...], int] | None:
    best = search(question).best
    return None if best is None else (best.name, tuple(r.replicas for r in best.roles), best.devices)


def plainly(found: Found | None) -> tuple[str, tuple[int, ...], int] | None:
    return None if found is None else (found.name, found.replicas, found.devices)


@given(
    model=models,
    accelerator=accelerators,
    prompt=prompts,
    output=answers,
    slo=bounds,
    load=st.sampled_from(
        ["rate: 0.4/s", "rate: 3/s", "rate: 20/s, burstiness: 1.8", "concurrency: 12", "users: {active: 90, thinkTime: 6s}", ""]
    ),
    objective=st.sampled_from(["cost", "cost", "energy", "throughput", "latency"]),
    engine=st.sampled_from(["sglang", "sglang", "vllm"]),
    extra=st.sampled_from(
        ["", ", utilization: 0.6", ", spareReplicas: 1", ", kvCache: [bf16, fp8]", ", maxAccelerators: 9", ", tp: [4, 2]"]
    ),
)
@settings(max_examples=120)
def test_the_best_aggregated_plan_is_the_best_of_all(
    model: str, accelerator: str, prompt: str, output: str, slo: str, load: str, objective: str, engine: str, extra: str
) -> None:
    if objective == "latency" and not load:
        load = "rate: 1/s"  # without a load there is no one latency to compare
    if objective == "throughput" and ("concurrency" in load or "users" in load):
        load = ""
    question = problem(
        model=model,
        traffic=f"{{{load + ', ' if load else ''}isl: {prompt}, osl: {output}}}",
        slo=slo,
        pool=f"[{{accelerator: {accelerator}, nodes: 2, perNode: 8}}]",
        objective=objective,
        constraints=f"{{engines: [{engine}], topology: aggregated{extra}}}",
    )
    with reduced(LIMITS, CHUNKS):
        found = answer(question)
    assert found == plainly(best_aggregated(question, LIMITS, CHUNKS))


ONE_SIZE = "{topology: aggregated, tp: [2], weights: [fp8]}"


def test_the_whole_space_of_one_question() -> None:
    """Every batch limit and chunk that the search knows, on one replica size."""
    question = problem(slo="{ttft: {p95: 600ms}, itl: {p95: 50ms}}", constraints=ONE_SIZE)
    best, plain = search(question).best, best_aggregated(question, [int(b) for b in BATCH_LIMITS], CHUNKS_KNOWN)
    assert best is not None and plain is not None
    assert best.key(question)[:-1] == plain.key[:-1]


def test_the_last_tie_falls_by_name() -> None:
    question = problem(slo="{ttft: {p95: 600ms}, itl: {p95: 50ms}}", constraints=ONE_SIZE)
    assert answer(question) == plainly(best_aggregated(question, [int(b) for b in BATCH_LIMITS], CHUNKS_KNOWN))


def test_several_engines_and_kinds_compete() -> None:
    question = problem(
        model=LLAMA_8B,
        traffic="{rate: 9/s, isl: {mean: 1024, p95: 3000}, osl: 200}",
        slo="{ttft: {p95: 700ms}, itl: {p95: 60ms}}",
        pool="[{accelerator: h100, nodes: 1, perNode: 8}, {accelerator: l40s, nodes: 2, perNode: 4},"
        " {accelerator: a100-sxm-80gb, nodes: 1, perNode: 8}]",
        constraints="{engines: [vllm, sglang], topology: aggregated}",
    )
    with reduced(LIMITS, CHUNKS):
        found = answer(question)
    assert found == plainly(best_aggregated(question, LIMITS, CHUNKS))


@given(
    model=st.sampled_from([LLAMA_8B, LLAMA_70B]),
    accelerator=st.sampled_from(["h100", "h200"]),
    prompt=prompts,
    output=answers,
    slo=st.sampled_from(
        ["{}", "{ttft: {p95: 900ms}, itl: {p95: 40ms}}", "{ttft: {p99: 4s}, itl: {p95: 25ms}}", "{tpot: {mean: 30ms}}"]
    ),
    rate=st.sampled_from(["0.5/s", "3/s", "9/s"]),
    objective=st.sampled_from(["cost", "energy"]),
    extra=st.sampled_from(["", ", utilization: 0.6", ", spareReplicas: 1", ", maxAccelerators: 10", ", tp: [4, 2]"]),
)
@settings(max_examples=40)
def test_the_best_split_is_the_best_of_all_pairs(
    model: str, accelerator: str, prompt: str, output: str, slo: str, rate: str, objective: str, extra: str
) -> None:
    question = problem(
        model=model,
        traffic=f"{{rate: {rate}, isl: {prompt}, osl: {output}}}",
        slo=slo,
        pool=f"[{{accelerator: {accelerator}, nodes: 2, perNode: 8, fabric: {{bandwidth: 200Gbps}}}}]",
        objective=objective,
        constraints=f"{{topology: disaggregated{extra}}}",
    )
    with reduced(*FEW):
        found = answer(question)
    assert found == plainly(best_split(question, *FEW))


drafts = st.sampled_from(
    [
        "{method: eagle3, draft: org/head, steps: 3, acceptance: 0.7}",
        "{method: eagle, draft: org/head, steps: 2, acceptance: 0.5}",
        "{method: ngram, steps: 4, acceptance: 0.4}",
        "{method: eagle3, draft: org/head, steps: 1, acceptance: 1.0}",
        "{method: ngram, steps: 2, acceptance: 0.001}",
    ]
)


@given(
    model=models,
    accelerator=accelerators,
    draft=drafts,
    prompt=prompts,
    output=answers,
    slo=bounds,
    load=st.sampled_from(["rate: 0.4/s", "rate: 3/s", "rate: 20/s, burstiness: 1.8", "concurrency: 12", ""]),
    objective=st.sampled_from(["cost", "throughput", "latency"]),
    extra=st.sampled_from(["", ", spareReplicas: 1", ", kvCache: [bf16, fp8]", ", engines: [sglang, vllm]"]),
)
@settings(max_examples=40)
def test_the_best_plan_that_may_draft_is_the_best_of_all(
    model: str, accelerator: str, draft: str, prompt: str, output: str, slo: str, load: str, objective: str, extra: str
) -> None:
    if objective == "latency" and not load:
        load = "rate: 1/s"
    if objective == "throughput" and "concurrency" in load:
        load = ""
    question = problem(
        model=model,
        more_model=f", speculative: {draft}",
        traffic=f"{{{load + ', ' if load else ''}isl: {prompt}, osl: {output}}}",
        slo=slo,
        pool=f"[{{accelerator: {accelerator}, nodes: 2, perNode: 8}}]",
        objective=objective,
        constraints=f"{{topology: aggregated{extra}}}",
    )
    with reduced(*FEW):
        found = answer(question)
    assert found == plainly(best_aggregated(question, *FEW))


@given(
    model=st.sampled_from([LLAMA_8B, LLAMA_70B]),
    draft=drafts,
    prompt=prompts,
    output=answers,
    slo=st.sampled_from(["{}", "{ttft: {p95: 900ms}, itl: {p95: 40ms}}", "{tpot: {p95: 12ms}}"]),
    rate=st.sampled_from(["0.5/s", "3/s"]),
)
@settings(max_examples=15)
def test_the_best_split_that_may_draft_is_the_best_of_all_pairs(
    model: str, draft: str, prompt: str, output: str, slo: str, rate: str
) -> None:
    question = problem(
        model=model,
        more_model=f", speculative: {draft}",
        traffic=f"{{rate: {rate}, isl: {prompt}, osl: {output}}}",
        slo=slo,
        constraints="{topology: disaggregated}",
    )
    with reduced(*FEW):
        found = answer(question)
    assert found == plainly(best_split(question, *FEW))


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_splits_that_fill_the_pool(nodes: int) -> None:
    question = problem(
        model=LLAMA_8B,
        traffic="{isl: {mean: 1024, p95: 3000}, osl: 256}",
        pool=f"[{{accelerator: h100, nodes: {nodes}, perNode: 4, fabric: {{bandwidth: 200Gbps}}}}]",
        objective="throughput",
        constraints="{topology: disaggregated, weights: [bf16]}",
    )
    with reduced(*FEW):
        found = answer(question)
    assert found == plainly(best_split(question, *FEW))


def worth(question: Problem) -> tuple[float, ...] | None:
    best = search(question).best
    return None if best is None else best.objective


def test_a_wide_decode_server_beside_narrow_prefill_servers() -> None:
    question = problem(
        traffic="{isl: 16000, osl: 10}",
        slo="{itl: 9ms}",
        objective="throughput",
        constraints="{topology: disaggregated, weights: [fp8], tp: [2, 8]}",
    )
    with reduced(*FEW):
        found = worth(question)
    plain = best_split(question, *FEW)
    assert plain is not None and found is not None
    assert found[0] == pytest.approx(plain.key[0], rel=1e-3)


def test_servers_that_do_not_divide_a_node() -> None:
    question = problem(
        traffic="{isl: 1024, osl: 256}",
        pool="[{accelerator: h100, nodes: 2, perNode: 6, fabric: {bandwidth: 400Gbps}}]",
        objective="throughput",
        constraints="{topology: disaggregated, tp: [4]}",
    )
    with reduced(*FEW):
        found = worth(question)
    plain = best_split(question, *FEW)
    assert plain is not None
    assert found is not None and found[0] == pytest.approx(plain.key[0], rel=1e-3)


WHOLE = "{e2e: %s}"


@pytest.mark.parametrize("bound", ["1.5s", "1.1s"])
def test_a_bound_on_whole_requests_adds_prefill_servers(bound: str) -> None:
    question = problem(
        model=LLAMA_8B,
        traffic="{rate: 20/s, isl: {mean: 4000, p95: 12000}, osl: {mean: 50, p95: 100}}",
        slo=WHOLE % bound,
        constraints="{topology: disaggregated, weights: [fp8], tp: [1]}",
    )
    with reduced((16, 48), (8192,)):
        found = search(question).best
    plain = best_split(question, (16, 48), (8192,))
    assert plain is not None
    assert found is not None and found.cost_per_h == pytest.approx(plain.cost)
