"""Families that mix attention with layers whose state does not grow with the context, or whose layers differ one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from servegen.catalog.hf_families_sparse import DEEPSEEK, MIXTRAL, QWEN_SHARED
from servegen.catalog.hf_family import Family, Moe

_MAMBA2_RENAME = {
    "mamba_num_heads": ("mamba_n_heads",), "mamba_head_dim": ("mamba_d_head",), "n_groups": ("mamba_n_groups",),
    "ssm_state_size": ("mamba_d_state",), "conv_kernel": ("mamba_d_conv",), "use_conv_bias": ("mamba_conv_bias",),
}

_LFM2 = Family(
    "short_conv", mlp_bias=False, qkv_bias=False, out_bias=False, qk_norm="head", tied=True, mlp="feed_forward",
    mlp_names=("w1", "w3", "w2"),
)
_MINIMAX = Family(
    "lightning", MIXTRAL, qkv_bias=False, out_bias=False, mlp="block_sparse_moe", embedding_active=False
)

HYBRID: Mapping[str, Family] = {
    "qwen3_next": Family("delta", QWEN_SHARED, mlp_bias=False, qk_norm="head"),
    "qwen3_5_text": Family("delta", mlp_bias=False, qk_norm="head", mtp="shared"),
    "qwen3_5_moe_text": Family("delta", QWEN_SHARED, mlp_bias=False, qk_norm="head", mtp="shared"),
    "nemotron_h": Family(
        "nemotron_h",
        Moe(("n_routed_experts",), correction_bias=True, names=("up_proj", "down_proj"), optional=True),
        gated=False,
        norms=1,
        mlp="mixer",
        mlp_names=("up_proj", "down_proj"),
        rename={"head_dim": ("attention_head_dim",)},
    ),
    "nemotron-nas": Family("deci"),
    "jamba": Family(
        "jamba",
        Moe(width=("intermediate_size",), router="router"),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        mlp="feed_forward",
    ),
    "kimi_linear": Family(
        "kda",
        replace(
            DEEPSEEK,
            experts=("num_experts",),
            per_token=("num_experts_per_token",),
            shared_count="num_shared_experts",
            prefix="block_sparse_moe",
            names=("w1", "w3", "w2"),
        ),
        mlp_bias=False,
        embedding_active=False,
        rename={"max_position_embeddings": ("model_max_length",)},
    ),
    "minimax_text_01": _MINIMAX,
    "minimax_m1": _MINIMAX,
    "minimax": _MINIMAX,
    "bamba": Family("mamba2", mlp="feed_forward", rename=_MAMBA2_RENAME),
    "granitemoehybrid": Family(
        "mamba2",
        Moe(
            ("num_local_experts",), width=("intermediate_size",), dense_width=("shared_intermediate_size",), optional=True,
            prefix="block_sparse_moe", router="router.layer", shared_width="shared_intermediate_size", shared="shared_mlp",
            names=("w1", "w3", "w2"),
        ),
        mlp_bias=False, mlp="shared_mlp", rename=_MAMBA2_RENAME,
    ),
    "lfm2": _LFM2,
    "lfm2_moe": replace(_LFM2, moe=Moe(names=("w1", "w3", "w2"), correction_bias="use_expert_bias")),
}
