"""Predictions against 498 published runs of dense models: `SERVEGEN_REFERENCE_DATA=DIR python tests/benchmarks/score_e2e.py`.

Reads `data/e2e_serving.csv` of that folder (closed-loop benchmark runs, aiconfigurator@095f58a5 silicon_sample.csv) and
predicts each row with `estimate`, told no more than the row states: model, accelerator, engine, TP, precision, lengths and
concurrency. fp8 runs are taken to hold their KV cache in fp8. Errors are absolute, in per cent, mean / median.
"""

from __future__ import annotations

import csv
import os
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from servegen.solve.estimate import EstimateRequest, estimate

FILE = Path(os.environ.get("SERVEGEN_REFERENCE_DATA", ".")) / "data" / "e2e_serving.csv"
DEVICES = {"h100_sxm": "h100-sxm-80gb", "h200_sxm": "h200-sxm-141gb", "b200_sxm": "b200-sxm-180gb"}
ENGINES = {"trtllm": "tensorrt-llm"}
#: Model, system, engine, precision ("" is bf16) of the dense rows without known defects.
GROUPS = frozenset(
    {
        ("Qwen/Qwen3-32B", "h100_sxm", "sglang", ""),
        ("meta-llama/Llama-3.1-70B", "b200_sxm", "trtllm", "fp8"),
        ("meta-llama/Llama-3.1-70B", "b200_sxm", "vllm", "fp8"),
        ("meta-llama/Llama-3.1-70B", "h100_sxm", "vllm", "fp8"),
        ("meta-llama/Llama-3.1-70B", "h200_sxm", "vllm", "fp8"),
        ("meta-llama/Llama-3.1-8B-Instruct", "h100_sxm", "trtllm", ""),
    }
)
#: The fit error of the reference calibration: TTFT and TPOT, mean / median.
TARGET = "25.2/15.3    5.7/3.7"


def main() -> None:
    found: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    start = time.process_time()
    with FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            group = (row["model_path"], row["system"], row["backend"], row["precision"])
            if row["mode"] != "agg" or group not in GROUPS:
                continue
            weights = row["precision"] or "bf16"
            request = EstimateRequest(
                model=row["model_path"], accelerator=DEVICES[row["system"]], engine=ENGINES.get(row["backend"], row["backend"]),
                tp=int(row["tp_size"]), weights=weights, kv=weights, batch=int(float(row["batch_size"])),
                isl=int(row["isl"]), osl=int(row["osl"]),
            )  # fmt: skip
            serving = estimate(request).serving
            ttft, tpot = float(row["silicon_ttft_ms"]), float(row["silicon_tpot_ms"])
            found[group].append((serving.ttft_s * 1e3 / ttft - 1.0, serving.tpot_s * 1e3 / tpot - 1.0))
    spent = time.process_time() - start
    print(f"{'':<62} rows  TTFT %       TPOT %      median bias TTFT, TPOT %")
    for group in sorted(found):
        print(f"{' '.join(group):<62} {_line(np.array(found[group]))}")
    every = np.concatenate([np.array(v) for v in found.values()])
    print(f"{'all':<62} {_line(every)}")
    print(f"{'target':<62}       {TARGET}")
    print(f"{len(every)} rows in {spent:.1f} s CPU")


def _line(errors: np.ndarray) -> str:  # type: ignore[type-arg]
    size = 100.0 * np.abs(errors)
    ttft, tpot = (f"{size[:, i].mean():.1f}/{np.median(size[:, i]):.1f}" for i in (0, 1))
    bias = 100.0 * np.median(errors, axis=0)
    return f"{len(errors):4d}  {ttft:<11}  {tpot:<10}  {bias[0]:+6.1f} {bias[1]:+6.1f}"


if __name__ == "__main__":
    main()
