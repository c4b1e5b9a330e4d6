"""Models that draft tokens for another one: what each method loads beside its target, as facts like any other model's.

An EAGLE head is one decoder layer of full attention behind a projection. EAGLE joins the target's last hidden state to the
embedding of the token (2 h -> h) and shares the target's unembedding; EAGLE-3 projects three hidden states of the target
(3 h -> h), feeds its attention 2 h and unembeds a vocabulary of its own (Li et al., arXiv 2401.15077 and 2503.01840;
llama_eagle.py and llama_eagle3.py of SGLang). A multi-token-prediction layer is a layer of the target behind a projection
(2 h -> h); embedding and unembedding are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from servegen.catalog.facts import BYTES_PER_WEIGHT, Attention, LayerGroup, ModelFacts, TensorClass
from servegen.catalog.hf_fields import LARGEST_LAYERS, Fields
from servegen.catalog.models import read_config
from servegen.errors import CatalogError, Diagnostic

Head = Literal["eagle", "eagle3"]
#: Tokens that an EAGLE-3 head predicts where no config says otherwise: draft_vocab_size of the published heads
#: (yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, thoughtworks/Qwen3-32B-Eagle3, SpecForge's examples).
DRAFT_VOCABULARY = 32000
#: Hidden states of the target that the head's projection takes in, and hidden sizes that its attention does.
TAKEN = {"eagle": 2, "eagle3": 3}
ATTENDED = {"eagle": 1, "eagle3": 2}


def head_from_file(target: ModelFacts, head: Head, name: str, path: Path) -> ModelFacts:
    """The head that a ``config.json`` describes. CatalogError where it cannot be read or describes no such head."""
    config = read_config(path)
    inner = config.get("transformer_layer_config")  # the form of the speculators library
    if isinstance(inner, Mapping):
        config = {**inner, **{k: v for k, v in config.items() if v is not None}}
    f = Fields(config, name)
    if f.has("kv_lora_rank"):
        f.refuse("kv_lora_rank", "heads with compressed KV are not modelled")
    heads, hidden = f.size("num_attention_heads"), f.size("hidden_size")
    vocabulary = f.size("vocab_size", default=target.vocab_size)
    taken = f.size("target_hidden_size", default=hidden)
    if taken != target.hidden_size:
        f.refuse("hidden_size", f"takes hidden states of {taken}, and {target.id} has {target.hidden_size}")
    return _head(
        target,
        head,
        name,
        layers=f.size("num_hidden_layers", default=1, most=LARGEST_LAYERS),
        hidden=hidden,
        taken=taken,
        heads=heads,
        kv_heads=f.size("num_key_value_heads", default=heads),
        head_dim=f.size("head_dim", default=max(hidden // heads, 1)),
        intermediate=f.size("intermediate_size"),
        vocabulary=f.size("draft_vocab_size", default=vocabulary) if head == "eagle3" else vocabulary,
        source=str(path),
    )


def usual_head(target: ModelFacts, head: Head, name: str) -> ModelFacts:
    """The head that is usual for a dense target: one layer of the target's own shape.

    CatalogError for a target of another kind, whose heads have shapes of their own.
    """
    group = target.layers[0]
    att = group.attention
    if len(target.layers) != 1 or att.kind != "full" or group.num_experts or not group.intermediate:
        message = f"the shape of the draft {name} does not follow from {target.id}, which is not a plain dense model"
        hint = "state model.speculative.draftConfig: the draft's config.json"
        raise CatalogError(Diagnostic("draft-unknown", message, hint=hint))
    return _head(
        target,
        head,
        name,
        layers=1,
        hidden=target.hidden_size,
        taken=target.hidden_size,
        heads=att.num_heads,
        kv_heads=att.num_kv_heads,
        head_dim=att.head_dim,
        intermediate=group.intermediate,
        vocabulary=min(DRAFT_VOCABULARY, target.vocab_size) if head == "eagle3" else target.vocab_size,
        source=f"the structure of {head} for {target.id}",
    )


def _head(
    target: ModelFacts,
    head: Head,
    name: str,
    *,
    layers: int,
    hidden: int,
    taken: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
    vocabulary: int,
    source: str,
) -> ModelFacts:
    projection = TAKEN[head] * taken * hidden
    attention = ATTENDED[head] * hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden
    sizes = {"attention": layers * attention, "mlp": layers * 3 * hidden * intermediate + projection}
    if head == "eagle3":
        sizes["lm_head"] = vocabulary * hidden
    group = LayerGroup(layers, Attention("full", heads, kv_heads, head_dim, head_dim), intermediate)
    return _facts(target, name, hidden, vocabulary, group, tuple(_bf16(k, n) for k, n in sizes.items()), source)


def mtp_layer(target: ModelFacts) -> ModelFacts:
    """The multi-token-prediction layer that ``target``'s checkpoint brings. CatalogError where it brings none.

    It is shaped like the target's last layer with attention over tokens; of several such layers one drafts.
    """
    if not target.hf_config.get("mtp_layers"):
        message = f"{target.id} has no multi-token-prediction layer to draft with"
        raise CatalogError(Diagnostic("no-mtp", message, hint="choose another method, such as eagle3 with a draft"))
    stateful = ("linear", "mamba", "none")
    group = next(g for g in reversed(target.layers) if g.attention.kind not in stateful)
    attending = sum(g.count for g in target.layers if g.attention.kind not in stateful)
    routed = sum(g.count for g in target.layers if g.num_experts)
    dense = sum(g.count for g in target.layers if g.intermediate)
    # MLPs as wide as this layer's: those of a dense layer, or of a routed one.
    of_kind = {"attention": attending, "expert": routed, "shared_expert": routed, "router": routed, "norm": target.num_layers}
    if not group.num_experts:
        of_kind["mlp"] = dense
    wide = _stored_wide(target)
    tensors = [_share(t, of_kind[t.kind], wide) for t in target.tensors if of_kind.get(t.kind)]
    tensors.append(_bf16("mlp", 2 * target.hidden_size * target.hidden_size))
    one = replace(group, count=1)
    source = target.sources.get("config", "")
    facts = _facts(target, f"{target.id} (MTP)", target.hidden_size, target.vocab_size, one, tuple(tensors), source)
    own = "bf16" if wide else target.native_precision
    return replace(facts, native_precision=own, weight_block=0 if wide else target.weight_block)


def _stored_wide(target: ModelFacts) -> bool:
    """Whether the checkpoint keeps its MTP layers in bf16, as 4-bit checkpoints do."""
    stored, params = target.hf_config.get("mtp_bytes"), target.hf_config.get("mtp_params")
    return isinstance(stored, int) and isinstance(params, int) and stored >= 1.95 * params


def _share(tensor: TensorClass, layers: int, wide: bool) -> TensorClass:
    """What one of ``layers`` layers has of a class of tensors."""
    params, active = tensor.params // layers, tensor.active // layers
    if wide:
        return replace(_bf16(tensor.kind, params), active=active)
    return replace(tensor, params=params, active=active, stored_bytes=tensor.stored_bytes // layers)


def _bf16(kind: str, params: int) -> TensorClass:
    return TensorClass(kind, params, params, "bf16", int(params * BYTES_PER_WEIGHT["bf16"]), False)


def _facts(
    target: ModelFacts,
    name: str,
    hidden: int,
    vocabulary: int,
    group: LayerGroup,
    tensors: tuple[TensorClass, ...],
    source: str,
) -> ModelFacts:
    """A draft in bf16."""
    return ModelFacts(
        id=name,
        aliases=(),
        architecture="draft",
        model_type="draft",
        hidden_size=hidden,
        vocab_size=vocabulary,
        max_context=target.max_context,
        tied_embeddings=False,
        layers=(group,),
        tensors=tensors,
        native_precision="bf16",
        sources={"config": source},
    )
