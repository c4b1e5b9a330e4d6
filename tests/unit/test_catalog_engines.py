from __future__ import annotations

import math
import statistics

import pytest

from servegen.catalog.accelerators import resolve_accelerator
from servegen.catalog.engines import gemm_of, list_engines, resolve_engine
from servegen.catalog.facts import Constant, EngineFacts
from servegen.catalog.loader import explain
from servegen.errors import CatalogError
from tests.tools import streaming

MIB = 2**20
FITTED = ("sglang", "vllm", "tensorrt-llm")

every_engine = pytest.mark.parametrize("name", list_engines())


def constants(facts: EngineFacts) -> dict[str, Constant]:
    return {name: value for name, value in vars(facts).items() if isinstance(value, Constant)}


def test_the_engines() -> None:
    assert list_engines() == (
        "jetstream", "llama-cpp", "megatron", "minisgl", "sglang", "sglang-jax", "tensorrt-llm", "vllm", "vllm-2023"
    )  # fmt: skip


@every_engine
def test_figures_are_physical(name: str) -> None:
    facts = resolve_engine(name)
    assert facts.id == name
    assert 1e-4 < facts.step_s.value < 1e-2
    assert 1e-6 < facts.layer_s.value < 1e-3
    assert 1e-6 < facts.sequence_s.value < 1e-3
    assert 1e-3 < facts.request_s.value < 0.2
    assert 0 < facts.kv_efficiency.value <= 1
    assert 0 < facts.attention_efficiency.value <= 1
    # the host launched every all-reduce before CUDA graphs held them
    assert 0.5 < facts.allreduce_latency_factor.value < (20 if name == "vllm-2023" else 2)
    assert 0.3 < facts.allreduce_bandwidth_factor.value < 2
    assert facts.token_budget >= 1024
    assert facts.schedulers and facts.vendors
    assert "bf16" in facts.weights and "bf16" in facts.kv_cache
    assert set(facts.quantize_on_load) <= set(facts.weights)
    rule = facts.memory
    assert rule.context_bytes >= 5e8
    assert 0 <= rule.usable_share <= 0.2
    assert rule.floor_bytes < rule.floor_above_bytes or rule.floor_bytes == rule.floor_above_bytes == 0
    assert rule.weights_overhead >= 1
    assert 0 < rule.kv_reserve_osl <= 1
    assert all(0.01 < c.value < 2 for c in facts.band.values())
    assert all(0.1 < g.ew <= 1 and 0.05 < g.ec <= 1 for g in facts.kernels.values())
    assert all(0.1 < share <= 1 for share in facts.kv_share.values())
    assert set(facts.images) <= set(facts.versions)


@every_engine
def test_every_number_has_a_source(name: str) -> None:
    facts = resolve_engine(name)
    figures = explain(facts)
    assert [f.path for f in figures if not f.source] == []
    assert set(constants(facts)) <= {f.path for f in figures}
    assert {f.path: f.unit for f in figures}["layer_s"] == "s"
    assert facts.memory.source


@every_engine
def test_errors_say_how_a_constant_came_about(name: str) -> None:
    for key, constant in constants(resolve_engine(name)).items():
        if constant.origin == "fitted":
            assert constant.rows > 0
            assert constant.date
        else:
            assert (constant.rows, constant.fit_error) == (0, 0.118), key


@pytest.mark.parametrize("name", FITTED)
def test_fitted_engines(name: str) -> None:
    facts = resolve_engine(name)
    assert 0.3e-3 < facts.step_s.value < 2e-3
    assert 15e-6 < facts.layer_s.value < 60e-6
    # a step that a graph does not hold costs the host ten times what one that it holds does
    assert 5 < facts.prompt_layer_s.value / facts.layer_s.value < 30
    assert 10e-6 < facts.sequence_s.value < 80e-6
    assert 20e-3 < facts.request_s.value < 100e-3
    shared = ("kv_efficiency", "attention_efficiency", "allreduce_latency_factor", "allreduce_bandwidth_factor")
    # fitted as one value for all engines
    assert all(getattr(facts, n) == getattr(resolve_engine("vllm"), n) for n in shared)
    assert {c.origin for c in constants(facts).values()} == {"fitted"}
    assert all(0 < c.fit_error < 0.5 and c.rows >= 80 for c in constants(facts).values())
    assert facts.band["itl"].value < facts.band["ttft"].value
    assert all(c.origin == "fitted" and c.rows >= 80 for c in facts.band.values())


@pytest.mark.parametrize("name", ["jetstream", "megatron", "minisgl"])
def test_the_others_start_at_the_priors(name: str) -> None:
    facts = resolve_engine(name)
    assert (facts.step_s.value, facts.layer_s.value, facts.sequence_s.value, facts.request_s.value) == (1e-3, 15e-6, 8e-6, 15e-3)
    assert facts.request_s.origin == "default"
    fitted = [resolve_engine(f).band["itl"].value for f in FITTED]
    assert facts.band["itl"].value > max(fitted) and facts.band["itl"].origin == "default"


def test_kernels_of_an_engine_stand_before_those_of_the_accelerator() -> None:
    llama, vllm, a100 = resolve_engine("llama-cpp"), resolve_engine("vllm"), resolve_accelerator("a100-sxm-80gb")
    assert gemm_of(llama, a100, "bf16").ew < 0.7 * a100.gemm["bf16"].ew
    assert gemm_of(vllm, a100, "bf16") is a100.gemm["bf16"]


def test_llama_cpp_on_a_device_without_rows_follows_its_rule() -> None:
    text = streaming.FILE.read_text("utf-8")
    assert [line for line in streaming.lines() if line not in text] == [], "python -m tests.tools.streaming --write"
    misses = [abs(e) for precision in ("bf16", "int4") for e in streaming.left_out(precision).values()]
    assert statistics.median(misses) < 0.15 and max(misses) < 0.3
    # more bandwidth is never slower
    rule = streaming.rule(streaming.known("bf16"))
    by_width = sorted((resolve_accelerator(d).hbm_bytes_per_s, d) for d in ("l4-24gb", "a10g-24gb", "b200-sxm-180gb"))
    rates = [w * streaming.share_of(d, rule) for w, d in by_width]
    assert rates == sorted(rates)


def test_vllm_2023_agrees_with_the_published_shares_of_bandwidth() -> None:
    published = {("a100-sxm-80gb", 2039e9): (0.62, 0.38, 0.19), ("h100-sxm-80gb", 3350e9): (0.56, 0.35, 0.17)}
    facts = resolve_engine("vllm-2023")
    errors = []
    for (name, bandwidth), shares in published.items():
        accelerator = resolve_accelerator(name)
        for tp, share in zip((2, 4, 8), shares, strict=True):
            floor_s = 2 * 70e9 / tp / bandwidth
            fixed_s = facts.step_s.value + 80 * facts.layer_s.value
            fixed_s += 160 * facts.allreduce_latency_factor.value * accelerator.allreduce_alpha_s[tp]
            predicted_s = floor_s / accelerator.gemm["bf16"].ew + fixed_s
            errors.append(abs(predicted_s / (floor_s / share) - 1))
    assert statistics.mean(errors) < 0.15


def test_sglang_reserves_what_its_own_rule_does() -> None:
    rule = resolve_engine("sglang").memory
    chunk, graphs, devices = 8192, 256, 1
    reserve = (
        rule.context_bytes
        + rule.per_chunk_token_bytes * chunk
        + rule.per_device_bytes * devices
        + rule.per_graph_sequence_bytes * graphs
    )
    assert reserve == (512 + 1.5 * chunk + devices / 8 * 1024 + 2 * graphs) * MIB == 13440 * MIB
    assert (rule.floor_bytes, rule.floor_above_bytes) == (10 * 1024 * MIB, 60 * 1024 * MIB)
    assert rule.kv_reserve_osl == 0.6


@pytest.mark.parametrize("name", [n for n in list_engines() if n != "sglang"])
def test_the_others_reserve_what_the_fit_did(name: str) -> None:
    rule = resolve_engine(name).memory
    assert rule.context_bytes == 4e9
    assert rule.usable_share == 0.1
    assert rule.floor_bytes == 0
    whole_output = {"tensorrt-llm", "megatron", "jetstream", "llama-cpp"}
    assert rule.kv_reserve_osl == (1.0 if name in whole_output else 0.6)


def test_what_each_engine_can_do() -> None:
    by_name = {name: resolve_engine(name) for name in list_engines()}
    assert {n for n, e in by_name.items() if e.predicts_only} == {"tensorrt-llm", "llama-cpp", "vllm-2023"}
    assert {n for n, e in by_name.items() if e.renders} == {"sglang", "megatron"}
    assert {n for n, e in by_name.items() if e.disaggregation} == {"sglang", "vllm"}
    assert by_name["sglang"].schedulers == ("prefill-first", "mixed")
    assert by_name["megatron"].schedulers == ("static",)
    assert by_name["minisgl"].schedulers == ("prefill-first",)
    assert by_name["vllm"].schedulers == ("mixed",)
    assert by_name["jetstream"].vendors == ("google",)
    assert "fp8" in by_name["sglang"].quantize_on_load
    assert by_name["sglang"].images == {"0.5.23": "lmsysorg/sglang:v0.5.23"}
    assert by_name["vllm"].images == {"0.32.0": "vllm/vllm-openai:v0.32.0"}
    assert by_name["megatron"].images == {}
    # a runnable engine has a version to render for
    assert all(e.versions for e in by_name.values() if not e.predicts_only)


@pytest.mark.parametrize(
    ("name", "means"),
    [("SGLang", "sglang"), ("trtllm", "tensorrt-llm"), ("TensorRT_LLM", "tensorrt-llm"), ("llama.cpp", "llama-cpp"),
     ("mini-sglang", "minisgl"), ("sglang_jax", "sglang-jax"), ("vllm-2023", "vllm-2023")],
)  # fmt: skip
def test_names_and_aliases(name: str, means: str) -> None:
    assert resolve_engine(name) is resolve_engine(means)


def test_a_version_is_kept_or_refused() -> None:
    assert resolve_engine("sglang@0.5.23").versions == ("0.5.23",)
    with pytest.raises(CatalogError, match=r"version '0\.4\.0' of sglang") as caught:
        resolve_engine("SGLang@0.4.0")
    assert "0.5.23" in caught.value.diagnostics[0].hint
    with pytest.raises(CatalogError, match="version"):
        resolve_engine("sglang@")
    with pytest.raises(CatalogError, match="version"):
        resolve_engine("trtllm@1.0")


@pytest.mark.parametrize(("name", "near"), [("sglan", "sglang"), ("vlm", "vllm"), ("megatrn", "megatron")])
def test_an_unknown_name_lists_the_nearest(name: str, near: str) -> None:
    with pytest.raises(CatalogError, match="there is no engine") as caught:
        resolve_engine(name)
    assert near in caught.value.diagnostics[0].hint


def test_bands_have_no_error_of_their_own() -> None:
    assert all(math.isnan(c.fit_error) for c in resolve_engine("sglang").band.values())
