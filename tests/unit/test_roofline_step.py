"""Steps and memory: published vectors through ``lower``, sums over chunks, limits and directions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegen.catalog.accelerators import list_accelerators, resolve_accelerator
from servegen.catalog.engines import resolve_engine
from servegen.catalog.facts import BYTES_PER_WEIGHT, AcceleratorFacts, ModelFacts
from servegen.catalog.models import resolve_model
from servegen.lower import Config, Lowered, lower
from servegen.roofline import attention, collectives, memory
from servegen.roofline.step import join, take

SGLANG = resolve_engine("sglang")
LLAMA_70B = resolve_model("meta-llama/Llama-3.1-70B")


def textbook_h100(mfu: float = 1.0) -> AcceleratorFacts:
    """The vectors' own H100: 990 TFLOP/s in every dtype, 3.35 TB/s, 80 GB, links that take no time."""
    h100 = resolve_accelerator("h100")
    peak = dict.fromkeys(h100.peak_flops, 9.9e14 * mfu)
    return dataclasses.replace(
        h100, peak_flops=peak, hbm_bytes_per_s=3.35e12, hbm_bytes=8e10, usable_bytes=8e10, link_bytes_per_s=math.inf
    )


def round_parameters(model: ModelFacts, params: int) -> ModelFacts:
    """The same layers with exactly ``params`` weights and no vocabulary, as the vectors count them."""
    (one,) = [t for t in model.tensors if t.kind == "mlp"][:1]
    size = dataclasses.replace(one, params=params, active=params, stored_bytes=2 * params, quantizable=True)
    return dataclasses.replace(model, vocab_size=0, tensors=(size,))


def ideal(model: ModelFacts, weights: str, kv: str, tp: int, mfu: float = 1.0) -> Lowered:
    return lower(model, SGLANG, [Config(textbook_h100(mfu), weights, kv, tp)], "ideal")


STEPS = [
    ("D40", "bf16", "fp8", 1, 4096, 5.24892122e-3, 0.01),
    ("D41", "bf16", "fp8", 32, 4096, 6.02518047e-3, 0.01),
    ("D42", "bf16", "fp8", 128, 4096, 8.42908007e-3, 0.01),
    ("D43", "bf16", "fp8", 128, 8192, 11.6342795e-3, 0.01),
    ("D44", "bf16", "fp8", 256, 8192, 18.0446785e-3, 0.01),
    ("H80", "fp8", "fp8", 1, 8192, 2.66202154e-3, 0.001),
    ("H81", "fp8", "fp8", 424, 8192, 28.729396e-3, 0.001),
    ("I14", "bf16", "bf16", 32, 4096, 6.82648033e-3, 0.001),
]


@pytest.mark.parametrize(("vector", "weights", "kv", "batch", "context", "expected_s", "tolerance"), STEPS)
def test_decode_vectors(
    vector: str, weights: str, kv: str, batch: int, context: int, expected_s: float, tolerance: float
) -> None:
    terms = ideal(round_parameters(LLAMA_70B, 70_000_000_000), weights, kv, 8).terms
    assert terms.decode_s(np.array([float(batch)]), terms.kv_s(float(context)))[0] == pytest.approx(expected_s, rel=tolerance)


@pytest.mark.parametrize("vector", STEPS[:5], ids=lambda v: v[0])
def test_decode_vectors_with_the_models_own_parameters(vector: tuple[Any, ...]) -> None:
    """The real 70.55 billion parameters, without the input embedding that no step reads, stay inside the printed per cent."""
    _, weights, kv, batch, context, expected_s, tolerance = vector
    terms = ideal(LLAMA_70B, weights, kv, 8).terms
    assert terms.decode_s(np.array([float(batch)]), terms.kv_s(float(context)))[0] == pytest.approx(expected_s, rel=tolerance)


def test_prefill_vector_without_attention() -> None:
    """D57: 2*P*S/(n*C*mfu)."""
    low = ideal(round_parameters(LLAMA_70B, 70_000_000_000), "bf16", "bf16", 4, mfu=0.4)
    assert low.terms.chunk_s(np.array([32768.0]))[0] == pytest.approx(2896.16162e-3, rel=0.01)


def test_prefill_vector_with_attention() -> None:
    """D58: causal attention adds 2*L*N*H*S^2."""
    low = ideal(round_parameters(LLAMA_70B, 70_000_000_000), "bf16", "bf16", 8, mfu=0.4)
    whole = low.terms.prefill_s(np.array([32768.0]), np.array([32768.0]), np.array([32768.0]))
    assert whole[0, 0] == pytest.approx(1892.32793e-3, rel=0.001)


MODELS = (
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B",
    "Qwen/Qwen3-32B",
    "mistralai/Mixtral-8x7B-v0.1",
    "deepseek-ai/DeepSeek-V3",
    "google/gemma-3-27b-it",
    "openai/gpt-oss-120b",
)


def pairs() -> list[tuple[AcceleratorFacts, str, int]]:
    out = []
    for name in list_accelerators():
        acc = resolve_accelerator(name)
        for weights in acc.gemm:
            out += [(acc, weights, tp) for tp in (1, *acc.allreduce_alpha_s)]
    return out


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", ["sglang", "vllm", "megatron", "jetstream"])
def test_no_prediction_is_below_the_ideal_roofline(model: str, engine: str) -> None:
    """Every accelerator, weight precision and TP at once: decode steps, prefills and weights' room."""
    facts, constants = resolve_model(model), resolve_engine(engine)
    configs = [Config(acc, w, kv, tp) for acc, w, tp in pairs() for kv in ("bf16", "fp8")]
    real, floor = lower(facts, constants, configs, "calibrated"), lower(facts, constants, configs, "ideal")
    for batch in (1.0, 7.0, 64.0, 700.0):
        for context in (1.0, 900.0, 20000.0):
            n = np.full(len(configs), batch)
            above = real.terms.decode_s(n, real.terms.kv_s(context)), floor.terms.decode_s(n, floor.terms.kv_s(context))
            assert np.all(above[0] >= above[1])
    chunk = np.full(len(configs), 2048.0)
    new, whole = np.array([1.0, 300.0, 5000.0, 60000.0]), np.array([1.0, 2000.0, 5000.0, 61000.0])
    assert np.all(real.terms.prefill_s(new, whole, chunk) >= floor.terms.prefill_s(new, whole, chunk))
    assert np.all(real.memory.weight_bytes >= floor.memory.weight_bytes)


def some(model: str = "meta-llama/Llama-3.1-70B") -> Lowered:
    h100 = resolve_accelerator("h100")
    configs = [Config(h100, w, kv, tp) for w in ("bf16", "fp8") for kv in ("bf16", "fp8") for tp in (1, 2, 4, 8)]
    return lower(resolve_model(model), SGLANG, configs)


@pytest.mark.parametrize("model", MODELS)
def test_the_breakdowns_sum_to_the_times(model: str) -> None:
    terms = some(model).terms
    for batch in (0.5, 3.0, 80.0, 600.0):
        n, kv_s = np.full(16, batch), terms.kv_s(1500.0)
        parts = terms.decode_breakdown_s(n, kv_s)
        np.testing.assert_allclose(sum(parts.values()), terms.decode_s(n, kv_s), rtol=1e-12)
    for new, whole, chunk in ((700.0, 700.0, 512.0), (1024.0, 4096.0, 512.0), (31.5, 40.0, 8192.0), (9000.0, 9001.0, 2048.0)):
        sizes = np.full(16, chunk)
        parts = terms.prefill_breakdown_s(new, whole, sizes)
        np.testing.assert_allclose(
            sum(parts.values()), terms.prefill_s(np.array([new]), np.array([whole]), sizes)[:, 0], rtol=1e-9
        )


@given(new=st.integers(1, 30000), cached=st.integers(0, 5000), chunk=st.sampled_from([512, 1024, 4096, 16384]))
def test_a_prefill_is_the_sum_of_its_chunks(new: int, cached: int, chunk: int) -> None:
    terms = some().terms
    sizes = [chunk] * (new // chunk) + ([new % chunk] if new % chunk else [])
    steps = sum(terms.chunk_s(np.full(16, float(s))) for s in sizes)
    done, pairs_seen = cached, 0.0
    for s in sizes:
        pairs_seen += (done + s) ** 2 - done**2
        done += s
    expected = steps + terms.pair_s[:, 0] * pairs_seen + terms.sequence_s
    got = terms.prefill_s(np.array([float(new)]), np.array([float(new + cached)]), np.full(16, float(chunk)))[:, 0]
    np.testing.assert_allclose(got, expected, rtol=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_more_work_takes_longer(model: str) -> None:
    terms = some(model).terms
    batches = np.array([1.0, 2, 5, 20, 100, 500, 2000])
    steps = np.array([terms.decode_s(np.full(16, b), terms.kv_s(1000.0)) for b in batches])
    assert np.all(np.diff(steps, axis=0) > 0)
    assert np.all(np.diff(steps / batches[:, None], axis=0) <= 1e-15), "a larger batch never costs more per sequence"
    held = np.array([terms.kv_s(c) for c in (1.0, 10.0, 1000.0, 4000.0, 90000.0)])
    assert np.all(np.diff(held, axis=0) >= 0)
    prompts = np.array([1.0, 100, 512, 513, 2000, 2049, 9000])
    times = terms.prefill_s(prompts, prompts, np.full(16, 2048.0))
    assert np.all(np.diff(times, axis=1) > 0)


def test_a_wider_split_never_holds_more_per_device() -> None:
    low = some()
    by_tp = low.memory.weight_bytes.reshape(4, 4)
    assert np.all(np.diff(by_tp, axis=1) < 0)
    assert np.all(np.diff(low.memory.token_bytes.reshape(4, 4), axis=1) < 0)
    wide = lower(LLAMA_70B, SGLANG, [Config(resolve_accelerator("h100"), "bf16", "bf16", tp) for tp in (8, 16, 32)], "ideal")
    assert np.all(wide.memory.token_bytes == wide.memory.token_bytes[0]), "beyond one KV head per device the cache is repeated"
    assert np.all(wide.memory.weight_bytes * np.array([8, 16, 32]) >= LLAMA_70B.weight_bytes("bf16"))


def test_take_and_join_are_inverse() -> None:
    terms = some().terms
    parts = [take(terms, np.array([i])) for i in range(16)]
    again = join(parts)
    for field in dataclasses.fields(terms):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(terms, field.name))


def test_windows_bound_what_a_query_reads() -> None:
    windows = np.array([0.0, 1024.0])
    np.testing.assert_array_equal(attention.visible_tokens(np.array([10.0, 5000.0]), windows), [[10.0, 10.0], [5000.0, 1024.0]])
    full = attention.causal_pairs(np.array([3000.0]), np.array([0.0]), windows)
    assert full[0, 0] == 9e6
    # 1024 tokens see all before them, the other 1976 see 1024 each: twice the pairs.
    assert full[0, 1] == 1024**2 + 2 * 1024 * 1976
    parts = [
        attention.causal_pairs(np.array([b]), np.array([a]), windows)
        for a, b in ((0.0, 900.0), (900.0, 2048.0), (2048.0, 3000.0))
    ]
    np.testing.assert_allclose(sum(parts), full)


def test_a_batch_wakes_the_experts_that_uniform_routing_hits() -> None:
    """F43: one token reads k experts, a large batch all of them: E*(1-(1-k/E)^B)."""
    mixtral = resolve_model("mistralai/Mixtral-8x7B-v0.1")
    terms = ideal(mixtral, "bf16", "bf16", 1).terms
    all_experts = sum(t.stored_bytes for t in mixtral.tensors if t.kind == "expert") / 3.35e12
    assert terms.expert_s[0] == pytest.approx(all_experts)
    for batch, share in ((1.0, 2 / 8), (2.0, 1 - 0.75**2), (64.0, 1 - 0.75**64)):
        streamed = terms.gemm_s(np.array([batch]))[0] - terms.weight_s[0]
        assert streamed == pytest.approx(all_experts * share)


def test_multiplying_takes_over_at_the_critical_batch() -> None:
    """C05 (F12): 295.5 tokens for bf16 on H100; without a vocabulary nothing else is streamed."""
    terms = ideal(round_parameters(LLAMA_70B, 70_000_000_000), "bf16", "bf16", 8).terms
    assert terms.weight_s[0] / terms.token_flop_s[0] == pytest.approx(295.522388)


def test_a_rings_bytes() -> None:
    """G14 and G15: 163 840 bytes over four devices at 450 GB/s, 80 times."""
    wire = collectives.allreduce_wire_bytes(163840.0, 4) / 4.5e11
    assert wire == pytest.approx(0.546133333e-6)
    assert 80 * wire == pytest.approx(0.0436906667e-3)
    assert 80 * (2.83e-6 + collectives.allreduce_wire_bytes(163840.0, 4) / 2.28e11) == pytest.approx(0.312631579e-3, rel=0.01)
    assert collectives.allreduce_wire_bytes(163840.0, 1) == 0.0


@pytest.mark.parametrize(("heads", "tp", "mine"), [(8, 1, 8), (8, 4, 2), (8, 8, 1), (8, 16, 1), (0, 4, 0)])
def test_kv_heads(heads: int, tp: int, mine: int) -> None:
    assert attention.kv_heads_per_device(heads, tp) == mine


def test_handoff_passes_through_its_published_points() -> None:
    moved = collectives.handoff_s(np.array([20e6, 4.50e9]), np.array([2e11, 2e11]))
    np.testing.assert_allclose(moved, [0.54e-3, 31.65e-3], rtol=0.05)


@given(pool=st.floats(0, 1e7), mean=st.floats(1, 1e5), spread=st.floats(0, 3), z=st.sampled_from([0.0, 1.645, 2.326]))
def test_largest_batch_fills_the_pool_exactly(pool: float, mean: float, spread: float, z: float) -> None:
    batch = memory.largest_batch(np.array([pool]), np.array([mean]), np.array([mean * spread]), z)[0]
    assert batch >= 0
    assert batch * mean + z * math.sqrt(batch) * mean * spread == pytest.approx(pool, rel=1e-6, abs=1e-6 * mean)


@given(share=st.floats(-0.5, 1.0))
def test_a_static_fraction_is_rounded_down_to_thousandths(share: float) -> None:
    fraction = memory.static_fraction(np.array([share]))[0]
    assert 0 <= fraction <= max(share, 0.0) + 1e-9
    assert share <= 0 or fraction > share - 1.001e-3
    assert fraction == pytest.approx(round(fraction, 3), abs=1e-12)


def test_pools_and_reserves() -> None:
    pool = memory.pool_bytes(np.array([100.0, 100.0]), np.array([0.9, 0.5]), np.array([60.0, 60.0]))
    np.testing.assert_allclose(pool, [30.0, -10.0])
    assert memory.runtime_bytes(np.array([0.0]))[0] == pytest.approx(2.3 * 2**30)
    assert memory.activation_bytes(np.array([10.0]), 5.0, 7.0, np.array([2.0]))[0] == 10 * (5 + 7) * 2
    assert memory.logits_bytes(np.array([3.0]), 1000.0, np.array([4.0]))[0] == 3000.0


@pytest.mark.parametrize("weights", ["bf16", "fp8", "int4"])
def test_narrow_weights_stream_in_proportion(weights: str) -> None:
    """Only the matrices shrink: the vocabulary keeps 16 bits."""
    params = sum(t.params for t in LLAMA_70B.tensors if t.kind in ("attention", "mlp"))
    vocabulary = LLAMA_70B.vocab_size * LLAMA_70B.hidden_size * 2
    low = ideal(LLAMA_70B, weights, "bf16", 1)
    assert low.terms.weight_s[0] * 3.35e12 == pytest.approx(params * BYTES_PER_WEIGHT[weights] + vocabulary, rel=1e-9)


def test_rows_are_taken_by_number() -> None:
    """A mask that is taken for numbers would give rows 0 and 1 again and again."""
    h100 = resolve_accelerator("h100")
    terms = lower(LLAMA_70B, SGLANG, [Config(h100, "bf16", "bf16", tp) for tp in (4, 8)]).terms
    assert take(terms, np.array([1, 1, 0])).weight_s.tolist() == terms.weight_s[[1, 1, 0]].tolist()
    with pytest.raises(TypeError, match="by number"):
        take(terms, np.array([True, False]))
