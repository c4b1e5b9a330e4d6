"""Families that the fixtures do not cover: one small config each, against counts worked out by hand."""

from __future__ import annotations

import pytest

from servegen.catalog.facts import ModelFacts
from servegen.catalog.hf import model_from_config

D, L, N, K, H, F, V = 64, 4, 4, 2, 16, 96, 100
ATTENTION = 2 * D * H * (N + K)
MLP = 3 * D * F


def read(model_type: str, architecture: str = "", **fields: object) -> ModelFacts:
    config: dict[str, object] = {
        "model_type": model_type, "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N,
        "num_key_value_heads": K, "head_dim": H, "intermediate_size": F, "vocab_size": V,
        "max_position_embeddings": 1000, "tie_word_embeddings": False,
    }  # fmt: skip
    if architecture:
        config["architectures"] = [architecture]
    return model_from_config({k: v for k, v in {**config, **fields}.items() if v is not None}, "test/model")


def layers(model: ModelFacts) -> int:
    """Parameters of the decoder layers and the last norm: what is not vocabulary."""
    return sum(t.params for t in model.tensors if t.kind not in ("embedding", "lm_head"))


BASE = L * (ATTENTION + MLP + 2 * D) + D
QKV, OUT = H * (N + 2 * K), D


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("llama", {}, BASE),
        ("llama", {"attention_bias": True, "mlp_bias": True}, BASE + L * (QKV + OUT + 2 * F + D)),
        ("mistral", {}, BASE),
        ("qwen2", {}, BASE + L * QKV),
        ("qwen3", {}, BASE + L * 2 * H),
        ("gemma2", {}, BASE + L * 2 * D),
        ("gemma3_text", {}, BASE + L * (2 * D + 2 * H)),
        ("phi3", {}, BASE),
        ("granite", {}, BASE),
        ("olmo", {}, BASE - L * 2 * D - D),
        ("olmo2", {}, BASE + L * H * (N + K)),
        ("cohere", {}, BASE - L * D),
        ("glm4", {"attention_bias": True}, BASE + L * (QKV + 2 * D)),
        ("starcoder2", {}, L * (ATTENTION + 2 * D * F + QKV + OUT + F + D + 4 * D) + 2 * D),
        ("nemotron", {}, L * (ATTENTION + 2 * D * F + 4 * D) + 2 * D),
        ("seed_oss", {"attention_bias": True, "attention_out_bias": False}, BASE + L * QKV),
        ("stablelm", {"use_qkv_bias": True}, BASE + L * (QKV + 2 * D) + D),
    ],
)  # fmt: skip
def test_dense_families(model_type: str, fields: dict[str, object], expected: int) -> None:
    model = read(model_type, **fields)
    assert layers(model) == expected
    assert model.params_total == expected + 2 * V * D


def test_heads_default_as_in_the_families_own_code() -> None:
    model = read("llama", num_key_value_heads=None, head_dim=None)
    attention = model.layers[0].attention
    assert (attention.num_kv_heads, attention.head_dim) == (N, D // N)


def test_tied_embeddings_count_once_and_stay_active() -> None:
    assert read("llama", tie_word_embeddings=True).params_total == BASE + V * D
    gemma = read("gemma2", tie_word_embeddings=None)
    assert gemma.tied_embeddings and gemma.params_total == gemma.params_active
    assert not any(t.kind == "lm_head" for t in gemma.tensors)


def test_falcon_shares_one_kv_head() -> None:
    old = {"multi_query": True, "parallel_attn": True, "bias": False, "num_key_value_heads": None, "head_dim": None}
    model = read("falcon", "FalconForCausalLM", intermediate_size=None, tie_word_embeddings=True, **old)
    head = D // N
    assert model.params_total == L * (2 * D * head * (N + 1) + 8 * D * D + 2 * D) + 2 * D + V * D
    new = read(
        "falcon",
        intermediate_size=None,
        new_decoder_architecture=True,
        num_kv_heads=2,
        head_dim=None,
        num_key_value_heads=None,
    )
    assert new.layers[0].attention.num_kv_heads == 2


def test_bloom_names_its_sizes_differently() -> None:
    model = model_from_config(
        {"model_type": "bloom", "n_layer": 2, "n_head": 4, "hidden_size": 64, "vocab_size": 100, "seq_length": 2048},
        "b/loom",
    )
    # attention and MLP with biases, two layer norms a layer, one after the embedding and one at the end
    assert model.params_total == 2 * (4 * D * D + 4 * D + 8 * D * D + 5 * D + 4 * D) + 4 * D + V * D
    assert model.max_context == 2048


def test_windows() -> None:
    def kinds(model: ModelFacts) -> dict[str, int]:
        return {g.attention.kind: g.count for g in model.layers}

    assert kinds(read("mistral", sliding_window=128)) == {"sliding": 4}
    assert kinds(read("mistral", sliding_window=5000)) == {"full": 4}  # beyond the context: cuts nothing
    assert kinds(read("qwen2", sliding_window=128, use_sliding_window=False)) == {"full": 4}
    assert kinds(read("qwen2", sliding_window=128, use_sliding_window=True, max_window_layers=3)) == {
        "full": 3,
        "sliding": 1,
    }
    assert kinds(read("gemma2", sliding_window=128)) == {"sliding": 2, "full": 2}
    assert kinds(read("gemma3_text", sliding_window=128, num_hidden_layers=7)) == {"sliding": 6, "full": 1}
    types = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    assert kinds(read("qwen3", sliding_window=128, layer_types=types)) == {"full": 2, "sliding": 2}


MOE = 3 * D * 32


@pytest.mark.parametrize(
    ("model_type", "fields", "sparse", "per_layer"),
    [
        ("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32}, 4, 8 * MOE + 8 * D),
        ("qwen3_moe", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}, 4, 8 * MOE + 8 * D),
        (
            "qwen3_moe",
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 2},
            2,
            8 * MOE + 8 * D,
        ),
        (
            "qwen3_moe",
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [0]},
            3,
            8 * MOE + 8 * D,
        ),
        (
            "qwen2_moe",
            {
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 48,
            },
            4,
            8 * MOE + 8 * D + 3 * D * 48 + D,
        ),
        (
            "glm4_moe",
            {
                "n_routed_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "n_shared_experts": 1,
                "first_k_dense_replace": 1,
            },
            3,
            9 * MOE + 8 * D + 8,
        ),
    ],
)
def test_experts(model_type: str, fields: dict[str, object], sparse: int, per_layer: int) -> None:
    model = read(model_type, **fields)
    assert sum(g.count for g in model.layers if g.num_experts) == sparse
    moe = sum(t.params for t in model.tensors if t.kind in ("expert", "shared_expert", "router"))
    assert moe == sparse * per_layer
    expert = next(t for t in model.tensors if t.kind == "expert")
    assert expert.active * 8 == expert.params * 2


def test_block_configs_give_each_layer_its_own_shape() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 2, "no_op": False}, "ffn": {"ffn_mult": 1.5, "no_op": False}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 3.0, "no_op": False}},
        {"attention": {"n_heads_in_group": 4, "no_op": False}, "ffn": {"no_op": True}},
    ]
    model = read("nemotron-nas", hidden_size=512, num_hidden_layers=3, num_key_value_heads=None, block_configs=blocks)
    shapes = [(g.attention.kind, g.attention.num_kv_heads, g.intermediate) for g in model.layers]
    assert shapes == [("full", 2, 512), ("none", 0, 1024), ("full", 1, 0)]


def test_an_architecture_stands_in_for_an_unknown_model_type() -> None:
    model = read("my_llama", "LlamaForCausalLM")
    assert (model.model_type, model.architecture, layers(model)) == ("llama", "LlamaForCausalLM", BASE)


def test_hybrids() -> None:
    jamba = read(
        "jamba", attn_layer_period=4, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, num_experts=4,
        num_experts_per_tok=2, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=4,
    )  # fmt: skip
    assert sorted((g.attention.kind, g.num_experts, g.count) for g in jamba.layers) == [
        ("full", 4, 1), ("mamba", 0, 2), ("mamba", 4, 1),
    ]  # fmt: skip
    minimax = read("minimax_text_01", attn_type_list=[0, 0, 0, 1], num_local_experts=4, num_experts_per_tok=1)
    linear = next(g for g in minimax.layers if g.attention.kind == "linear")
    assert (linear.count, linear.attention.state_bytes) == (3, N * H * H * 4)
