"""Puts fitted constants into the catalogue's files and the efficiencies that follow from them by rule."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from servegen.calibrate.file import BAND_OF
from servegen.calibrate.rows import Row
from servegen.calibrate.score import half_width
from servegen.catalog.accelerators import arithmetic, resolve_accelerator

ROOT = Path(__file__).resolve().parents[2]
CATALOG = ROOT / "servegen" / "catalog"
FIXTURE = ROOT / "tests" / "fixtures" / "efficiency.yaml"
#: Engines of a fit that share a constant written with ``*``.
SHARED = ("sglang", "vllm", "tensorrt-llm")
DATES = {"serving": "2026-04", "llama-cpp": "2024-05", "vllm-2023": "2023-11", "mi300x": "2025-07", "sglang-jax": "2026"}
SOURCES = {
    "serving": "end-to-end fit of tests/data (tests/tools/refit.py serving), closed-loop rows of aiconfigurator@095f58a5 "
    "silicon_sample.csv, and B200 offline rows of TensorRT-LLM; the error is the fit's standard deviation",
    "llama-cpp": "fit of tests/data (tests/tools/refit.py llama-cpp), XiongjieDai/GPU-Benchmarks-on-LLM-Inference, llama-bench",
    "vllm-2023": "fit of tests/data (tests/tools/refit.py vllm-2023), Mutinifni/splitwise-sim@8f99e7dc perf_model.csv",
    "mi300x": "fit of tests/data (tests/tools/refit.py mi300x), ROCm/vllm@f8c9a385 docs/dev-docker, vLLM 0.9.1 benchmark_latency",
    "sglang-jax": "fit of tests/data (tests/tools/refit.py sglang-jax), sgl-project/sglang-jax@cddbf6f1 cookbook, TPU v6e",
}  # fmt: skip


def write(done: Any) -> None:
    """Write every constant of a fit where it stands, and the bands of its engines."""
    job, fit = done.job.name, done.fit
    for name, value in fit.values.items():
        kind, id, what = name.split(".", 2)
        error, rows = fit.errors[name], fit.rows[name]
        if kind == "engine" and not what.startswith("kernels."):
            for engine in SHARED if id == "*" else (id,):
                _engine(engine, what, value, error, rows, job)
        elif what.startswith(("gemm.", "kernels.")):
            _, *pair, which = what.split(".")
            folder = "engines" if kind == "engine" else "accelerators"
            _share(CATALOG / folder / f"{id}.yaml", ".".join(pair), which, value, error, rows, job)
    if job == "serving":
        keep_left_out(done)
        # One or two groups of an engine say how those scatter, not how far another one lies from them: all groups together do.
        closed = [p for p in done.left_out["group"] if _serving(p[0])]
        for engine in SHARED:
            _bands(engine, closed, job)
    elif job != "mi300x":
        _bands(job, done.left_out["group"], job)
    if any(name.startswith("accelerator.") for name in fit.values):
        _fixture(fit.values)


def _source(file: Path, job: str) -> None:
    """Name the fit in a file's table of sources."""
    text = file.read_text("utf-8")
    key = f"refit_{job.replace('-', '_')}"
    line = f"  {key}: {SOURCES[job]}\n"
    if re.search(rf"^  {key}: ", text, re.MULTILINE):
        text = re.sub(rf"^  {key}: .*\n", lambda _: line, text, flags=re.MULTILINE)
    else:
        text = text.replace("\nsources:\n", f"\nsources:\n{line}", 1)
    file.write_text(text, "utf-8")


def _engine(engine: str, what: str, value: float, error: float, rows: int, job: str) -> None:
    file = CATALOG / "engines" / f"{engine}.yaml"
    _source(file, job)
    known = f'rows: {rows}, origin: fitted, date: "{DATES[job]}", source: refit_{job.replace("-", "_")}'
    node = f"{{value: {value:.3g}, fit_error: {error:.2g}, {known}}}"
    _replace(file, rf"^{what}: \{{value.*\}}$", f"{what}: {node}")


def _share(file: Path, pair: str, which: str, value: float, error: float, rows: int, job: str) -> None:
    """One share of a pair; the pair's error is that of its bandwidth, which decides decoding."""
    _source(file, job)
    text = file.read_text("utf-8")
    (line,) = re.findall(rf"^  {re.escape(pair)}: \{{ew.*\}}$", text, re.MULTILINE)
    shares = {k: float(v) for k, v in re.findall(r"\b(ew|ec): ([0-9.e-]+)", line)}
    shares[which] = round(value, 3)
    old = re.search(r"fit_error: ([0-9.e-]+)", line)
    shown = error if which == "ew" else float(old.group(1)) if old else error
    known = f"rows: {rows}, origin: fitted, source: refit_{job.replace('-', '_')}"
    node = f"{{ew: {shares['ew']:.3f}, ec: {shares['ec']:.3f}, fit_error: {shown:.2g}, {known}}}"
    _replace(file, re.escape(line), f"  {pair}: {node}")


def _bands(engine: str, left_out: list[Any], job: str) -> None:
    file = CATALOG / "engines" / f"{engine}.yaml"
    line = "  left_out: half-width that holds 90 % of rows unseen by the fit (groups of model, device and engine left out)\n"
    text = file.read_text("utf-8")
    if "  left_out: " not in text:
        file.write_text(text.replace("\nsources:\n", f"\nsources:\n{line}", 1), "utf-8")
    names = {**BAND_OF, "itl": "tpot_s" if any("tpot_s" in r.measured for r, _ in left_out) else "step_s"}
    names["ttft"] = "ttft_s" if any("ttft_s" in r.measured for r, _ in left_out) else "prefill_s"
    if not any("tpot_s" in r.measured or "step_s" in r.measured for r, _ in left_out):
        names["itl"] = "output_tokens_per_s"
    for metric, column in names.items():
        width = half_width(left_out, column)  # type: ignore[arg-type]
        count = sum(column in r.measured for r, _ in left_out)
        if math.isfinite(width):
            _replace(
                file,
                rf"^  {metric}: \{{value.*\}}$",
                f"  {metric}: {{value: {width:.3f}, rows: {count}, origin: fitted, source: left_out}}",
            )


def _replace(file: Path, pattern: str, line: str) -> None:
    text = file.read_text("utf-8")
    new, count = re.subn(pattern if pattern.startswith("^") else f"^{pattern}$", lambda _: line, text, flags=re.MULTILINE)
    if count != 1:
        raise SystemExit(f"{file.name}: {count} lines match {pattern}")
    file.write_text(new, "utf-8")


def _fixture(values: Any) -> None:
    """The fitted shares from which the rule scales those of other pairs."""
    text = FIXTURE.read_text("utf-8")
    pairs: dict[str, dict[str, list[float]]] = YAML(typ="safe", pure=True).load(text)["fitted"]
    for name, value in values.items():
        if name.startswith("accelerator."):
            _, id, _, precision, which = name.split(".")
            pairs.setdefault(id, {}).setdefault(precision, [0.0, 0.0])[which == "ec"] = round(value, 3)
    lines = ["fitted:"] + [f"  {id}: {json.dumps(row).replace(chr(34), '')}" for id, row in pairs.items()]
    text = re.sub(r"^fitted:\n(?:  .*\n)+", "\n".join(lines) + "\n", text, flags=re.MULTILINE)
    FIXTURE.write_text(text, "utf-8")
    scale()


def scale() -> None:
    """Every pair without rows, by the rule in servegen/catalog/accelerators.py."""
    from tests.unit import test_catalog_accelerators as rule

    rule.TABLES.update(YAML(typ="safe", pure=True).load(FIXTURE))
    rule.FITTED.clear()
    rule.FITTED.update(rule.TABLES["fitted"])
    for device in rule.TABLES["gemm"]:
        facts = resolve_accelerator(device)
        file = CATALOG / "accelerators" / f"{device}.yaml"
        for precision, old in facts.gemm.items():
            ew, ec, origin = rule.expected_gemm(facts, precision)
            if origin == "scaled" and arithmetic(facts, precision):
                text = file.read_text("utf-8")
                (line,) = re.findall(rf"^  {precision}: \{{ew.*\}}$", text, re.MULTILINE)
                if "origin: scaled" in line:
                    new = re.sub(r"ew: [0-9.]+, ec: [0-9.]+", f"ew: {ew:.3f}, ec: {ec:.3f}", line)
                    _replace(file, re.escape(line), new)
                else:
                    raise SystemExit(f"{device} {precision} is {old.origin}, not scaled")


def _serving(row: Row) -> bool:
    return row.kind == "closed" and not row.id.startswith("summary")


def keep_left_out(done: Any) -> None:
    """tests/data/left_out.csv: predictions of the serving rows by fits that had not seen their part of a partition."""
    names = ("tpot_s", "ttft_s", "output_tokens_per_s")
    lines = [f"left_out,id,{','.join(names)}"]
    for partition, pairs in done.left_out.items():
        for row, predicted in sorted(pairs, key=lambda pair: pair[0].id):
            if _serving(row):
                lines.append(",".join([partition, row.id, *(f"{predicted[n]:.5g}" for n in names)]))
    (ROOT / "tests" / "data" / "left_out.csv").write_text("\n".join(lines) + "\n", "utf-8")
