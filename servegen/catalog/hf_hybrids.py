"""Which layers of a hybrid attend and which keep a state, one function per way of writing it in a config."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial

from servegen.catalog.hf_attention import Mixer, gqa, head_counts, kimi_delta, lightning, mamba1, mamba2, mla, short_conv
from servegen.catalog.hf_family import Family
from servegen.catalog.hf_fields import Fields

#: A layer's mixer: a key that equal ones share, and the function that builds it.
MixerOf = tuple[Hashable, Callable[[], Mixer]]

FULL = ("full_attention", "attention")


def periodic(f: Fields, what: str, layers: int) -> list[bool]:
    """Jamba: every ``<what>_period``-th layer from ``<what>_offset`` on."""
    period, offset = f.size(f"{what}_period"), f.integer(f"{what}_offset")
    return [index % period == offset for index in range(layers)]


def _jamba(f: Fields, family: Family, layers: int) -> list[MixerOf]:
    attends = periodic(f, "attn_layer", layers)
    return [(a, partial(gqa, f, family) if a else partial(mamba1, f)) for a in attends]


def _lightning(f: Fields, family: Family, layers: int) -> list[MixerOf]:
    """MiniMax-Text-01: 1 for attention, 0 for lightning attention."""
    kinds = f.integers("attn_type_list")
    if kinds is None:
        types = f.per_layer("layer_types", layers, (*FULL, "linear_attention"))
        if types is None:
            f.refuse("attn_type_list", "required, but missing")
        kinds = [1 if t in FULL else 0 for t in types]
    if len(kinds) != layers or set(kinds) - {0, 1}:
        f.refuse("attn_type_list", f"must hold 0 or 1 for each of {layers} layers")
    return [(k, partial(gqa, f, family) if k else partial(lightning, f)) for k in kinds]


def _kimi_linear(f: Fields, family: Family, layers: int) -> list[MixerOf]:
    """Kimi-Linear: latent attention in ``full_attn_layers``, delta attention in ``kda_layers``."""
    linear = f.sub("linear_attn_config")
    if linear is None:
        f.refuse("linear_attn_config", "required, but missing")
    full, delta = set(linear.integers("full_attn_layers") or []), set(linear.integers("kda_layers") or [])
    if full & delta or full | delta != set(range(1, layers + 1)):  # counted from 1
        linear.refuse("kda_layers", f"must with full_attn_layers cover the layers 1 to {layers} once each")
    return [
        (i in full, partial(mla, f, False) if i in full else partial(kimi_delta, f, linear))
        for i in range(1, layers + 1)
    ]


def _mamba2(f: Fields, family: Family, layers: int) -> list[MixerOf]:
    """Granite 4 and Bamba: the kind of each layer, or the numbers of those that attend; without either none does."""
    attends = _attending(f, layers, ("layer_types", "layers_block_type"), "attn_layer_indices", ("mamba", "linear_attention"))
    return [(a, partial(gqa, f, family) if a else partial(mamba2, f, "mamba")) for a in attends]


def _short_conv(f: Fields, family: Family, layers: int) -> list[MixerOf]:
    """LFM2: the kind of each layer, or the numbers of those that attend."""
    attends = _attending(f, layers, ("layer_types",), "full_attn_idxs", ("conv", "linear_attention"))
    return [(a, partial(gqa, f, family) if a else partial(short_conv, f)) for a in attends]


def _attending(f: Fields, layers: int, kinds: tuple[str, ...], numbers: str, others: tuple[str, ...]) -> list[bool]:
    for name in kinds:
        types = f.per_layer(name, layers, (*FULL, *others))
        if types is not None:
            return [t in FULL for t in types]
    chosen = f.integers(numbers)
    if chosen is None:
        f.refuse(kinds[0], "required, but missing")
    if any(index >= layers for index in chosen):
        f.refuse(numbers, f"names layer {max(chosen)} of {layers} layers")
    return [index in set(chosen) for index in range(layers)]


HYBRIDS: Mapping[str, Callable[[Fields, Family, int], list[MixerOf]]] = {
    "jamba": _jamba, "lightning": _lightning, "kda": _kimi_linear, "mamba2": _mamba2, "short_conv": _short_conv,
}  # fmt: skip


def two_shapes(f: Fields, family: Family, layers: int) -> list[MixerOf]:
    """Families whose sliding layers have head counts of their own (MiMo-V2, Step-3.5)."""
    heads, kv_heads, dim = head_counts(f)
    whole = (heads, kv_heads, dim, f.size("v_head_dim", default=dim))
    slides, shape = (_mimo if family.shapes == "mimo" else _step)(f, layers, whole)
    if shape[0] % shape[1]:
        f.refuse("swa_num_key_value_heads", f"{shape[1]} does not divide the {shape[0]} attention heads of sliding layers")
    window = f.size("sliding_window", default=0 if not any(slides) else None)
    mixers = partial(gqa, f, family, "sliding", window, shape), partial(gqa, f, family, "full", 0, whole)
    return [(s, mixers[0] if s else mixers[1]) for s in slides]


def _mimo(f: Fields, layers: int, whole: tuple[int, int, int, int]) -> tuple[list[bool], tuple[int, int, int, int]]:
    """MiMo-V2: which layers slide (1), and their heads in ``swa_*`` fields."""
    pattern = f.integers("hybrid_layer_pattern")
    if pattern is None:
        f.refuse("hybrid_layer_pattern", "required, but missing")
    if len(pattern) != layers or set(pattern) - {0, 1}:
        f.refuse("hybrid_layer_pattern", f"must hold 0 or 1 for each of {layers} layers")
    heads = f.size("swa_num_attention_heads", default=whole[0])
    shape = (heads, f.size("swa_num_key_value_heads"), f.size("swa_head_dim"), f.size("swa_v_head_dim"))
    return [p == 1 for p in pattern], shape


def _step(f: Fields, layers: int, whole: tuple[int, int, int, int]) -> tuple[list[bool], tuple[int, int, int, int]]:
    """Step-3.5: layer types (those of its MTP layers follow), and the heads of sliding ones in a mapping."""
    types = f.texts("layer_types")
    extra = f.integer("num_nextn_predict_layers", default=0, most=64)
    if len(types) not in (layers, layers + extra):
        f.refuse("layer_types", f"has {len(types)} entries for {layers} layers")
    kinds = f.per_layer("layer_types", len(types), ("full_attention", "sliding_attention")) or []
    slides = [kind == "sliding_attention" for kind in kinds[:layers]]
    other = f.sub("attention_other_setting")
    if other is None:
        if any(slides):
            f.refuse("attention_other_setting", "required, but missing: its sliding layers have heads of their own")
        return slides, whole
    dim = other.size("head_dim", default=whole[2])
    groups = other.size("num_attention_groups", default=whole[1])
    return slides, (other.size("num_attention_heads", default=whole[0]), groups, dim, dim)
