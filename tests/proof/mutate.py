"""Specs broken on purpose: by their structure, by their text, by their bytes, and YAML that never was a spec."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from servegen.manifest import documents
from tests.proof.harness import ROOT, SPECS

VALID = sorted((ROOT / "tests" / "fixtures" / "specs" / "valid").glob("*.yaml"))
TEXTS = [path.read_text(encoding="utf-8") for path in (*SPECS, *VALID)]
TREES = [document for text in TEXTS for document in documents(text)]
KEYS = sorted({match for text in TEXTS for match in re.findall(r"(\w+):", text)})

#: Values that have broken programs before.
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 7, 2**31, 2**63, 10**30, -(2**70), 0.0, -0.5, 1e308, 1e-308, 1.5, "", " ", "0", "a",
    "~", "null", "5/s", "0/s", "-1/s", "1e9/s", "1e999/s", "/s", "500ms", "0ms", "1e-9ms", "80GB", "1B", "99999999TB",
    "400Gbps", "2.95/h", "$/h", "auto", "none", "chat", "bf16", "fp8", "sglang", "megatron", "vllm", "jetstream",
    "throughput", "disaggregated", "h100-sxm-80gb", "tpu-v5e-16gb", "L40S", "meta-llama/Llama-3.1-8B-Instruct",
    "deepseek-ai/DeepSeek-V3", "../../etc/passwd", "/etc/passwd", "x" * 300, "\u202e", "\x00", "\n", "{{ 7 * 7 }}",
    "$(id)", "`id`", "'", '"', "!!python/name:os.system", "*a", "&a", "<<", "é", "日本", "😀", [], {}, [[]], [None], [1, 2],
    [16], [3], [1, 1], ["a"], {"a": 1}, {"p95": "1s"}, {"p50": 9, "p95": 3}, {"mean": 10, "p95": 900},
    {"histogram": [[1, 0]]}, {"histogram": [[5, 1], [4, 1]]}, {"histogram": [[1, 2, 3]]},
    {"active": 5, "thinkTime": "0s"}, {"": ""},
)  # fmt: skip
FRAGMENTS = (
    "\t", "\r\n", "\r", "\ufeff", "---\n", "...\n", "%YAML 1.1\n", "%TAG ! x\n", "&a ", "*a", "<<: *a", "!!binary ",
    "!x ", "? ", ": ", "- ", "#", "|", ">", "{", "}", "[", "]", ",", "'", '"', "\\", "\\x", "\\ud800", "\x00", "\x07",
    "\x85", "\u2028", "\u202e", "\ud7ff", ".nan", ".inf", "-.inf", "0x", "0o9", "1_000", "1e", "9" * 500, "~", "@", "%",
    "`", "=", "!", "&", "*", "\n\n", "  ", "é", "😀",
)  # fmt: skip


def mutated(seed: int) -> bytes:
    """A broken (or, by luck, a good) spec file; the same for the same seed."""
    rng = random.Random(seed)
    kind = rng.random()
    if kind < 0.55:
        return _structured(rng).encode("utf-8", "replace")
    if kind < 0.80:
        return _textual(rng).encode("utf-8", "surrogatepass")
    if kind < 0.92:
        return _random_yaml(rng).encode("utf-8", "replace")
    return _bytes(rng)


def _structured(rng: random.Random) -> str:
    tree = copy.deepcopy(rng.choice(TREES))
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        rng.choice(STRUCTURAL)(rng, tree)
    return rng.choice((_block, _flow))(tree) + "\n"


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
    """(container, key or index, path) of every value."""
    for key, value in list(node.items()) if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield node, key, (*path, key)
        yield from _places(value, (*path, key))


def _pick(rng: random.Random, tree: Any) -> tuple[Any, Any]:
    container, key, _ = rng.choice([*_places(tree)] or [({"": tree}, "", ())])
    return container, key


def _drop(rng: random.Random, tree: Any) -> None:
    container, key = _pick(rng, tree)
    del container[key]


def _replace(rng: random.Random, tree: Any) -> None:
    container, key = _pick(rng, tree)
    container[key] = copy.deepcopy(rng.choice(ODD))


def _nudge(rng: random.Random, tree: Any) -> None:
    """Another number of the same kind, with the unit that was there."""
    container, key = _pick(rng, tree)
    value = container[key]
    factor = rng.choice((0, -1, 0.001, 0.1, 0.5, 2, 2, 3, 4, 10, 1000, 1e9, 1e300))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        container[key] = type(value)(value * factor) if abs(value * factor) < 1e300 else value
    elif isinstance(value, str) and (match := re.match(r"\d+(\.\d+)?", value)):
        container[key] = f"{float(match[0]) * factor:g}{value[match.end() :]}"
    else:
        container[key] = [value, value]


def _borrow(rng: random.Random, tree: Any) -> None:
    """What another spec says under the same key: often legal, seldom what belongs there."""
    container, key = _pick(rng, tree)
    others = [inner[k] for other in TREES for inner, k, _ in _places(other) if k == key and isinstance(inner, dict)]
    container[key] = copy.deepcopy(rng.choice(others or [1]))


def _swap(rng: random.Random, tree: Any) -> None:
    (one, a), (other, b) = _pick(rng, tree), _pick(rng, tree)
    # A value may not come to lie inside itself.
    one[a], other[b] = copy.deepcopy(other[b]), copy.deepcopy(one[a])


def _rename(rng: random.Random, tree: Any) -> None:
    container, key = _pick(rng, tree)
    if isinstance(container, dict):
        name = rng.choice((str(key)[:-1], f"{key}s", str(key).upper(), rng.choice(KEYS), "", "x y", "\u202ekey"))
        container[name] = container.pop(key)


def _insert(rng: random.Random, tree: Any) -> None:
    container, _ = _pick(rng, tree)
    if isinstance(container, dict):
        container[rng.choice(KEYS)] = copy.deepcopy(rng.choice(ODD))
    else:
        container.append(copy.deepcopy(rng.choice(ODD)))


def _wrap(rng: random.Random, tree: Any) -> None:
    container, key = _pick(rng, tree)
    for _ in range(rng.choice((1, 2, 60))):
        container[key] = rng.choice(([container[key]], {"p95": container[key]}))


def _repeat(rng: random.Random, tree: Any) -> None:
    container, key = _pick(rng, tree)
    value = container[key]
    container[key] = value * rng.choice((2, 100)) if isinstance(value, (list, str)) else [value] * 3


STRUCTURAL: tuple[Callable[[random.Random, Any], None], ...] = (
    _drop, _replace, _replace, _nudge, _nudge, _nudge, _borrow, _borrow, _borrow, _borrow, _swap, _rename, _insert, _wrap,
    _repeat,
)  # fmt: skip


def _scalar(value: Any) -> str:
    """Numbers and words plain, all else in quotes as JSON has them."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return ".inf"
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./-]*", value) else json.dumps(value)


def _flow(node: Any) -> str:
    if isinstance(node, dict):
        return "{" + ", ".join(f"{_scalar(k)}: {_flow(v)}" for k, v in node.items()) + "}"
    return "[" + ", ".join(_flow(v) for v in node) + "]" if isinstance(node, list) else _scalar(node)


def _block(node: Any, indent: int = 0) -> str:
    pad = "  " * indent
    if isinstance(node, dict) and node and indent < 8:
        return "".join(f"\n{pad}{_scalar(k)}: {_block(v, indent + 1)}" for k, v in node.items()).lstrip(
            "\n" if not indent else ""
        )
    if isinstance(node, list) and node and indent < 8:
        return "".join(f"\n{pad}- {_flow(v)}" for v in node)
    return _flow(node)


def _textual(rng: random.Random) -> str:
    text = rng.choice(TEXTS)
    for _ in range(rng.choice((1, 1, 2, 4))):
        lines = text.split("\n")
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        place = rng.randrange(len(text) + 1)
        kind = rng.randrange(9)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, lines[other])
        elif kind == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 3:
            lines[at] = rng.choice(("", " ", "   ", "\t")) + lines[at].lstrip(" ")
        elif kind == 4:
            lines[at] = re.sub(r"(: ).*", rf"\1{rng.choice(FRAGMENTS)}".replace("\\", r"\\"), lines[at])
        text = "\n".join(lines)
        if kind == 5:
            text = text[:place] + rng.choice(FRAGMENTS) + text[place:]
        elif kind == 6:
            text = text[:place]
        elif kind == 7:
            text = text[:place] + text[place + rng.randint(1, 5) :]
        elif kind == 8:
            text = rng.choice((text + "---\n" + text, text.replace("\n", "\r\n"), "\ufeff" + text, text.replace("  ", "\t")))
    return text


def _random_yaml(rng: random.Random, depth: int = 0) -> str:
    def node(depth: int) -> Any:
        kind = rng.random()
        if depth > 4 or kind < 0.4:
            return copy.deepcopy(rng.choice(ODD))
        if kind < 0.6:
            return [node(depth + 1) for _ in range(rng.randrange(4))]
        return {rng.choice((*KEYS, "apiVersion", "kind", "spec")): node(depth + 1) for _ in range(rng.randrange(5))}

    tree = node(depth)
    if isinstance(tree, dict) and rng.random() < 0.7:
        tree |= {
            "apiVersion": "servegen/v1alpha1",
            "kind": rng.choice(("ServingSpec", "Fleet", "Pod")),
            "metadata": {"name": "x"},
        }
    return rng.choice((_block, _flow))(tree) + "\n"


def _bytes(rng: random.Random) -> bytes:
    text = rng.choice(TEXTS)
    kind = rng.randrange(6)
    if kind == 0:
        return text.encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-7", "cp037")))
    if kind == 1:
        return text.replace("llama", "lläma").encode("latin-1", "replace")
    if kind == 2:
        return rng.randbytes(rng.randrange(200))
    data = bytearray(text.encode())
    for _ in range(rng.choice((1, 3, 20))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)
