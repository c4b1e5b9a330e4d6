"""Families with a mixture of experts in all or most layers and attention over a cache of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from servegen.catalog.hf_families_dense import DENSE
from servegen.catalog.hf_family import Family, Moe

_QWEN_MOE = Moe()
QWEN_SHARED = Moe(shared_width="shared_expert_intermediate_size", shared_gate=True, shared="shared_expert")
MIXTRAL = Moe(
    ("num_local_experts",), width=("intermediate_size",), prefix="block_sparse_moe", names=("w1", "w3", "w2")
)
DEEPSEEK = Moe(("n_routed_experts",), shared_count="n_shared_experts", correction_bias=True, optional=True)
_NUM_SHARED = Moe(shared_count="num_shared_experts", correction_bias=True)
_LLAMA4 = Moe(
    ("num_local_experts",),
    width=("intermediate_size",),
    dense_width=("intermediate_size_mlp",),
    shared_width="intermediate_size",
    router="router",
    shared="shared_expert",
)
_DEEPSEEK_V2 = Family("mla", replace(DEEPSEEK, correction_bias=False), embedding_active=False)
_DEEPSEEK_V3 = Family("mla", DEEPSEEK, mlp_bias=False, embedding_active=False, mtp="with_embeddings")
_GLM4_MOE = Family(
    moe=DEEPSEEK,
    out_bias=False,
    mlp_bias=False,
    qk_norm="head",
    qk_norm_when="use_qk_norm",
    mtp="with_embeddings",
    embedding_active=False,
)
_STEP = Family(
    moe=Moe(
        ("moe_num_experts", "num_experts"), ("moe_top_k", "num_experts_per_tok"), shared_width="share_expert_dim",
        shared="share_expert", correction_bias="use_moe_router_bias",
    ),
    qkv_bias=False, out_bias=False, mlp_bias=False, qk_norm="head", output_gate="head", shapes="step", embedding_active=False,
    rename={"num_key_value_heads": ("num_attention_groups",)},
)  # fmt: skip

SPARSE: Mapping[str, Family] = {
    "mixtral": Family(moe=MIXTRAL, qkv_bias=False, out_bias=False, window="all", mlp="block_sparse_moe"),
    "qwen2_moe": replace(DENSE["qwen2"], moe=QWEN_SHARED, qkv_bias="qkv_bias", defaults={"qkv_bias": True}),
    "qwen3_moe": replace(DENSE["qwen3"], moe=_QWEN_MOE),
    "qwen3_vl_moe_text": replace(DENSE["qwen3"], window="", moe=_QWEN_MOE),
    "phimoe": Family(
        moe=replace(MIXTRAL, prefix="block_sparse_moe"),
        mlp="block_sparse_moe",
        norm_bias=True,
        head_bias="lm_head_bias",
        window="all",
        defaults={"attention_bias": True},
    ),
    "granitemoe": Family(moe=replace(MIXTRAL, router="router.layer"), mlp_bias=False, mlp="block_sparse_moe"),
    "granitemoeshared": Family(
        moe=replace(MIXTRAL, router="router.layer", shared_width="shared_intermediate_size", shared="shared_mlp"),
        mlp_bias=False,
        mlp="block_sparse_moe",
    ),
    "olmoe": Family(moe=replace(_QWEN_MOE, width=("intermediate_size",)), qk_norm="full"),
    "ernie4_5_moe": Family(
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        tied=True,
        embedding_active=False,
        head_bias="use_bias",
        moe=Moe(("moe_num_experts",), ("moe_k",), shared_count="moe_num_shared_experts", correction_bias=True),
    ),
    "glm4_moe": _GLM4_MOE,
    "glm4v_moe_text": replace(_GLM4_MOE, mtp=""),
    "glm4_moe_lite": _DEEPSEEK_V3,
    "glm_moe_dsa": replace(_DEEPSEEK_V3, rename={"head_dim": ()}),
    "deepseek": Family(moe=replace(DEEPSEEK, correction_bias=False), mlp_bias=False),
    "dots1": Family(moe=DEEPSEEK, mlp_bias=False, qk_norm="head"),
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "llama4_text": Family(moe=_LLAMA4, mlp_bias=False, mlp="feed_forward"),
    "gpt_oss": Family(
        moe=Moe(
            ("num_local_experts",),
            ("num_experts_per_tok", "experts_per_token"),
            ("intermediate_size",),
            router="router",
            router_bias=True,
            expert_bias=True,
        ),
        sinks=True,
        embedding_active=False,
        window="even",
        defaults={"attention_bias": True},
    ),
    "minimax_m2": Family(
        moe=replace(MIXTRAL, correction_bias=True),
        qkv_bias=False,
        out_bias=False,
        mlp="block_sparse_moe",
        qk_norm="full",
        qk_norm_when="use_qk_norm",
        embedding_active=False,
        defaults={"use_qk_norm": True},
    ),
    "mimo_v2_flash": Family(
        moe=replace(DEEPSEEK, shared_count="n_shared_experts"),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        shapes="mimo",
    ),
    "dbrx": Family(
        moe=Moe(
            ("moe_num_experts",),
            ("moe_top_k",),
            ("ffn_hidden_size",),
            prefix="ffn",
            router="router.layer",
            names=("w1", "v1", "w2"),
        ),
        qkv_bias=False,
        out_bias=False,
        norm_bias=False,
        mlp="ffn",
        fused=True,
        rename={
            "hidden_size": ("d_model",),
            "num_attention_heads": ("n_heads",),
            "num_hidden_layers": ("n_layers",),
            "num_key_value_heads": ("kv_n_heads",),
            "max_position_embeddings": ("max_seq_len",),
        },
    ),
    "afmoe": Family(
        moe=replace(_NUM_SHARED, router="router.gate"), mlp_bias=False, qk_norm="head", output_gate="full", norms=4,
        window="pattern", rename={"sliding_window_pattern": ("global_attn_every_n_layers",)},
    ),
    "axk1": replace(_DEEPSEEK_V3, moe=replace(DEEPSEEK, norm=True), mtp="", embedding_active=True),
    "bailing_moe": Family(
        moe=replace(
            _NUM_SHARED, shared_each=("moe_shared_expert_intermediate_size",), correction_bias="moe_router_enable_expert_bias"
        ),
        qkv_bias="use_qkv_bias", out_bias="use_bias", mlp_bias="use_bias", qk_norm="head", qk_norm_when="use_qk_norm", fused=True,
        mtp="with_embeddings",
    ),
    "cohere2_moe": Family(
        moe=Moe(width=("intermediate_size",), dense_width=("prefix_dense_intermediate_size", "intermediate_size"),
                shared_count="num_shared_experts"),
        norms=1, tied=True, mlp_bias=False, window="pattern", defaults={"sliding_window_pattern": 4},
    ),
    "exaone_moe": Family(
        moe=_NUM_SHARED, qkv_bias=False, out_bias=False, mlp_bias=False, qk_norm="head", window="pattern", mtp="with_embeddings",
        embedding_active=False,
    ),
    "flex_olmo": Family(moe=Moe(width=("intermediate_size",)), mlp_bias=False, qk_norm="full"),
    "granitemoe_swa": Family(
        moe=replace(MIXTRAL, router="router.layer", shared_width="shared_intermediate_size", shared="shared_mlp"),
        mlp_bias=False, mlp="block_sparse_moe", sinks=True,
    ),
    "hunyuan_v1_moe": Family(
        moe=Moe(
            per_token=("num_experts_per_tok", "moe_topk"), width=("moe_intermediate_size", "intermediate_size"), router="gate.wg",
            shared_count="num_shared_expert", shared="shared_mlp",
        ),
        qk_norm="head", qk_norm_when="use_qk_norm", tied=True, defaults={"use_qk_norm": True, "num_shared_expert": 1},
        rename={"head_dim": ("attention_head_dim",)},
    ),
    "hy_v3": Family(
        moe=replace(_NUM_SHARED, width=("moe_intermediate_size", "expert_hidden_dim")), qk_norm="head",
        mtp="with_embeddings",
    ),
    "mellum": replace(DENSE["qwen3"], moe=_QWEN_MOE, window=""),
    "solar_open": Family(moe=DEEPSEEK, out_bias=False, mlp_bias=False),
    "step3p5": _STEP,
    "step3p7": _STEP,
}
