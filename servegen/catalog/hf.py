"""The one place that maps a Hugging Face ``config.json`` to :class:`ModelFacts`.

What a model's shape is follows from three things: the config's fields, its family's row in ``hf_families`` (what the
family's code does without a field), and the checkpoint's ``quantization_config``. A config that cannot be modelled
faithfully raises CatalogError naming the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from servegen.catalog.facts import PRECISIONS, ModelFacts, Precision
from servegen.catalog.hf_attention import switched
from servegen.catalog.hf_families import FAMILIES
from servegen.catalog.hf_family import Family
from servegen.catalog.hf_fields import LARGEST_CONTEXT, Fields, shown
from servegen.catalog.hf_layers import read_layers
from servegen.catalog.hf_names import ARCHITECTURES, NESTED_DEFAULTS, UNMODELLED, UNMODELLED_TYPES, WRAPPERS
from servegen.catalog.hf_quant import Quantization, read_quantization
from servegen.catalog.hf_tensors import Layer, Tally, Weight, grouped, vector
from servegen.catalog.hf_vision import vision_params
from servegen.errors import CatalogError, Diagnostic

#: What a config may say its checkpoint is stored in. 32-bit checkpoints are counted at 16 bits, as engines load them.
DTYPES = ("bfloat16", "float16", "float32", "auto")
_CAUSAL = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ChatGLMModel")
_EPSILONS = (
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "layernorm_epsilon",
    "norm_eps",
    "norm_epsilon",
)
_LAUNCH_FIELDS = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "moe_intermediate_size",
    "attention_bias", "partial_rotary_factor", "rotary_dim", "sliding_window", "num_experts_per_tok", "n_group",
    "topk_group", "norm_topk_prob", "routed_scaling_factor", "first_k_dense_replace", "q_lora_rank", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_topk", "index_head_dim", "index_n_heads",
    "swiglu_limit",
)  # fmt: skip


def model_from_config(
    config: Mapping[str, object], id: str, aliases: Sequence[str] = (), sources: Mapping[str, str] | None = None
) -> ModelFacts:
    """The facts of the model that a Hugging Face config describes; counts are exact sums over its tensors.

    MTP layers are left out of ``tensors`` (published totals exclude them); ``hf_config`` has their ``mtp_params`` and
    ``mtp_bytes``. ``params_active`` counts the input embedding where the publisher does.

    Raises CatalogError naming the field that is missing, of the wrong type, or not modelled.
    """
    if not isinstance(config, Mapping):
        raise CatalogError(Diagnostic("model-config", f"{id}: a config is a mapping of fields, not {shown(config)}"))
    top = Fields(config, id)
    inner = top.sub("text_config", "llm_config", "language_config")
    model_type, family, tower = _family(top, inner)
    text = inner if inner is not None else top
    defaults = {**NESTED_DEFAULTS.get(model_type, {}), **family.defaults} if inner is not None else family.defaults
    f = Fields(text.config, id, text.path, family.rename, defaults)
    if model_type == "dbrx":
        f = _flattened(f, "attn_config", "ffn_config")
    _refuse_unmodelled(top)
    _refuse_unmodelled(f)
    architecture = _architecture(top, inner)
    f = _family_quirks(f, model_type)
    if f.find("use_bidirectional_attention")[1] is True:
        f.refuse("use_bidirectional_attention", "non-causal models are not modelled")

    hidden, vocab = f.size("hidden_size"), f.size("vocab_size", "padded_vocab_size")
    context = f.size("max_position_embeddings", most=LARGEST_CONTEXT)
    tied = (top if top.has("tie_word_embeddings") else f).flag("tie_word_embeddings", family.tied)
    quantization = read_quantization(f if f.has("quantization_config") else top)
    layers = read_layers(f, family)

    tally = Tally(quantization)
    looked_up = 1 if tied or family.embedding_active else 0
    embedding = Weight("embed_tokens", "embedding", vocab, hidden, 1, looked_up, linear=False)
    tally.add("", embedding)
    if family.positions >= 0:
        tally.add("", vector("embed_positions", "embedding", (context + family.positions) * hidden))
    tally.add_layers(layers)
    if family.final_norms and f.flag("do_layer_norm_before", True) and not f.flag("_remove_final_layer_norm"):  # OPT-350M: none
        tally.add("", vector("norm", "norm", family.final_norms * hidden * (2 if family.norm_bias else 1)))
    if not tied:
        tally.add("", Weight("lm_head", "lm_head", vocab, hidden))
    if switched(f, family.head_bias):
        tally.add("", vector("lm_head.bias", "lm_head", vocab))
    vision = vision_params(tower, top, hidden) if tower else 0
    if vision:
        tally.add("", Weight("vision_tower", "vision", vision, 1, 1, 0, linear=False))

    return ModelFacts(
        id=id,
        aliases=tuple(aliases),
        architecture=architecture,
        model_type=model_type,
        hidden_size=hidden,
        vocab_size=vocab,
        max_context=context,
        tied_embeddings=tied,
        layers=grouped(layers),
        tensors=tally.classes(),
        native_precision=_native(tally),
        quantization=quantization.method,
        weight_block=quantization.weight_block,
        hf_config=_launch_fields(top, f, model_type, family, layers)
        | _mtp(f, family, layers, quantization, vocab, hidden),
        sources=dict(sources or {"config": f"HF config.json of {id}"}),
    )


def _family(top: Fields, inner: Fields | None) -> tuple[str, Family, str]:
    """(model_type of the text model, its family, its vision tower)."""
    architectures = (inner if inner is not None and inner.has("architectures") else top).texts("architectures")
    outer_type = top.text("model_type")
    model_type = inner.text("model_type") if inner is not None else outer_type
    if inner is not None and outer_type and outer_type not in WRAPPERS:
        _refuse_unmodelled(inner)
        why = f"{shown(outer_type)} around a text config is not modelled"
        top.refuse("model_type", why, f"modelled: {', '.join(WRAPPERS)}")
    if inner is not None and not model_type and f"{outer_type}_text" in FAMILIES:
        model_type = f"{outer_type}_text"
    tower = WRAPPERS.get(outer_type, "")
    if not tower and top.find("vision_config", "audio_config", "vision_tower")[1]:
        top.refuse("vision_config", f"the tower of model_type {shown(outer_type)} is not modelled")
    if top.find("audio_config")[1]:
        top.refuse("audio_config", "audio towers are not modelled")
    if model_type in FAMILIES:
        return model_type, FAMILIES[model_type], tower
    source = inner if inner is not None else top
    known = ARCHITECTURES.get(architectures[0]) if architectures else None
    if known is not None:
        return known, FAMILIES[known], tower
    _refuse_unmodelled(source)
    if model_type in UNMODELLED_TYPES:
        source.refuse("model_type", f"{shown(model_type)} is not modelled: {UNMODELLED_TYPES[model_type]}")
    if not model_type:
        source.refuse("model_type", "required, but missing", f"modelled: {', '.join(FAMILIES)}")
    source.refuse("model_type", f"{shown(model_type)} is not modelled", f"modelled: {', '.join(FAMILIES)}")


def _refuse_unmodelled(f: Fields) -> None:
    for name, why in UNMODELLED.items():
        value = f.find(name)[1]
        if value:
            f.refuse(name, f"{shown(value)}: {why}")


def _architecture(top: Fields, inner: Fields | None) -> str:
    """The first architecture class, which must be one that generates text."""
    names = top.texts("architectures") or (inner.texts("architectures") if inner is not None else [])
    if not names:
        return ""
    if not names[0].endswith(_CAUSAL):
        hint = f"modelled: classes that end in {', '.join(_CAUSAL)}"
        top.refuse("architectures", f"{shown(names[0])} does not generate text", hint)
    return names[0]


def _flattened(f: Fields, *parts: str) -> Fields:
    """The fields of nested ``parts`` beside the others (DBRX)."""
    config = dict(f.config)
    for part in parts:
        nested = f.sub(part)
        if nested is None:
            f.refuse(part, "required, but missing")
        config = {**nested.config, **config}
    return Fields(config, f.model, f.path, f.rename, f.defaults)


def _family_quirks(f: Fields, model_type: str) -> Fields:
    """The config with what one family spells differently from all others put into the common fields."""
    extra: dict[str, object] = {}
    if model_type == "falcon" and not f.flag("new_decoder_architecture"):
        extra["num_key_value_heads"] = 1 if f.flag("multi_query", True) else f.size("num_attention_heads")
    elif model_type == "falcon":
        extra["num_key_value_heads"] = f.size("num_kv_heads", default=f.size("num_attention_heads"))
    elif model_type == "gpt_bigcode":
        extra["num_key_value_heads"] = 1 if f.flag("multi_query", True) else f.size("num_attention_heads")
    elif model_type == "mpt":
        extra |= _mpt(f)
    elif model_type == "lfm2" and f.flag("block_auto_adjust_ff_dim", True):  # its MLP is two thirds as wide, rounded up
        factor, multiple = f.number("block_ffn_dim_multiplier") or 1.0, f.size("block_multiple_of", default=256)
        width = int(factor * (2 * f.size("intermediate_size", "block_ff_dim") // 3)) if factor < 1000 else 0
        extra["intermediate_size"] = max(-(-width // multiple) * multiple, 1)
    elif model_type == "hunyuan_v1_moe":
        extra |= {name: _same(f, name) for name in ("moe_intermediate_size", "moe_topk", "num_shared_expert", "num_experts")}
    elif model_type == "glm_moe_dsa":  # its head_dim is the rotary part in some checkpoints, the whole in others
        extra["head_dim"] = f.size("qk_nope_head_dim") + f.size("qk_rope_head_dim")
    elif (
        model_type == "opt" and f.has("word_embed_proj_dim") and f.size("word_embed_proj_dim") != f.size("hidden_size")
    ):
        f.refuse("word_embed_proj_dim", "a projection between embeddings and layers is not modelled")
    elif model_type == "opt" and not f.flag("layer_norm_elementwise_affine", True):
        f.refuse("layer_norm_elementwise_affine", "norms without weights are not modelled")
    return Fields({**f.config, **extra}, f.model, f.path, f.rename, f.defaults) if extra else f


def _mpt(f: Fields) -> dict[str, object]:
    """MPT: one KV head or all, an MLP of ``expansion_ratio`` times the width, no positions beside ALiBi or rotary ones."""
    if not f.flag("no_bias", True):
        f.refuse("no_bias", "biases are not modelled for MPT")
    attention = f.sub("attn_config")
    if attention is None or not (attention.flag("alibi") or attention.flag("rope")):
        f.refuse("attn_config", "learned positions are not modelled for MPT")
    kind, heads = attention.text("attn_type", default="multihead_attention"), f.size("num_attention_heads")
    known = {"multihead_attention": heads, "multiquery_attention": 1}
    if kind not in known and not attention.has("kv_n_heads"):
        attention.refuse("attn_type", f"{shown(kind)} is not modelled", f"modelled: {', '.join(known)}")
    kv_heads = known[kind] if kind in known else attention.size("kv_n_heads")
    return {"num_key_value_heads": kv_heads, "intermediate_size": f.size("expansion_ratio", default=4) * f.size("hidden_size")}


def _same(f: Fields, name: str) -> object:
    """The field, or the one value of a list that gives it to each layer."""
    value = f.find(name)[1]
    if not isinstance(value, list):
        return value
    if not value or any(item != value[0] for item in value):
        f.refuse(name, "layers that differ in it are not modelled")
    return value[0]


def _native(tally: Tally) -> Precision:
    """The precision that most of the quantized weights are stored in."""
    params = {p: sum(t.params for t in tally.classes() if t.quantizable and t.precision == p) for p in PRECISIONS}
    most = max(PRECISIONS[1:], key=lambda p: params[p])
    return most if params[most] else "bf16"


def _mtp(f: Fields, family: Family, layers: list[Layer], q: Quantization, vocab: int, hidden: int) -> dict[str, object]:
    """Size of the multi-token-prediction layers: each is a layer like the last one, a projection and three norms."""
    count = f.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0, most=64) if family.mtp else 0
    if not count:
        return {}
    last = next((item for item in reversed(layers) if item.shape.attention.kind != "linear"), layers[-1])
    tally = Tally(replace(q, by_layer=True))
    for index in range(count):
        tally.add_layers([last], len(layers) + index)
        tally.add("", Weight("eh_proj", "mtp", 2 * hidden, hidden, linear=False))
        tally.add("", vector("norms", "norm", 3 * hidden))
        if family.mtp == "with_embeddings":
            tally.add("", Weight("embeddings", "embedding", 2 * vocab, hidden, linear=False))
    return {"mtp_layers": count, "mtp_params": tally.params, "mtp_bytes": tally.stored_bytes}


def _launch_fields(top: Fields, f: Fields, model_type: str, family: Family, layers: list[Layer]) -> dict[str, object]:
    """The fields that launch commands need, under one name each; absent ones are left out."""
    found: dict[str, object] = {"model_type": model_type, "hidden_size": f.size("hidden_size")}
    found["num_hidden_layers"] = len(layers)
    found["vocab_size"] = f.size("vocab_size", "padded_vocab_size")
    found["max_position_embeddings"] = f.size("max_position_embeddings", most=LARGEST_CONTEXT)
    for name in _LAUNCH_FIELDS:
        value = f.find(name)[1]
        if isinstance(value, (bool, int, float, str)):
            found[name] = value
    mixers = [item.shape.attention for item in layers if item.shape.attention.kind in ("full", "sliding", "chunked")]
    if mixers:
        found.setdefault("num_key_value_heads", mixers[0].num_kv_heads)
        found.setdefault("head_dim", mixers[0].head_dim)
    found["qkv_bias"] = switched(f, family.qkv_bias)
    found["qk_norm"] = family.qk_norm != "" and (not family.qk_norm_when or f.flag(family.qk_norm_when))
    rope = f.sub("rope_parameters", "rope_scaling")
    parameters = rope.sub("full_attention") or rope if rope is not None else None
    if isinstance(f.find("rope_theta")[1], list):
        theta = None  # Step-3.5 has one for each layer, which no launch command takes
    else:
        theta = f.number("rope_theta") or (parameters.number("rope_theta") if parameters is not None else None)
    if theta is not None:
        found["rope_theta"] = theta
    kind = parameters.text("rope_type", "type", default="default") if parameters is not None else "default"
    if parameters is not None and kind != "default":
        found["rope_scaling"] = {k: v for k, v in parameters.config.items() if k != "rope_theta"}
    epsilon = f.number(*_EPSILONS)
    if epsilon is not None:
        found["rms_norm_eps"] = epsilon
    activation = f.text("hidden_act", "hidden_activation", "activation_function", "activation", "mlp_hidden_act")
    if activation:
        found["hidden_act"] = activation
    dtype = f.text("torch_dtype", "dtype") or top.text("torch_dtype", "dtype", default="bfloat16")
    if dtype not in DTYPES:
        f.refuse("torch_dtype", f"{shown(dtype)} is not modelled", f"modelled: {', '.join(DTYPES)}")
    found["torch_dtype"] = dtype
    return found
