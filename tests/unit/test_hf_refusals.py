"""What cannot be modelled faithfully is refused by the name of the field; nothing in JSON crashes the reader."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.catalog.hf import model_from_config
from servegen.errors import CatalogError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "hf_configs"
CONFIGS: dict[str, dict[str, Any]] = {p.stem: json.loads(p.read_text("utf-8")) for p in sorted(FIXTURES.glob("*.json"))}
_L = "meta-llama--Meta-Llama-3.1-8B"
LLAMA = CONFIGS[_L]


def refused(config: object) -> str:
    with pytest.raises(CatalogError) as caught:
        model_from_config(config, "org/model")  # type: ignore[arg-type]
    return str(caught.value)


SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


@pytest.mark.parametrize("field", SIZES)
@pytest.mark.parametrize("value", [None, "4096", 0, -1, True, 1.5, 10**30, [], {}])
def test_sizes_are_positive_integers(field: str, value: object) -> None:
    assert f"'{field}'" in refused({**LLAMA, field: value})


@pytest.mark.parametrize(
    ("base", "change", "field"),
    [
        (_L, {"model_type": "rwkv7", "architectures": ["Rwkv7ForCausalLM"]}, "model_type"),
        (_L, {"model_type": None, "architectures": None}, "model_type"),
        (_L, {"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        (_L, {"architectures": "LlamaForCausalLM"}, "architectures"),
        (_L, {"is_encoder_decoder": True}, "is_encoder_decoder"),
        (_L, {"add_cross_attention": True}, "add_cross_attention"),
        (_L, {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (_L, {"num_local_experts": 8}, "num_local_experts"),
        (_L, {"kv_lora_rank": 512}, "kv_lora_rank"),
        (_L, {"num_key_value_heads": 7}, "num_key_value_heads"),
        (_L, {"num_attention_heads": 31, "num_key_value_heads": None}, "num_attention_heads"),
        (_L, {"attention_bias": "yes"}, "attention_bias"),
        (_L, {"tie_word_embeddings": 1}, "tie_word_embeddings"),
        (_L, {"torch_dtype": "float8_e4m3fn"}, "torch_dtype"),
        (_L, {"rope_theta": "big"}, "rope_theta"),
        (_L, {"rope_scaling": "yarn"}, "rope_scaling"),
        (_L, {"vision_config": {"depth": 2}}, "vision_config"),
        (_L, {"compress_ratios": [4, 128]}, "compress_ratios"),
        ("openai--gpt-oss-120b", {"layer_types": ["full_attention"] * 35}, "layer_types"),
        ("openai--gpt-oss-120b", {"layer_types": ["ring_attention"] * 36}, "layer_types"),
        ("openai--gpt-oss-120b", {"sliding_window": None}, "sliding_window"),
        ("openai--gpt-oss-120b", {"num_experts_per_tok": 200}, "num_experts_per_tok"),
        ("deepseek-ai--DeepSeek-V3", {"kv_lora_rank": None}, "kv_lora_rank"),
        ("deepseek-ai--DeepSeek-V3", {"qk_rope_head_dim": None}, "qk_rope_head_dim"),
        ("deepseek-ai--DeepSeek-V3", {"moe_layer_freq": [1]}, "moe_layer_freq"),
        ("nvidia--Nemotron-H-56B-Base-8K", {"hybrid_override_pattern": "M-X"}, "hybrid_override_pattern"),
        ("nvidia--Nemotron-H-56B-Base-8K", {"ssm_state_size": None}, "ssm_state_size"),
        ("nvidia--Nemotron-H-56B-Base-8K", {"mamba_ssm_cache_dtype": "float8"}, "mamba_ssm_cache_dtype"),
        ("google--gemma-4-26B-A4B", {"model_type": "gemma5"}, "model_type"),
        ("google--gemma-4-26B-A4B", {"audio_config": {"hidden_size": 8}}, "audio_config"),
        ("google--gemma-4-26B-A4B", {"text_config": [1]}, "text_config"),
        ("Qwen--Qwen3.5-397B-A17B", {"vision_config": {"depth": 2}}, "vision_config.hidden_size"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(base: str, change: dict[str, object], field: str) -> None:
    assert f"'{field}'" in refused({**CONFIGS[base], **change})


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("deepseek-ai--DeepSeek-V4-Flash", "compress_ratios", "[0, 0, 4, 128"),
        ("MiniMaxAI--MiniMax-M3", "sparse_attention_config", "sparse_attention_freq"),
        ("moonshotai--Kimi-K3", "text_config.attn_res_block_size", "12"),
        ("stepfun-ai--Step-3.7-Flash", "attention_other_setting", "required, but missing"),
    ],
)
def test_models_whose_attention_has_no_form_here(name: str, field: str, value: str) -> None:
    """Configs as aiconfigurator-core 0.12 holds them. The refusal shows the field, its value and the reason."""
    config = json.loads((FIXTURES.with_name("hf_refused") / f"{name}.json").read_text(encoding="utf-8"))
    message = refused(config)
    assert f"config field '{field}': " in message and value in message


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"]}, "model_type"),
        ({"model_type": "zamba2", "architectures": ["Zamba2ForCausalLM"]}, "model_type"),
        ({"model_type": "rwkv", "architectures": ["RwkvForCausalLM"]}, "model_type"),
        ({"per_layer_config": {"05": {"head_dim": 512}}}, "per_layer_config"),
        ({"model_type": "llava", "vision_config": {"model_type": "eva_vit"}, "text_config": LLAMA}, "vision_config.model_type"),
        ({"model_type": "mpt", "attn_config": {"alibi": False}, "no_bias": True, "n_heads": 8}, "attn_config"),
        ({"model_type": "mpt", "no_bias": False}, "no_bias"),
        ({"model_type": "lfm2"}, "layer_types"),
        ({"model_type": "lfm2", "full_attn_idxs": [99]}, "full_attn_idxs"),
        ({"model_type": "granitemoehybrid", "layer_types": ["rwkv"] * 32}, "layer_types"),
        ({"model_type": "mimo_v2_flash", "n_routed_experts": 8, "num_experts_per_tok": 2}, "hybrid_layer_pattern"),
        ({"model_type": "hunyuan_v1_moe", "moe_topk": [8, 4], "num_experts": 64}, "moe_topk"),
        ({"model_type": "step3p5", "layer_types": ["full_attention"], "moe_num_experts": 4}, "layer_types"),
        ({"model_type": "step3p5", "layer_types": ["full_attention"] * 32, "moe_num_experts": 4, "moe_layers_enum": "3-9"},
         "moe_layers_enum"),
        ({"quantization_config": {"quant_method": "torchao"}}, "quantization_config.quant_method"),
        ({"quantization_config": {"quant_method": "gptq", "dynamic": {"+:.*attn.*": {"bits": 8}}}},
         "quantization_config.dynamic.+:.*attn.*"),
        ({"quantization_config": {"quant_method": "auto-round", "bits": 2}}, "quantization_config.bits"),
        ({"quantization_config": {"quant_method": "auto-round", "extra_config": {"a": {"bits": 8}}}},
         "quantization_config.extra_config.a.bits"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}},
         "quantization_config.sparsity_config.format"),
    ],
)  # fmt: skip
def test_more_refusals_name_the_field(change: dict[str, object], field: str) -> None:
    assert f"'{field}'" in refused({**LLAMA, **change})


def test_fields_inside_a_text_config_are_named_with_it() -> None:
    config = {**CONFIGS["google--gemma-4-26B-A4B"]}
    config["text_config"] = {**config["text_config"], "num_kv_shared_layers": 20}
    assert "'text_config.num_kv_shared_layers'" in refused(config)
    config["text_config"] = {**config["text_config"], "num_kv_shared_layers": 0, "hidden_size": "wide"}
    assert "'text_config.hidden_size'" in refused(config)


@pytest.mark.parametrize("value", [None, 1, "x", [], [1]])
def test_a_config_is_a_mapping(value: object) -> None:
    assert "mapping" in refused(value)


_JUNK = st.sampled_from(
    [None, 0, -1, 1, 3, 64, True, False, "x", "", [], {}, [1], [None], ["full_attention"], {"a": 1}, 1.5, 10**30,
     float("nan"), float("inf"), "re:(", ["re:("], ["*["], {"weights": None}]
)  # fmt: skip


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of all values below ``value``; of a list only the first entries."""
    below: list[tuple[str | int, ...]] = []
    pairs: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        pairs = [(str(k), v) for k, v in value.items()]
    elif isinstance(value, list):
        pairs = list(enumerate(value[:4]))
    for key, inner in pairs:
        below += [(*path, key), *places(inner, (*path, key))]
    return below


@settings(max_examples=600)
@given(
    st.sampled_from(sorted(CONFIGS)),
    st.lists(st.tuples(st.integers(0, 10_000), _JUNK, st.booleans()), min_size=1, max_size=3),
)
def test_mutated_configs_are_read_or_refused(name: str, changes: list[tuple[int, object, bool]]) -> None:
    config = json.loads(json.dumps(CONFIGS[name]))
    for index, value, drop in changes:
        every = places(config)
        *parents, last = every[index % len(every)]
        owner: Any = config
        for key in parents:
            owner = owner[key]
        if drop and isinstance(owner, dict):
            del owner[last]
        else:
            owner[last] = copy.deepcopy(value)
    try:
        model = model_from_config(config, "org/model")
    except CatalogError as error:
        assert "config field '" in str(error)
    else:
        assert 0 < model.params_active <= model.params_total
        assert model.checkpoint_bytes > 0 and model.num_layers > 0


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_NAMES = st.sampled_from([*LLAMA, "text_config", "vision_config"])


def _nested(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=6)


@settings(max_examples=200)
@given(st.recursive(_LEAVES, _nested, max_leaves=12))
def test_arbitrary_json_never_crashes(value: object) -> None:
    config = {**LLAMA, **value} if isinstance(value, dict) else value
    try:
        model_from_config(config, "org/model")  # type: ignore[arg-type]
    except CatalogError:
        return
    assert isinstance(config, dict)
