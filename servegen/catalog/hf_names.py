"""Names in a config: which family an architecture is, what a wrapper adds, and which fields are refused by name."""

from __future__ import annotations

from collections.abc import Mapping

#: Architecture class -> family, for configs that carry no ``model_type`` or one of their own.
ARCHITECTURES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2", "Qwen2MoeForCausalLM": "qwen2_moe", "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe", "Qwen3NextForCausalLM": "qwen3_next", "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2", "Gemma3ForCausalLM": "gemma3_text", "Phi3ForCausalLM": "phi3",
    "GraniteForCausalLM": "granite", "Olmo2ForCausalLM": "olmo2", "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3", "DeepseekV32ForCausalLM": "deepseek_v32", "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4_moe", "GlmMoeDsaForCausalLM": "glm_moe_dsa", "GptOssForCausalLM": "gpt_oss",
    "MiniMaxM2ForCausalLM": "minimax_m2", "NemotronHForCausalLM": "nemotron_h", "DeciLMForCausalLM": "nemotron-nas",
    "FalconForCausalLM": "falcon", "BloomForCausalLM": "bloom", "CohereForCausalLM": "cohere",
    "Cohere2ForCausalLM": "cohere2", "Starcoder2ForCausalLM": "starcoder2", "SeedOssForCausalLM": "seed_oss",
    "InternLM2ForCausalLM": "internlm2", "InternLM3ForCausalLM": "internlm3", "Llama4ForCausalLM": "llama4_text",
    "JambaForCausalLM": "jamba", "DbrxForCausalLM": "dbrx",
}  # fmt: skip

#: ``model_type`` of a config that wraps a text config -> the vision tower it adds ("" = none of its own).
WRAPPERS: Mapping[str, str] = {
    "llama4": "llama4", "qwen3_vl": "qwen3_vl", "qwen3_vl_moe": "qwen3_vl", "qwen3_5": "qwen3_vl",
    "qwen3_5_moe": "qwen3_vl", "qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_5_vl", "gemma3": "gemma3",
    "gemma4": "gemma4", "mistral3": "pixtral", "kimi_k25": "moonvit", "llava": "llava", "llava_next": "llava_next",
    "llava_onevision": "llava_next", "cohere2_vision": "cohere2_vision", "internvl": "internvl",
    "glm4v": "glm4v", "glm4v_moe": "glm4v", "glm46v": "glm4v", "step3p7": "step",
}  # fmt: skip

#: What the text model's configuration class takes where a wrapper's config, which states only what differs, says nothing
#: (transformers 4.57, LlamaConfig and MistralConfig).
NESTED_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "llama": {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "vocab_size": 32000, "max_position_embeddings": 2048,
    },
    "mistral": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 131072,
    },
}  # fmt: skip

#: Model types that people serve and the physics has no form for, with the reason.
UNMODELLED_TYPES: Mapping[str, str] = {
    "bitnet": "ternary weights",
    "falcon_h1": "attention and a state space side by side in one layer",
    "falcon_mamba": "a model without attention",
    "gemma3n_text": "layers that share caches, and embeddings for every layer",
    "jetmoe": "a mixture of experts in the attention",
    "longcat_flash": "two attentions and MLPs in one layer, and experts that do nothing",
    "mamba": "a model without attention",
    "mamba2": "a model without attention",
    "recurrent_gemma": "linear recurrent units",
    "rwkv": "a model without attention",
    "zamba": "attention layers that share their weights",
    "zamba2": "attention layers that share their weights",
}

#: Fields that change a model in a way the physics has no term for: present and true-like, they are refused by name.
UNMODELLED: Mapping[str, str] = {
    "is_encoder_decoder": "encoder-decoder models are not modelled",
    "add_cross_attention": "cross-attention is not modelled",
    "cross_attention_layers": "cross-attention layers are not modelled",
    "encoder_layers": "encoder-decoder models are not modelled",
    "pruned_heads": "pruned heads are not modelled",
    "per_layer_config": "layers with settings of their own in this form are not modelled",
    "compress_ratios": "attention over a compressed KV cache is not modelled",
    "hc_mult": "hyper-connections are not modelled",
    "sparse_attention_config": "block-sparse attention is not modelled",
    "attn_res_block_size": "attention residuals over blocks of layers are not modelled",
    "routed_expert_hidden_size": "experts in a latent space of this form are not modelled",
    "num_kv_shared_layers": "layers that share the KV cache of another layer are not modelled",
    "hidden_size_per_layer_input": "embeddings for every layer are not modelled",
    "use_double_wide_mlp": "MLPs of double width are not modelled",
    "altup_num_inputs": "alternating updates are not modelled",
    "zero_expert_num": "experts that do nothing are not modelled",
    "use_cla": "KV caches shared across layers are not modelled",
}
#: Fields that a dense grouped-query family must not carry: its members that do are another family's.
FOREIGN: Mapping[str, str] = {
    "num_local_experts": "experts", "num_experts": "experts", "n_routed_experts": "experts",
    "moe_num_experts": "experts", "kv_lora_rank": "latent attention", "ssm_state_size": "state-space layers",
    "mamba_num_heads": "state-space layers", "linear_num_value_heads": "linear attention",
    "linear_attn_config": "linear attention",
}  # fmt: skip
