"""What a family of decoders is: the facts about its code that a checkpoint's config does not state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from servegen.record import record

Switch = bool | str  # a constant, or the name of the config field that decides (absent = false)


@record
class Moe:
    """How a family's mixture-of-experts layers read. Tuples of names: the first present field counts."""

    experts: tuple[str, ...] = ("num_experts", "num_local_experts")
    per_token: tuple[str, ...] = ("num_experts_per_tok",)
    width: tuple[str, ...] = ("moe_intermediate_size",)
    dense_width: tuple[str, ...] = ("intermediate_size",)
    shared_count: str = ""  # field with the number of shared experts, each of the routed width
    shared_width: str = ""  # or field with the width of the one shared expert
    shared_each: tuple[str, ...] = ()  # field with the width of each shared expert, where it may differ
    shared_gate: bool = False  # a gate vector beside the shared expert
    prefix: str = ""  # module name of the block where it is not the MLP's
    router: str = "gate"
    shared: str = "shared_experts"
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    correction_bias: Switch = False  # one value per expert beside the router
    router_bias: bool = False
    expert_bias: bool = False
    norm: bool = False  # a norm after the block
    optional: bool = False  # the family also has dense members: no experts field means dense


@record
class Family:
    """One row of the table. Switches default to absent; norms are counted by layer."""

    attention: Literal[
        "gqa", "mla", "delta", "lightning", "kda", "jamba", "mamba2", "short_conv", "nemotron_h", "deci"
    ] = "gqa"
    moe: Moe | None = None
    qkv_bias: Switch = "attention_bias"
    out_bias: Switch = "attention_bias"
    mlp_bias: Switch = "mlp_bias"
    qk_norm: Literal["", "head", "full", "per_head"] = ""  # size of the q/k norms: one head, all heads
    qk_norm_when: str = ""  # field that turns them on
    sinks: bool = False  # one attention sink per head
    output_gate: Literal["", "head", "full"] = ""  # gates of the attention's output: one a head, or one an element
    shapes: Literal["", "mimo", "step"] = ""  # how the config gives sliding layers heads of their own
    gated: bool = True
    fused: bool = False  # qkv_proj and gate_up_proj are single tensors
    norms: int = 2
    norm_bias: bool = False
    final_norms: int = 1
    tied: bool = False  # when tie_word_embeddings is absent
    head_bias: Switch = False  # a bias beside the unembedding
    window: Literal["", "all", "qwen", "even", "pattern"] = ""  # which layers slide when layer_types is absent
    mlp: str = "mlp"
    mlp_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    mlp_scalars: int = 0  # learned numbers of the activation
    embedding_active: bool = True  # whether its publisher counts the input embedding as active
    four_times: bool = False  # the MLP is four times the hidden size where no field says otherwise
    positions: int = -1  # learned positions beyond max_position_embeddings; -1 = none
    mtp: Literal["", "with_embeddings", "shared"] = ""  # whether its MTP layers carry copies of the embeddings
    rename: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
