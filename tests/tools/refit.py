"""The constants of the catalogue, fitted anew to tests/data: `python -m tests.tools.refit [NAMES] [--write]`.

Five fits, each of an engine's or a device's own rows: the three serving engines on Hopper and Blackwell together, llama.cpp,
vLLM of 2023, MI300X under vLLM, and TPU v6e under sglang-jax. Efficiencies of pairs (device, precision) without rows follow
by the rule in servegen/catalog/accelerators.py. `--write` puts the constants, their errors and the bands into the catalogue's
files; tests/fixtures/efficiency.yaml gets the fitted shares that the rule starts from.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from servegen.calibrate.constants import Response, calibration_of, respond
from servegen.calibrate.fit import Fit, Prior, fit, start_values
from servegen.calibrate.identify import warnings
from servegen.calibrate.predict import predict, setting
from servegen.calibrate.readers import read
from servegen.calibrate.rows import Row, usable
from servegen.calibrate.run import impossible, leave_out
from servegen.calibrate.score import Pair, half_width, score
from servegen.catalog.accelerators import resolve_accelerator
from servegen.catalog.models import resolve_model
from tests.tools import refit_write

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
WORKERS = min(os.cpu_count() or 1, 4)

H100, H200, B200 = (f"accelerator.{n}" for n in ("h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb"))
#: Kernels' share of the peak, mean of m = 1024 and 4096 (tests/fixtures/efficiency.yaml): a fit stays near its own.
KERNELS = {
    f"{H100}.gemm.fp8": 0.595, f"{H100}.gemm.bf16": 0.775, f"{H200}.gemm.fp8": 0.605, f"{B200}.gemm.fp8": 0.49,
    f"{B200}.gemm.nvfp4": 0.37,
}  # fmt: skip
SERVING = ("sglang", "vllm", "tensorrt-llm")
#: Centres that constants of one kind share; what an engine or a pair without rows gets.
POOLS = {
    "ew": Prior(0.85, 0.15), "ec": Prior(0.9, 0.25), "step_s": Prior(1.5e-3, 0.8), "layer_s": Prior(20e-6, 0.8),
    "prompt_layer_s": Prior(400e-6, 0.8),
    "sequence_s": Prior(25e-6, 0.8), "request_s": Prior(40e-3, 0.8),
}  # fmt: skip

#: How far an engine's constants lie from those of the others, in log terms. Launching a prompt's kernels and taking a request
#: in is Python's and the driver's work in all of them.
OWN = {"step_s": 0.1, "layer_s": 0.1, "prompt_layer_s": 0.05, "sequence_s": 0.15, "request_s": 0.05}
#: How far the shares of a pair (device, precision) lie from the kernels' and from one bandwidth, in log terms. The runs of one
#: engine on one device have that engine's luck in common, and are not so many witnesses of what the device can do.
PAIR = {"ew": 0.05, "ec": 0.03}
#: 4-bit kernels differ by more: by a fifth between the engines of one device, and what they read is not all weights.
NARROW = {"ew": 0.2, "ec": 0.1}


@dataclass(frozen=True)
class Job:
    """One fit: its rows, its constants with their priors, and their pools."""

    name: str
    rows: Sequence[Row]
    priors: Mapping[str, Prior]
    pools: Mapping[str, Prior] = field(default_factory=dict)
    rounds: int = 2


def serving_priors() -> dict[str, Prior]:
    priors = {}
    for pair, share in KERNELS.items():
        width = NARROW if pair.endswith("nvfp4") else PAIR
        priors |= {f"{pair}.ew": Prior(1.0, width["ew"], "ew"), f"{pair}.ec": Prior(share, width["ec"], "ec")}
    # Engines launch the same kernels over the same drivers: what a layer and a step cost differs less between them than what
    # their hosts do per sequence and per request.
    priors |= {f"engine.{e}.{c}": Prior(1.0, own, c) for e in SERVING for c, own in OWN.items()}
    # No kernel reads a cache faster than 0.93 of the bandwidth; beside that one, the rows say what factors the tables need.
    priors |= {"engine.*.kv_efficiency": Prior(0.92, 0.02), "engine.*.attention_efficiency": Prior(0.53, 0.25)}
    return priors | {f"engine.*.allreduce_{c}_factor": Prior(1.0, 0.25) for c in ("latency", "bandwidth")}


def half(row: Row) -> Row:
    """A row that counts half: published without its concurrency, or a summary of several."""
    return replace(row, weight=dict.fromkeys(row.measured, 0.5))


def jobs() -> list[Job]:
    serving = usable(read(DATA / "serving.csv"))
    tables = usable(read(DATA / "measured.csv"))

    def of(engine: str, device: str = "", kind: str = "") -> list[Row]:
        known = [r for r in tables if r.engine == engine and (not kind or r.kind == kind) and _predictable(r)]
        return [r for r in known if not impossible(r) and (not device or setting(r).accelerator.id == device)]

    summaries = [r for r in tables if r.id.startswith("summary")]
    offline = [half(r) for r in of("tensorrt-llm", "b200-sxm-180gb", "offline")]
    llama = of("llama-cpp")
    kernels = sorted({f"engine.llama-cpp.kernels.{s.accelerator.id}.{s.weights}" for s in map(setting, llama)})
    llama_priors = {f"{k}.ew": Prior(0.6, 0.5) for k in kernels} | {f"{k}.ec": Prior(0.3, 0.7) for k in kernels}
    llama_priors |= {"engine.llama-cpp.layer_s": Prior(15e-6, 0.5), "engine.llama-cpp.step_s": Prior(1e-3, 0.5)}
    old = {f"engine.vllm-2023.{c}": Prior(v, 0.8) for c, v in (("step_s", 1e-3), ("layer_s", 2.5e-4), ("sequence_s", 8e-6))}
    # Before CUDA graphs an all-reduce was launched from the host: 25 to 40 us against 2.6 to 5 (the eager rows of the tables).
    old |= {
        "engine.vllm-2023.allreduce_latency_factor": Prior(9.0, 0.4),
        "engine.vllm-2023.allreduce_bandwidth_factor": Prior(1.0, 0.5),
    }
    mi300x = "accelerator.mi300x-192gb.gemm.fp8"
    tpu = "accelerator.tpu-v6e-32gb.gemm.bf16"
    jax = {f"engine.sglang-jax.{c}": Prior(v, 0.8) for c, v in (("step_s", 1e-3), ("layer_s", 15e-6), ("sequence_s", 8e-6))}
    return [
        Job("serving", [*serving, *summaries, *offline], serving_priors(), POOLS, rounds=2),
        Job("llama-cpp", llama, llama_priors, rounds=4),
        Job("vllm-2023", of("vllm-2023"), old, rounds=4),
        Job(
            "mi300x",
            of("vllm", "mi300x-192gb", "batch"),
            {f"{mi300x}.ew": Prior(0.85, 0.25), f"{mi300x}.ec": Prior(0.4, 0.25)},
            rounds=4,
        ),
        Job("sglang-jax", of("sglang-jax"), {**jax, f"{tpu}.ew": Prior(0.85, 0.15), f"{tpu}.ec": Prior(0.59, 0.25)}, rounds=3),
    ]


def _predictable(row: Row) -> bool:
    from servegen.errors import ServegenError

    try:
        setting(row)
    except ServegenError:
        return False
    return True


def each(rows: Sequence[Row], chosen: Sequence[str], values: Mapping[str, float]) -> Sequence[Response]:
    with ProcessPoolExecutor(WORKERS) as pool:
        return list(pool.map(partial(respond, chosen=chosen, values=values), rows, chunksize=8))


def predict_at(job: tuple[Row, Mapping[str, float]]) -> Pair:
    return job[0], predict(job[0], calibration_of(job[1]))


def predict_all(pairs: Sequence[tuple[Row, Mapping[str, float]]]) -> list[Pair]:
    with ProcessPoolExecutor(WORKERS) as pool:
        return list(pool.map(predict_at, pairs, chunksize=8))


#: What is left out together, by the name of the partition: a prediction must hold for what is new in any of these ways.
PARTITIONS: Mapping[str, Callable[[Row], str]] = {
    "group": lambda r: " / ".join(r.group),
    "engine": lambda r: r.engine,
    "accelerator": lambda r: resolve_accelerator(r.accelerator).id,
    "model": lambda r: resolve_model(r.model).id,
}


@dataclass(frozen=True)
class Done:
    """A fit with its predictions in sample, and left out by each of :data:`PARTITIONS`."""

    job: Job
    fit: Fit
    after: list[Pair]
    left_out: Mapping[str, list[Pair]]


def run(job: Job) -> Done:
    start = {n: v for n, v in start_values(job.rows, list(job.priors)).items()}
    found = fit(job.rows, list(job.priors), job.priors, job.pools, job.rounds, start, each)
    after = predict_all([(r, found.values) for r in job.rows])
    left = {name: predict_all(_left_out(found, job, key)) for name, key in PARTITIONS.items()}
    return Done(job, found, after, left)


def _left_out(found: Fit, job: Job, key: Callable[[Row], str]) -> list[tuple[Row, Mapping[str, float]]]:
    """Each row with the constants of a fit without its part of the partition; none where that is all of the rows."""
    out: list[tuple[Row, Mapping[str, float]]] = []
    for part in sorted({key(r) for r in job.rows}):
        kept = [r for r in found.responses if key(r.row) != part]
        if kept:
            values = leave_out(found, kept, job.pools)
            out += [(r, values) for r in job.rows if key(r) == part]
    return out


def main() -> None:
    wanted = {a for a in sys.argv[1:] if a in {"serving", "llama-cpp", "vllm-2023", "mi300x", "sglang-jax"}}
    for job in jobs():
        if wanted and job.name not in wanted:
            continue
        done = run(job)
        print(f"== {job.name}: {len(job.rows)} rows, {len(job.priors)} constants")
        for name, value in done.fit.values.items():
            print(
                f"  {name} {value:.4g} +- {done.fit.errors[name]:.1%}, {done.fit.rows[name]} rows, told {done.fit.told[name]:.0%}"
            )
        for label, pairs in (("in sample", done.after), *((f"left out {n}", p) for n, p in done.left_out.items())):
            for by in ("all", "group"):
                for s in score(pairs, by):
                    print(f"  {label:<20} {s.group:<65} {s.metric:<20} {s.rows:4} {s.mean:6.1%} {s.median:6.1%} {s.bias:+6.1%}")
        for metric in ("ttft_s", "tpot_s", "output_tokens_per_s"):
            print(f"  band {metric} {half_width(done.left_out['group'], metric):.3f}")
        for finding in warnings(done.fit):
            print(f"  {finding.code}: {finding.message}")
        if "--write" in sys.argv:
            refit_write.write(done)
        if "--keep" in sys.argv:
            Path(f"{sys.argv[sys.argv.index('--keep') + 1]}/{job.name}.pickle").write_bytes(pickle.dumps(done))


if __name__ == "__main__":
    main()
