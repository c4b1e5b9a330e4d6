"""The optimizer answers for every key: each key of traffic, slo, constraints, hardware.pool and model changes a plan."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from servegen.codec import to_jsonable
from servegen.errors import InfeasibleError
from servegen.plan import Plan
from servegen.solve.search import solve
from servegen.spec.hardware import Fabric, PoolEntry, Storage
from servegen.spec.schema import Constraints, Model, Speculative
from servegen.spec.traffic import LATENCIES, STATISTICS, LengthSpec, Prefix, Slo, Traffic, Users
from tests.solver.specs import CHAT, LENGTHS, LLAMA_8B, problem, problem_of, spec_text

TRACES = Path(__file__).parent.parent / "fixtures" / "traces"
SLO = "{ttft: {p95: 1s}, itl: {p95: 50ms}}"
LAT = {"traffic": CHAT, "slo": SLO, "constraints": "{topology: aggregated}"}
SPLIT = {"traffic": CHAT, "slo": SLO, "constraints": "{topology: disaggregated}"}
#: Long prompts beside a strict gap: where a split pays.
LONG = {
    "traffic": "{rate: 2.2/s, isl: {mean: 6000, p95: 12000}, osl: {mean: 400, p95: 900}}",
    "slo": "{ttft: 4s, itl: {p95: 20ms, p99: 30ms}}",
}
WHOLE = {"traffic": CHAT, "constraints": "{topology: aggregated}"}


def pool(
    more: str = "", kind: str = "h100", nodes: int = 2, per_node: int = 8, fabric: str = "fabric: {bandwidth: 400Gbps}"
) -> str:
    return (
        f"[{{{', '.join(part for part in (f'accelerator: {kind}, nodes: {nodes}, perNode: {per_node}', fabric, more) if part)}}}]"
    )


def lengths(isl: str, osl: str = "{mean: 256, p95: 600}") -> dict[str, str]:
    return {**LAT, "traffic": f"{{rate: 6/s, isl: {isl}, osl: {osl}}}"}


QUICK = {**WHOLE, "objective": "latency"}


def drafting(more: str, base: dict[str, str] = QUICK, steps: int = 4, acceptance: float = 0.7) -> dict[str, str]:
    return {**base, "more_model": f", speculative: {{{more}, steps: {steps}, acceptance: {acceptance}}}"}


#: By key: two specs that differ in it. Their choice or prediction must differ.
DECIDES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "traffic.rate": (LAT, {**LAT, "traffic": f"{{rate: 2/s, {LENGTHS}}}"}),
    "traffic.concurrency": (
        {**LAT, "traffic": f"{{concurrency: 20, {LENGTHS}}}"},
        {**LAT, "traffic": f"{{concurrency: 75, {LENGTHS}}}"},
    ),
    "traffic.users.active": (
        {**LAT, "traffic": f"{{users: {{active: 20, thinkTime: 5s}}, {LENGTHS}}}"},
        {**LAT, "traffic": f"{{users: {{active: 150, thinkTime: 5s}}, {LENGTHS}}}"},
    ),
    "traffic.users.thinkTime": (
        {**LAT, "traffic": f"{{users: {{active: 90, thinkTime: 1s}}, {LENGTHS}}}"},
        {**LAT, "traffic": f"{{users: {{active: 90, thinkTime: 60s}}, {LENGTHS}}}"},
    ),
    "traffic.isl": (lengths("500"), lengths("2500")),
    "traffic.isl.mean": (lengths("{mean: 1024, p95: 3000}"), lengths("{mean: 2000, p95: 3000}")),
    "traffic.isl.p50": (lengths("{mean: 1024, p50: 900}"), lengths("{mean: 1024, p50: 300}")),
    "traffic.isl.p95": (lengths("{mean: 1024, p95: 1500}"), lengths("{mean: 1024, p95: 3500}")),
    "traffic.isl.p99": (lengths("{mean: 1024, p99: 2000}"), lengths("{mean: 1024, p99: 9000}")),
    "traffic.isl.histogram": (lengths("{histogram: [[512, 1], [2048, 1]]}"), lengths("{histogram: [[512, 1], [8192, 1]]}")),
    "traffic.osl": (lengths("1000", "100"), lengths("1000", "900")),
    "traffic.osl.mean": (lengths("1000", "{mean: 150, p95: 500}"), lengths("1000", "{mean: 350, p95: 500}")),
    "traffic.osl.p50": (lengths("1000", "{mean: 256, p50: 250}"), lengths("1000", "{mean: 256, p50: 90}")),
    "traffic.osl.p95": (lengths("1000", "{mean: 256, p95: 300}"), lengths("1000", "{mean: 256, p95: 900}")),
    "traffic.osl.p99": (lengths("1000", "{mean: 256, p99: 300}"), lengths("1000", "{mean: 256, p99: 2000}")),
    "traffic.osl.histogram": (lengths("1000", "{histogram: [[99, 1]]}"), lengths("1000", "{histogram: [[999, 1]]}")),
    "traffic.burstiness": (LAT, {**LAT, "traffic": f"{{rate: 6/s, burstiness: 4.0, {LENGTHS}}}"}),
    "traffic.prefix.shared": (LAT, {**LAT, "traffic": f"{{rate: 6/s, prefix: {{shared: 900}}, {LENGTHS}}}"}),
    "traffic.prefix.hitRate": (LAT, {**LAT, "traffic": f"{{rate: 6/s, prefix: {{hitRate: 0.7}}, {LENGTHS}}}"}),
    "objective": (LAT, {**LAT, "objective": "latency"}),
    "constraints.engines": (LAT, {**LAT, "constraints": "{topology: aggregated, engines: [vllm]}"}),
    "constraints.weights": (LAT, {**LAT, "constraints": "{topology: aggregated, weights: [bf16]}"}),
    "constraints.kvCache": (LAT, {**LAT, "constraints": "{topology: aggregated, kvCache: [fp8]}"}),
    "constraints.topology": (LAT, SPLIT),
    "constraints.tp": (LAT, {**LAT, "constraints": "{topology: aggregated, tp: [8]}"}),
    "constraints.maxAccelerators": (
        {**LAT, "objective": "throughput"},
        {**LAT, "objective": "throughput", "constraints": "{topology: aggregated, maxAccelerators: 8}"},
    ),
    "constraints.utilization": (LAT, {**LAT, "constraints": "{topology: aggregated, utilization: 0.4}"}),
    "constraints.spareReplicas": (LAT, {**LAT, "constraints": "{topology: aggregated, spareReplicas: 1}"}),
    "constraints.disaggregationGain": (
        {**LONG, "constraints": "{disaggregationGain: 1.05}"},
        {**LONG, "constraints": "{disaggregationGain: 9.0}"},
    ),
    "constraints.confidence": (
        {**LAT, "slo": "{ttft: {p95: 400ms}}"},
        {**LAT, "slo": "{ttft: {p95: 400ms}}", "constraints": "{topology: aggregated, confidence: low}"},
    ),
    "pool.accelerator": (LAT, {**LAT, "pool": pool(kind="h200")}),
    "pool.nodes": ({**LAT, "objective": "throughput"}, {**LAT, "objective": "throughput", "pool": pool(nodes=5)}),
    "pool.perNode": ({**LAT, "objective": "throughput"}, {**LAT, "objective": "throughput", "pool": pool(per_node=4)}),
    "pool.price": (LAT, {**LAT, "pool": pool("price: 1.11/h")}),
    "pool.fabric": ({**LONG, "constraints": "{}"}, {**LONG, "constraints": "{}", "pool": pool(fabric="")}),
    "pool.fabric.bandwidth": (SPLIT, {**SPLIT, "pool": pool(fabric="fabric: {bandwidth: 25Gbps}")}),
    "model.name": (LAT, {**LAT, "model": LLAMA_8B}),
    "model.contextLength": (LAT, {**LAT, "more_model": ", contextLength: 100000"}),
    "model.checkpoints": (LAT, {**LAT, "more_model": ", checkpoints: {bf16: own/copy}"}),
    "model.speculative": (QUICK, drafting("method: eagle3, draft: own/head", QUICK)),
    "model.speculative.method": (drafting("method: eagle, draft: own/head"), drafting("method: eagle3, draft: own/head")),
    "model.speculative.draft": (
        drafting("method: standalone, draft: Llama-3.2-1B"),
        drafting("method: standalone, draft: Llama-3.2-3B"),
    ),
    "model.speculative.steps": (
        drafting("method: eagle3, draft: own/head"),
        drafting("method: eagle3, draft: own/head", steps=1),
    ),
    "model.speculative.acceptance": (
        drafting("method: eagle3, draft: own/head"),
        drafting("method: eagle3, draft: own/head", acceptance=0.4),
    ),
    "slo.attainment": ({**WHOLE, "slo": "{ttft: {p50: 300ms}}"}, {**WHOLE, "slo": "{ttft: {p50: 300ms}, attainment: 0.97}"}),
}

TIGHT = {
    "ttft": {"mean": "190ms", "p50": "160ms", "p90": "270ms", "p95": "350ms", "p99": "500ms"},
    "itl": {"mean": "17ms", "p50": "13ms", "p90": "14ms", "p95": "15ms", "p99": "60ms"},
    "e2e": {"mean": "5s", "p50": "4s", "p90": "8s", "p95": "10s", "p99": "20s"},
    "tpot": {"mean": "16ms", "p50": "16ms", "p90": "16ms", "p95": "16ms", "p99": "16ms"},
}
for _latency in LATENCIES:
    for _statistic in STATISTICS:
        DECIDES[f"slo.{_latency}.{_statistic}"] = (
            WHOLE,
            {**WHOLE, "slo": f"{{{_latency}: {{{_statistic}: {TIGHT[_latency][_statistic]}}}}}"},
        )

#: Keys that the cluster sees and the search does not: what they say stands in the plan, for rendering.
RECORDED: dict[str, tuple[str, str]] = {
    "cpu": ("cpu: 96", "node_cpus"),
    "memory": ("memory: 512GiB", "node_memory_bytes"),
    "resource": ("resource: example.com/gpu", "resource"),
    "nodeSelector": ("nodeSelector: {disk: ssd}", "node_selector"),
    "tolerations": ("tolerations: [{key: special, operator: Exists}]", "tolerations"),
    "storage.bandwidth": ("storage: {bandwidth: 7GB/s}", "storage_bytes_per_s"),
}


def solved(stated: dict[str, str]) -> Plan:
    return solve(problem(**stated))


def decision(plan: Plan) -> Any:
    return to_jsonable([plan.choice, plan.prediction])


@pytest.mark.parametrize("key", DECIDES)
def test_the_key_changes_the_decision(key: str) -> None:
    one, other = DECIDES[key]
    assert decision(solved(one)) != decision(solved(other))


@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("statistic", STATISTICS)
def test_every_bound_changes_the_configuration(latency: str, statistic: str) -> None:
    one, other = (solved(s).choice for s in DECIDES[f"slo.{latency}.{statistic}"])
    assert [(r.tp, r.replicas, r.max_running_requests) for r in one.roles] != [
        (r.tp, r.replicas, r.max_running_requests) for r in other.roles
    ]


@pytest.mark.parametrize("key", RECORDED)
def test_the_key_stands_in_the_plan(key: str) -> None:
    text, field = RECORDED[key]
    assert getattr(solved(LAT).pool[0], field) != getattr(solved({**LAT, "pool": pool(text)}).pool[0], field)


@pytest.mark.parametrize(
    ("fabric", "rdma", "resource"),
    [("rdma: true", True, ""), ("rdma: true, resource: rdma/ib", True, "rdma/ib"), ("rdma: false", False, "")],
)
def test_the_fabric_stands_in_the_plan(fabric: str, rdma: bool, resource: str) -> None:
    entry = solved({**LAT, "pool": pool(fabric=f"fabric: {{bandwidth: 100Gbps, {fabric}}}")}).pool[0]
    assert (entry.rdma, entry.rdma_resource, entry.fabric_bytes_per_s) == (rdma, resource, 12.5e9)


def test_the_trough_sizes_the_least_replicas() -> None:
    plan = solved({**LAT, "traffic": f"{{rate: 20/s, trough: 2/s, {LENGTHS}}}", "pool": pool(nodes=6)})
    steady = solved({**LAT, "traffic": f"{{rate: 20/s, {LENGTHS}}}", "pool": pool(nodes=6)})
    assert 1 <= plan.deploy.autoscaling_min["serve"] < steady.deploy.autoscaling_min["serve"] == steady.choice.roles[0].replicas
    assert plan.deploy.autoscaling_max["serve"] >= plan.choice.roles[0].total_replicas


def test_trust_remote_code_stands_in_the_plan() -> None:
    assert solved({**LAT, "more_model": ", trustRemoteCode: true"}).model.trust_remote_code
    assert not solved(LAT).model.trust_remote_code


@pytest.mark.parametrize("trace", ["azure.csv", "mooncake.jsonl", "plain.csv"])
def test_a_trace_decides(trace: str) -> None:
    text = spec_text(model=LLAMA_8B, more_model=", contextLength: 131072", traffic=f"{{trace: {trace}}}", slo=SLO)
    plan = solve(problem_of(text, str(TRACES / "spec.yaml")))
    assert plan.traffic.rate > 0 and plan.traffic.isl_mean > 1
    assert "traffic.trace" in plan.inputs
    warm = spec_text(
        model=LLAMA_8B, more_model=", contextLength: 131072", traffic=f"{{trace: {trace}, prefix: {{hitRate: 0.9}}}}", slo=SLO
    )
    assert solve(problem_of(warm, str(TRACES / "spec.yaml"))).traffic.prefix_hit == pytest.approx(0.9)


def names(section: type[Any]) -> set[str]:
    return {re.sub(r"_(\w)", lambda m: m[1].upper(), name) for name in section.model_fields if name != "fixed"}


def test_no_key_is_forgotten() -> None:
    """A key that is added to the language must be added here, with an example of what it decides."""
    walked = {tuple(k.split(".")) for k in DECIDES}
    told = {k[1] for k in walked if k[0] == "traffic"} | {"trough", "trace", "users", "prefix"}
    assert told == names(Traffic)
    assert {k[2] for k in walked if k[:2] == ("traffic", "users")} == names(Users)
    assert {k[2] for k in walked if k[:2] == ("traffic", "prefix")} == names(Prefix)
    for one in ("isl", "osl"):
        assert {k[2] for k in walked if k[:2] == ("traffic", one) and len(k) > 2} == names(LengthSpec)
    assert {k[1] for k in walked if k[0] == "slo"} == names(Slo)
    # Their examples are in test_every_key.py.
    assert {k[1] for k in walked if k[0] == "constraints"} | {"pp", "ep", "dp"} == names(Constraints)
    recorded = {k.split(".")[0] for k in RECORDED}
    assert {k[1] for k in walked if k[0] == "pool"} | recorded == names(PoolEntry)
    assert {"bandwidth", "rdma", "resource"} == names(Fabric) and {"bandwidth"} == names(Storage)
    tested = {"config", "architecture", "trustRemoteCode"}
    told = {k[2] for k in walked if k[:2] == ("model", "speculative") and len(k) > 2}
    assert told | {"draftConfig"} == names(Speculative)  # a file: test_solve_drafting.py
    assert {k[1] for k in walked if k[0] == "model"} | tested == names(Model)


# ---- every objective, engine, topology and load has a plan ----------------------------------------

LOADS = (
    "rate: 5/s, burstiness: 0.0",
    "rate: 0.0001/s",
    "concurrency: 1",
    "users: {active: 50, thinkTime: 0s}",
    "",
)
DEPLOY = "{image: 'registry/image:1', modelCache: {claim: weights}}"


@pytest.mark.parametrize("objective", ["cost", "throughput", "latency", "energy"])
@pytest.mark.parametrize(
    ("engine", "topology"), [("sglang", "auto"), ("sglang", "disaggregated"), ("vllm", "aggregated"), ("megatron", "aggregated")]
)
@pytest.mark.parametrize("load", LOADS)
def test_there_is_a_plan(load: str, topology: str, engine: str, objective: str) -> None:
    shape = "isl: {mean: 900, p95: 2500}, osl: {mean: 200, p95: 500}"
    stated = {
        "model": LLAMA_8B,
        "traffic": f"{{{load + ', ' if load else ''}{shape}}}",
        "objective": objective,
        "deploy": DEPLOY,
        "slo": "{itl: {p95: 80ms}}" if "rate" in load else "{}",
        "pool": pool(nodes=1, per_node=4),
        "constraints": f"{{engines: [{engine}], topology: {topology}, weights: [bf16]}}",
    }
    plan = solved(stated)
    assert 0 < plan.choice.devices <= 4
    assert plan.prediction.output_tokens_per_second > 0


def test_an_engine_that_cannot_split_says_so() -> None:
    with pytest.raises(InfeasibleError) as caught:
        solved({"model": LLAMA_8B, "deploy": DEPLOY, "constraints": "{engines: [megatron], topology: disaggregated}"})
    assert caught.value.bound == "split"


@pytest.mark.parametrize("load", ["concurrency: %d", "users: {active: %d, thinkTime: 2s}"])
def test_a_split_without_bounds_still_has_to_carry_its_closed_loop(load: str) -> None:
    """What the pool carries is said in users; a pool that holds so many has a plan, and predicts no more than it sustains."""
    stated = {
        "model": LLAMA_8B,
        "constraints": "{topology: disaggregated}",
        "pool": pool(nodes=1, per_node=4),
    }
    with pytest.raises(InfeasibleError) as caught:
        solved(stated | {"traffic": f"{{{load % 3000}, {LENGTHS}}}"})
    assert caught.value.bound == "pool"
    most = float(str(caught.value.best).split()[0])
    assert 10 < most < 3000
    plan = solved(stated | {"traffic": f"{{{load % most}, {LENGTHS}}}"})
    assert plan.prediction.output_tokens_per_second / 256 <= plan.prediction.sustained_rate * (1 + 1e-6)


@pytest.mark.parametrize(
    "model",
    [
        "mistralai/Mixtral-8x7B-v0.1",
        "deepseek-ai/DeepSeek-V3",
        "google/gemma-3-27b-it",
        "openai/gpt-oss-120b",
        "Qwen/Qwen3-30B-A3B",
        "Qwen/Qwen3-32B-FP8",
        "microsoft/phi-4",
    ],
)
@pytest.mark.parametrize("topology", ["aggregated", "disaggregated"])
def test_every_kind_of_model_has_a_plan(model: str, topology: str) -> None:
    plan = solved(
        {
            "model": model,
            "traffic": "{rate: 2/s, isl: {mean: 1000, p95: 3000}, osl: 100}",
            "slo": "{ttft: {p95: 3s}, itl: {p95: 80ms}}",
            "pool": pool(kind="h200", nodes=4),
            "constraints": f"{{topology: {topology}}}",
        }
    )
    assert plan.choice.devices <= 32


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_a_checkpoint_in_blocks_is_cut_only_between_them(tp: int) -> None:
    """1536-wide experts in 128-wide blocks: twelve blocks, which eight ranks cannot share."""
    stated = {
        "model": "Qwen/Qwen3-235B-A22B-FP8",
        "traffic": "{rate: 0.5/s, isl: 500, osl: 100}",
        "pool": pool(kind="h200"),
        "constraints": f"{{tp: [{tp}], ep: [1], topology: aggregated}}",
    }
    if tp == 8:
        with pytest.raises(InfeasibleError) as caught:
            solved(stated)
        assert caught.value.bound == "quantization block"
        assert any("128-wide blocks" in reason for reason in caught.value.rejected)
        role = solved({**stated, "constraints": f"{{tp: [{tp}], topology: aggregated}}"}).choice.roles[0]
        assert (role.tp, role.ep) == (8, 8)  # whole experts on each rank
    elif tp == 4:
        assert solved(stated).choice.roles[0].tp == 4


def test_energy_without_a_known_power() -> None:
    """Google publishes no power of its TPUs: they cannot be ranked by it, other accelerators of the pool can."""
    tpu, gpu = "{accelerator: tpu-v5e, nodes: 8, perNode: 8}", "{accelerator: h100, nodes: 2, perNode: 8}"
    stated = {"objective": "energy", "constraints": "{engines: [jetstream, sglang], topology: aggregated}"}
    with pytest.raises(InfeasibleError) as caught:
        solved({**stated, "pool": f"[{tpu}]"})
    assert any("power" in reason for reason in caught.value.rejected)
    assert solved({**stated, "pool": f"[{tpu}, {gpu}]"}).choice.roles[0].accelerator == "h100-sxm-80gb"


def test_a_slow_fabric_limits_what_a_split_carries() -> None:
    stated = {"traffic": f"{{{LENGTHS}}}", "objective": "throughput", "constraints": "{topology: disaggregated}"}
    slow = solved({**stated, "pool": pool(fabric="fabric: {bandwidth: 1Gbps}")})
    prefill = slow.choice.roles[0]
    links = prefill.replicas * prefill.tp * 1e9 / 8
    moved_per_request = slow.traffic.isl_mean * prefill.memory.kv_bytes_per_token * prefill.tp
    assert slow.prediction.load_rate * moved_per_request <= links


@pytest.mark.parametrize("accelerator", ["h100", "l40s", "a100-pcie-80gb"])
def test_tensor_parallelism_does_not_span_nodes_at_the_speed_of_one(accelerator: str) -> None:
    pool = f"[{{accelerator: {accelerator}, nodes: 2, perNode: 2}}]"
    constraints = "{engines: [vllm], topology: aggregated, tp: [4]}"
    stated = {"model": LLAMA_8B, "traffic": f"{{rate: 0.1/s, {LENGTHS}}}", "constraints": constraints, "pool": pool}
    with pytest.raises(InfeasibleError):
        solved(stated)


def test_a_narrow_decode_server_slows_the_hand_off() -> None:
    """8 links on one side and 1 on the other move no faster than 1."""
    stated = {
        "model": LLAMA_8B,
        "traffic": "{rate: 0.01/s, isl: 30000, osl: 100}",
        "objective": "cost",
        "constraints": "{topology: disaggregated, weights: [bf16], tp: [%s]}",
        "slo": "{ttft: {p95: 100s}}",
    }
    question = problem(
        **{**stated, "constraints": stated["constraints"] % "1, 8", "pool": pool(fabric="fabric: {bandwidth: 1Gbps}")}
    )
    from servegen.solve.predict import candidate_points
    from servegen.solve.search import search

    seen = search(question)
    chosen = {tuple(r.tp for r in c.roles): i for i, c in enumerate(seen.candidates)}
    starts = candidate_points(question, seen.candidates).point.service_edges_s[:, -1]
    whole_s = 30000 * 131072 / 0.125e9
    assert starts[chosen[(8, 1)]] >= whole_s
