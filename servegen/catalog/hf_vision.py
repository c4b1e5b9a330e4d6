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


def _pixtral(v: Fields, top: Fields, text_hidden: int) -> int:
    hidden, merge = v.size("hidden_size"), top.size("spatial_merge_size", default=1) ** 2
    block = 4 * hidden * hidden + 3 * hidden * v.size("intermediate_size") + 2 * hidden
    projector = hidden + merge * hidden * hidden + hidden * text_hidden + text_hidden**2
    patch = v.size("num_channels", default=3) * v.size("patch_size") ** 2 * hidden
    return patch + hidden + _depth(v, "num_hidden_layers") * block + projector


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
    "llama4": _llama4, "pixtral": _pixtral, "moonvit": _moonvit,
}  # fmt: skip
