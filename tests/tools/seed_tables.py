"""The tables of the texts that the project began with, side by side: what they print, what is right, what we say.

    python -m tests.tools.seed_tables [part of a title ...]

*Ours* is what ``servegen estimate --physics ideal`` says of the configuration with the textbook's hardware and models in
place of the catalogue's; a row that is no whole configuration names the method of tests/reference that computes it.
*Catalogue* is the estimate with the catalogue's own figures: parameters counted, all-reduces paid for, and copies of the
cache where devices outnumber the KV heads. A ``!`` marks a printed figure that is more than 2 % off.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

import tests.reference.serving  # noqa: F401 - enters its methods
from servegen.errors import CatalogError
from servegen.solve.estimate import Estimate, EstimateRequest, estimate
from tests.reference import textbook
from tests.reference.methods import METHODS, Inputs

FIXTURE = Path(__file__).parents[1] / "fixtures" / "vectors.yaml"
SCALES = {"ms": 1e-3, "us": 1e-6}

#: Chapter and caption -> the rows, by the ids of their vectors; an X entry is a configuration that does not exist.
TABLES: Mapping[str, Sequence[str]] = {
    "10.6 LLaMA-2 13B on H100": ("D01", "D02", "D03", "D04", "D05", "D06", "E01", "E02", "G14", "G15"),
    "10.7 MHA, 8 x v5e, 8K": ("D11", "D18", "D116", "D132", "D164", "D1240"),
    "10.7 GQA, 8 x v5e, 8K": ("D21", "D28", "D216", "D232", "D264", "D2240"),
    "10.8 latency against throughput, one H100": ("X10", "X51"),
    "10.11 problems, 18.4B": ("E60", "E61", "X14", "X15", "D64", "D65", "D66", "D68", "D69", "E65", "E67"),
    "12.2 fewest H100": ("E03", "E04a", "E05a", "E04b", "E05b", "E04c", "E05c", "X30", "X31"),
    "12.3 decode, 8 x H100, bf16 weights, int8 cache": ("D40", "D41", "D42", "D43", "D44"),
    "12.4 largest batch": ("E10", "E11", "E12", "E20", "E21", "E22", "E30", "E31", "E32", "X32"),
    "12.4 requests/s per chip": ("H10", "H11", "H12", "H13", "H15", "H16"),
    "12.5 step by batch, 16 x v5e, int8, 8K": ("H30", "H31", "H32", "H33", "X20"),
    "12.5 cache by context, B = 64": ("H60", "H61", "H62", "H63", "X24"),
    "12.7 prefill at 40 % of the peak": ("D35", "D50", "D51", "D52", "D53", "D54", "D55", "D56", "D57"),
    "12.8 program, 8 x H100": ("E90", "E91", "E92", "E93", "H80", "H81", "H82"),
    "12.10 exercises": ("E68", "E69", "E71", "H83", "H84", "H85", "H86", "H87", "H88", "H89", "X37", "H90", "X38", "H91"),
}


@dataclass(frozen=True)
class Row:
    """One figure, in its unit. ``printed`` is nan where the source has none."""

    id: str
    what: str
    printed: float
    right: float
    ours: float
    catalogue: float
    unit: str
    how: str


def _step(e: Estimate, i: Inputs) -> float:
    return e.decode.step_time_s


#: What an estimate says of a whole configuration, by the vector's method.
ESTIMATES: Mapping[str, Callable[[Estimate, Inputs], float]] = {
    "decode_step": _step,
    "decode_streaming": lambda e, i: e.decode.breakdown_s["weights"],
    "decode_attention": lambda e, i: e.decode.breakdown_s["kv"],
    "decode_multiplying": lambda e, i: e.decode.breakdown_s["compute"],
    "decode_rate": lambda e, i: i("B", 1) / e.decode.step_time_s * i("replicas", 1) / (i("n") if i("per_device", False) else 1),
    "sequences": lambda e, i: float(e.memory.max_running_requests),
    "prefill": lambda e, i: e.prefill.time_s,
}


def said(row: Mapping[str, Any], i: Inputs) -> tuple[float, str]:
    """Our figure in SI units, and where it comes from."""
    method = row["method"]
    if method not in ESTIMATES or "act_seq" in i:
        return METHODS[method](i), method
    capacity = method == "sequences"
    case = i.case(chip=textbook.chip(i("C", 1e30), i("W", 1e30), i("HBM") if capacity else 1e30, peak=i("mfu", 1.0)))
    context = int(i.context)
    prompt = context - 1 if capacity else context
    return ESTIMATES[method](textbook.estimated(case, int(i("B", 1)), prompt), i), "estimate"


MODELS = {
    "llama3-70b": "meta-llama/Llama-3.1-70B",
    "llama2-13b": "meta-llama/Llama-2-13b-hf",
    "llama3-8b": "meta-llama/Llama-3.1-8B",
    "llama3-405b": "meta-llama/Llama-3.1-405B",
}
#: Engine, and the names of 8-bit weights and cache, by hardware.
HARDWARE = {"h100": ("sglang", "fp8", "fp8"), "tpu-v5e": ("jetstream", "int8", "int8")}


def catalogued(row: Mapping[str, Any], i: Inputs) -> float:
    """The estimate with the catalogue's figures; nan where it has no such model, device or precision."""
    if row["method"] not in ESTIMATES or "K" in row["given"] or "kv_seq" in i or "S" not in i.given:
        return math.nan
    model, hardware = MODELS.get(i("model", "")), HARDWARE.get(i("hw", ""))
    if not (model and hardware) or i("kv_bytes", 2) == 0.5 or "mfu" in i:
        return math.nan
    engine, weights, kv = hardware
    request = EstimateRequest(
        model=model,
        accelerator=i("hw"),
        engine=engine,
        tp=i("n"),
        weights={2: "bf16", 1: weights, 0.5: "int4"}[i("w_bytes", 2)],
        kv="bf16" if i("kv_bytes", 2) == 2 else kv,
        batch=int(i("B", 1)),
        isl=int(i("S")) - 1,
        osl=1,
        physics="ideal",
        mode="static",
    )
    try:
        return ESTIMATES[row["method"]](estimate(request), i)
    except CatalogError:
        return math.nan


def rows(title: str, fixture: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a table."""
    vectors = {v["id"]: v for v in fixture["vectors"]}
    impossible = [*fixture["too_large"], *fixture["too_slow"]]
    for name in TABLES[title]:
        if name in vectors:
            v = vectors[name]
            i = Inputs(v["given"], fixture["meta"])
            ours, how = said(v, i)
            scale = SCALES.get(v["unit"].split()[0], 1.0)
            ours, real = ours / scale, catalogued(v, i) / scale
            yield Row(name, described(i), v.get("printed", math.nan), v["expect"], ours, real, v["unit"], how)
            continue
        for x in (x for x in impossible if x["id"] == name):
            i = Inputs(x["given"], fixture["meta"])
            how = "estimate" if "bound_ms" not in x else "largest_level"
            yield Row(name, described(i), i("B"), x["most"], most(x, i), math.nan, "sequences", how)


def most(x: Mapping[str, Any], i: Inputs) -> float:
    """Sequences that a configuration holds, or that keep its bound."""
    if "bound_ms" in x:
        late = i.case().decode_s(1, i.context) > x["bound_ms"] * 1e-3
        return 0.0 if late else METHODS["whole_batch_within"](i.but(bound_s=x["bound_ms"] * 1e-3))
    case = i.case(chip=textbook.chip(i("C"), i("W"), i("HBM") * i("mem_fraction", 1.0)))
    return float(textbook.estimated(case, 1, int(i("S")) - 1).memory.max_running_requests)


def described(i: Inputs) -> str:
    """The inputs in a few words."""
    wanted = ("model", "hw", "n", "w_bytes", "kv_bytes", "B", "S")
    return " ".join(f"{k}={i.given[k]}" for k in wanted if k in i.given)


def short(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3e}"


def line(r: Row) -> str:
    """A row as it is printed."""
    wrong = not math.isnan(r.printed) and (not r.right or abs(r.printed / r.right - 1) > 0.02)
    figures = f"{short(r.printed):>10}{'!' if wrong else ' '}{short(r.right):>11}{short(r.ours):>11}{short(r.catalogue):>11}"
    return f"{r.id:6}{figures}  {r.unit:24} {r.how:20} {r.what}"


def main(wanted: Sequence[str]) -> int:
    fixture: Any = YAML(typ="safe", pure=True).load(FIXTURE)
    for title in (t for t in TABLES if not wanted or any(w in t for w in wanted)):
        print(f"\n{title}\n{'':6}{'printed':>10} {'right':>11}{'ours':>11}{'catalogue':>11}  unit")
        for r in rows(title, fixture):
            print(line(r))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
