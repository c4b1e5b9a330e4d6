"""Families with one dense MLP in every layer and attention over a cache of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from servegen.catalog.hf_family import Family

_LLAMA = Family()
_QWEN2 = Family(qkv_bias=True, out_bias=False, mlp_bias=False, window="qwen")
_QWEN3 = Family(qk_norm="head", mlp_bias=False, window="qwen")
_GEMMA = Family(tied=True, mlp_bias=False, defaults={"head_dim": 256})
_GLM4 = Family(out_bias=False, mlp_bias=False, fused=True, norms=4)
_MLA = Family("mla", tied=True)
_GPT_RENAME = {
    "num_hidden_layers": ("n_layer", "num_layers"),
    "num_attention_heads": ("n_head",),
    "hidden_size": ("n_embed", "n_embd"),
    "max_position_embeddings": ("seq_length", "n_positions"),
}
_GPT2 = Family(
    four_times=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    gated=False,
    fused=True,
    norm_bias=True,
    tied=True,
    positions=0,
    mlp_names=("c_fc", "c_proj"),
    rename=_GPT_RENAME | {"intermediate_size": ("n_inner",)},
)
_UNGATED = ("fc1", "fc2")
# What Gemma 3's configuration class takes where a checkpoint's config says nothing (transformers, Gemma3TextConfig).
_GEMMA3_DEFAULTS: Mapping[str, object] = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
    "max_position_embeddings": 131072, "sliding_window_pattern": 6, "sliding_window": 4096, "rope_theta": 1000000.0,
}  # fmt: skip

DENSE: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(qkv_bias=False, out_bias=False, mlp_bias=False, window="all"),
    "ministral": Family(qkv_bias=False, out_bias=False, mlp_bias=False, window="all"),
    "ministral3": Family(qkv_bias=False, out_bias=False, mlp_bias=False, window="all"),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "mimo": Family(
        qkv_bias="attention_bias", out_bias=False, mlp_bias=False, window="qwen", defaults={"attention_bias": True}
    ),
    "qwen3": _QWEN3,
    "qwen3_vl_text": replace(_QWEN3, window=""),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norms=4, window="even", defaults={"head_dim": 256, "sliding_window": 4096}),
    "gemma3_text": replace(_GEMMA, norms=4, qk_norm="head", window="pattern", defaults=_GEMMA3_DEFAULTS),
    "gemma4_text": replace(_GEMMA, norms=4, qk_norm="head", window="pattern", defaults={"sliding_window_pattern": 6}),
    "phi3": Family(qkv_bias=False, out_bias=False, mlp_bias=False, fused=True, window="all"),
    "granite": Family(),
    "olmo": Family(norms=0, final_norms=0, mlp_bias=False),
    "olmo2": Family(qk_norm="full", mlp_bias=False),
    "olmo3": Family(qk_norm="full", mlp_bias=False, window="pattern", defaults={"sliding_window_pattern": 4}),
    "cohere": Family(norms=1, tied=True, qk_norm="per_head", qk_norm_when="use_qk_norm", mlp_bias=False),
    "cohere2": Family(norms=1, tied=True, mlp_bias=False, window="pattern", defaults={"sliding_window_pattern": 4}),
    "starcoder2": Family(
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        gated=False,
        norm_bias=True,
        tied=True,
        window="all",
        mlp_names=("c_fc", "c_proj"),
        defaults={"use_bias": True},
    ),
    "stablelm": Family(
        qkv_bias="use_qkv_bias", out_bias=False, mlp_bias=False, norm_bias=True, qk_norm="per_head", qk_norm_when="qk_layernorm"
    ),
    "internlm2": Family(qkv_bias="bias", out_bias="bias", mlp_bias=False),
    "internlm3": Family(qkv_bias="qkv_bias", out_bias="bias", mlp_bias="bias"),
    "internlm": Family(qkv_bias="bias", out_bias="bias", mlp_bias=False),
    "baichuan": Family(
        qkv_bias=False, out_bias=False, mlp_bias=False, rename={"max_position_embeddings": ("model_max_length",)}
    ),
    "orion": Family(mlp_bias=False, norm_bias=True),
    "minicpm": Family(mlp_bias=False),
    "chatglm": Family(
        qkv_bias="add_qkv_bias",
        out_bias=False,
        mlp_bias=False,
        fused=True,
        rename={
            "num_hidden_layers": ("num_layers",),
            "max_position_embeddings": ("seq_length",),
            "head_dim": ("kv_channels",),
            "intermediate_size": ("ffn_hidden_size",),
            "num_key_value_heads": ("multi_query_group_num",),
        },
    ),
    "smollm3": Family(defaults={"use_sliding_window": False}, window="qwen", tied=True),
    "seed_oss": Family(out_bias="attention_out_bias"),
    "exaone4": Family(qkv_bias=False, out_bias=False, mlp_bias=False, qk_norm="head", window="pattern"),
    "ernie4_5": Family(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", tied=True),
    "hunyuan_v1_dense": Family(qk_norm="head"),
    "nemotron": Family(gated=False, norm_bias=True, mlp_names=("up_proj", "down_proj")),
    "glm": Family(out_bias=False, mlp_bias=False, fused=True),
    "glm4": _GLM4,
    "glm4v_text": replace(_GLM4, defaults={"attention_bias": True}),
    "bloom": Family(
        four_times=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        gated=False,
        fused=True,
        norm_bias=True,
        tied=True,
        final_norms=2,
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
        rename=_GPT_RENAME,
    ),
    "falcon": Family(
        four_times=True,
        qkv_bias="bias",
        out_bias="bias",
        mlp_bias="bias",
        gated=False,
        fused=True,
        norm_bias=True,
        tied=True,
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
        rename=_GPT_RENAME,
        defaults={"max_position_embeddings": 2048},
    ),
    "gpt_neox": Family(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias=True,
        gated=False,
        fused=True,
        norm_bias=True,
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
        defaults={"attention_bias": True},
    ),
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "opt": Family(
        qkv_bias="enable_bias",
        out_bias="enable_bias",
        mlp_bias="enable_bias",
        gated=False,
        norm_bias=True,
        tied=True,
        positions=2,
        mlp_names=_UNGATED,
        rename={"intermediate_size": ("ffn_dim",)},
        defaults={"enable_bias": True},
    ),
    "phi": Family(
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        gated=False,
        norms=1,
        norm_bias=True,
        qk_norm="head",
        qk_norm_when="qk_layernorm",
        head_bias=True,
        mlp_names=_UNGATED,
    ),
    "gptj": Family(
        qkv_bias=False, out_bias=False, mlp_bias=True, head_bias=True, gated=False, norms=1, norm_bias=True, four_times=True,
        mlp_names=("fc_in", "fc_out"), rename=_GPT_RENAME | {"intermediate_size": ("n_inner",)},
    ),
    "mpt": Family(
        qkv_bias=False, out_bias=False, mlp_bias=False, gated=False, fused=True, four_times=True, tied=True, mlp="ffn",
        mlp_names=("up_proj", "down_proj"),
        rename={
            "hidden_size": ("d_model",), "num_attention_heads": ("n_heads",), "num_hidden_layers": ("n_layers",),
            "max_position_embeddings": ("max_seq_len",),
        },
    ),
    "exaone": Family(
        qkv_bias=False, out_bias=False, mlp_bias=False, mlp_names=("c_fc_0", "c_fc_1", "c_proj"),
        rename={"num_hidden_layers": ("num_layers",)},
    ),
    "apertus": Family(qk_norm="head", gated=False, mlp_bias=False, mlp_names=("up_proj", "down_proj"), mlp_scalars=2),
    "arcee": Family(gated=False, mlp_names=("up_proj", "down_proj")),
    "cwm": Family(qkv_bias=False, out_bias=False),
    "granite_swa": Family(sinks=True, tied=True),
    "helium": Family(out_bias=False),
    "hyperclovax": Family(norms=4),
    "jais2": Family(
        gated=False, norm_bias=True, mlp_names=("up_proj", "down_proj"), defaults={"attention_bias": True, "mlp_bias": True}
    ),
    "minicpm3": _MLA,
    "vaultgemma": replace(_GEMMA, window="even", defaults={"head_dim": 256, "sliding_window": 4096}),
    "youtu": _MLA,
}
