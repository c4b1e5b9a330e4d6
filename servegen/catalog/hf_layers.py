"""The decoder layers of a model in order: which token mixer and which feed-forward block each one has."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Literal

from servegen.catalog.facts import Attention, LayerGroup
from servegen.catalog.hf_attention import Mixer, gated_delta, gqa, head_counts, mamba2, mla
from servegen.catalog.hf_family import Family
from servegen.catalog.hf_fields import LARGEST_CONTEXT, LARGEST_LAYERS, Fields, shown
from servegen.catalog.hf_hybrids import FULL, HYBRIDS, MixerOf, periodic, two_shapes
from servegen.catalog.hf_mlp import Mlp, dense, experts, gemma4_experts, moe_layers
from servegen.catalog.hf_names import FOREIGN
from servegen.catalog.hf_tensors import Layer, Weight, vector

_NONE = Attention("none")
_NO_MLP = Mlp(())
_LAYER_TYPES = (*FULL, "sliding_attention", "chunked_attention", "linear_attention")
_NEMOTRON_BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEMOTRON_NAMES = {"linear_attention": "mamba", "full_attention": "attention"}  # newer names of the same blocks


def read_layers(f: Fields, family: Family) -> list[Layer]:
    """The decoder layers, equal ones as the same object; raises CatalogError naming the field it cannot model."""
    if family.attention == "nemotron_h":
        return _nemotron_h(f, family)
    layers = f.size("num_hidden_layers", most=LARGEST_LAYERS)
    if family.attention == "deci":
        return _deci(f, family, layers)
    build = _Builder(f, family)
    sparse = moe_layers(f, family.moe, layers)
    if family.attention == "jamba":
        sparse = (
            periodic(f, "expert_layer", layers)
            if f.has("num_experts") and f.size("num_experts") > 1
            else [False] * layers
        )
    mixers = _mixers(f, family, layers)
    return [build(mixer, is_sparse) for mixer, is_sparse in zip(mixers, sparse, strict=True)]


class _Builder:
    """Makes each distinct layer once. A mixer is asked for by a key; ``keyed`` maps the key to what builds it."""

    def __init__(self, f: Fields, family: Family) -> None:
        self.f, self.family = f, family
        self.layers: dict[Hashable, Layer] = {}

    def __call__(self, mixer: MixerOf, is_sparse: bool) -> Layer:
        key, make = mixer
        if (key, is_sparse) not in self.layers:
            self.layers[key, is_sparse] = self._make(make(), is_sparse)
        return self.layers[key, is_sparse]

    def _make(self, mixer: Mixer, is_sparse: bool) -> Layer:
        f, family, moe = self.f, self.family, self.family.moe
        if f.has("enable_moe_block") and f.flag("enable_moe_block"):
            mlp = gemma4_experts(f, family)
        elif is_sparse and moe is not None:
            mlp = experts(f, family, moe)
        else:
            mlp = dense(f, family)
        return layer(mixer, mlp, _norms(f, family))


def layer(mixer: Mixer, mlp: Mlp, norms: tuple[Weight, ...]) -> Layer:
    """A layer from its parts."""
    shape = LayerGroup(
        1,
        mixer[0],
        mlp.intermediate,
        mlp.num_experts,
        mlp.experts_per_token,
        mlp.moe_intermediate,
        mlp.shared_intermediate,
    )
    return Layer(shape, (*mixer[1], *mlp.weights, *norms))


def _norms(f: Fields, family: Family) -> tuple[Weight, ...]:
    count = family.norms
    if f.has(
        "num_ln_in_parallel_attn", "new_decoder_architecture", "parallel_attn"
    ):  # Falcon: one or two before parallel blocks
        two = f.size("num_ln_in_parallel_attn", default=2) > 1 and f.flag("new_decoder_architecture")
        count = 2 if two or not f.flag("parallel_attn", True) else 1
    elif f.has("use_parallel_residual") and family.qk_norm == "per_head":  # StableLM: one norm before parallel blocks
        count = 1 if f.flag("use_parallel_residual") else 2
    elif f.has("use_post_norm") and not f.flag("use_post_norm"):  # HyperCLOVA X
        count = 2
    size = count * f.size("hidden_size") * (2 if family.norm_bias else 1)
    return (vector("norms", "norm", size),) if size else ()


def _mixers(f: Fields, family: Family, layers: int) -> list[MixerOf]:
    """For each layer the key of its mixer and the function that builds it."""
    if family.attention == "mla":
        indexed = [f.has("index_topk")] * layers
        shared = f.per_layer("indexer_types", layers, ("full", "shared"))
        if shared is not None:
            indexed = [i and s == "full" for i, s in zip(indexed, shared, strict=True)]
        return [(i, partial(mla, f, i)) for i in indexed]
    if family.attention in HYBRIDS:
        return HYBRIDS[family.attention](f, family, layers)
    if family.shapes:
        return two_shapes(f, family, layers)
    if family.attention == "gqa" and not f.has("layers_block_type"):
        for name, what in FOREIGN.items():
            if (
                f.has(name)
                and f.find(name)[1]
                and not (family.moe is not None and what == "experts")
                and not f.has("enable_moe_block")
            ):
                f.refuse(
                    name, f"{what} in a model_type that has none ({f.text('model_type', default='its architecture')})"
                )
    types = f.per_layer("layer_types", layers, _LAYER_TYPES) or _default_types(f, family, layers)
    return [(t, partial(_attention, f, family, t)) for t in types]


def _default_types(f: Fields, family: Family, layers: int) -> list[str]:
    """The layer types where the config has no layer_types, by the family's own rule."""
    full, sliding = "full_attention", "sliding_attention"
    if family.attention == "delta":
        every = f.size("full_attention_interval", default=4)
        return [full if (i + 1) % every == 0 else "linear_attention" for i in range(layers)]
    if f.has("attention_chunk_size") and not f.has("hybrid_layer_pattern"):
        rope = f.integers("no_rope_layers")
        if rope is not None and len(rope) not in (0, layers):
            f.refuse("no_rope_layers", f"has {len(rope)} entries for {layers} layers")
        every = f.size("no_rope_layer_interval", default=4)
        chunked = [bool(r) for r in rope] if rope else [(i + 1) % every != 0 for i in range(layers)]
        return ["chunked_attention" if c else full for c in chunked]
    if not f.has("sliding_window"):
        return [full] * layers
    if family.window == "all":
        return [sliding] * layers
    if family.window == "qwen" and f.flag("use_sliding_window"):
        first = f.integer("max_window_layers", default=layers)
        return [sliding if i >= first else full for i in range(layers)]
    if family.window == "even":
        return [sliding if i % 2 == 0 else full for i in range(layers)]
    if family.window == "pattern" and isinstance(f.find("sliding_window_pattern")[1], str):  # EXAONE 4: LLLG
        letters = f.text("sliding_window_pattern")
        if set(letters) - {"L", "G"}:
            f.refuse(
                "sliding_window_pattern", f"{shown(letters)} is not modelled", "modelled: letters L and G, or a number"
            )
        return [full if letters[i % len(letters)] == "G" else sliding for i in range(layers)]
    if family.window == "pattern":
        every = f.size("sliding_window_pattern", "_sliding_window_pattern")
        return [full if (i + 1) % every == 0 else sliding for i in range(layers)]
    return [full] * layers


def _attention(f: Fields, family: Family, layer_type: str) -> Mixer:
    if layer_type == "linear_attention":
        if family.attention != "delta":
            f.refuse("layer_types", f"linear_attention is not modelled for model_type {shown(f.text('model_type'))}")
        return gated_delta(f, split=not f.text("model_type").startswith("qwen3_next"))
    kind: Literal["full", "sliding", "chunked"] = "full"
    window = 0
    if layer_type == "sliding_attention":
        kind, window = "sliding", f.size("sliding_window", most=LARGEST_CONTEXT)
    elif layer_type == "chunked_attention":
        kind, window = "chunked", f.size("attention_chunk_size", most=LARGEST_CONTEXT)
    if window >= f.size("max_position_embeddings", most=LARGEST_CONTEXT):
        kind, window = "full", 0  # Phi: a window beyond the context never cuts
    shape, shares = None, False
    if kind == "full" and f.has("global_head_dim"):  # Gemma 4: global layers have heads of their own
        heads, kv_heads, _ = head_counts(f)
        shares = f.flag("attention_k_eq_v")
        dim = f.size("global_head_dim")
        shape = (heads, f.size("num_global_key_value_heads", default=kv_heads) if shares else kv_heads, dim, dim)
    gate = family.attention == "delta" and f.flag("attn_output_gate", True)
    return gqa(f, family, kind, window, shape, shares, gate)


def _nemotron_h(f: Fields, family: Family) -> list[Layer]:
    """Nemotron-H: every layer is one block: a mixer or an MLP, not both."""
    names = f.texts("layers_block_type")
    if not names:
        pattern = f.text("hybrid_override_pattern")
        if not pattern:
            f.refuse("hybrid_override_pattern", "required, but missing")
        for letter in pattern:
            if letter not in _NEMOTRON_BLOCKS:
                f.refuse("hybrid_override_pattern", f"layer type {letter!r} is not modelled", "modelled: M * - E")
        names = [_NEMOTRON_BLOCKS[letter] for letter in pattern]
    names = [_NEMOTRON_NAMES.get(name, name) for name in names]
    layers = f.size("num_hidden_layers", default=len(names), most=LARGEST_LAYERS)
    if layers != len(names):
        f.refuse("hybrid_override_pattern", f"has {len(names)} entries for {layers} layers")
    moe = family.moe
    if moe is not None and f.has("moe_shared_expert_intermediate_size"):
        moe = replace(moe, shared_width="moe_shared_expert_intermediate_size")
    norms = _norms(f, family)
    made: dict[str, Layer] = {}
    for name in names:
        if name in made:
            continue
        if name == "mamba":
            made[name] = layer(mamba2(f), _NO_MLP, norms)
        elif name == "attention":
            made[name] = layer(gqa(f, family, prefix="mixer"), _NO_MLP, norms)
        elif name == "mlp":
            made[name] = layer((_NONE, ()), dense(f, family), norms)
        elif name == "moe" and moe is not None:
            made[name] = layer((_NONE, ()), experts(f, family, moe), norms)
        else:
            f.refuse(
                "layers_block_type", f"layer type {shown(name)} is not modelled", "modelled: mamba attention mlp moe"
            )
    return [made[name] for name in names]


def _deci(f: Fields, family: Family, layers: int) -> list[Layer]:
    """DeciLM (Llama-Nemotron): each block states its own KV heads and MLP width, or that it has none."""
    blocks = f.items("block_configs")
    if blocks is None:
        f.refuse("block_configs", "required, but missing")
    if len(blocks) != layers:
        f.refuse("block_configs", f"has {len(blocks)} entries for {layers} layers")
    heads = f.size("num_attention_heads")
    hidden = f.size("hidden_size")
    dim = f.size("head_dim", default=max(1, hidden // heads))
    made: dict[tuple[int, int], Layer] = {}
    return [_deci_layer(f, family, block, (heads, dim, hidden), made) for block in blocks]


def _deci_layer(
    f: Fields, family: Family, block: object, sizes: tuple[int, int, int], made: dict[tuple[int, int], Layer]
) -> Layer:
    heads, dim, hidden = sizes
    part = Fields({"block_configs": block}, f.model, f.path).sub("block_configs")
    attention, ffn = (part.sub("attention"), part.sub("ffn")) if part is not None else (None, None)
    if attention is None or ffn is None:
        f.refuse("block_configs", "every block needs attention and ffn")
    for name in ("replace_with_linear", "sparsify", "unshifted_sink", "window_length", "num_sink_tokens"):
        for section in (attention, ffn):
            if section.find(name)[1]:
                section.refuse(name, "is not modelled")
    kv_heads = 0
    if not attention.flag("no_op"):
        per_kv = attention.size("n_heads_in_group")
        if heads % per_kv:
            attention.refuse("n_heads_in_group", f"{per_kv} does not divide the {heads} attention heads")
        kv_heads = heads // per_kv
    width = 0
    if not ffn.flag("no_op"):
        factor = ffn.number("ffn_mult")
        if ffn.has("intermediate_size"):
            width = ffn.size("intermediate_size")
        elif factor is None:
            ffn.refuse("ffn_mult", "required, but missing")
        else:
            if factor > 1000:
                ffn.refuse("ffn_mult", f"must lie below 1000, not {factor}")
            width = -(-int(2 * factor * hidden / 3) // 256) * 256  # DeciLM rounds up to a multiple of 256
    if (kv_heads, width) not in made:
        mixer = gqa(f, family, shape=(heads, kv_heads, dim, dim)) if kv_heads else (_NONE, ())
        mlp = dense(f, family, width) if width else _NO_MLP
        count = (kv_heads > 0) + (width > 0)
        made[kv_heads, width] = layer(mixer, mlp, (vector("norms", "norm", count * hidden),) if count else ())
    return made[kv_heads, width]
