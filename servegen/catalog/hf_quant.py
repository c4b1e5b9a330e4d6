"""How a checkpoint stores its weights: the ``quantization_config`` of a Hugging Face config, any producer.

Formats and the bytes beside the weights themselves (from the producers' own checkpoints):
fp8 in blocks: an fp32 scale for each block; fp8 per tensor: two fp32 scales; fp8/int8 per channel: a bf16 scale a row;
nvfp4: an fp8 scale per 16 weights and two fp32 scales a tensor; mxfp4: an e8m0 scale per 32; awq/gptq: an fp16 scale
and a zero point of the weight's own width per group, gptq also an int32 group index per input; pack-quantized: a bf16
scale per group.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import NoReturn

from servegen.catalog.facts import PRECISIONS, Precision
from servegen.catalog.hf_fields import Fields, shown
from servegen.record import record
from servegen.regex import tame

#: Roles that no checkpoint in circulation quantizes: producers exclude them by built-in patterns, not by lists.
NEVER_QUANTIZED = frozenset({"embedding", "router", "norm", "vision"})

METHODS = (
    "fp8", "fbgemm_fp8", "modelopt", "modelopt_fp4", "compressed-tensors", "quark", "awq", "gptq", "auto-round", "mxfp4",
)  # fmt: skip

#: Prefixes that checkpoints put before a decoder layer's name; names are compared without them.
_PREFIX = re.compile(r"^(model\.|backbone\.|transformer\.|language_model\.)+")
_LAYER = re.compile(r"layers\.\d+(?=[.*]|$)")
_TOWERS = ("visual.", "vision_tower.", "vision_model.", "multi_modal_projector", "mm_projector")
_PREFIXES = ("", "model.", "language_model.model.", "model.language_model.", "backbone.")


@record
class Scheme:
    """A storage format for a weight of shape (rows, cols), inputs along cols."""

    precision: Precision
    bits: int
    block: int = 0  # side of a square block that shares an fp32 scale
    group: int = 0  # inputs of one row that share ``group_bits`` of scale and zero point
    group_bits: int = 0
    row_bytes: int = 0
    input_bytes: int = 0
    tensor_bytes: int = 0

    def stored_bytes(self, rows: int, cols: int) -> int:
        """Bytes in the checkpoint, scales included."""
        total = -(-rows * cols * self.bits // 8) + rows * self.row_bytes + cols * self.input_bytes + self.tensor_bytes
        if self.block:
            total += -(-rows // self.block) * -(-cols // self.block) * 4
        if self.group:
            total += -(-rows * -(-cols // self.group) * self.group_bits // 8)
        return total


FP8_TENSOR = Scheme("fp8", 8, tensor_bytes=8)
FP8_CHANNEL = Scheme("fp8", 8, row_bytes=2)
NVFP4 = Scheme("nvfp4", 4, group=16, group_bits=8, tensor_bytes=8)
MXFP4 = Scheme("mxfp4", 4, group=32, group_bits=8)


class Matcher:
    """Whether a module's name is in a list of names, wildcards (``*``) and regular expressions (``re:``).

    A name matches an entry that is the name itself, a parent of it, or a run of its segments at any depth.
    """

    def __init__(self, fields: Fields, key: str, entries: Iterable[str]) -> None:
        parts: list[str] = []
        free: list[str] = []
        self.exact: set[str] = set()
        self.heads: dict[
            str, list[str]
        ] = {}  # "layers.7" -> what names in it may start with; lists run to a thousand entries
        for entry in entries:
            if entry.startswith("re:"):
                free.append(_compiled(fields, key, entry[3:]))
                continue
            name = _PREFIX.sub("", entry).rstrip(".")
            head = _LAYER.match(name)
            if name.startswith(_TOWERS):
                continue
            if head and not set(name) & set("*?["):
                self.exact.add(name)
            elif head and name.endswith("*") and not set(name[:-1]) & set("*?["):
                self.heads.setdefault(head[0], []).append(name[:-1])
            else:
                parts.append(
                    r"(?:.*\.)?" + fnmatch.translate(name).removesuffix(r"\Z").removesuffix(r"\z") + r"(?:\..*)?"
                )
        self.parts = re.compile("(?:" + "|".join(parts) + r")\Z") if parts else None
        self.free = re.compile("|".join(f"(?:{p})" for p in free)) if free else None
        self.by_layer = bool(self.exact or self.heads) or any(
            re.search(r"layers\W*\d|layers\W*[\[(]", t) for t in (*parts, *free)
        )

    def __call__(self, name: str) -> bool:
        end = len(name) if self.exact else 0
        while end > 0:
            if name[:end] in self.exact:
                return True
            end = name.rfind(".", 0, end)
        head = _LAYER.match(name) if self.heads else None
        if head and name.startswith(tuple(self.heads.get(head[0], ()))):
            return True
        if self.parts is not None and self.parts.match(name):
            return True
        return self.free is not None and any(self.free.match(prefix + name) for prefix in _PREFIXES)


def _compiled(fields: Fields, key: str, pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        fields.refuse(key, f"{shown(pattern)} is not a regular expression: {error}")
    if not tame(pattern):  # a file from anywhere must not hold the build up
        fields.refuse(key, f"the regular expression {shown(pattern)} may be matched in too many ways to be tried")
    if re.search(
        r"\(\?[a-zA-Z]|\\[1-9]|\(\?P", pattern
    ):  # flags, back references, groups by name do not survive being joined
        fields.refuse(key, f"the regular expression {shown(pattern)} is beyond what is modelled")
    return pattern


@record
class Quantization:
    """Which scheme each weight of a checkpoint is stored in. ``by_layer``: whether a rule names single layers."""

    method: str = ""
    rules: tuple[tuple[Matcher | None, Scheme], ...] = ()
    ignore: Matcher | None = None
    lm_head: bool = False  # whether a rule for all linear layers covers the unembedding
    experts_only: bool = False
    by_layer: bool = False

    def scheme(self, name: str, kind: str) -> Scheme | None:
        """The scheme of the linear layer ``name`` (``layers.3.self_attn.q_proj``), None for 16 bits."""
        if not self.rules or kind in NEVER_QUANTIZED or (self.experts_only and kind != "expert"):
            return None
        for matcher, scheme in self.rules:
            if matcher is None:
                if kind == "lm_head" and not self.lm_head:
                    continue
            elif not matcher(name):
                continue
            return None if self.ignore is not None and self.ignore(name) else scheme
        return None

    @property
    def weight_block(self) -> int:
        """Side of the block that tensor parallelism must not cut; engines pad the 4-bit float formats instead."""
        return max((s.block or (s.group if s.precision in ("int4", "int8") else 0) for _, s in self.rules), default=0)


def read_quantization(fields: Fields) -> Quantization:
    """The ``quantization_config`` of ``fields``; raises CatalogError naming the part that is not modelled."""
    q = fields.sub("quantization_config", "compression_config")
    if q is None or not q.config:
        return Quantization()
    method = q.text("quant_method") or ("modelopt" if q.has("quant_algo", "config_groups") else "")
    if not method:
        q.refuse("quant_method", "required, but missing", f"known: {', '.join(METHODS)}")
    if method not in METHODS:
        q.refuse("quant_method", f"{shown(method)} is not modelled", f"known: {', '.join(METHODS)}")
    if method in ("fp8", "fbgemm_fp8"):
        return _fp8(q, method)
    if method == "mxfp4":
        return _made(q, method, [(None, MXFP4)], "modules_to_not_convert", experts_only=True)
    if method in ("awq", "gptq"):
        return _integer(q, method)
    if method == "auto-round":
        return _auto_round(q)
    if method == "quark":
        return _quark(q)
    if method == "compressed-tensors":
        sparsity = q.sub("sparsity_config")
        if sparsity is not None and sparsity.text("format", default="dense") != "dense":
            sparsity.refuse("format", f"{shown(sparsity.text('format'))}: sparse weights are not modelled")
        return _made(q, method, _groups(q), "ignore", lm_head=True)
    return _modelopt(q, method)


def _made(
    q: Fields,
    method: str,
    rules: list[tuple[Matcher | None, Scheme]],
    *ignore: str,
    lm_head: bool = False,
    experts_only: bool = False,
    left_out: tuple[str, list[str]] = ("", []),
) -> Quantization:
    """``left_out``: a field, and further entries that it makes for the list of what stays in 16 bits."""
    entries = [entry for key in ignore for entry in q.texts(key)] + left_out[1]
    named = left_out[0] if left_out[1] else next((key for key in ignore if q.has(key)), "")
    matcher = Matcher(q, named, entries) if entries else None
    by_layer = any(m is not None and m.by_layer for m, _ in rules) or (matcher is not None and matcher.by_layer)
    return Quantization(method, tuple(rules), matcher, lm_head, experts_only, by_layer)


def _fp8(q: Fields, method: str) -> Quantization:
    scheme = FP8_CHANNEL if method == "fbgemm_fp8" else FP8_TENSOR
    block = q.integers("weight_block_size")
    if block:
        if len(block) != 2 or block[0] != block[1] or block[0] < 1:
            q.refuse("weight_block_size", f"must be two equal sides, not {shown(block)}")
        scheme = Scheme("fp8", 8, block=block[0])
    return _made(q, method, [(None, scheme)], "modules_to_not_convert", "ignored_layers")


def _integer(q: Fields, method: str) -> Quantization:
    bits = q.size("bits", "w_bit", default=4)
    if bits not in (4, 8):
        q.refuse("bits", f"{bits} bits are not modelled", "modelled: 4, 8")
    if q.find("group_size", "q_group_size")[1] == -1:
        scheme = Scheme("int4" if bits == 4 else "int8", bits, row_bytes=2 + bits // 8)
    else:
        group = q.size("group_size", "q_group_size", default=128)
        index = 4 if method == "gptq" else 0
        scheme = Scheme("int4" if bits == 4 else "int8", bits, group=group, group_bits=16 + bits, input_bytes=index)
    kept = ("dynamic", _dynamic(q)) if method == "gptq" else ("", [])
    return _made(q, method, [(None, scheme)], "modules_to_not_convert", lm_head=q.flag("lm_head"), left_out=kept)


def _dynamic(q: Fields) -> list[str]:
    """GPTQModel's rules by module: ``-:`` before a regular expression leaves what it matches in 16 bits."""
    rules = q.sub("dynamic")
    if rules is None:
        return []
    for name, settings in rules.config.items():
        if not str(name).startswith("-:") and isinstance(settings, dict) and settings:
            rules.refuse(str(name), "settings of its own for a module are not modelled")
    return [f"re:{str(name)[2:]}" for name in rules.config if str(name).startswith("-:")]


def _auto_round(q: Fields) -> Quantization:
    """Intel's AutoRound: integers in groups, as GPTQ or AWQ packs them; ``extra_config`` says what stays in 16 bits."""
    bits, packing = q.size("bits", default=4), q.text("packing_format", default="auto_round:auto_gptq")
    if bits not in (4, 8) or q.text("data_type", default="int") != "int":
        q.refuse("bits", f"{bits} bits of {q.text('data_type', default='int')} are not modelled", "modelled: 4 and 8 bits of int")
    if not packing.endswith(("auto_gptq", "auto_awq", "auto_round")):
        q.refuse("packing_format", f"{shown(packing)} is not modelled", "modelled: auto_round:auto_gptq, auto_round:auto_awq")
    scheme = Scheme("int4" if bits == 4 else "int8", bits, group=q.size("group_size", default=128), group_bits=16 + bits)
    extra = q.sub("extra_config")
    kept: list[str] = []
    for name in extra.config if extra is not None else ():
        settings = extra.sub(str(name)) if extra is not None else None
        if settings is not None and settings.size("bits", default=bits) >= 16:
            kept.append(f"re:{name}" if set(str(name)) & set("*\\$^(") else str(name))
        elif settings is not None and settings.size("bits", default=bits) != bits:
            settings.refuse("bits", "widths by module are not modelled for this method")
    return _made(q, "auto-round", [(None, scheme)], left_out=("extra_config", kept))


def _quark(q: Fields) -> Quantization:
    if q.sub("layer_quant_config") is not None and q.find("layer_quant_config")[1]:
        q.refuse("layer_quant_config", "schemes by layer are not modelled for this method")
    whole = q.sub("global_quant_config")
    weight = whole.sub("weight") if whole is not None else None
    if weight is None:
        q.refuse("global_quant_config.weight", "required, but missing")
    dtype, layout = weight.text("dtype"), weight.text("qscheme")
    if dtype == "fp8_e4m3" and layout in ("per_tensor", "per_channel"):
        scheme = FP8_TENSOR if layout == "per_tensor" else FP8_CHANNEL
    elif dtype == "fp4" and layout == "per_group" and weight.size("group_size") == 32:
        scheme = MXFP4
    else:
        weight.refuse("dtype", f"{shown(dtype)} with qscheme {shown(layout)} is not modelled")
    return _made(q, "quark", [(None, scheme)], "exclude", lm_head=True)


def _modelopt(q: Fields, method: str) -> Quantization:
    layers = q.sub("quantized_layers")
    if layers is not None:
        names: dict[Scheme, list[str]] = {}
        for name in layers.config:
            rule = layers.sub(str(name))
            if rule is None:
                layers.refuse(str(name), "must be a mapping, not null")
            names.setdefault(_algorithm(rule), []).append(str(name))
        rules: list[tuple[Matcher | None, Scheme]] = [(Matcher(q, "quantized_layers", n), s) for s, n in names.items()]
    elif q.text("quant_algo") and q.text("quant_algo") != "MIXED_PRECISION":
        rules = [(None, _algorithm(q))]
    else:
        rules = _groups(q)
    return _made(q, method, rules, "exclude_modules", "ignore")


def _algorithm(rule: Fields) -> Scheme:
    """The scheme of a ModelOpt ``quant_algo``."""
    algorithm = rule.text("quant_algo")
    group = rule.size("group_size", default=16 if "NVFP4" in algorithm else 128)
    if algorithm == "FP8":
        return FP8_TENSOR
    if algorithm == "FP8_PB_WO":
        return Scheme("fp8", 8, block=128)
    if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
        return FP8_CHANNEL
    if algorithm in ("NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8") and group == 16:
        return NVFP4
    if algorithm in ("W4A16_AWQ", "W4A8_AWQ"):
        return Scheme("int4", 4, group=group, group_bits=16)
    rule.refuse("quant_algo", f"{shown(algorithm)} with group size {group} is not modelled")


def _groups(q: Fields) -> list[tuple[Matcher | None, Scheme]]:
    groups = q.sub("config_groups")
    if groups is None or not groups.config:
        q.refuse("config_groups", "required, but missing")
    rules: list[tuple[Matcher | None, Scheme]] = []
    for name in groups.config:
        group = groups.sub(str(name))
        weights = group.sub("weights") if group is not None else None
        if group is None or weights is None:
            groups.refuse(f"{name}.weights", "required, but missing")
        targets = group.texts("targets") or ["Linear"]
        scheme = _weights(weights, group.text("format") or q.text("format"))
        rules.append((None if "Linear" in targets else Matcher(group, "targets", targets), scheme))
    return rules


def _weights(w: Fields, layout: str) -> Scheme:
    if "24" in layout:  # marlin-24, sparse-24-bitmask
        w.refuse("format", f"{shown(layout)}: sparse weights are not modelled")
    bits, kind, strategy = w.size("num_bits"), w.text("type", default="int"), w.text("strategy")
    group = w.find("group_size")[1]
    if kind == "float" and bits == 4:
        size = w.size("group_size")
        if size == 16:
            return NVFP4
        return MXFP4 if size == 32 else _not_modelled(w, "group_size", size)
    if kind == "float" and bits == 8:
        if strategy == "block":
            block = _sides(w)
            if not block or len(block) != 2 or block[0] != block[1] or block[0] < 1:
                w.refuse("block_structure", f"must be two equal sides, not {shown(block)}")
            return Scheme("fp8", 8, block=block[0])
        if strategy in ("", "tensor", "channel"):
            return FP8_CHANNEL if strategy == "channel" else FP8_TENSOR
        if strategy == "group" and group == 32:
            return Scheme("fp8", 8, group=32, group_bits=8)
        _not_modelled(w, "strategy", strategy)
    if kind == "int" and bits in (4, 8):
        precision: Precision = "int4" if bits == 4 else "int8"
        if strategy in ("channel", "tensor") or group in (None, -1):
            return Scheme(precision, bits, row_bytes=2)
        zero = 0 if w.flag("symmetric", default=True) else bits
        return Scheme(
            precision,
            bits,
            group=w.size("group_size"),
            group_bits=16 + zero,
            tensor_bytes=16 if "pack" in layout else 0,
        )
    _not_modelled(w, "num_bits", f"{bits}-bit {kind}")


def _sides(w: Fields) -> list[int] | None:
    """``block_structure``: two numbers, or a text like 128x128."""
    text = w.find("block_structure")[1]
    if isinstance(text, str) and re.fullmatch(r"\d{1,6}x\d{1,6}", text):
        return [int(side) for side in text.split("x")]
    return w.integers("block_structure")


def _not_modelled(w: Fields, name: str, value: object) -> NoReturn:
    w.refuse(name, f"{shown(value)} is not modelled", f"precisions modelled: {', '.join(PRECISIONS)}")
