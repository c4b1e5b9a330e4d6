"""Quantized checkpoints: bytes of each format, and what stays in 16 bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servegen.catalog.facts import ModelFacts
from servegen.catalog.hf import model_from_config
from servegen.catalog.hf_quant import FP8_TENSOR, MXFP4, NVFP4, Scheme
from servegen.errors import CatalogError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "hf_configs"


def read(id: str, quantization: object) -> ModelFacts:
    config = json.loads((FIXTURES / f"{id.replace('/', '--')}.json").read_text(encoding="utf-8"))
    return model_from_config({**config, "quantization_config": quantization}, id)


def by_kind(model: ModelFacts) -> dict[tuple[str, str], int]:
    return {(t.kind, t.precision): t.stored_bytes for t in model.tensors if t.quantizable or t.kind == "lm_head"}


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (FP8_TENSOR, 256 * 512 + 8),
        (Scheme("fp8", 8, block=128), 256 * 512 + 2 * 4 * 4),
        (NVFP4, 256 * 512 // 2 + 256 * 32 + 8),
        (MXFP4, 256 * 512 // 2 + 256 * 16),
        (Scheme("int4", 4, group=128, group_bits=20), 256 * 512 // 2 + 256 * 4 * 20 // 8),
        (Scheme("int4", 4, group=128, group_bits=20, input_bytes=4), 256 * 512 // 2 + 256 * 4 * 20 // 8 + 512 * 4),
    ],
)
def test_bytes_of_a_matrix(scheme: Scheme, expected: int) -> None:
    assert scheme.stored_bytes(256, 512) == expected


def test_blocks_that_do_not_divide_round_up() -> None:
    assert Scheme("fp8", 8, block=128).stored_bytes(129, 1) == 129 + 2 * 4


def test_fp8_blocks_leave_router_and_vocabulary_alone() -> None:
    model = model_from_config(
        json.loads((FIXTURES / "Qwen--Qwen3-235B-A22B-FP8.json").read_text(encoding="utf-8")), "q"
    )
    assert (model.native_precision, model.quantization, model.weight_block) == ("fp8", "fp8", 128)
    assert {t.kind: t.precision for t in model.tensors} == {
        "embedding": "bf16", "attention": "fp8", "norm": "bf16", "router": "bf16", "expert": "fp8", "lm_head": "bf16",
    }  # fmt: skip
    expert = next(t for t in model.tensors if t.kind == "expert")
    assert expert.stored_bytes == expert.params + expert.params // 128**2 * 4


def test_mxfp4_holds_only_the_experts() -> None:
    model = model_from_config(json.loads((FIXTURES / "openai--gpt-oss-120b.json").read_text(encoding="utf-8")), "g")
    assert {(t.kind, t.precision) for t in model.tensors if t.quantizable} == {
        ("attention", "bf16"),
        ("expert", "mxfp4"),
    }
    assert (model.native_precision, model.weight_block) == ("mxfp4", 0)


def test_compressed_tensors_groups_and_ignored_patterns() -> None:
    model = model_from_config(json.loads((FIXTURES / "moonshotai--Kimi-K2.5.json").read_text(encoding="utf-8")), "k")
    precisions = {(t.kind, t.precision) for t in model.tensors if t.quantizable}
    assert precisions == {("attention", "bf16"), ("mlp", "bf16"), ("shared_expert", "bf16"), ("expert", "int4")}
    assert (model.native_precision, model.weight_block) == ("int4", 32)
    expert = next(t for t in model.tensors if t.kind == "expert")
    assert expert.stored_bytes / expert.params == pytest.approx(0.5 + 2 / 32, rel=1e-3)


def test_modelopt() -> None:
    model = read(
        "nvidia/Llama-3.1-70B-Instruct-FP8",
        {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    )
    assert model.checkpoint_bytes / 2**30 == pytest.approx(67.67, abs=0.01)
    assert (model.native_precision, model.weight_block) == ("fp8", 0)
    q = {
        "quant_algo": "NVFP4",
        "group_size": 16,
        "exclude_modules": ["lm_head", "model.layers.*.self_attn*", "model.layers.0*"],
    }
    nvfp4 = by_kind(read("Qwen/Qwen3-8B", {"quant_method": "modelopt", **q}))
    assert set(nvfp4) == {("attention", "bf16"), ("mlp", "bf16"), ("mlp", "nvfp4"), ("lm_head", "bf16")}
    one_layer = 3 * 4096 * 12288
    assert nvfp4["mlp", "bf16"] == 2 * one_layer
    assert nvfp4["mlp", "nvfp4"] == 35 * (one_layer * 9 // 16 + 3 * 8)


def test_layers_by_name() -> None:
    names = {
        "model.layers.3.mlp.up_proj": {"quant_algo": "FP8"},
        "model.layers.30.mlp": {"quant_algo": "NVFP4", "group_size": 16},
    }
    model = by_kind(
        read("Qwen/Qwen3-8B", {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": names})
    )
    assert model["mlp", "fp8"] == 4096 * 12288 + 8
    assert model["mlp", "nvfp4"] == 3 * (4096 * 12288 * 9 // 16 + 8)


def test_excluded_layer_1_is_not_layer_10() -> None:
    model = by_kind(
        read(
            "Qwen/Qwen3-8B",
            {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1", "model.layers.2*.mlp"]},
        )
    )
    whole = 3 * 4096 * 12288
    assert model["mlp", "bf16"] == 2 * whole * (1 + 1 + 10)  # layer 1; layers 2 and 20 to 29


def test_int4_and_int8() -> None:
    awq = read("meta-llama/Meta-Llama-3.1-70B", {"quant_method": "awq", "bits": 4, "group_size": 128})
    assert (awq.native_precision, awq.weight_block) == ("int4", 128)
    assert awq.checkpoint_bytes / 1e9 == pytest.approx(39.77, abs=0.01)
    gptq = read("meta-llama/Meta-Llama-3.1-8B", {"quant_method": "gptq", "bits": 8, "group_size": 128})
    assert gptq.native_precision == "int8"
    w8a8 = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}, "targets": ["Linear"]}
    q = {"quant_method": "compressed-tensors", "config_groups": {"group_0": w8a8}, "ignore": ["lm_head"]}
    assert read("meta-llama/Meta-Llama-3.1-8B", q).native_precision == "int8"


def test_quark() -> None:
    q = {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}},
        "exclude": ["lm_head"],
    }
    assert read("meta-llama/Meta-Llama-3.1-70B", q).native_precision == "fp8"


@pytest.mark.parametrize(
    ("quantization", "field"),
    [
        ({"quant_method": "bitsandbytes"}, "quantization_config.quant_method"),
        ({"bits": 4}, "quantization_config.quant_method"),
        ({"quant_method": "fp8", "weight_block_size": [128, 64]}, "quantization_config.weight_block_size"),
        ({"quant_method": "gptq", "bits": 3}, "quantization_config.bits"),
        ({"quant_method": "modelopt", "quant_algo": "W4A4"}, "quantization_config.quant_algo"),
        ({"quant_method": "compressed-tensors"}, "quantization_config.config_groups"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {}}},
            "quantization_config.config_groups.g.weights",
        ),
        ({"quant_method": "awq", "modules_to_not_convert": [1]}, "quantization_config.modules_to_not_convert"),
        ({"quant_method": "fp8", "ignored_layers": ["re:("]}, "ignored_layers"),
        ("fp8", "quantization_config"),
    ],
)
def test_refusals_name_the_field(quantization: object, field: str) -> None:
    with pytest.raises(CatalogError) as caught:
        read("Qwen/Qwen3-8B", quantization)
    assert field in str(caught.value)
