"""The families of decoders that can be read, one row each: what their config fields do not say but their code does.

Source of the rows: the modeling files of Hugging Face transformers (4.57) and, for what is not in it, the modeling code
that the model's own repository ships. A family that is not here is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Switch = bool | str  # a constant, or the name of the config field that decides (absent = false)


@dataclass(frozen=True)
class Moe:
    """How a family's mixture-of-experts layers read. Tuples of names: the first present field counts."""

    experts: tuple[str, ...] = ("num_experts",)
    per_token: tuple[str, ...] = ("num_experts_per_tok",)
    width: tuple[str, ...] = ("moe_intermediate_size",)
    dense_width: tuple[str, ...] = ("intermediate_size",)
    shared_count: str = ""  # field with the number of shared experts, each of the routed width
    shared_width: str = ""  # or field with the width of the one shared expert
    shared_gate: bool = False  # a gate vector beside the shared expert
    prefix: str = ""  # module name of the block where it is not the MLP's
    router: str = "gate"
    shared: str = "shared_experts"
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    correction_bias: bool = False  # one value per expert beside the router
    router_bias: bool = False
    expert_bias: bool = False
    optional: bool = False  # the family also has dense members: no experts field means dense


@dataclass(frozen=True)
class Family:
    """One row of the table. Switches default to absent; norms are counted by layer."""

    attention: Literal["gqa", "mla", "delta", "lightning", "kda", "jamba", "nemotron_h", "deci"] = "gqa"
    moe: Moe | None = None
    qkv_bias: Switch = "attention_bias"
    out_bias: Switch = "attention_bias"
    mlp_bias: Switch = "mlp_bias"
    qk_norm: Literal["", "head", "full", "per_head"] = ""  # size of the q/k norms: one head, all heads
    qk_norm_when: str = ""  # field that turns them on
    sinks: bool = False  # one attention sink per head
    gated: bool = True
    fused: bool = False  # qkv_proj and gate_up_proj are single tensors
    norms: int = 2
    norm_bias: bool = False
    final_norms: int = 1
    tied: bool = False  # when tie_word_embeddings is absent
    window: Literal["", "all", "qwen", "even", "pattern"] = ""  # which layers slide when layer_types is absent
    mlp: str = "mlp"
    mlp_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    embedding_active: bool = True  # whether its publisher counts the input embedding as active
    four_times: bool = False  # the MLP is four times the hidden size where no field says otherwise
    positions: int = -1  # learned positions beyond max_position_embeddings; -1 = none
    mtp: Literal["", "with_embeddings", "shared"] = ""  # whether its MTP layers carry copies of the embeddings
    rename: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)


_LLAMA = Family()
_QWEN2 = Family(qkv_bias=True, out_bias=False, mlp_bias=False, window="qwen")
_QWEN3 = Family(qk_norm="head", mlp_bias=False, window="qwen")
_GEMMA = Family(tied=True, mlp_bias=False, defaults={"head_dim": 256})
_GPT_RENAME = {
    "num_hidden_layers": ("n_layer", "num_layers"),
    "num_attention_heads": ("n_head",),
    "hidden_size": ("n_embed", "n_embd"),
    "max_position_embeddings": ("seq_length", "n_positions"),
}
_UNGATED = ("fc1", "fc2")

_QWEN_MOE = Moe()
_QWEN_SHARED = Moe(shared_width="shared_expert_intermediate_size", shared_gate=True, shared="shared_expert")
_MIXTRAL = Moe(
    ("num_local_experts",), width=("intermediate_size",), prefix="block_sparse_moe", names=("w1", "w3", "w2")
)
_DEEPSEEK = Moe(("n_routed_experts",), shared_count="n_shared_experts", correction_bias=True, optional=True)
_LLAMA4 = Moe(
    ("num_local_experts",),
    width=("intermediate_size",),
    dense_width=("intermediate_size_mlp",),
    shared_width="intermediate_size",
    router="router",
    shared="shared_expert",
)
_DEEPSEEK_V2 = Family("mla", replace(_DEEPSEEK, correction_bias=False), mlp_bias=False, embedding_active=False)
_DEEPSEEK_V3 = Family("mla", _DEEPSEEK, mlp_bias=False, embedding_active=False, mtp="with_embeddings")
# What Gemma 3's configuration class takes where a checkpoint's config says nothing (transformers, Gemma3TextConfig).
_GEMMA3_DEFAULTS: Mapping[str, object] = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
    "max_position_embeddings": 131072, "sliding_window_pattern": 6, "sliding_window": 4096, "rope_theta": 1000000.0,
}  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(qkv_bias=False, out_bias=False, mlp_bias=False, window="all"),
    "ministral": Family(qkv_bias=False, out_bias=False, mlp_bias=False, window="all"),
    "ministral3": Family(qkv_bias=False, out_bias=False, mlp_bias=False, window="all"),
    "mixtral": Family(moe=_MIXTRAL, qkv_bias=False, out_bias=False, window="all", mlp="block_sparse_moe"),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": replace(_QWEN2, moe=_QWEN_SHARED),
    "mimo": Family(
        qkv_bias="attention_bias", out_bias=False, mlp_bias=False, window="qwen", defaults={"attention_bias": True}
    ),
    "qwen3": _QWEN3,
    "qwen3_moe": replace(_QWEN3, moe=_QWEN_MOE),
    "qwen3_vl_text": replace(_QWEN3, window=""),
    "qwen3_vl_moe_text": replace(_QWEN3, window="", moe=_QWEN_MOE),
    "qwen3_next": Family("delta", _QWEN_SHARED, mlp_bias=False, qk_norm="head"),
    "qwen3_5_text": Family("delta", mlp_bias=False, qk_norm="head", mtp="shared"),
    "qwen3_5_moe_text": Family("delta", _QWEN_SHARED, mlp_bias=False, qk_norm="head", mtp="shared"),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norms=4, window="even", defaults={"head_dim": 256, "sliding_window": 4096}),
    "gemma3_text": replace(_GEMMA, norms=4, qk_norm="head", window="pattern", defaults=_GEMMA3_DEFAULTS),
    "gemma4_text": replace(_GEMMA, norms=4, qk_norm="head", window="pattern", defaults={"sliding_window_pattern": 6}),
    "phi3": Family(qkv_bias=False, out_bias=False, mlp_bias=False, fused=True, window="all"),
    "phimoe": Family(
        moe=replace(_MIXTRAL, prefix="block_sparse_moe"),
        mlp="block_sparse_moe",
        norm_bias=True,
        window="all",
        defaults={"attention_bias": True},
    ),
    "granite": Family(),
    "granitemoe": Family(moe=replace(_MIXTRAL, router="router.layer"), mlp="block_sparse_moe"),
    "granitemoeshared": Family(
        moe=replace(_MIXTRAL, router="router.layer", shared_width="shared_intermediate_size", shared="shared_mlp"),
        mlp="block_sparse_moe",
    ),
    "olmo": Family(norms=0, final_norms=0, mlp_bias=False),
    "olmo2": Family(qk_norm="full", mlp_bias=False),
    "olmo3": Family(qk_norm="full", mlp_bias=False, window="pattern", defaults={"sliding_window_pattern": 4}),
    "olmoe": Family(moe=replace(_QWEN_MOE, width=("intermediate_size",)), qk_norm="full"),
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
    "stablelm": Family(qkv_bias="use_qkv_bias", out_bias=False, mlp_bias=False, norm_bias=True),
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
    "ernie4_5_moe": Family(
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        tied=True,
        moe=Moe(("moe_num_experts",), ("moe_k",), shared_count="moe_num_shared_experts", correction_bias=True),
    ),
    "hunyuan_v1_dense": Family(qk_norm="head"),
    "nemotron": Family(gated=False, norm_bias=True, mlp_names=("up_proj", "down_proj")),
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
    "glm": Family(out_bias=False, mlp_bias=False, fused=True),
    "glm4": Family(out_bias=False, mlp_bias=False, fused=True, norms=4),
    "glm4_moe": Family(
        moe=_DEEPSEEK,
        out_bias=False,
        mlp_bias=False,
        qk_norm="head",
        qk_norm_when="use_qk_norm",
        mtp="with_embeddings",
        embedding_active=False,
    ),
    "glm4_moe_lite": _DEEPSEEK_V3,
    "glm_moe_dsa": replace(_DEEPSEEK_V3, rename={"head_dim": ()}),
    "deepseek": Family(moe=replace(_DEEPSEEK, correction_bias=False), mlp_bias=False),
    "dots1": Family(moe=_DEEPSEEK, mlp_bias=False, qk_norm="head"),
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "kimi_linear": Family(
        "kda",
        replace(
            _DEEPSEEK,
            experts=("num_experts",),
            per_token=("num_experts_per_token",),
            shared_count="num_shared_experts",
            prefix="block_sparse_moe",
            names=("w1", "w3", "w2"),
        ),
        mlp_bias=False,
    ),
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
        moe=replace(_MIXTRAL, correction_bias=True),
        qkv_bias=False,
        out_bias=False,
        mlp="block_sparse_moe",
        qk_norm="full",
        qk_norm_when="use_qk_norm",
        embedding_active=False,
    ),
    "minimax_text_01": Family("lightning", _MIXTRAL, qkv_bias=False, out_bias=False, mlp="block_sparse_moe"),
    "minimax_m1": Family("lightning", _MIXTRAL, qkv_bias=False, out_bias=False, mlp="block_sparse_moe"),
    "minimax": Family("lightning", _MIXTRAL, qkv_bias=False, out_bias=False, mlp="block_sparse_moe"),
    "mimo_v2_flash": Family(
        moe=replace(_DEEPSEEK, shared_count="n_shared_experts"),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        rename={"layer_types": ()},
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
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        gated=False,
        fused=True,
        norm_bias=True,
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
    ),
    "gpt2": Family(
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
    ),
    "gpt_bigcode": Family(
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
    ),
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
        mlp_names=_UNGATED,
    ),
}
