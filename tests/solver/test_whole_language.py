"""The search against the plain solver over the whole language: objectives, loads, bounds, constraints, mixed pools, engines."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from servegen.service import size
from servegen.solve.problem import Kind, Problem
from servegen.solve.search import search
from tests.solver.plain import Found, best_aggregated
from tests.solver.plain_split import best_of_all, best_split
from tests.solver.specs import LLAMA_8B, LLAMA_70B, problem_of, reduced, spec_text

TRACES = Path(__file__).parents[1] / "fixtures" / "traces"
SMALL = ((2, 8, 32, 128), (1024, 8192))
DEPLOY = "{image: 'registry/image:1', modelCache: {claim: weights}}"

LOADS = {
    "rate": "rate: %s/s",
    "burst": "rate: %s/s, burstiness: 2.5",
    "hit": "rate: %s/s, prefix: {hitRate: 0.4}",
    "head": "rate: %s/s, prefix: {shared: 150}",
    "concurrency": "concurrency: %s",
    "users": "users: {active: %s, thinkTime: 6s}",
    "saturate": "",
    "trace": "trace: %s",
}
AMOUNTS = {
    "concurrency": ("1", "12", "150"),
    "users": ("3", "90", "600"),
    "trace": ("plain.csv", "azure.csv"),
    "saturate": ("",),
}
RATES = ("0.3", "2", "9", "40")
LENGTHS = (
    "isl: 200, osl: 40",
    "isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}",
    "isl: {p50: 4000, p99: 16000}, osl: 300",
    "isl: {histogram: [[500, 3], [2000, 1]]}, osl: {mean: 60, p99: 200}",
)
BOUNDS = (
    "{}",
    "{ttft: {p95: 900ms}, itl: {p95: 60ms}}",
    "{ttft: {p50: 500ms, p99: 5s}}",
    "{itl: {p99: 400ms}, tpot: {p95: 45ms}}",
    "{e2e: {p95: 25s}, ttft: {mean: 900ms}}",
    "{ttft: {p95: 2s}, tpot: {p90: 40ms}, attainment: 0.9}",
    "{ttft: 3s, tpot: 60ms, e2e: {p90: 30s}, attainment: 0.8}",
    "{itl: {mean: 35ms}, e2e: {mean: 16s}}",
    "{tpot: {mean: 30ms}}",
    "{e2e: {p50: 8s, p99: 40s}}",
)
CONSTRAINTS: dict[str, tuple[str, ...]] = {
    "tp": ("[4, 2]", "[1]", "[8]"),
    "weights": ("[fp8]", "[fp8, bf16]", "[bf16]"),
    "kvCache": ("[fp8]", "[bf16, fp8]"),
    "maxAccelerators": ("3", "6", "14"),
    "utilization": ("0.6", "1.0"),
    "spareReplicas": ("1", "2"),
    "disaggregationGain": ("1.0", "1.3"),
    "confidence": ("low",),
}
KINDS = ("h100", "h200", "l40s", "a100-sxm-80gb", "mi300x")


@st.composite
def questions(
    draw: st.DrawFn,
    *,
    engine: str = "",
    topology: str = "",
    stating: str = "",
    bounds: Sequence[str] = BOUNDS,
    lengths: Sequence[str] = LENGTHS,
) -> str:
    """A spec as text; ``stating`` is a constraint that it must have."""

    def entry() -> str:
        fabric = draw(st.sampled_from(("400Gbps", "100Gbps", "")))
        price = draw(st.sampled_from(("", "", "2/h", "0.5/h")))
        stated = {"price": price, "fabric": f"{{bandwidth: {fabric}}}" if fabric else ""}
        more = "".join(f", {k}: {v}" for k, v in stated.items() if v)
        nodes, per = draw(st.sampled_from((1, 2))), draw(st.sampled_from((2, 4, 8)))
        return f"{{accelerator: {draw(st.sampled_from(KINDS))}, nodes: {nodes}, perNode: {per}{more}}}"

    load = draw(st.sampled_from(sorted(LOADS)))
    form = LOADS[load]
    traffic = form % draw(st.sampled_from(AMOUNTS.get(load, RATES))) if "%" in form else form
    if load != "trace":
        traffic = ", ".join(part for part in (traffic, draw(st.sampled_from(lengths))) if part)
    engines = engine or draw(st.sampled_from(("sglang", "sglang", "vllm", "vllm, sglang")))
    where = topology or draw(st.sampled_from(("aggregated", "auto", "disaggregated")))
    names = {*draw(st.lists(st.sampled_from(sorted(CONSTRAINTS)), unique=True, max_size=4)), stating} - {""}
    stated = {"engines": f"[{engines}]", "topology": where} | {k: draw(st.sampled_from(CONSTRAINTS[k])) for k in sorted(names)}
    return spec_text(
        model=draw(st.sampled_from((LLAMA_8B, LLAMA_8B, LLAMA_70B, "Qwen/Qwen3-32B", "Qwen/Qwen2.5-7B-Instruct"))),
        traffic=f"{{{traffic}}}",
        slo=draw(st.sampled_from(bounds)),
        pool=f"[{', '.join(entry() for _ in range(draw(st.sampled_from((1, 1, 2)))))}]",
        objective=draw(st.sampled_from(("cost", "energy", "throughput", "latency"))),
        constraints="{" + ", ".join(f"{k}: {v}" for k, v in stated.items()) + "}",
        deploy=DEPLOY,
    )


def both(text: str) -> tuple[Any, Any]:
    """What the search and the plain solver answer: the name, the replicas, the devices.

    Without groups of two kinds, which the plain solver does not name: test_groups.py is about those.
    """
    question = dataclasses.replace(problem_of(text, str(TRACES / "asked.yaml")), groups=False)
    with reduced(*SMALL):
        best = search(question).best
    plain = best_of_all(question, *SMALL) if question.topology == "auto" else of(question)
    mine = None if best is None else (best.name, tuple(r.replicas for r in best.roles), best.devices)
    return mine, None if plain is None else (plain.name, plain.replicas, plain.devices)


def of(question: Problem) -> Found | None:
    return (best_split if question.topology == "disaggregated" else best_aggregated)(question, *SMALL)


SETTINGS = {"suppress_health_check": [HealthCheck.too_slow]}


def test_the_search_finds_the_optimum_wherever_the_language_leads() -> None:
    agree(questions(), 40)


def test_the_static_engine_too() -> None:
    """A batch waits for its longest answer, so answers differ in length."""
    spread = [f"isl: {isl}, osl: {osl}" for isl in (200, 2000) for osl in ("{mean: 256, p95: 600}", "{mean: 60, p99: 200}")]
    agree(questions(engine="megatron", topology="aggregated", lengths=spread), 120)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "topology"),
    [
        *itertools.product(("sglang", "vllm, sglang"), ("aggregated", "disaggregated", "auto")),
        ("megatron", "aggregated"),  # which does not split
        ("megatron", "auto"),
    ],
)
def test_the_search_finds_the_optimum_of_many_more(engine: str, topology: str) -> None:
    agree(questions(engine=engine, topology=topology), 200)


def agree(texts: st.SearchStrategy[str], examples: int) -> None:
    """The search and the plain solver answer the same, and enough of the questions have an answer."""
    feasible = 0

    @given(text=texts)
    @settings(max_examples=examples, **SETTINGS)
    def agreed(text: str) -> None:
        nonlocal feasible
        found, plain = both(text)
        assert found == plain
        feasible += plain is not None

    agreed()
    assert feasible >= examples / 4


# ---- which way the optimum moves -----------------------------------------------------------------------------------------


def looser(question: Problem, factor: float) -> Problem:
    """Every bound ``factor`` times as long."""

    def eased(bounds: tuple[size.Bound, ...]) -> tuple[size.Bound, ...]:
        return tuple(dataclasses.replace(b, seconds=b.seconds * factor) for b in bounds)

    slo = size.Slo(eased(question.slo.bounds), question.slo.attainment, eased(question.slo.jointly))
    return dataclasses.replace(question, slo=slo)


def fewer_on_time(question: Problem, factor: float) -> Problem:
    return dataclasses.replace(question, slo=dataclasses.replace(question.slo, attainment=question.slo.attainment / factor))


def of_every_kind(question: Problem, change: Callable[[Kind], Kind]) -> Problem:
    return dataclasses.replace(question, pool=tuple(change(kind) for kind in question.pool))


def with_facts(question: Problem, factor: float, *names: str) -> Problem:
    """Devices whose facts ``names`` are ``factor`` times what they are."""
    return of_every_kind(
        question,
        lambda kind: dataclasses.replace(
            kind, facts=dataclasses.replace(kind.facts, **{name: getattr(kind.facts, name) * factor for name in names})
        ),
    )


def with_pool(question: Problem, factor: float, name: str) -> Problem:
    """Entries of the pool whose ``name`` is ``factor`` times what it is."""

    def changed(kind: Kind) -> Kind:
        value = getattr(kind.plan, name)
        return dataclasses.replace(kind, plan=dataclasses.replace(kind.plan, **{name: type(value)(value * factor)}))

    return of_every_kind(question, changed)


#: What must never make the optimum worse when it is done by a factor above 1.
EASIER: dict[str, Callable[[Problem, float], Problem]] = {
    "looser bounds": looser,
    "less attainment": fewer_on_time,
    "more bandwidth": lambda q, f: with_facts(q, f, "hbm_bytes_per_s"),
    "more memory": lambda q, f: with_facts(q, f, "usable_bytes", "hbm_bytes"),
    "faster links": lambda q, f: with_facts(q, f, "link_bytes_per_s"),
    "less power": lambda q, f: with_facts(q, 1 / f, "tdp_w"),
    "a faster fabric": lambda q, f: with_pool(q, f, "fabric_bytes_per_s"),
    "a lower price": lambda q, f: with_pool(q, 1 / f, "price_per_hour"),
    "more nodes": lambda q, f: with_pool(q, math.ceil(f), "nodes"),
    "a lower load": lambda q, f: dataclasses.replace(q, load=q.load / f),
    "a higher utilization": lambda q, f: dataclasses.replace(q, utilization=min(q.utilization * f, 1.0)),
    "no spares": lambda q, f: dataclasses.replace(q, spares=0),
    "the better end of the band": lambda q, f: dataclasses.replace(q, confidence="best"),
    "no limit on accelerators": lambda q, f: dataclasses.replace(q, max_accelerators=0),
    "every TP": lambda q, f: dataclasses.replace(q, tps=()),
}


def fills(question: Problem, what: str) -> bool:
    """Whether a pool that is saturated has more to carry by the change: requests wait for more others then, and of two roles
    one may be fuller with what the pool holds more."""
    if what == "a higher utilization":
        return question.objective == "latency"
    more = what in ("no limit on accelerators", "more nodes")
    return more and question.topology != "aggregated" and question.objective != "throughput"


def worth(question: Problem) -> float:
    """What the optimum minimises first; inf where there is none. A negative yield is read as what a token takes."""
    with reduced(*SMALL):
        best = search(question).best
    if best is None:
        return math.inf
    return -1.0 / best.objective[0] if question.objective == "throughput" else best.objective[0]


#: What a question must state for the change to be one.
STATED: dict[str, dict[str, Any]] = {
    "less attainment": {"bounds": [b for b in BOUNDS if "attainment" in b]},
    "looser bounds": {"bounds": BOUNDS[1:]},
    "no spares": {"stating": "spareReplicas"},
    "the better end of the band": {"stating": "confidence", "bounds": BOUNDS[1:]},
    "no limit on accelerators": {"stating": "maxAccelerators"},
    "every TP": {"stating": "tp"},
    "a higher utilization": {"stating": "utilization"},
}


@pytest.mark.parametrize("what", EASIER)
def test_what_is_easier_never_costs_more(what: str) -> None:
    easier(what, 12)


@pytest.mark.slow
@pytest.mark.parametrize("what", EASIER)
def test_what_is_easier_never_costs_more_than_many(what: str) -> None:
    easier(what, 150)


def easier(what: str, examples: int) -> None:
    """Cost, energy, yield and latency alike; and so what is harder never costs less."""
    answered = 0

    @given(text=questions(**STATED.get(what, {})), factor=st.sampled_from([1.03, 1.3, 2.5]))
    @settings(max_examples=examples, **SETTINGS)
    def never_worse(text: str, factor: float) -> None:
        nonlocal answered
        question = problem_of(text, str(TRACES / "asked.yaml"))
        # Faster first tokens let more users of a closed loop decode at once: their gaps may rightly grow.
        assume(question.open_loop or question.objective != "latency")
        assume(not question.saturate or not fills(question, what))
        before, after = worth(question), worth(EASIER[what](question, factor))
        answered += before < math.inf
        # A split that gains too little is not taken, so the optimum of both topologies is known up to that gain.
        slack = question.gain if question.topology == "auto" else 1.0
        assert after <= before * slack * (1 + 1e-9)

    never_worse()
    assert answered >= examples / 6
