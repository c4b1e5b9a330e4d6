"""What a fleet costs: `python tests/benchmarks/bench_fleet.py [MEMBERS]`. Prints figures; asserts nothing about time.

A fleet of 50 specs (five models, loads from 0.5 to 25 requests/s, four priorities) on a pool of three kinds of accelerator:
one that carries all, one that is so tight that the choice matters, one that is too small. Wall seconds of one run each, the
searches, the integer programs and the members' plans together: in as many processes as the command takes here, and in one.
"""

from __future__ import annotations

import dataclasses
import resource
import sys
import time

from servegen.cli.common import processes
from servegen.errors import InfeasibleError
from servegen.solve.fleet import Entrant, FleetObjective, FleetProblem, look, solve_fleet
from servegen.solve.resolve import resolve
from servegen.solve.team import Team
from servegen.spec.load import loads

MEMBERS = 50
MODELS = (
    ("meta-llama/Llama-3.1-8B-Instruct", 5.0),
    ("meta-llama/Llama-3.1-70B-Instruct", 1.0),
    ("Qwen/Qwen3-32B", 2.0),
    ("Qwen/Qwen2.5-14B-Instruct", 3.0),
    ("openai/gpt-oss-120b", 2.0),
)
SPEC = """apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {{name: member-{index}}}
spec:
  model: {{name: {model}}}
  slo: {{ttft: {{p95: 1s}}, itl: {{p95: 50ms}}}}
  traffic: {{rate: {rate:g}/s, isl: {{mean: {isl}, p95: {p95}}}, osl: {{mean: 256, p95: 600}}}}
  hardware:
    pool:
      - {{accelerator: h100-sxm-80gb, nodes: {h100}, perNode: 8, fabric: {{bandwidth: 400Gbps}}}}
      - {{accelerator: a100-sxm-80gb, nodes: {a100}, perNode: 8, fabric: {{bandwidth: 200Gbps}}}}
      - {{accelerator: l40s-48gb, nodes: {l40s}, perNode: 4}}
  constraints: {{spareReplicas: {spares}}}
"""


def fleet(members: int, nodes: tuple[int, int, int], objective: FleetObjective) -> FleetProblem:
    """Members that differ in model, lengths, load, spares and priority."""
    entrants = []
    for index in range(members):
        model, least = MODELS[index % len(MODELS)]
        isl = 512 + 256 * (index % 7)
        text = SPEC.format(
            index=index, model=model, rate=least * (0.5 + index % 11 / 2.0), isl=isl, p95=2 * isl,
            h100=nodes[0], a100=nodes[1], l40s=nodes[2], spares=index % 2,
        )  # fmt: skip
        problem = resolve(loads(text, f"member-{index}.yaml")[0])
        alone = dataclasses.replace(problem, groups=members == 1)  # as servegen.compile_fleet asks
        entrants.append(Entrant(f"member-{index}.yaml", index % 4, alone))
    return FleetProblem("fleet", objective, tuple(entrants), {}, {})


def main() -> None:
    members = int(sys.argv[1]) if len(sys.argv) > 1 else MEMBERS
    size = processes()
    print(f"python {sys.version.split()[0]}, {members} members, one run each: wall s in {size} processes / in one")
    ample, tight, small = (40, 40, 60), (9, 6, 13), (5, 3, 6)
    cases: tuple[tuple[str, tuple[int, int, int], FleetObjective], ...] = (
        ("ample pool, least cost", ample, "cost"),
        ("tight pool, least cost", tight, "cost"),
        ("small pool, least unmet demand", small, "unmet"),
        ("small pool, least cost (infeasible, with verified fixes)", small, "cost"),
    )
    for name, nodes, objective in cases:
        scaled = tuple(max(n * members // MEMBERS, 1) for n in nodes)
        problem = fleet(members, (scaled[0], scaled[1], scaled[2]), objective)
        taken, told = [], ""
        for count in (size, 1):
            start = time.perf_counter()
            try:
                with Team(count) as team:
                    plan = solve_fleet(problem, team).plan
                used = " + ".join(f"{p.used}/{p.nodes * p.per_node} {p.accelerator}" for p in plan.pool)
                told = f"${plan.cost_per_hour:,.2f}/h, {used}, {len(plan.unmet)} members short"
            except InfeasibleError as error:
                told = f"{error.message[:60]}...; fix: {error.fixes[0].text if error.fixes else 'none'}"
            taken.append(time.perf_counter() - start)
        print(f"{name:<58} {taken[0]:6.1f} / {taken[1]:6.1f}  {told}")
    problem = fleet(members, ample, "cost")
    spent = time.process_time()
    seen = look(problem)
    print(f"  of the first, the searches: {time.process_time() - spent:.1f} CPU s, {seen.searched:,} candidates")
    print(f"  peak resident memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
