"""Writes tests/fixtures/hf_counts.json: parameters of small models as transformers itself builds them.

Every family that transformers has is built on the meta device from a small config, and again with each flag of that
config turned over that changes the count. Needs torch and transformers (5.24.0 wrote the file), which the project does
not depend on:

    python -m tests.tools.hf_counts
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "fixtures" / "hf_counts.json"

SMALL: dict[str, object] = {
    "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 512, "num_hidden_layers": 6,
    "vocab_size": 1024, "n_embd": 256, "n_head": 8, "n_layer": 6, "moe_intermediate_size": 128, "num_local_experts": 4,
    "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "head_dim": 32, "ffn_dim": 512, "n_inner": 512,
    "first_k_dense_replace": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "q_lora_rank": 64, "kv_lora_rank": 32,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32, "n_group": 1, "topk_group": 1,
    "shared_expert_intermediate_size": 192, "shared_intermediate_size": 160, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "max_position_embeddings": 4096,
    "mamba_dt_rank": 16, "mamba_d_state": 8, "mamba_n_heads": 16, "mamba_d_head": 32, "index_n_heads": 4, "index_head_dim": 32,
    "index_topk": 64, "sliding_window": 512, "n_shared_experts": 1, "d_model": 256, "n_heads": 8, "n_layers": 6,
    "hidden_size_per_layer_input": 0, "word_embed_proj_dim": 256,
}  # fmt: skip
OWN: dict[str, dict[str, object]] = {
    "bamba": {"attn_layer_indices": [1, 4]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 3},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention"] * 2, "num_dense_layers": 2},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_layer_end_index": 5},
    "opt": {"hidden_size": 768, "ffn_dim": 512, "num_attention_heads": 12, "word_embed_proj_dim": 768},
}
FAMILIES = (
    "afmoe", "apertus", "arcee", "axk1", "bamba", "cohere", "cohere2", "cohere2_moe", "cwm", "deepseek_v2", "deepseek_v3",
    "deepseek_v32", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "falcon", "flex_olmo", "gemma", "gemma2",
    "gemma3_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss",
    "gptj", "granite", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "helium",
    "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3", "hyperclovax", "internlm3", "jais2", "jamba", "lfm2", "lfm2_moe", "llama",
    "llama4_text", "mellum", "minicpm3", "minimax", "minimax_m2", "ministral3", "mistral", "mixtral", "mpt", "nemotron", "olmo",
    "olmo2", "olmo3", "olmoe", "opt", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_5_moe_text", "qwen3_5_text",
    "qwen3_moe", "qwen3_next", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2", "vaultgemma", "youtu",
)  # fmt: skip
VISION = (
    "cohere2_vision", "glm4v", "internvl", "llama4", "llava", "llava_next", "llava_onevision", "mistral3", "qwen2_5_vl",
    "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe",
)  # fmt: skip
#: Fields that say nothing about the shape.
DROPPED = (
    "_name_or_path", "add_cross_attention", "attention_dropout", "chunk_size_feed_forward", "id2label", "initializer_range",
    "is_encoder_decoder", "label2id", "layer_norm_elementwise_affine", "output_attentions", "output_hidden_states",
    "output_router_logits", "problem_type", "return_dict", "router_aux_loss_coef", "transformers_version", "use_cache",
)  # fmt: skip


def count(config: Any) -> int:
    """Parameters of the model that transformers builds, with the routers' correction biases, which it holds as buffers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForImageTextToText if "vision_config" in config.to_dict() else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config)
    model.tie_weights()
    weights = {id(p): p.numel() for p in model.parameters()}
    biases = sum(b.numel() for name, b in model.named_buffers() if name.endswith(("correction_bias", "expert_bias")))
    return sum(weights.values()) + biases


def plain(config: Any, architecture: str) -> dict[str, object]:
    """The config as a checkpoint would have it, without what says nothing about the shape."""
    raw = json.loads(json.dumps(config.to_dict(), default=str))

    def cut(value: object) -> object:
        if isinstance(value, dict):
            kept = {k: cut(v) for k, v in value.items() if v is not None and k not in DROPPED and not k.endswith("token_id")}
            texts = ("sliding_window_pattern",)
            return {k: v for k, v in kept.items() if not isinstance(v, str) or k.endswith("type") or k in texts}
        return value

    shape = cut(raw)
    assert isinstance(shape, dict)
    return {"architectures": [architecture], **shape}


def cases() -> Iterator[dict[str, object]]:
    """One case for each family: its config, its count, and the counts with single flags turned over."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    for name in FAMILIES + VISION:
        own = name not in VISION
        named = (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if own else MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)[name]
        architecture = named if isinstance(named, str) else named[0]
        make = CONFIG_MAPPING[name]
        default = make().to_dict()
        small = {k: v for k, v in SMALL.items() if own and k in default} | OWN.get(name, {})
        per_layer = ("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers", "moe_layers")
        small |= {k: None for k in per_layer if own and k in default and k not in small}
        base = make(**small)
        params, flags = count(base), []
        for flag in sorted(k for k, v in base.to_dict().items() if own and isinstance(v, bool) and k not in DROPPED):
            try:
                turned = count(make(**{**small, flag: not base.to_dict()[flag]}))
            except Exception:  # a flag that the family's own code cannot take says nothing
                continue
            if turned != params:
                flags.append([flag, not base.to_dict()[flag], turned])
        yield {"family": name, "params": params, "flags": flags, "config": plain(base, architecture)}


def main() -> None:
    lines = ",\n".join(json.dumps(case) for case in cases())
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
