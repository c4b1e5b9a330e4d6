"""What benchmark tools write: SGLang bench_serving, vllm bench serve, genai-perf and aiperf, guidellm.

Field names as of SGLang 0.5, vLLM 0.10 and later, genai-perf 0.0.13, aiperf 0.2, guidellm 0.3.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from servegen.calibrate.rows import Metric, Row
from servegen.inputs import figure

#: Engines by what tools call a backend.
BACKENDS = {
    "sglang": "sglang", "sglang-native": "sglang", "sglang-oai": "sglang", "sglang-oai-chat": "sglang", "vllm": "vllm",
    "vllm-chat": "vllm", "trt": "tensorrt-llm", "tensorrt-llm": "tensorrt-llm", "trtllm": "tensorrt-llm",
}  # fmt: skip
#: How a server says that it stores weights and KV.
PRECISIONS = {
    "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "w8a8_fp8": "fp8", "modelopt": "fp8", "modelopt_fp8": "fp8",
    "modelopt_fp4": "nvfp4", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "awq": "int4", "gptq": "int4", "awq_marlin": "int4",
    "gptq_marlin": "int4", "w8a8_int8": "int8", "bfloat16": "bf16", "bf16": "bf16", "float16": "bf16",
}  # fmt: skip


def _number(value: Any) -> float:
    """A figure; nan where there is none (an unlimited rate is the text "inf")."""
    if value is None or isinstance(value, bool):
        return math.nan
    return figure(value) if isinstance(value, str) else float(value)


def _seconds(found: Mapping[Metric, float]) -> dict[Metric, float]:
    return {name: value for name, value in found.items() if math.isfinite(value) and value > 0}


def _count(value: Any) -> int:
    number = _number(value)
    return int(number) if math.isfinite(number) else 0


def _lengths(d: Mapping[str, Any], completed: int) -> tuple[float, float, float]:
    """Nominal prompt and output length and the shortest share: as asked for, else the means of what was sent."""
    if d.get("random_input_len") and d.get("dataset_name") in (None, "random", "random-ids"):
        low = d.get("random_range_ratio")
        return _number(d["random_input_len"]), _number(d["random_output_len"]), _number(low) if low else 0.0
    sent = _number(d.get("total_input_tokens")) / completed, _number(d.get("total_output_tokens")) / completed
    return (*sent, 1.0)


def _bench_serving(d: Mapping[str, Any], id: str, source: str) -> list[Row]:
    """A line of SGLang's bench_serving or a file of vllm bench serve: the latter grew out of the former."""
    completed = _count(d["completed"])
    if completed < 0:
        raise ValueError(f"completed = {completed}")
    if not completed:
        return [_skipped(id, source, "no request was answered")]
    server = _mapping(d.get("server_info"))
    isl, osl, shortest = _lengths(d, completed)
    if "model_id" in d:  # vLLM's own range ratio is the half-width of the spread, and is not written down
        shortest = 1.0
        isl = _number(d["total_input_tokens"]) / completed
        osl = _number(d["total_output_tokens"]) / completed
    backend = str(d.get("backend") or d.get("endpoint_type") or "")
    measured: dict[Metric, float] = {
        "ttft_s": _number(d.get("mean_ttft_ms", d.get("median_ttft_ms"))) / 1e3,
        "tpot_s": _number(d.get("mean_tpot_ms", d.get("mean_itl_ms", d.get("median_itl_ms")))) / 1e3,
        "output_tokens_per_s": _number(d.get("output_throughput")),
    }
    quantization = server.get("quantization") or d.get("quantization") or ""
    kv = server.get("kv_cache_dtype") or d.get("kv_cache_dtype") or ""
    return [
        Row(
            id=id,
            source=source,
            engine=BACKENDS.get(backend, ""),
            version=str(server.get("version") or d.get("version") or ""),
            model=str(server.get("model_path") or d.get("model_id") or d.get("model") or ""),
            accelerator=str(d.get("accelerator") or ""),
            tp=_count(server.get("tp_size") or d.get("tp") or d.get("tensor_parallel_size") or 1),
            weights=PRECISIONS.get(str(quantization), ""),
            kv=PRECISIONS.get(str(kv), ""),
            isl=isl,
            osl=osl,
            shortest=shortest,
            concurrency=_count(d.get("max_concurrency")),
            requests=_count(d.get("num_prompts")) or completed,
            measured=_seconds(measured),
            date=str(d.get("date") or "")[:8],
            skip=_open_loop(d),
        )
    ]


def _open_loop(d: Mapping[str, Any]) -> str:
    rate = _number(d.get("request_rate"))
    return "requests came at a rate, not from users who wait for their answers" if math.isfinite(rate) else ""


def _skipped(id: str, source: str, why: str) -> Row:
    return Row(id, source, "", "", "", 0.0, 0.0, 0, {}, skip=why)


def _average(d: Mapping[str, Any], *names: str) -> float:
    for name in names:
        node = d.get(name)
        if isinstance(node, Mapping) and node.get("avg") is not None:
            scale = {"ms": 1e-3, "s": 1.0, "us": 1e-6, "ns": 1e-9}.get(str(node.get("unit")), 1.0)
            return _number(node["avg"]) * scale
    return math.nan


def _perf(d: Mapping[str, Any], id: str, source: str) -> list[Row]:
    """genai-perf and aiperf: averages with their units, and the command's own settings."""
    config: Mapping[str, Any] = d.get("input_config") or {}
    endpoint: Mapping[str, Any] = config.get("endpoint") or {}
    names = endpoint.get("model_names") or config.get("model_names") or config.get("model") or []
    load: Mapping[str, Any] = config.get("loadgen") or config.get("perf_analyzer") or {}
    level = load.get("concurrency") or _mapping(load.get("stimulus")).get("concurrency") or config.get("concurrency")
    measured: dict[Metric, float] = {
        "ttft_s": _average(d, "time_to_first_token", "ttft"),
        "tpot_s": _average(d, "inter_token_latency"),
        "output_tokens_per_s": _average(d, "output_token_throughput"),
    }
    return [
        Row(
            id=id,
            source=source,
            engine=BACKENDS.get(str(config.get("backend") or endpoint.get("backend") or ""), ""),
            model=_first(names),
            accelerator="",
            isl=_zero(_average(d, "input_sequence_length")),
            osl=_zero(_average(d, "output_sequence_length")),
            concurrency=_count(_first(level) or None),
            requests=_count(_zero(_average(d, "request_count"))),
            measured=_seconds(measured),
        )
    ]


def _first(value: Any) -> str:
    """A setting, or the first of several; "" where there is none."""
    if isinstance(value, list):
        value = value[0] if value else ""
    return "" if value is None else str(value)


def _zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _guidellm(d: Mapping[str, Any], id: str, source: str) -> list[Row]:
    """guidellm: one benchmark per strategy; only those with a fixed number of streams are a closed loop."""
    rows = []
    for index, bench in enumerate(d["benchmarks"]):
        config = bench.get("config") or bench.get("args") or {}
        strategy = config.get("strategy") or {}
        metrics = bench["metrics"]
        backend = config.get("backend") or bench.get("worker") or {}
        kind = str(strategy.get("type_", ""))
        streams = _count(strategy.get("streams") or (1 if kind == "synchronous" else 0))
        measured: dict[Metric, float] = {
            "ttft_s": _successful(metrics, "time_to_first_token_ms") / 1e3,
            "tpot_s": _successful(metrics, "inter_token_latency_ms") / 1e3,
            "output_tokens_per_s": _successful(metrics, "output_tokens_per_second"),
        }
        rows.append(
            Row(
                id=f"{id}.{index}",
                source=source,
                engine="",
                model=str(backend.get("model") or backend.get("backend_model") or config.get("model") or ""),
                accelerator="",
                isl=_zero(_successful(metrics, "prompt_token_count")),
                osl=_zero(_successful(metrics, "output_token_count")),
                concurrency=streams,
                requests=_count(_mapping(bench.get("request_totals") or bench.get("run_stats")).get("successful")),
                measured=_seconds(measured),
                skip="" if streams else f"strategy {kind or 'unknown'} is no closed loop",
            )
        )
    return rows


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _successful(metrics: Mapping[str, Any], name: str) -> float:
    return _number(_mapping(_mapping(metrics.get(name)).get("successful")).get("mean"))


_METRIC_HEAD = re.compile(r"^\s*\"?Metric\"?\s*,", re.IGNORECASE)
_TITLES = {
    "time to first token": "ttft_s",
    "inter token latency": "tpot_s",
    "output token throughput": "output_tokens_per_s",
    "input sequence length": "isl",
    "output sequence length": "osl",
    "request count": "requests",
}
_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}


def is_metric_table(text: str) -> bool:
    """Whether a CSV is the export of genai-perf or aiperf: one metric per line."""
    return bool(_METRIC_HEAD.match(text))


def metric_table(text: str, id: str, source: str) -> list[Row]:
    """The row of a CSV export; the load and the model stand only in the JSON beside it, so they must be given."""
    found: dict[str, float] = {}
    for line in csv.reader(io.StringIO(text, newline="")):
        if len(line) < 2:
            continue
        title = re.match(r"^(.*?)\s*(?:\(([^)]*)\))?$", line[0].strip())
        if title is None or title.group(1).lower() not in _TITLES:
            continue
        name = _TITLES[title.group(1).lower()]
        try:
            found[name] = figure(line[1].replace(",", "")) * _UNITS.get((title.group(2) or "").lower(), 1.0)
        except ValueError:
            continue  # a column that the tool left empty
    measured: dict[Metric, float] = {
        "ttft_s": found.get("ttft_s", math.nan),
        "tpot_s": found.get("tpot_s", math.nan),
        "output_tokens_per_s": found.get("output_tokens_per_s", math.nan),
    }
    return [
        Row(
            id=id, source=source, engine="", model="", accelerator="", isl=found.get("isl", 0.0), osl=found.get("osl", 0.0),
            concurrency=0, requests=_count(found.get("requests", 0)), measured=_seconds(measured),
        )
    ]  # fmt: skip


#: In order: does a document have this form, and what it says. Each returns the rows of (document, id, source).
FORMATS: tuple[tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any], str, str], list[Row]]], ...] = (
    (lambda d: isinstance(d.get("benchmarks"), list), _guidellm),
    (lambda d: "completed" in d and ("mean_ttft_ms" in d or "median_ttft_ms" in d), _bench_serving),
    (lambda d: isinstance(d.get("time_to_first_token"), dict) or isinstance(d.get("inter_token_latency"), dict), _perf),
)
