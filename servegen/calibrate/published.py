"""Two published tables as rows: serving runs of three engines, and results of other kinds, one metric a line.

The columns are those of aiconfigurator's ``silicon_sample.csv`` and of a collection of vendors' and papers' figures. What
speaks against rows of the former is said here, with the reason, so that they can be read and are not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from servegen.calibrate.rows import Kind, Metric, Row
from servegen.inputs import figure

_DIGITS = re.compile("[0-9]{1,12}")
Line = Mapping[str, str]

SYSTEMS = {
    "h100_sxm": "h100-sxm-80gb", "h200_sxm": "h200-sxm-141gb", "b200_sxm": "b200-sxm-180gb", "b300_sxm": "b300-sxm-288gb",
    "gb200": "gb200-192gb", "gb300": "gb300-288gb",
}  # fmt: skip
ENGINES = {"trtllm": "tensorrt-llm", "sglang": "sglang", "vllm": "vllm"}
WEIGHTS = {"fp8": "fp8", "fp4": "nvfp4", "bf16": "bf16", "": "bf16"}
#: Nominal lengths of InferenceX, which draws them evenly from 0.8 of nominal to nominal (its RANDOM_RANGE_RATIO).
SPREAD_LENGTHS = (1024.0, 8192.0)
SPREAD_FROM = 0.8


def benchmark_of(isl: float, osl: float) -> tuple[float, bool]:
    """How the generator behind a published run chose lengths, by its nominal ones: shortest share, first wave left out."""
    if isl in SPREAD_LENGTHS and osl in SPREAD_LENGTHS:
        return SPREAD_FROM, False
    # Round thousands are those of Dynamo's runs, which warm up; powers of two those of a third generator, which does not.
    return 1.0, isl % 1000 == 0


def _serving(lines: Sequence[Line]) -> list[Row]:
    return [_run(line) for line in lines]


def _run(line: Line) -> Row:
    isl, osl = figure(line["isl"]), figure(line["osl"])
    shortest, warm = benchmark_of(isl, osl)
    weights, engine = WEIGHTS.get(line["precision"], ""), ENGINES.get(line["backend"], line["backend"])
    accelerator = SYSTEMS.get(line["system"], line["system"])
    measured: dict[Metric, float] = {
        "ttft_s": figure(line["silicon_ttft_ms"]) / 1e3,
        "tpot_s": figure(line["silicon_tpot_ms"]) / 1e3,
    }
    date = re.search(r"measured=(\d{4}-\d\d-\d\d)", line.get("silicon_data_source", ""))
    moe = any(_count(line.get(c)) > 1 for c in ("moe_ep_size", "attention_dp_size"))
    row = Row(
        id=line["id"],
        source="aiconfigurator@095f58a5 silicon_sample.csv",
        engine=engine,
        version=line["backend_version"],
        model=line["model_path"],
        accelerator=accelerator,
        tp=_count(line["tp_size"]) or 1,
        pp=_count(line["pp_size"]) or 1,
        weights=weights,
        # Queueing begins where a cache of fp8 says it does: quantized runs of InferenceX and all of TensorRT-LLM's.
        kv="fp8" if weights != "bf16" else "bf16",
        isl=isl,
        osl=osl,
        concurrency=_count(line["batch_size"]),
        shortest=shortest,
        warm=warm,
        measured=measured,
        date=date.group(1) if date else "",
        skip=_against(line, engine, accelerator) or ("expert and attention data parallelism are not predicted" if moe else ""),
    )
    return row.with_throughput()


def _count(text: str | None) -> int:
    return int(figure(text)) if text else 0


def _against(line: Line, engine: str, accelerator: str) -> str:
    """Why a line must not be used, or nothing."""
    if line["mode"] != "agg":
        return "prefill and decode on servers of their own"
    if line["model_path"] == "nvidia/Llama-3.1-8B-Instruct-FP8" and engine == "vllm":
        return "it would take up to 87 % of the fp8 peak"
    if accelerator == "gb200-192gb" and not line["precision"]:
        return "duplicates differ by a factor of four, and no precision is stated"
    if line["model_path"] == "openai/gpt-oss-120b" and accelerator == "h100-sxm-80gb" and _count(line["batch_size"]) >= 512:
        return "it behaves as if 16 users were served, not 512"
    concurrency = re.search(r"silicon_concurrency=(\d+)", line.get("silicon_data_source", ""))
    if concurrency and line["batch_size"] and int(concurrency.group(1)) > 4 * _count(line["batch_size"]):
        return "the load was spread over several servers, and it is not said how evenly"
    return ""


#: Accelerators as people write them in tables, where the catalogue's own aliases do not know them.
TABLE_NAMES = {
    "mi300x 192gb 750w": "mi300x-192gb", "tpu v6e": "tpu-v6e-32gb", "rtx pro 6000 blackwell se": "rtx-pro-6000-96gb",
    "b200 180gb": "b200-sxm-180gb", "gb200 192gb": "gb200-192gb",
}  # fmt: skip
TABLE_ENGINES = {"llama.cpp": "llama-cpp", "vllm (splitwise paper build)": "vllm-2023", "vllm (rocm fork)": "vllm"}
TABLE_WEIGHTS = {"fp16": "bf16", "bf16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "q4_k_m": "int4"}
TABLE_KV = {"fp16": "bf16", "bf16": "bf16", "fp8": "fp8"}
#: Figures that are broken as printed: A100 SXM and L40S computing prompts of fp16 models at a tenth of their neighbours' speed.
BROKEN = {("a100 sxm 80gb", "fp16", "prefill_throughput"), ("l40s 48gb", "fp16", "prefill_throughput")}


def _tables(lines: Sequence[Line]) -> list[Row]:
    """Lines that differ in nothing but their metric are one row."""
    rows: dict[tuple[str, ...], Row] = {}
    fields = (
        "source",
        "engine",
        "model",
        "accelerator",
        "num_devices",
        "tp",
        "weights_dtype",
        "kv_dtype",
        "isl",
        "osl",
        "concurrency",
    )
    for line in lines:
        row = _figure(line)
        key = (*(line.get(f, "") for f in fields), row.kind, "" if not row.skip else row.id)
        if key in rows:
            rows[key] = Row(**{**vars(rows[key]), "measured": {**rows[key].measured, **row.measured}})
        else:
            rows[key] = row
    return list(rows.values())


def _figure(line: Line) -> Row:
    kind, metric, value = _metric(line)
    dtype = line["weights_dtype"].split("(")[0].lower()
    weights = TABLE_WEIGHTS.get(dtype, "")
    tp = _count(line["tp"]) or 1
    devices = _count(line["num_devices"]) if _DIGITS.fullmatch(line["num_devices"]) else 0
    prompts = re.search(r"(\d+)\*concurrency prompts", line["notes"])
    concurrency = _count(line["concurrency"]) if _DIGITS.fullmatch(line["concurrency"]) else 0
    most = re.search(r"max_num_seqs=(\d+)", line["notes"])
    accelerator = line["accelerator"].split(" (")[0]
    skip = ""
    if devices > 1 and line["tp"] in ("", "1"):
        skip = "layers are split over devices, or attention is replicated; neither is predicted"
    elif not weights:
        skip = f"weights of {dtype or 'unstated precision'}"
    elif (accelerator.lower(), dtype, line["metric"]) in BROKEN:
        skip = "broken as printed"
    elif not kind:
        skip = f"{line['metric']} of {line['notes'].split(';')[0]} is not predicted"
    elif "range ratio not stated" in line["notes"]:
        skip = "the spread of the lengths is not stated"
    measured: dict[Metric, float] = {metric: value} if metric else {}
    return Row(
        id=line["id"],
        source=line["source"],
        engine=TABLE_ENGINES.get(line["engine"].lower(), line["engine"]),
        version=line["engine_version"],
        model=line["model"],
        accelerator=TABLE_NAMES.get(accelerator.lower(), accelerator),
        tp=tp,
        weights=weights,
        kv=TABLE_KV.get(line["kv_dtype"], "fp8" if line["engine"] == "tensorrt-llm" else ""),
        isl=figure(line["isl"] or "0"),
        osl=figure(line["osl"] or "0"),
        concurrency=int(most.group(1)) if most else concurrency,
        kind=kind or "closed",
        shortest=SPREAD_FROM if f"range ratio {SPREAD_FROM:g}" in line["notes"] else 1.0,
        requests=int(prompts.group(1)) * concurrency if prompts else 0,
        measured=measured,
        date=line["date"],
        skip=skip,
    )


def _metric(line: Line) -> tuple[Kind | None, Metric | None, float]:
    """What was measured, in SI: the kind of row, the metric, its value."""
    phase = line["notes"].split(";")[0].removeprefix("phase=").strip()
    value, name = figure(line["value"]), line["metric"]
    devices = figure(line["num_devices"].split()[0]) if line["num_devices"] else 1.0
    found: dict[tuple[str, str], tuple[Kind, Metric, float]] = {
        ("decode-only", "tpot"): ("decode", "step_s", value / 1e3),
        ("decode-only", "decode_throughput"): ("decode", "output_tokens_per_s", value),
        ("prefill-only", "prefill_time"): ("prefill", "prefill_s", value / 1e3),
        ("prefill-only", "prefill_throughput"): ("prefill", "prefill_s", figure(line["isl"] or "0") / value),
        ("e2e-offline", "output_throughput"): ("offline", "output_tokens_per_s", value),
        ("e2e-offline", "output_throughput_per_gpu"): ("offline", "output_tokens_per_s", value * devices),
        ("e2e-offline", "e2e_latency"): ("batch", "batch_s", value),
        ("e2e", "tpot"): ("closed", "tpot_s", value / 1e3),
        ("e2e", "itl"): ("closed", "tpot_s", value / 1e3),
        ("e2e", "output_throughput"): ("closed", "output_tokens_per_s", value),
    }  # fmt: skip
    if phase == "e2e" and name == "ttft" and "OSL=1" not in line["notes"]:
        found["e2e", "ttft"] = ("closed", "ttft_s", value / 1e3)
    return found.get((phase, name), (None, None, value))


#: In order: the columns that tell a table, those that it must have, and its reader.
SCHEMAS: tuple[tuple[frozenset[str], frozenset[str], Callable[[Sequence[Line]], list[Row]]], ...] = (
    (
        frozenset({"silicon_ttft_ms", "silicon_tpot_ms", "model_path", "system", "backend"}),
        frozenset({"id", "mode", "isl", "osl", "precision", "backend_version", "tp_size", "pp_size", "batch_size"}),
        _serving,
    ),
    (
        frozenset({"metric", "value", "unit", "engine", "accelerator", "weights_dtype", "notes"}),
        frozenset(
            {"id", "source", "engine_version", "model", "num_devices", "tp", "kv_dtype", "isl", "osl", "concurrency", "date"}
        ),
        _tables,
    ),
)
