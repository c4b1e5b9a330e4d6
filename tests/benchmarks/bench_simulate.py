"""What a replay costs: `SERVEGEN_REFERENCE_DATA=DIR python tests/benchmarks/bench_simulate.py`. Prints figures; asserts nothing.

CPU seconds are user + system of a child process per case, on one core. The Mooncake conversation trace
(kvcache-ai/Mooncake, FAST25-release) and the published runs are read from `data/` of that folder; cases whose file is not
there are left out.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

REFERENCE = Path(os.environ.get("SERVEGEN_REFERENCE_DATA", "."))
TRACE = REFERENCE / "data" / "traces" / "mooncake_conversation.jsonl"
CASES = ("mooncake", "million", "table")
TARGETS = {"mooncake": 20.0, "million": 180.0, "table": 60.0}
ROWS = 2000
#: Bytes of 1 MB.
MEGA = 1e6


def mooncake() -> str:
    """12,031 requests with prefix hashes through eight replicas."""
    from servegen.simulate.arrivals import recorded
    from servegen.simulate.deployment import Deployment, replay
    from servegen.workload import trace_requests

    lines = []
    for scheduler in ("prefill-first", "mixed"):
        pool = _pool("Llama-3.1-70B", "fp8", 8, 8, scheduler, block_tokens=512)
        start = time.process_time()
        found = replay(Deployment((pool,), "cache-aware"), recorded(trace_requests(TRACE)))
        lines.append(
            f"{scheduler} {time.process_time() - start:.1f} s: {found.completed:,} requests, "
            f"{found.output_tokens:,} output tokens, {found.cached_tokens / found.prompt_tokens:.1%} of the prompts cached, "
            f"TTFT p95 {found.ttft.p95:.2f} s"
        )
    return "; ".join(lines)


def million() -> str:
    """One million short requests through four replicas."""
    from servegen.simulate.arrivals import open_loop
    from servegen.simulate.deployment import Deployment, replay
    from servegen.workload import Lengths, Workload

    workload = Workload(Lengths.lognormal(100, p=0.95, q=300), Lengths.lognormal(20, p=0.95, q=60), rate_per_s=200)
    pool = _pool("Llama-3.1-8B", "bf16", 1, 4, "prefill-first")
    found = replay(Deployment((pool,)), open_loop(workload, 200.0, 1.0, 1_000_000, 0))
    return f"{found.completed:,} requests, {found.output_tokens:,} output tokens, TTFT p95 {found.ttft.p95 * 1e3:.0f} ms"


def table() -> str:
    """2,000 rows of estimate, each a replay of the closed-loop benchmark."""
    from servegen.solve.estimate import EstimateRequest, estimate

    rows = 0
    for model, weights in (("Llama-3.1-70B", "fp8"), ("Qwen3-32B", "bf16"), ("Llama-3.1-8B", "bf16")):
        for engine in ("vllm", "sglang", "tensorrt-llm"):
            for tp in (2, 4, 8):
                for isl, osl in ((1024, 1024), (8192, 1024), (1024, 8192), (2048, 256)):
                    for batch in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 384, 448, 512):
                        if rows < ROWS:
                            kv = "fp8" if weights == "fp8" else "bf16"
                            estimate(
                                EstimateRequest(
                                    model, "h200-sxm-141gb", engine, tp, weights=weights, kv=kv, batch=batch, isl=isl, osl=osl
                                )
                            )
                            rows += 1
    return f"{rows} rows"


def _pool(model: str, weights: str, tp: int, count: int, scheduler: str, block_tokens: int = 0):  # type: ignore[no-untyped-def]
    from servegen.catalog.accelerators import resolve_accelerator
    from servegen.catalog.engines import resolve_engine
    from servegen.catalog.models import resolve_model
    from servegen.lower import Config, lower
    from servegen.simulate.deployment import Pool
    from servegen.simulate.engine import Limits
    from servegen.simulate.steps import StepModel

    engine = resolve_engine("sglang")
    config = Config(resolve_accelerator("h100-sxm-80gb"), weights, "fp8" if weights == "fp8" else "bf16", tp)
    lowered = lower(resolve_model(model), engine, [config])
    memory = lowered.memory
    pool = 0.9 * float(memory.usable_bytes[0]) - float(memory.weight_bytes[0]) - 4e9
    step = StepModel.of(lowered.terms, 0, memory.kv_bytes[0].tolist(), float(memory.state_bytes[0]))
    return Pool(step, Limits(256, 8192, pool), scheduler, count, engine.request_s.value, block_tokens)


def main() -> None:
    if len(sys.argv) > 1:
        said = {"mooncake": mooncake, "million": million, "table": table}[sys.argv[1]]()
        used = resource.getrusage(resource.RUSAGE_SELF)
        peak = used.ru_maxrss * 1024 / MEGA
        print(f"{used.ru_utime + used.ru_stime:6.1f} s CPU of at most {TARGETS[sys.argv[1]]:.0f}, {peak:.0f} MB at most: {said}")
        return
    for case in CASES:
        if case == "mooncake" and not TRACE.exists():
            print(f"{case:<10} left out: SERVEGEN_REFERENCE_DATA has no {TRACE.name}")
            continue
        ran = subprocess.run([sys.executable, __file__, case], stdout=subprocess.PIPE, text=True, check=True)
        print(f"{case:<10} {ran.stdout.strip()}")


if __name__ == "__main__":
    main()
