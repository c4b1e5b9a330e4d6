"""What every example costs: `python tests/benchmarks/bench_specs.py [SPEC...]`. Prints figures; asserts nothing about time.

For each spec the candidates of its search, the search's CPU seconds and candidates/s, those of `solve` (with the ends of the
band, the rivals and the prediction), and of a whole `servegen plan` above the bare imports, with its peak memory. Then how time
grows with the space: one spec on pools of one to 64 nodes, with one to four kinds of them, with one to four precisions, with
everything at once that the language lets the solver decide, and by what is minimised, what arrives and what is bounded.

CPU seconds are the smallest of RUNS, because noise only adds. Children run compiled, as an installed package does.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from bench_plan import BARE, COMMAND, RUNS, best_of, measure  # noqa: E402

#: What the command may cost: CPU seconds above the bare imports, bytes.
TARGET_S = 0.6
TARGET_BYTES = 200e6
#: Candidates/s that the search must reach, of a space worth counting.
TARGET_RATE = 1e6
WORTH_COUNTING = 10_000
NODES = (1, 2, 4, 8, 16, 32, 64)
GROWING = """apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {{name: growing}}
spec:
  model: {{name: meta-llama/Llama-3.1-70B-Instruct}}
  slo: {{ttft: {{p95: 1s}}, itl: {{p95: 50ms}}}}
  traffic: {{rate: {rate:g}/s, isl: {{mean: 1024, p95: 3000}}, osl: {{mean: 256, p95: 600}}}}
  hardware: {{pool: [{pool}]}}
  constraints: {{topology: {topology}, weights: [{weights}], kvCache: [{kv}]}}
"""
EVERYTHING = """apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {{name: everything}}
spec:
  model:
    name: meta-llama/Llama-3.1-70B-Instruct
    speculative: {{method: eagle3, draft: yuhuili/EAGLE3-LLaMA3.3-Instruct-70B, steps: 4, acceptance: 0.7}}
  slo: {{ttft: {{p95: 1s}}, itl: {{p95: 50ms}}{bounds}}}
  traffic: {{rate: 12/s, burstiness: 1.5, prefix: {{hitRate: 0.3}}, isl: {{mean: 1024, p95: 3000}}, osl: {{mean: 256, p95: 600}}}}
  hardware: {{pool: [{pool}]}}
  constraints: {{weights: [fp8, bf16], kvCache: [fp8, bf16], engines: [sglang, vllm]}}
"""
#: What makes a split depend on how loaded its servers are.
TIMED = """apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {{name: timed}}
spec:
  model: {{name: meta-llama/Llama-3.1-70B-Instruct}}
  objective: {objective}
  slo: {slo}
  traffic: {{{load}isl: {{mean: 1024, p95: 3000}}, osl: {{mean: 256, p95: 600}}}}
  hardware: {{pool: [{pool}]}}
  constraints: {{weights: [fp8, bf16], kvCache: [fp8, bf16]}}
"""
OBJECTIVES = ("cost", "latency", "throughput")
LOADS = {"a rate": "rate: 12/s, ", "users": "users: {active: 400, thinkTime: 6s}, ", "saturated": ""}
WHOLE = {
    "apart": "{ttft: {p95: 1s}, itl: {p95: 50ms}}",
    "e2e": "{e2e: {p95: 9s}}",
    "attainment": "{ttft: 1s, tpot: 40ms, attainment: 0.95}",
}


def pool_of(nodes: int, kinds: int) -> str:
    of = ("h100-sxm-80gb", "h200-sxm-141gb", "a100-sxm-80gb", "l40s-48gb")[:kinds]
    return ", ".join(f"{{accelerator: {k}, nodes: {nodes}, perNode: 8, fabric: {{bandwidth: 400Gbps}}}}" for k in of)


def spec(nodes: int, kinds: int = 1, precisions: int = 1, topology: str = "auto") -> str:
    """A spec on so many nodes of each of so many kinds, with so many pairs of weight and KV precision."""
    weights, kv = (", ".join(("fp8", "bf16")[: 1 + (precisions > n)]) for n in (1, 2))
    return GROWING.format(rate=1.5 * nodes, pool=pool_of(nodes, kinds), topology=topology, weights=weights, kv=kv)


def told(path: str, name: str, bare: float) -> None:
    from servegen.solve.resolve import resolve
    from servegen.solve.search import search, solve
    from servegen.spec.load import load

    problem = resolve(load(Path(path))[0])
    count = search(problem).searched
    seconds, whole = best_of(lambda: search(problem)), best_of(lambda: solve(problem))
    rate = count / seconds
    plan, _, peak = measure("-c", COMMAND, "plan", path)
    above = plan - bare
    missed = [
        word
        for word, over in (
            ("rate", count >= WORTH_COUNTING and rate < TARGET_RATE),
            ("time", above > TARGET_S),
            ("memory", peak > TARGET_BYTES),
        )
        if over
    ]
    print(
        f"{name:<28} {count:>10,} {seconds * 1e3:>9.1f} {rate / 1e6:>7.2f} {whole * 1e3:>9.0f} {above:>9.3f} "
        f"{peak / 1e6:>7.0f}  {' '.join(missed)}".rstrip()
    )
    sys.stdout.flush()


def grown(name: str, text: str) -> None:
    from servegen.solve.resolve import resolve
    from servegen.solve.search import search
    from servegen.spec.load import loads

    problem = resolve(loads(text, "growing.yaml")[0])
    count, seconds = search(problem).searched, best_of(lambda: search(problem))
    print(f"{name:<36} {count:>10,} {seconds * 1e3:>9.1f} {count / seconds / 1e6:>7.2f}")
    sys.stdout.flush()


def main() -> None:
    with tempfile.TemporaryDirectory() as compiled:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = compiled
        bare, _, _ = measure("-c", BARE)
        print(f"python {sys.version.split()[0]}, {os.cpu_count()} cores, smallest of {RUNS} runs; bare imports {bare:.3f} s CPU")
        print(f"{'':<28} {'candidates':>10} {'search ms':>9} {'M/s':>7} {'solve ms':>9} {'plan s':>9} {'MB':>7}  missed")
        paths = sys.argv[1:] or sorted(str(p) for p in (ROOT / "specs").glob("*.yaml"))
        for path in paths:
            told(path, Path(path).stem, bare)
    if sys.argv[1:]:
        return
    print("how the search grows with its space")
    for topology in ("aggregated", "auto"):
        for nodes in NODES:
            grown(f"{topology}, {nodes} nodes", spec(nodes, topology=topology))
    for kinds in (1, 2, 3, 4):
        grown(f"auto, 4 nodes of {kinds} kinds", spec(4, kinds=kinds))
    for precisions in (1, 2, 3):
        grown(f"auto, 4 nodes, precisions {precisions}", spec(4, precisions=precisions))
    # Bounds on whole requests join the roles of a split: how loaded both are decides, and not their rates alone.
    grown("everything", EVERYTHING.format(pool=pool_of(4, 2), bounds=""))
    grown("everything, e2e too", EVERYTHING.format(pool=pool_of(4, 2), bounds=", e2e: {p95: 30s}"))
    for objective, load, bound in itertools.product(OBJECTIVES, LOADS, WHOLE):
        text = TIMED.format(objective=objective, load=LOADS[load], slo=WHOLE[bound], pool=pool_of(4, 1))
        grown(f"{objective}, {load}, {bound}", text)


if __name__ == "__main__":
    main()
