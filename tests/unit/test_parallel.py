"""Replicas that are cut more ways than by TP: pipeline stages, attention groups, expert-parallel ranks, several nodes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegen.catalog.accelerators import resolve_accelerator
from servegen.catalog.engines import resolve_engine
from servegen.catalog.models import resolve_model
from servegen.errors import InfeasibleError
from servegen.lower import Config, Lowered, Physics, lower
from servegen.roofline import collectives
from servegen.simulate.steps import StepModel
from servegen.solve.search import solve
from servegen.solve.space import Shape, cut, placement
from tests.solver.specs import problem

DEEPSEEK, LLAMA_405B, QWEN_MOE = "deepseek-ai/DeepSeek-V3", "meta-llama/Llama-3.1-405B", "Qwen/Qwen3-235B-A22B"
FABRIC = 50e9
DENSE = [Shape(1), Shape(4), Shape(8), Shape(8, pp=2), Shape(16), Shape(4, pp=2), Shape(2, pp=4)]
SPARSE = [*DENSE, Shape(8, dp=8), Shape(8, dp=2, ep=8), Shape(8, ep=8), Shape(16, dp=4, ep=16), Shape(8, pp=2, dp=8, ep=8)]
shapes = st.one_of(
    st.tuples(st.just(LLAMA_405B), st.sampled_from(DENSE)),
    st.tuples(st.sampled_from([DEEPSEEK, QWEN_MOE]), st.sampled_from(SPARSE)),
)


def lowered(
    model: str, shape: Shape, physics: Physics = "calibrated", fabric: float = FABRIC, weights: str = "", kv: str = "bf16"
) -> Lowered:
    facts = resolve_model(model)
    device = resolve_accelerator("h200")
    config = Config(device, weights or facts.native_precision, kv, shape.tp, shape.pp, shape.dp, shape.ep, 8, fabric)
    return lower(facts, resolve_engine("sglang"), [config], physics)


def decode_s(low: Lowered, batch: float, context: float = 4000.0) -> float:
    return float(low.terms.decode_s(np.array([batch]), low.terms.kv_s(context))[0])


def prefill_s(low: Lowered, tokens: float, chunk: float = 8192.0) -> float:
    return float(low.terms.prefill_s(np.array([tokens]), np.array([tokens]), np.array([chunk]))[0, 0])


# ---- the step -----------------------------------------------------------------------------------------------------------


@given(shapes, st.floats(1.0, 900.0), st.integers(1, 60000))
def test_parts_sum_and_nothing_is_faster_than_the_roofline(asked: tuple[str, Shape], batch: float, tokens: int) -> None:
    low, ideal = lowered(*asked), lowered(*asked, "ideal")
    kv_s = low.terms.kv_s(4000.0)
    parts = low.terms.decode_breakdown_s(np.array([batch]), kv_s)
    assert sum(float(v[0]) for v in parts.values()) == pytest.approx(decode_s(low, batch), rel=1e-12)
    parts = low.terms.prefill_breakdown_s(float(tokens), float(tokens), np.array([4096.0]))
    assert sum(float(v[0]) for v in parts.values()) == pytest.approx(prefill_s(low, float(tokens), 4096.0), rel=1e-9)
    assert decode_s(ideal, batch) <= decode_s(low, batch) * (1 + 1e-12)
    assert prefill_s(ideal, float(tokens)) <= prefill_s(low, float(tokens)) * (1 + 1e-12)


@given(shapes, st.integers(1, 900), st.integers(1, 30000))
def test_the_replay_takes_the_same_steps(asked: tuple[str, Shape], batch: int, context: int) -> None:
    low = lowered(*asked)
    model = StepModel.of(low.terms, 0, low.memory.kv_bytes[0].tolist())
    read = (model.read_s * context + sum(w.read_s * min(context, w.tokens) for w in model.windows)) * batch
    assert model.batch_s(batch) + read * model.read_share(batch) == pytest.approx(decode_s(low, batch, context), rel=1e-9)
    chunk = low.terms.device_s(np.array([float(context)])) + low.terms.attention_s(np.array([float(context)]), np.zeros(1))[:, 0]
    assert model.prompts_s(context, 0, model.attention_s(0, context), 1) == pytest.approx(float(chunk[0]), rel=1e-9)


@given(shapes, st.floats(1.0, 900.0), st.floats(1e9, 100e9), st.floats(1.0, 4.0))
def test_a_faster_fabric_is_never_slower(asked: tuple[str, Shape], batch: float, fabric: float, more: float) -> None:
    slow, fast = (lowered(*asked, fabric=f) for f in (fabric, fabric * more))
    assert decode_s(fast, batch) <= decode_s(slow, batch) * (1 + 1e-12)
    assert prefill_s(fast, 2000.0) <= prefill_s(slow, 2000.0) * (1 + 1e-12)


@given(shapes, st.floats(1.0, 900.0), st.floats(1.0, 100.0))
def test_more_sequences_take_longer(asked: tuple[str, Shape], batch: float, more: float) -> None:
    low = lowered(*asked)
    assert decode_s(low, batch) <= decode_s(low, batch + more) * (1 + 1e-12)


def test_a_pipeline_of_full_stages_reads_what_one_device_group_reads() -> None:
    """Ideal, two stages: each micro-batch passes all layers, whose weights are read for each of the two."""
    one, two = lowered(LLAMA_405B, Shape(8), "ideal"), lowered(LLAMA_405B, Shape(8, pp=2), "ideal")
    vocabulary = float(128256 * 16384 * 2 / (8 * 4800e9))  # on the last stage, which is taken for the slowest
    hop = 2 * 16 * 16384 * 2.0 / (8 * FABRIC)
    assert decode_s(two, 32.0) == pytest.approx(decode_s(one, 16.0) + vocabulary + hop, rel=1e-9)
    assert decode_s(two, 1.0) >= decode_s(one, 1.0)


def test_groups_share_the_sequences_out_and_repeat_the_attention() -> None:
    """MLA keeps the whole cache on every TP rank; each of eight groups keeps an eighth of the sequences."""
    tp, dp = lowered(DEEPSEEK, Shape(8)), lowered(DEEPSEEK, Shape(8, dp=8))
    assert dp.memory.token_bytes[0] == tp.memory.token_bytes[0]
    facts = resolve_model(DEEPSEEK)
    attention = sum(facts.tensor_bytes(t, "fp8") for t in facts.tensors if t.kind == "attention")
    slack = resolve_engine("sglang").memory.weights_overhead
    assert dp.memory.weight_bytes[0] - tp.memory.weight_bytes[0] == pytest.approx(attention * 7 / 8 * slack, rel=1e-9)
    kv_tp, kv_dp = (float(x.terms.decode_breakdown_s(np.array([64.0]), x.terms.kv_s(4000.0))["kv"][0]) for x in (tp, dp))
    # Eight sequences of all heads against 64 of an eighth: the cache is read once, the work on it is the same.
    assert kv_tp / 8.0 <= kv_dp <= kv_tp * (1 + 1e-9)


def test_one_prompt_keeps_one_group_busy() -> None:
    """Its attention runs on one device of eight, so a lone prompt takes longer, and eight at once hardly longer than it."""
    tp, dp = lowered(DEEPSEEK, Shape(8)), lowered(DEEPSEEK, Shape(8, dp=8))
    assert prefill_s(dp, 8000.0) > prefill_s(tp, 8000.0)
    one = float(dp.terms.chunk_s(np.array([1000.0]))[0])
    eight = float(dp.terms.chunk_s(np.array([8000.0]), np.array([8.0]))[0])
    apart = float(dp.terms.chunk_s(np.array([8000.0]), np.array([1.0]))[0])
    assert one <= eight < apart


def test_expert_ranks_are_woken_unevenly_by_few_tokens_and_evenly_by_many() -> None:
    """One token wakes 8 of 256 experts: one on each of 8 ranks on average, about three on the busiest."""
    ep, tp = lowered(DEEPSEEK, Shape(8, ep=8)), lowered(DEEPSEEK, Shape(8))
    share = 8 / 256
    busiest = share + math.sqrt(2 * math.log(8) * 8 / 256) * math.sqrt(share * (1 - share))
    assert float(ep.terms.woken(np.array([1.0]))[0]) == pytest.approx(busiest, rel=1e-12)
    assert 2.5 < busiest / share < 3.5
    assert float(ep.terms.woken(np.array([2000.0]))[0]) == pytest.approx(float(tp.terms.woken(np.array([2000.0]))[0]), rel=1e-6)
    assert decode_s(ep, 1.0) > decode_s(tp, 1.0)


@pytest.mark.parametrize("shape", [Shape(8, pp=2), Shape(8, pp=4), Shape(4, pp=2)])
def test_stages_divide_weights_and_cache(shape: Shape) -> None:
    whole, stage = lowered(LLAMA_405B, Shape(shape.tp)), lowered(LLAMA_405B, shape)
    share = math.ceil(126 / shape.pp) / 126
    assert stage.memory.token_bytes[0] == pytest.approx(whole.memory.token_bytes[0] * share)
    assert whole.memory.weight_bytes[0] / shape.pp <= stage.memory.weight_bytes[0] < whole.memory.weight_bytes[0] * (share + 0.01)


# ---- between nodes ------------------------------------------------------------------------------------------------------


def test_collectives_between_nodes_are_the_librarys() -> None:
    """The published latencies from which the constants come: 19 us on 8 devices, 46 us on two nodes of 8."""
    assert collectives.gather_latency_s(8, 1) == pytest.approx(19e-6, rel=0.01)
    assert collectives.gather_latency_s(4, 1) == pytest.approx(13e-6, rel=0.05)
    assert collectives.gather_latency_s(8, 2) == pytest.approx(46e-6, rel=0.01)
    assert collectives.crossing_bytes_per_s(8, 50e9) == pytest.approx(368e9)


def test_tp_over_two_nodes_pays_for_every_layer() -> None:
    one, two = lowered(LLAMA_405B, Shape(8)), lowered(LLAMA_405B, Shape(16))
    assert float(two.terms.latency_s[0]) == pytest.approx(126 * 2 * 46e-6, rel=0.01)
    assert float(two.terms.latency_s[0]) > 5 * float(one.terms.latency_s[0])


# ---- what can exist -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (Shape(8, dp=3), "no multiple of DP 3"),
        (Shape(8, ep=3), "no multiple of EP 3"),
        (Shape(8, pp=200), "layers do not fill 200 stages"),
        (Shape(8, dp=8), ""),
        (Shape(8, ep=8), ""),
    ],
)
def test_what_cannot_be_cut(shape: Shape, why: str) -> None:
    asked = problem(model=DEEPSEEK, pool="[{accelerator: h200, nodes: 2, perNode: 8}]")
    found = cut(asked.model, asked.engines[0].weights[0], shape)
    assert why in found if why else not found


JOINED = "[{{accelerator: h200, nodes: {}, perNode: 8, fabric: {{bandwidth: 400Gbps}}}}]"


def test_dense_models_have_no_groups() -> None:
    asked = problem()
    assert "the model has none" in cut(asked.model, asked.engines[0].weights[0], Shape(8, dp=8))


@pytest.mark.parametrize(
    ("pool", "shape", "why"),
    [
        ("[{accelerator: h200, nodes: 2, perNode: 8}]", Shape(16), "fabric: none is declared"),
        ("[{accelerator: h200, nodes: 2, perNode: 8}]", Shape(8, pp=2), "fabric: none is declared"),
        ("[{accelerator: h200, nodes: 2, perNode: 8}]", Shape(4, pp=2), ""),
        (JOINED.format(1), Shape(16), "more accelerators than there are"),
        (JOINED.format(4), Shape(4, pp=3), "does not fill whole nodes"),
        (JOINED.format(4), Shape(16, pp=2), ""),
    ],
)
def test_where_a_replica_can_stand(pool: str, shape: Shape, why: str) -> None:
    asked = problem(pool=pool)
    found = placement(asked.engines[0], asked.pool[0], shape)
    assert why in found if why else not found


def test_an_engine_without_pipelines_gets_none() -> None:
    asked = problem()
    without = dataclasses.replace(asked.engines[0], facts=dataclasses.replace(asked.engines[0].facts, parallel=()))
    assert "has no PP" in placement(without, asked.pool[0], Shape(4, pp=2))


# ---- the choice ---------------------------------------------------------------------------------------------------------

TWO_NODES = "[{{accelerator: {}, nodes: 2, perNode: 8, fabric: {{bandwidth: 400Gbps, rdma: true}}}}]"
CALM = "{rate: 0.3/s, isl: 1000, osl: 200}"


def test_405b_in_bf16_takes_two_nodes_of_h100_and_one_of_h200() -> None:
    """810 GB of weights: more than eight 80 GB devices hold, less than eight of 141 GB."""
    stated = {"model": LLAMA_405B, "traffic": CALM, "slo": "{ttft: 4s, itl: 100ms}", "constraints": "{weights: [bf16]}"}
    role = solve(problem(**stated, pool=TWO_NODES.format("h100"))).choice.roles[0]
    assert role.devices == 16 and (role.tp, role.pp) in ((8, 2), (16, 1))
    role = solve(problem(**stated, pool=TWO_NODES.format("h200"))).choice.roles[0]
    assert (role.devices, role.pp) == (8, 1)


def test_405b_in_bf16_without_a_fabric_does_not_fit() -> None:
    stated = {"model": LLAMA_405B, "traffic": CALM, "constraints": "{weights: [bf16]}"}
    with pytest.raises(InfeasibleError) as caught:
        solve(problem(**stated, pool="[{accelerator: h100, nodes: 2, perNode: 8}]"))
    assert caught.value.bound == "memory"


def test_a_slow_network_makes_a_pipeline_of_a_wide_replica() -> None:
    """All-reduces of every layer over 25 Gbit/s cost more than one hand-over between two stages."""
    full = "{isl: 1000, osl: 200}"
    stated = {"model": LLAMA_405B, "traffic": full, "constraints": "{weights: [bf16]}", "objective": "throughput"}
    slow = TWO_NODES.format("h100").replace("400Gbps", "25Gbps")
    assert solve(problem(**stated, pool=slow)).choice.roles[0].pp == 2


def test_deepseek_is_tensor_parallel_when_idle_and_has_attention_groups_when_full() -> None:
    """As its own team and SGLang's document it: TP for latency, data-parallel attention for throughput."""
    stated = {"model": DEEPSEEK, "pool": "[{accelerator: h200, nodes: 1, perNode: 8}]"}
    calm = solve(problem(**stated, traffic="{concurrency: 1, isl: 1000, osl: 500}", objective="latency"))
    assert (calm.choice.roles[0].tp, calm.choice.roles[0].dp) == (8, 1)
    full = solve(problem(**stated, traffic="{isl: 4000, osl: 1000}", objective="throughput"))
    assert full.choice.roles[0].dp > 1


@pytest.mark.parametrize("key", ["tp: [8]", "pp: [2]", "dp: [2]", "ep: [4]"])
def test_degrees_that_the_spec_names_are_taken(key: str) -> None:
    name, value = key.split(": ")
    stated = {"model": QWEN_MOE, "traffic": CALM, "pool": TWO_NODES.format("h200")}
    tp = "" if name == "tp" else "tp: [4], "
    role = solve(problem(**stated, constraints=f"{{{tp}{key}, topology: aggregated}}")).choice.roles[0]
    assert getattr(role, name) == int(value.strip("[]"))
