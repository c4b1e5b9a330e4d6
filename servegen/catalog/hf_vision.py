"""Vision towers: their parameter counts, one function per tower. A text token uses none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from servegen.catalog.hf_fields import LARGEST_LAYERS, Fields

#: The tower that both published Llama 4 checkpoints carry (HF config.json of Llama-4-Scout-17B-16E-Instruct),
#: for configs from which it was cut.
LLAMA4_TOWER: Mapping[str, object] = {
    "hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34, "patch_size": 14, "image_size": 336,
    "vision_output_dim": 4096, "projector_input_dim": 4096, "projector_output_dim": 4096, "num_channels": 3,
}  # fmt: skip


#: What the configuration classes of towers take where a checkpoint's config says nothing (transformers 4.57).
PIXTRAL_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 16, "num_channels": 3,
}  # fmt: skip


def vision_params(name: str, top: Fields, text_hidden: int) -> int:
    """Parameters of the tower ``name`` (a value of WRAPPERS) with its projector; 0 where the config has no tower."""
    v = top.sub("vision_config")
    if v is None:
        if name != "llama4":
            return 0
        v = Fields(LLAMA4_TOWER, top.model, "vision_config.")
    return TOWERS[name](v, top, text_hidden)


def _encoder(hidden: int, width: int, layers: int) -> int:
    """``layers`` ViT blocks with biases: attention, an ungated MLP, two layer norms."""
    return layers * (4 * hidden * hidden + 2 * hidden * width + 9 * hidden + width)


def _depth(v: Fields, *names: str) -> int:
    return v.size(*names, most=LARGEST_LAYERS)


def _qwen3_vl(v: Fields, top: Fields, text_hidden: int) -> int:
    hidden, out = v.size("hidden_size"), v.size("out_hidden_size", default=text_hidden)
    patch = (
        v.size("in_channels", default=3) * v.size("temporal_patch_size", default=2) * v.size("patch_size") ** 2 * hidden
        + hidden
    )
    merged = hidden * v.size("spatial_merge_size", default=2) ** 2
    merger = merged * merged + merged + merged * out + out
    deep = len(v.integers("deepstack_visual_indexes") or [])
    blocks = _encoder(hidden, v.size("intermediate_size"), _depth(v, "depth"))
    return (
        patch + v.size("num_position_embeddings") * hidden + blocks + merger + 2 * hidden + deep * (merger + 2 * merged)
    )


def _qwen2_vl(v: Fields, top: Fields, text_hidden: int) -> int:
    hidden, merge = v.size("embed_dim"), v.size("spatial_merge_size", default=2) ** 2
    patch = (
        v.size("in_chans", "in_channels", default=3)
        * v.size("temporal_patch_size", default=2)
        * v.size("patch_size") ** 2
        * hidden
    )
    merged, out = hidden * merge, v.size("hidden_size", default=text_hidden)
    merger = 2 * hidden + merged * merged + merged + merged * out + out
    return patch + _encoder(hidden, v.size("mlp_ratio", default=4) * hidden, _depth(v, "depth")) + merger


def _qwen2_5_vl(v: Fields, top: Fields, text_hidden: int) -> int:
    hidden, width = v.size("hidden_size"), v.size("intermediate_size")
    patch = (
        v.size("in_chans", "in_channels", default=3)
        * v.size("temporal_patch_size", default=2)
        * v.size("patch_size") ** 2
        * hidden
    )
    block = 4 * hidden * hidden + 4 * hidden + 3 * hidden * width + 2 * width + hidden + 2 * hidden
    merged, out = hidden * v.size("spatial_merge_size", default=2) ** 2, v.size("out_hidden_size", default=text_hidden)
    return patch + _depth(v, "depth") * block + hidden + merged * merged + merged + merged * out + out


def _gemma3(v: Fields, top: Fields, text_hidden: int) -> int:
    hidden, patch = v.size("hidden_size"), v.size("patch_size")
    positions = (v.size("image_size") // patch) ** 2 * hidden
    blocks = _encoder(hidden, v.size("intermediate_size"), _depth(v, "num_hidden_layers"))
    return 3 * patch**2 * hidden + hidden + positions + blocks + 2 * hidden + hidden * text_hidden + hidden


def _gemma4(v: Fields, top: Fields, text_hidden: int) -> int:
    hidden, width, dim = v.size("hidden_size"), v.size("intermediate_size"), v.size("head_dim")
    heads, kv_heads = v.size("num_attention_heads"), v.size("num_key_value_heads")
    block = 2 * hidden * dim * (heads + kv_heads) + 2 * dim + 3 * hidden * width + 4 * hidden
    tables = 3 * v.size("patch_size") ** 2 * hidden + 2 * v.size("position_embedding_size") * hidden
    return tables + _depth(v, "num_hidden_layers") * block + 2 * hidden + hidden * text_hidden


def _llama4(v: Fields, top: Fields, text_hidden: int) -> int:
    hidden, patch = v.size("hidden_size"), v.size("patch_size")
    positions = ((v.size("image_size") // patch) ** 2 + 1) * hidden + hidden  # and the class token
    projector = v.size("projector_input_dim")
    adapter = v.size("intermediate_size") * projector + projector * v.size("projector_output_dim")
    blocks = _encoder(hidden, v.size("intermediate_size"), _depth(v, "num_hidden_layers"))
    return 3 * patch**2 * hidden + positions + blocks + 4 * hidden + adapter + v.size("vision_output_dim") * text_hidden


def _pixtral_tower(v: Fields) -> int:
    v = Fields(v.config, v.model, v.path, defaults=PIXTRAL_DEFAULTS)
    hidden = v.size("hidden_size")
    block = 4 * hidden * hidden + 3 * hidden * v.size("intermediate_size") + 2 * hidden
    patch = v.size("num_channels", default=3) * v.size("patch_size") ** 2 * hidden
    return patch + hidden + _depth(v, "num_hidden_layers") * block


def _pixtral(v: Fields, top: Fields, text_hidden: int) -> int:
    hidden, merge = v.size("hidden_size", default=1024), top.size("spatial_merge_size", default=1) ** 2
    return _pixtral_tower(v) + hidden + merge * hidden * hidden + hidden * text_hidden + text_hidden**2


def _siglip_tower(v: Fields) -> int:
    hidden, patch, width = v.size("hidden_size"), v.size("patch_size"), v.size("intermediate_size")
    tables = (v.size("num_channels", default=3) * patch**2 + 1 + (v.size("image_size") // patch) ** 2) * hidden
    head = 5 * hidden + 4 * hidden * hidden + 2 * hidden * width + 3 * hidden + width if v.flag("vision_use_head", True) else 0
    return tables + _encoder(hidden, width, _depth(v, "num_hidden_layers")) + 2 * hidden + head


def _clip_tower(v: Fields) -> int:
    hidden, patch = v.size("hidden_size"), v.size("patch_size")
    tables = (v.size("num_channels", default=3) * patch**2 + (v.size("image_size") // patch) ** 2 + 2) * hidden
    return tables + _encoder(hidden, v.size("intermediate_size"), _depth(v, "num_hidden_layers")) + 4 * hidden


def _named_tower(v: Fields) -> int:
    """The tower that ``vision_config.model_type`` names, for wrappers that take any."""
    known = {"clip_vision_model": _clip_tower, "siglip_vision_model": _siglip_tower, "pixtral": _pixtral_tower}
    name = v.text("model_type", default="clip_vision_model")
    if name not in known:
        v.refuse("model_type", f"the tower {name!r} is not modelled", f"modelled: {', '.join(known)}")
    return known[name](v)


def _two_linears(v: Fields, top: Fields, text_hidden: int) -> int:
    """LLaVA's projector: two linear layers."""
    layers = top.find("vision_feature_layer")[1]
    if isinstance(layers, list) and len(layers) != 1:
        top.refuse("vision_feature_layer", "features of several layers are not modelled")
    bias = 2 * text_hidden if top.flag("multimodal_projector_bias", True) else 0
    return v.size("hidden_size", default=1024) * text_hidden + text_hidden**2 + bias


def _llava(v: Fields, top: Fields, text_hidden: int) -> int:
    return _named_tower(v) + _two_linears(v, top, text_hidden)


def _llava_next(v: Fields, top: Fields, text_hidden: int) -> int:
    return _llava(v, top, text_hidden) + text_hidden  # a vector that marks the end of a row of patches


def _cohere2_vision(v: Fields, top: Fields, text_hidden: int) -> int:
    width, merged = top.size("alignment_intermediate_size", default=36864), top.size("downsample_factor", default=2) ** 2
    hidden = v.size("hidden_size") * merged
    return _siglip_tower(v) + hidden * width + width + width // 2 * text_hidden + text_hidden  # gated: half of it goes on


def _internvl(v: Fields, top: Fields, text_hidden: int) -> int:
    hidden, width = v.size("hidden_size"), v.size("intermediate_size")
    sides = [v.integers(name) or [0] for name in ("image_size", "patch_size")]
    if any(len(set(side)) != 1 or not side[0] for side in sides):
        v.refuse("image_size", "only square images of square patches are modelled")
    (image, *_), (patch, *_) = sides
    if v.flag("use_qk_norm") or v.text("norm_type", default="layer_norm") not in ("layer_norm", "rms_norm"):
        v.refuse("use_qk_norm", "norms of queries and keys are not modelled for this tower")
    norm = 2 if v.text("norm_type", default="layer_norm") == "layer_norm" else 1
    block = 4 * hidden * hidden + hidden + 2 * hidden * width + width + hidden + 2 * hidden + 2 * norm * hidden
    block += 3 * hidden if v.flag("attention_bias") else 0
    tables = (3 * patch**2 + 1 + (image // patch) ** 2 + 2) * hidden
    ratio = top.number("downsample_ratio") or 0.5
    merged = int(hidden / ratio**2) if 0.01 < ratio <= 1 else 0
    projector = 2 * merged + (merged + 1) * text_hidden + text_hidden**2 + text_hidden
    return tables + _depth(v, "num_hidden_layers") * block + projector


def _glm4v(v: Fields, top: Fields, text_hidden: int) -> int:
    hidden, out, width = v.size("hidden_size"), v.size("out_hidden_size"), v.size("intermediate_size")
    patch, frames = v.size("patch_size"), v.size("temporal_patch_size", default=2)
    tables = (3 * frames * patch**2 + 1 + (v.size("image_size") // patch) ** 2) * hidden
    block = 4 * hidden * hidden + 3 * hidden * out + 2 * hidden
    merger = out * out + 2 * out + 3 * out * width
    down = out * hidden * v.size("spatial_merge_size", default=2) ** 2 + out
    return tables + _depth(v, "depth") * block + merger + down + 2 * hidden


def _step(v: Fields, top: Fields, text_hidden: int) -> int:
    hidden = v.size("hidden_size", "width")
    ratio = v.number("mlp_ratio") or 1.0
    width = v.size("intermediate_size", default=round(hidden * ratio) if ratio < 1000 else None)
    tables = (3 * v.size("patch_size") ** 2 + (v.size("image_size") // v.size("patch_size")) ** 2) * hidden
    depth = _depth(v, "num_hidden_layers", "layers")
    blocks = _encoder(hidden, width, depth) + depth * 2 * hidden
    down = 9 * hidden * 2 * hidden + 2 * hidden + 9 * 2 * hidden * 4 * hidden + 4 * hidden  # two convolutions of 3 x 3
    projector = 4 * hidden * text_hidden + (text_hidden if top.flag("projector_bias") else 0)
    return tables + 2 * hidden + blocks + down + projector


def _moonvit(v: Fields, top: Fields, text_hidden: int) -> int:
    hidden, merge = v.size("vt_hidden_size", "hidden_size"), 4
    patch = 3 * v.size("patch_size") ** 2 * hidden + hidden
    positions = v.size("init_pos_emb_height") * v.size("init_pos_emb_width") * hidden
    blocks = _encoder(
        hidden,
        v.size("vt_intermediate_size", "intermediate_size"),
        _depth(v, "vt_num_hidden_layers", "num_hidden_layers"),
    )
    merged = merge * hidden
    return (
        patch
        + positions
        + blocks
        + 2 * hidden
        + 2 * hidden
        + merged * merged
        + merged
        + merged * text_hidden
        + text_hidden
    )


TOWERS: Mapping[str, Callable[[Fields, Fields, int], int]] = {
    "qwen3_vl": _qwen3_vl, "qwen2_vl": _qwen2_vl, "qwen2_5_vl": _qwen2_5_vl, "gemma3": _gemma3, "gemma4": _gemma4,
    "llama4": _llama4, "pixtral": _pixtral, "moonvit": _moonvit, "llava": _llava, "llava_next": _llava_next,
    "cohere2_vision": _cohere2_vision, "internvl": _internvl, "glm4v": _glm4v, "step": _step,
}  # fmt: skip
