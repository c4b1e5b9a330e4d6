"""The closed form that sizes plans against the replay: `python tests/benchmarks/closed_form.py`. Prints a table.

Each case is one replica under Poisson arrivals at a share of what it carries with every slot taken. Figures are predicted
over replayed: below 1 the closed form is optimistic.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from servegen.catalog.accelerators import resolve_accelerator
from servegen.catalog.engines import resolve_engine
from servegen.catalog.models import resolve_model
from servegen.lower import Config, lower
from servegen.service import latency, size
from servegen.service.demand import demand
from servegen.service.disciplines import DISCIPLINES
from servegen.service.server import server
from servegen.simulate.arrivals import open_loop
from servegen.simulate.deployment import Deployment, Pool, replay
from servegen.simulate.engine import Limits
from servegen.simulate.steps import StepModel
from servegen.workload import Lengths, Workload
from tests.unit.quantiles import quantile

REQUESTS = 8000
LOADS = (0.3, 0.6, 0.9)
SHAPES = {
    "chat": (Lengths.lognormal(1024, p=0.95, q=3000), Lengths.lognormal(256, p=0.95, q=600)),
    "long in": (Lengths.lognormal(6000, p=0.95, q=12000), Lengths.lognormal(400, p=0.95, q=900)),
    "short": (Lengths.lognormal(150, p=0.95, q=400), Lengths.lognormal(50, p=0.95, q=120)),
    "long out": (Lengths.lognormal(500, p=0.95, q=1500), Lengths.lognormal(2000, p=0.95, q=5000)),
    "fixed": (Lengths.fixed(1024), Lengths.fixed(256)),
}


@dataclass(frozen=True)
class Case:
    model: str
    accelerator: str
    weights: str
    tp: int
    discipline: str
    chunk: int
    slots: int
    shape: str
    burstiness: float = 1.0


CASES = (
    Case("Llama-3.1-70B", "h100-sxm-80gb", "fp8", 4, "prefill-first", 8192, 128, "chat"),
    Case("Llama-3.1-70B", "h100-sxm-80gb", "fp8", 4, "prefill-first", 2048, 32, "chat"),
    Case("Llama-3.1-70B", "h100-sxm-80gb", "fp8", 4, "mixed", 8192, 128, "chat"),
    Case("Llama-3.1-70B", "h100-sxm-80gb", "fp8", 4, "mixed", 1024, 32, "chat"),
    Case("Llama-3.1-70B", "h100-sxm-80gb", "fp8", 8, "prefill-first", 8192, 64, "long in"),
    Case("Llama-3.1-70B", "h100-sxm-80gb", "fp8", 8, "mixed", 2048, 64, "long in"),
    Case("Llama-3.1-8B", "h100-sxm-80gb", "bf16", 1, "prefill-first", 8192, 64, "short"),
    Case("Llama-3.1-8B", "h100-sxm-80gb", "bf16", 1, "mixed", 2048, 64, "short"),
    Case("Llama-3.1-8B", "l40s-48gb", "bf16", 1, "prefill-first", 2048, 32, "chat"),
    Case("Qwen3-32B", "h200-sxm-141gb", "bf16", 2, "prefill-first", 8192, 64, "long out"),
    Case("Qwen3-32B", "h200-sxm-141gb", "bf16", 2, "mixed", 8192, 64, "fixed"),
    Case("Llama-3.1-8B", "h100-sxm-80gb", "bf16", 1, "prefill-first", 8192, 64, "chat", 2.0),
    Case("Llama-3.1-70B", "h100-sxm-80gb", "fp8", 4, "static", 8192, 32, "chat"),
)


def ratios(case: Case, load: float) -> list[float]:
    """Predicted over replayed of p95 TTFT, mean TTFT, p95 ITL, p99 ITL, mean ITL; then the rate, the p95 of both replayed,
    and the share of the slots in use."""
    engine = resolve_engine("vllm" if case.discipline == "mixed" else "megatron" if case.discipline == "static" else "sglang")
    config = Config(resolve_accelerator(case.accelerator), case.weights, "bf16", case.tp)
    lowered = lower(resolve_model(case.model), engine, [config])
    isl, osl = SHAPES[case.shape]
    workload = Workload(isl, osl, rate_per_s=1.0, burstiness=case.burstiness)
    d = demand(workload)
    srv = server(lowered.terms, np.array([float(case.chunk)]), engine.request_s.value, d)
    discipline, high = DISCIPLINES[case.discipline], np.array([float(case.slots)])
    rate = load * float(discipline(srv, d, high).rate[0])
    p = discipline(srv, d, size.level_at(discipline, srv, d, "rate", np.array([rate]), high))

    def tail(metric: str, probability: float) -> float:
        return float(quantile(lambda t: size.exceeds(metric, p, d, t), probability, 1)[0])

    memory = lowered.memory
    pool = 0.9 * float(memory.usable_bytes[0]) - float(memory.weight_bytes[0]) - 4e9
    model = StepModel.of(lowered.terms, 0, memory.kv_bytes[0].tolist(), float(memory.state_bytes[0]))
    limits = Limits(case.slots, case.chunk, pool)
    deployed = Deployment((Pool(model, limits, case.discipline, 1, engine.request_s.value),))
    found = replay(deployed, open_loop(workload, rate, case.burstiness, REQUESTS, 1))
    return [
        tail("ttft", 0.95) / found.ttft.p95,
        float(latency.ttft_mean(p)[0]) / found.ttft.mean,
        tail("itl", 0.95) / found.itl.p95,
        tail("itl", 0.99) / found.itl.p99,
        float(latency.itl_mean(p)[0]) / found.itl.mean,
        rate,
        found.ttft.p95 * 1e3,
        found.itl.p95 * 1e3,
        float(p.level[0]) / case.slots,
    ]


def main() -> None:
    print(f"{'case':<78} load  rate/s  ttft95 ttftm  itl95  itl99  itlm   replayed ttft95/itl95 ms  level/slots")
    rows = []
    for case in CASES:
        for load in LOADS:
            r = ratios(case, load)
            rows.append(r)
            name = f"{case.model} {case.accelerator} {case.weights} tp{case.tp} {case.discipline} c{case.chunk} b{case.slots}"
            name += f" {case.shape}" + (f" cv{case.burstiness:g}" if case.burstiness != 1.0 else "")
            figures = "  ".join(f"{v:5.2f}" for v in r[:5])
            print(f"{name:<78} {load:.1f}  {r[5]:6.2f}  {figures}   {r[6]:8.0f} / {r[7]:6.1f}   {r[8]:.2f}")
            sys.stdout.flush()
    table = np.array(rows)[:, :5]
    for label, values in (("median", np.median(table, axis=0)), ("least", table.min(axis=0)), ("most", table.max(axis=0))):
        print(f"{label:<92}" + "  ".join(f"{v:5.2f}" for v in values))


if __name__ == "__main__":
    main()
