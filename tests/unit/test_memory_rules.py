"""Memory to the gigabyte: engines' own rules and logs, and what must hold whatever the model and the device."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from servegen.catalog import calibration
from servegen.catalog.accelerators import list_accelerators, resolve_accelerator
from servegen.catalog.engines import list_engines, resolve_engine
from servegen.catalog.facts import Attention, ModelFacts
from servegen.catalog.models import list_models, resolve_model
from servegen.lower import Config, Lowered, lower
from servegen.roofline import memory as mem
from servegen.solve import estimate as estimates
from servegen.solve.estimate import EstimateRequest, MemoryFigures
from servegen.solve.problem import WeightOption
from servegen.solve.space import Shape, cut

GIB = 2.0**30
MIB = 2.0**20


def told(model: str, accelerator: str, tp: int, **changes: object) -> MemoryFigures:
    """The memory that `servegen estimate` tells of a configuration."""
    request = EstimateRequest(model=model, accelerator=accelerator, tp=tp, **changes)  # type: ignore[arg-type]
    return estimates.estimate(request).memory


# -- rules of engines, written down from their own documents ------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """A configuration with its published figures: weights in bytes, cache by layers, KV heads and head width."""

    model: str
    accelerator: str
    tp: int
    weight_bytes: float
    layers: int
    kv_heads: int
    head_dim: int
    weights: str = ""
    kv: str = "bf16"
    chunk: int = 8192
    batch: int = 160

    @property
    def device_bytes(self) -> float:
        return resolve_accelerator(self.accelerator).usable_bytes

    @property
    def token_bytes(self) -> float:
        """Cache of one token on one device; with more devices than heads each keeps one head."""
        heads = max(self.kv_heads / self.tp, 1.0)
        return 2.0 * self.layers * heads * self.head_dim * (1.0 if self.kv == "fp8" else 2.0)

    @property
    def share(self) -> float:
        """Weights on one device."""
        return self.weight_bytes / self.tp

    def tokens(self, engine: str) -> float:
        """Tokens that fit by the product."""
        figures = told(
            self.model,
            self.accelerator,
            self.tp,
            weights=self.weights,
            kv=self.kv,
            chunk=self.chunk,
            batch=self.batch,
            engine=engine,
        )
        return figures.kv_pool_bytes / figures.kv_bytes_per_token

    def sglang(self) -> float:
        """SGLang's default for --mem-fraction-static: MiB of 512 + 1.5 x max(chunk, 2048) + tp/8 GiB + 2 x graph batch, at least
        10 GiB above 60 GiB; the pool is what the fraction leaves beside the weights."""
        reserved = 512 * MIB + 1.5 * MIB * max(self.chunk, 2048) + self.tp / 8 * 1024 * MIB + 2 * MIB * self.batch
        if self.device_bytes > 60 * GIB:
            reserved = max(reserved, 10 * GIB)
        fraction = (self.device_bytes - reserved) / self.device_bytes
        return (fraction * self.device_bytes - self.share) / self.token_bytes

    def vllm(self) -> float:
        """vLLM: 0.9 of the device less weights, 0.27 GiB (one device) or 2.1 GiB outside of torch, 1.26 GiB at the peak."""
        outside = 0.27 * GIB if self.tp == 1 else 2.1 * GIB
        return (0.9 * self.device_bytes - self.share - outside - 1.26 * GIB) / self.token_bytes

    def kaito(self) -> float:
        """What fits at all by KAITO: files grow to 1.02 in memory, and 2.3 GiB and 5 % of the weights come on top."""
        return (self.device_bytes - 1.02 * self.share - 2.3 * GIB - 0.05 * self.share) / self.token_bytes


P8, P32, P70, P405, P30 = 8_030_261_248, 32_762_123_264, 70_553_706_496, 405_853_388_800, 30_532_122_624
#: The vocabulary of Llama 3.1 70B and 405B, twice as it is untied, which stays in bf16 when the rest is fp8.
V70, V405 = 2 * 128256 * 8192, 2 * 128256 * 16384

CASES = {
    "8b-h100-tp1": Served("meta-llama/Llama-3.1-8B", "h100", 1, 2.0 * P8, 32, 8, 128),
    "8b-h100-tp2": Served("meta-llama/Llama-3.1-8B", "h100", 2, 2.0 * P8, 32, 8, 128),
    "8b-l40s-tp1": Served("meta-llama/Llama-3.1-8B", "l40s", 1, 2.0 * P8, 32, 8, 128, chunk=2048, batch=24),
    "32b-h100-tp2": Served("Qwen/Qwen3-32B", "h100", 2, 2.0 * P32, 64, 8, 128),
    "32b-h200-tp1": Served("Qwen/Qwen3-32B", "h200", 1, 2.0 * P32, 64, 8, 128, batch=256),
    "70b-h100-tp4": Served("meta-llama/Llama-3.1-70B", "h100", 4, 2.0 * P70, 80, 8, 128),
    "70b-h100-tp8": Served("meta-llama/Llama-3.1-70B", "h100", 8, 2.0 * P70, 80, 8, 128, chunk=2048),
    "70b-fp8-h100-tp2": Served("meta-llama/Llama-3.1-70B", "h100", 2, P70 + V70, 80, 8, 128, weights="fp8", kv="fp8", chunk=4096),
    "70b-mi300x-tp1": Served("meta-llama/Llama-3.1-70B", "mi300x", 1, 2.0 * P70, 80, 8, 128),
    "405b-fp8-h200-tp8": Served("meta-llama/Llama-3.1-405B", "h200", 8, P405 + V405, 126, 8, 128, weights="fp8"),
    "30b-a3b-h100-tp2": Served("Qwen/Qwen3-30B-A3B", "h100", 2, 2.0 * P30, 48, 4, 128),
    "30b-a3b-h100-tp8": Served("Qwen/Qwen3-30B-A3B", "h100", 8, 2.0 * P30, 48, 4, 128),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every_case
def test_the_pool_is_what_sglangs_rule_gives_and_fits(case: Served) -> None:
    assert case.tokens("sglang") == pytest.approx(case.sglang(), rel=0.05)
    assert case.tokens("sglang") <= case.kaito()


@every_case
def test_the_pool_is_what_vllms_rule_gives_and_fits(case: Served) -> None:
    # The product takes 4 GB off whatever the device; alone on a small or nearly full one that is more than vLLM needs.
    below = 0.05 if case.accelerator in ("h100", "h200") else 0.10
    assert (1 - below) * case.vllm() <= case.tokens("vllm") <= 1.05 * case.vllm()
    assert case.tokens("vllm") <= case.kaito()


def test_the_reserve_is_at_least_what_a_process_takes() -> None:
    """Whatever the chunk: KAITO's 2.3 GiB and 5 % of the weights stay free."""
    half = 2 * 151936 * 5120  # the vocabulary of Qwen3 32B, twice, stays in bf16
    case = Served("Qwen/Qwen3-32B", "l40s", 1, P32 + half, 64, 8, 128, weights="fp8", chunk=512, batch=1)
    free = case.device_bytes - 1.05 * case.share - 2.3 * GIB
    assert 0.9 * free < case.tokens("sglang") * case.token_bytes <= free


def test_more_devices_than_kv_heads_hold_copies_of_cache_and_projections() -> None:
    """Qwen3 30B: 48 layers, width 2048, 4 KV heads of 128; on 8 devices each head stands twice."""
    four, eight = (_lowered(resolve_model("Qwen/Qwen3-30B-A3B"), "h100", tp).memory for tp in (4, 8))
    assert eight.token_bytes[0] == four.token_bytes[0] == 48 * 2 * 128 * 2
    assert 8 * eight.weight_bytes[0] - 4 * four.weight_bytes[0] == pytest.approx(48 * 2 * 2048 * 4 * 128 * 2, rel=1e-3)


# -- what engines wrote into their logs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Log:
    """KV tokens that an engine reported at start. ``fraction`` is what it was told to take."""

    source: str
    model: str
    accelerator: str
    tp: int
    fraction: float
    tokens: float
    weights: str = "bf16"


LOGS = {
    "sglang-8b-h100": Log(
        "docs.sglang.ai/start/send_request.html, 2025-01-23", "meta-llama/Llama-3.1-8B", "h100", 1, 0.88, 444_500
    ),
    "sglang-8b-h100-fa3": Log("sgl-project/sglang pull 4760, 2025-03-25", "meta-llama/Llama-3.1-8B", "h100", 1, 0.88, 442_750),
    "sglang-235b-h100-tp4": Log("vllm-project/vllm issue 21348", "Qwen/Qwen3-235B-A22B-FP8", "h100", 4, 0.93, 367_404, "fp8"),
    "sglang-r1-h200-tp8": Log("ai-dynamo/aisimulate pull 263", "deepseek-ai/DeepSeek-R1", "h200", 8, 0.82, 509_000, "fp8"),
    # vLLM's fraction is 0.9 of the device; its own 4 GB come off the pool.
    "vllm-8b-h100": Log("vllm-project/vllm pull 10511", "meta-llama/Llama-3.1-8B", "h100", 1, 0.0, 53.29 * GIB / 131072),
    "vllm-8b-h100-tp2": Log("vllm-project/vllm pull 10511", "meta-llama/Llama-3.1-8B", "h100", 2, 0.0, 58.97 * GIB / 65536),
}


def logged(log: Log) -> float:
    """Tokens of the pool by the product, at the fraction of the log or by the engine's rule."""
    if not log.fraction:
        figures = told(log.model, log.accelerator, log.tp, engine="vllm")
        return figures.kv_pool_bytes / figures.kv_bytes_per_token
    row = lower(
        resolve_model(log.model),
        resolve_engine("sglang"),
        [Config(resolve_accelerator(log.accelerator), log.weights, "bf16", log.tp)],
    ).memory
    # The fraction applies to what is free once the process and its communicator are up.
    rule = resolve_engine("sglang").memory
    setup = rule.setup_parallel_bytes if log.tp > 1 else rule.setup_bytes
    pool = mem.pool_bytes(row.usable_bytes - setup, np.array([log.fraction]), row.weight_bytes)
    return float((pool / row.token_bytes)[0])


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_the_pool_is_what_the_engine_logged(log: Log) -> None:
    assert logged(log) == pytest.approx(log.tokens, rel=0.05)


def test_weights_and_cache_of_a_published_model() -> None:
    model = resolve_model("meta-llama/Llama-3.1-70B")
    assert model.params_total == P70
    assert round(model.weight_bytes("bf16") / GIB, 4) == 131.4165
    assert told("meta-llama/Llama-3.1-70B", "h100", 8).kv_bytes_per_token == 327_680


@pytest.mark.parametrize(
    ("model", "accelerator", "tp"),
    [
        ("meta-llama/Llama-3.1-8B", "h100", 8),
        ("deepseek-ai/DeepSeek-R1", "h200", 8),
    ],
)
def test_pool_over_token_is_the_tokens_that_a_replica_holds(model: str, accelerator: str, tp: int) -> None:
    figures = told(model, accelerator, tp, isl=8192, osl=1, batch=1)
    tokens = figures.kv_pool_bytes / figures.kv_bytes_per_token
    assert figures.max_running_requests == pytest.approx(tokens / 8192.6, abs=1.0)


@pytest.mark.parametrize(
    ("model", "tp", "loaded_gib"),
    [
        # "model weights take": vllm-project/vllm pull 10511 and issue 13061, Kuiperinfer's log of SGLang.
        ("meta-llama/Llama-3.1-8B", 1, 14.96),
        ("meta-llama/Llama-3.1-8B", 2, 7.48),
        ("Qwen/Qwen3-14B", 4, 7.08),
    ],
)
def test_weights_on_a_device_are_what_engines_load(model: str, tp: int, loaded_gib: float) -> None:
    row = _lowered(resolve_model(model), "h100", tp).memory
    assert row.weight_bytes[0] / GIB == pytest.approx(loaded_gib, rel=0.03)


# -- what must always hold ----------------------------------------------------------------------------------------------

MODELS = st.sampled_from(list_models())
DENSE = "meta-llama/Llama-3.1-8B"
DEVICES = tuple(a for a in list_accelerators() if "bf16" in resolve_accelerator(a).gemm)


def _lowered(model: ModelFacts, accelerator: str, tp: int, engine: str = "sglang", physics: str = "calibrated") -> Lowered:
    config = Config(resolve_accelerator(accelerator), model.native_precision, "bf16", tp)
    return lower(model, resolve_engine(engine), [config], physics)  # type: ignore[arg-type]


@given(
    usable=st.floats(20e9, 300e9),
    more=st.floats(1.0, 2.0),
    chunk=st.sampled_from([512, 2048, 8192]),
    engine=st.sampled_from(["sglang", "vllm"]),
)
def test_more_memory_never_lowers_the_batch(usable: float, more: float, chunk: int, engine: str) -> None:
    floor = resolve_engine(engine).memory.floor_above_bytes
    assume(not floor or (usable > floor) == (usable * more > floor))

    def batch(size: float) -> MemoryFigures:
        device = dataclasses.replace(resolve_accelerator("h100"), usable_bytes=size, hbm_bytes=size)
        with mock.patch.object(calibration, "resolve_accelerator", lambda _: device):
            return told(DENSE, "h100", 1, chunk=chunk, engine=engine)

    small, large = batch(usable), batch(usable * more)
    assert small.max_running_requests <= large.max_running_requests
    assert small.kv_pool_bytes <= large.kv_pool_bytes
    assert small.fits <= large.fits


@given(weights=st.floats(1e9, 80e9), held=st.floats(1e6, 1e9), spread=st.floats(0.0, 1.0), more=st.floats(1.0, 3.0))
def test_a_larger_pool_holds_no_fewer_sequences_and_never_more_than_fit(
    weights: float, held: float, spread: float, more: float
) -> None:
    usable = np.array([85e9, 85e9 * more])
    fraction = mem.static_fraction((usable - mem.runtime_bytes(np.array([weights]))) / usable)
    pool = mem.pool_bytes(usable, fraction, np.array([weights]))
    batch = mem.largest_batch(pool, np.array([held]), np.array([spread * held]), 2.326)
    assert batch[0] <= batch[1]
    assert np.all(batch * held <= np.maximum(pool, 0.0) * (1 + 1e-9))
    assert np.all((pool <= 0) | (pool + weights + mem.runtime_bytes(np.array([weights])) <= usable * (1 + 1e-9)))


@given(name=MODELS, context=st.integers(1, 1 << 20))
def test_the_cache_is_linear_up_to_the_window_and_flat_beyond(name: str, context: int) -> None:
    model = resolve_model(name)
    row = _lowered(model, "h100" if model.native_precision == "bf16" else _serving(model), 1).memory
    empty, one = (float(row.sequence_bytes(float(c))[0]) for c in (0, 1))
    windows = [g.attention.window for g in model.layers]
    expected = empty + sum(float(b) * (min(context, w) if w else context) for b, w in zip(row.kv_bytes[0], windows, strict=True))
    assert row.sequence_bytes(float(context))[0] == pytest.approx(expected)
    narrowest = min([w for w in windows if w], default=math.inf)
    if context <= narrowest:
        assert row.sequence_bytes(float(context))[0] == pytest.approx(empty + context * (one - empty))


def _serving(model: ModelFacts) -> str:
    """A device that serves a model's own precision."""
    return next(a for a in ("h100", "b200", "gb200") if model.native_precision in resolve_accelerator(a).gemm)


def _with_attention(model: ModelFacts, attention: Attention) -> ModelFacts:
    return dataclasses.replace(model, layers=tuple(dataclasses.replace(g, attention=attention) for g in model.layers))


@given(heads=st.sampled_from([16, 32, 64]), shared=st.sampled_from([1, 2, 4, 8]), tp=st.sampled_from([1, 2, 4, 8]))
def test_sharing_kv_heads_shrinks_the_cache_by_the_group(heads: int, shared: int, tp: int) -> None:
    model = resolve_model(DENSE)
    grouped = _lowered(_with_attention(model, Attention("full", heads, heads // shared, 128, 128)), "h100", tp).memory
    plain = _lowered(_with_attention(model, Attention("full", heads, heads, 128, 128)), "h100", tp).memory
    kept = max(heads // shared, tp)  # a device holds at least one head
    assert plain.token_bytes[0] / grouped.token_bytes[0] == pytest.approx(heads / kept)


@given(
    heads=st.sampled_from([16, 64, 128]),
    rank=st.sampled_from([256, 512]),
    rope=st.sampled_from([0, 64]),
    tp=st.sampled_from([1, 8]),
)
def test_latent_attention_shrinks_the_cache_to_its_rank_and_is_whole_on_every_device(
    heads: int, rank: int, rope: int, tp: int
) -> None:
    model = resolve_model(DENSE)
    latent = Attention("mla", heads, 1, 128 + rope, 128, kv_lora_rank=rank, rope_head_dim=rope)
    full = Attention("full", heads, heads, 128 + rope, 128)
    small = _lowered(_with_attention(model, latent), "h100", tp).memory.token_bytes[0]
    large = _lowered(_with_attention(model, full), "h100", 1).memory.token_bytes[0]
    assert large / small == pytest.approx(heads * (128 + rope + 128) / (rank + rope))


def test_the_keys_of_a_sparse_attention_indexer_are_cached_too() -> None:
    """SGLang's pool holds 128 bytes of fp8 and one fp32 scale per token and layer beside the latent vector."""
    sparse, dense = resolve_model("deepseek-ai/DeepSeek-V3.2"), resolve_model("deepseek-ai/DeepSeek-V3.1")
    tokens = [_lowered(model, "h200", 8).memory.token_bytes[0] for model in (sparse, dense)]
    assert tokens[0] - tokens[1] == 61 * (128 + 4)


@given(
    name=MODELS,
    accelerator=st.sampled_from(DEVICES),
    engine=st.sampled_from(list_engines()),
    tp=st.sampled_from([1, 2, 4, 8]),
    batch=st.integers(1, 2048),
    context=st.integers(1, 1 << 17),
    chunk=st.sampled_from([512, 2048, 8192]),
)
def test_ideal_is_never_slower_and_holds_no_more_than_the_device(
    name: str, accelerator: str, engine: str, tp: int, batch: int, context: int, chunk: int
) -> None:
    model, device = resolve_model(name), resolve_accelerator(accelerator)
    own = model.native_precision
    assume(own in device.gemm and (tp == 1 or tp in device.allreduce_alpha_s))
    assume(not cut(model, WeightOption(own, "", "", own), Shape(tp)))
    ideal, real = (_lowered(model, accelerator, tp, engine, p) for p in ("ideal", "calibrated"))
    tokens, prompt, size = np.array([float(batch)]), np.array([float(context)]), np.array([float(chunk)])
    for floor, predicted in (
        (ideal.terms.decode_s(tokens, ideal.terms.kv_s(context)), real.terms.decode_s(tokens, real.terms.kv_s(context))),
        (ideal.terms.prefill_s(prompt, prompt, size), real.terms.prefill_s(prompt, prompt, size)),
    ):
        assert np.all(floor <= predicted * (1 + 1e-12))
        assert np.all(floor > 0)
    assert ideal.memory.weight_bytes[0] <= real.memory.weight_bytes[0] * (1 + 1e-12)
    assert ideal.memory.token_bytes[0] == real.memory.token_bytes[0]


@pytest.mark.parametrize("name", list_models())
def test_active_parameters_are_among_all(name: str) -> None:
    model = resolve_model(name)
    assert 0 < model.params_active <= model.params_total
    assert all(0 <= t.active <= t.params for t in model.tensors)
