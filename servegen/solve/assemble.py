"""From the chosen candidate to the frozen plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servegen import __version__
from servegen.catalog.facts import Constant
from servegen.plan import (
    Band,
    Choice,
    MemoryPlan,
    ModelPlan,
    Plan,
    Prediction,
    Role,
    SpeculativePlan,
    TrafficPlan,
)
from servegen.rationale import Case, Flip, Missing
from servegen.record import record
from servegen.roofline.collectives import CROSSING, HANDOFF
from servegen.roofline.step import take
from servegen.service.point import Point
from servegen.service.size import Bound
from servegen.solve.bands import band, dense
from servegen.solve.budget import graph_bytes
from servegen.solve.candidate import Candidate, RoleChoice
from servegen.solve.deploy import finished_deploy
from servegen.solve.explain import Comparison, binding, floor_of, why
from servegen.solve.predict import Seen, bounded, quantiles, role_points, seen_by_clients
from servegen.solve.problem import Kind, Problem
from servegen.solve.reuse import as_found, found_in
from servegen.solve.waterfall import waterfalls


@record
class Risks:
    """What would change the decision, the plan at the ends of its band, and with a replica less."""

    flips: tuple[Flip, ...]
    cases: tuple[Case, ...]
    missing: tuple[Missing, ...]

#: Where a pool is filled to its slots, which a spec allows that bounds no first token.
ENDLESS = (
    "at this load all slots are always taken, and the queue for them grows for ever: no first token can be told; "
    "a lower constraints.utilization or a bound on ttft leaves slots free"
)


def assemble(
    problem: Problem,
    chosen: Candidate,
    comparison: Comparison,
    risks: Risks,
    searched: int,
    rejected: Mapping[str, int],
    more: Sequence[str] = (),
) -> Plan:
    """The plan of a choice; ``more`` are sentences on why it is what it is."""
    problem = as_found(problem, chosen)
    points = role_points(problem, chosen.roles)
    roles = tuple(_role(problem, r, q) for r, q in zip(chosen.roles, points, strict=True))
    floors = [floor_of(problem, r, q, p) for r, q, p in zip(chosen.roles, roles, points, strict=True)]
    p = Seen.join([seen_by_clients(chosen.roles, points)])
    d = problem.demand
    attained = float(p.attainment(d, _per_request(problem), {})[0])
    rate = chosen.output_tokens_per_s / d.osl_mean
    role_rates = [r.replicas * _rate_at(problem, r) for r in chosen.roles]
    prediction = Prediction(
        ttft=quantiles("ttft", p, d),
        itl=quantiles("itl", p, d),
        e2e=quantiles("e2e", p, d),
        tpot=quantiles("tpot", p, d) if problem.speculation is not None else None,
        output_tokens_per_second=chosen.output_tokens_per_s,
        utilization=max(r.utilization for r in roles),
        slo_attainment=attained,
        sustained_rate=sum(role_rates) if chosen.grouped else min(role_rates),
        load_rate=rate,
        band=_band(problem, chosen, max(r.running_requests for r in roles)),
        floor=_floor(floors),
        extrapolated=_extrapolated(problem, chosen),
        bounds={b.id: bounded(b, p, d) for b in problem.slo.bounds},
    )
    choice = Choice(
        engine=chosen.engine.facts.id,
        engine_version=chosen.engine.version,
        topology=chosen.topology,
        roles=roles,
        devices=chosen.devices,
        cost_per_hour=chosen.cost_per_h,
        cost_per_million_output_tokens=chosen.cost_per_h / (chosen.output_tokens_per_s * 3600.0 / 1e6),
        watts=chosen.watts,
    )
    bound_by = binding(problem, chosen)
    return Plan(
        name=problem.name,
        feasible=True,
        model=_model(problem),
        traffic=_traffic(problem, chosen),
        slo=_slo(problem),
        choice=choice,
        prediction=prediction,
        binding=bound_by,
        why=(*why(problem, chosen, roles, floors, bound_by, comparison), *more),
        flips=risks.flips,
        cases=risks.cases,
        missing=risks.missing,
        alternatives=comparison.alternatives,
        pareto=comparison.pareto,
        searched=searched,
        rejected=dict(sorted(rejected.items())),
        pool=tuple(k.plan for k in problem.pool),
        deploy=finished_deploy(problem, chosen, roles),
        spec=problem.shown,
        inputs=problem.inputs,
        facts=_facts(problem, chosen, roles),
        notes=(*problem.notes, *([ENDLESS] if math.isnan(prediction.ttft.p95) else [])),
        speculative=_speculative(problem, chosen),
        waterfalls=waterfalls(problem, chosen, points, prediction),
        made_by=__version__,
    )


def _speculative(problem: Problem, chosen: Candidate) -> SpeculativePlan | None:
    asked, role = problem.speculation, chosen.roles[-1]
    rounds = role.block.rows.terms.rounds
    if asked is None or rounds is None:
        return None
    tokens = float(rounds.tokens[role.row])
    return SpeculativePlan(asked.method, asked.load, asked.acceptance, chosen.drafted, tokens)


def _per_request(problem: Problem) -> tuple[Bound, ...]:
    """The bounds that one request meets or misses: the lowest stated percentile's of ttft and e2e, and of tpot, or else of
    itl held against the request's mean gap."""

    def lowest(metric: str) -> list[Bound]:
        stated = [b for b in problem.slo.bounds if b.metric == metric and b.probability == b.probability]
        return sorted(stated, key=lambda b: b.probability)[:1]

    if not math.isnan(problem.slo.attainment):
        return problem.slo.jointly
    gaps = lowest("tpot") or [dataclasses.replace(b, metric="tpot") for b in lowest("itl")]
    return (*lowest("ttft"), *gaps, *lowest("e2e"))


def _slo(problem: Problem) -> Mapping[str, float]:
    """Every bound in seconds, and the attainment as a share if one is stated."""
    asked = problem.slo.attainment
    return {b.id: b.seconds for b in problem.slo.bounds} | ({} if math.isnan(asked) else {"attainment": asked})


def _rate_at(problem: Problem, role: RoleChoice) -> float:
    """Requests/s of one replica at utilisation 1."""
    if problem.load_kind == "rate" or role.role != "serve":
        return role.sustained
    return float(role_points(problem, [dataclasses.replace(role, load=role.sustained)])[0].rate[0])


def _role(problem: Problem, r: RoleChoice, p: Point) -> Role:
    block, row = r.block, r.row
    option = block.rows.option[int(block.rows.config[row])]
    config = block.rows.lowered.configs[int(block.rows.config[row])]
    one = np.array([row])
    terms, srv = take(block.rows.terms, one), take(block.server, one)
    # A prefill server's step is a full chunk; any other's is the decode step that a token waits for.
    prefilling = r.role == "prefill"
    sequences = np.array([0.0]) if prefilling else p.seen
    parts = {k: float(v[0]) for k, v in terms.decode_breakdown_s(sequences, srv.kv_s).items()}
    step = float(terms.chunk_s(np.array([float(r.chunk)]))[0] if prefilling else p.gap_s[0])
    if prefilling:
        mean_prompt = terms.prefill_breakdown_s(
            problem.demand.uncached_mean, problem.demand.total_mean, np.array([float(r.chunk)])
        )
        parts = {k: float(v[0]) for k, v in mean_prompt.items()}
    if not config.drafted:
        parts.pop("draft", None)
    return Role(
        role=r.role,
        accelerator=config.accelerator.id,
        pool=block.kind.index,
        weights=config.weights,
        kv=config.kv,
        tp=config.tp,
        pp=config.pp,
        dp=config.dp,
        ep=config.ep,
        replicas=r.replicas,
        spares=problem.spares,
        devices=config.devices,
        max_running_requests=r.batch_limit,
        chunked_prefill_size=r.chunk,
        mixed_chunk=block.discipline == "mixed",
        mem_fraction_static=round(float(r.budget.fraction[0, r.limit]), 3),
        context_length=problem.context_length,
        load=option.load,
        quantization=option.quantization,
        checkpoint_bytes=problem.model.weight_bytes(option.stored) + _draft_files(problem, config.drafted),
        memory=_memory(problem, r),
        utilization=r.load / r.sustained,
        running_requests=0.0 if prefilling else float(p.level[0]),
        step_time_s=step,
        prefill_time_s=0.0 if r.role == "decode" else float(srv.prefill_mean_s[0]),
        breakdown_s=parts,
        bound=max(sorted(parts), key=lambda k: parts[k]),
        grouped=r.grouped,
        share=r.share,
    )


def _draft_files(problem: Problem, drafted: int) -> float:
    """Bytes of the files of a draft that is loaded beside the model."""
    asked = problem.speculation
    return float(asked.draft.checkpoint_bytes) if asked and asked.draft and asked.load and drafted else 0.0


def _memory(problem: Problem, r: RoleChoice) -> MemoryPlan:
    block, row = r.block, r.row
    rule, memory = block.engine.facts.memory, block.rows.memory
    usable = float(memory.usable_bytes[row])
    groups = r.shape.dp
    graphs = float(graph_bytes(rule, np.array(r.batch_limit / groups), np.array(float(groups))))
    collectives = rule.per_device_bytes * r.devices
    budget = r.budget
    pool = float(budget.pool[0, r.limit])
    draft, drafts_kv = 0.0, 0.0
    if memory.draft is not None and memory.draft.queries[row] > 1.0:
        draft = float(memory.draft.weight_bytes[row]) + graphs  # its steps are captured as well
        drafts_kv = pool * float(memory.draft.kv_share[row])
    reserve = usable * (1.0 - float(budget.fraction[0, r.limit])) - draft - drafts_kv
    activations = max(min(rule.per_chunk_token_bytes * r.chunk, reserve - graphs - collectives - rule.context_bytes), 0.0)
    token = float(memory.token_bytes[row])
    return MemoryPlan(
        usable_bytes=usable,
        weight_bytes=float(memory.weight_bytes[row]),
        kv_pool_bytes=pool,
        activation_bytes=activations,
        graph_bytes=graphs,
        collective_bytes=collectives,
        runtime_bytes=usable - float(memory.weight_bytes[row]) - pool - activations - graphs - collectives - draft,
        kv_bytes_per_token=token,
        kv_tokens=int(pool / token) if token else 0,
        draft_bytes=draft,
    )


def _floor(floors: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """The ideal roofline of the same steps, of groups the lower one: no prediction can be below it."""
    out: dict[str, float] = {}
    for floor in floors:
        for name, seconds in floor.items():
            out[name] = min(seconds, out.get(name, math.inf))
    return out


def _band(problem: Problem, chosen: Candidate, sequences: float) -> Mapping[str, Band]:
    """Of several roles the wider band counts."""
    drafting, weights = chosen.drafted > 0, chosen.config[0]
    kinds = {(r.block.kind.index, r.is_cut): r.block.kind.facts for r in chosen.roles}
    bands = [
        band(problem.model, chosen.engine.facts, facts, weights, drafting, sequences, cut) for (_, cut), facts in kinds.items()
    ]
    return {m: Band(min(b[m].low for b in bands), max(b[m].high for b in bands)) for m in bands[0]}


def _extrapolated(problem: Problem, chosen: Candidate) -> tuple[str, ...]:
    """Constants without a fit of their own, each with the rule that gave it."""
    out = []
    engine = chosen.engine.facts
    weights, kv = chosen.config
    for kind in chosen.kinds:
        if kv != "bf16" and f"{kind.facts.id}.{kv}" not in engine.kv_share:
            out.append(f"{kind.facts.id}: {engine.id} is taken to read an {kv} cache as efficiently as a bf16 one")
        gemm = kind.facts.gemm[weights]
        if gemm.origin != "fitted":
            out.append(f"{kind.facts.id} {weights} efficiency ({gemm.origin}: {gemm.source})")
    if engine.step_s.origin != "fitted":
        out.append(f"{engine.id} step constants ({engine.step_s.origin}: {engine.step_s.source})")
    if chosen.topology == "disaggregated":
        out.append(f"hand-over of the KV cache ({HANDOFF.source})")
    if any(r.devices > r.block.kind.plan.per_node or r.shape.dp > 1 for r in chosen.roles):
        out.append(f"collectives between nodes and between attention groups ({CROSSING.source})")
    if any(r.shape.pp > 1 for r in chosen.roles):
        out.append("pipeline stages: priced by the constants of one stage, no measurement of them is in the fit")
    if chosen.drafted:
        out.append("speculative decoding: rounds are priced with the constants of plain steps, the acceptance is the spec's")
    if not dense(problem.model):
        out.append(
            f"{problem.model.id}: experts, windows, compressed or recurrent layers are priced with the constants of dense models"
        )
    return tuple(out)


def _model(problem: Problem) -> ModelPlan:
    m = problem.model
    return ModelPlan(
        id=m.id,
        served_name=problem.served_name,
        architecture=m.architecture,
        params_total=m.params_total,
        params_active=m.params_active,
        trust_remote_code=problem.trust_remote_code,
        context_length=problem.context_length,
        max_context=m.max_context,
        hf_config=m.hf_config,
    )


def _traffic(problem: Problem, chosen: Candidate) -> TrafficPlan:
    w, d = problem.workload, problem.demand
    return TrafficPlan(
        rate=w.rate_per_s,
        trough=w.trough_per_s,
        concurrency=float(w.concurrency or w.users),
        isl_mean=w.isl.mean,
        osl_mean=w.osl.mean,
        isl_p95=float(w.isl.quantile(0.95)),
        osl_p95=float(w.osl.quantile(0.95)),
        longest_output=int(d.osl_longest),
        prefix_hit=w.hit_share(),
        burstiness=w.burstiness,
        objective=problem.objective,
        **found_in(chosen),
    )


def _facts(problem: Problem, chosen: Candidate, roles: Sequence[Role]) -> Mapping[str, Any]:
    """The constants behind the prediction, each with its source."""
    engine = chosen.engine.facts

    return {
        "engine": {
            "id": engine.id,
            "step_s": _constant(engine.step_s),
            "layer_s": _constant(engine.layer_s),
            "prompt_layer_s": _constant(engine.prompt_layer_s),
            "sequence_s": _constant(engine.sequence_s),
            "request_s": _constant(engine.request_s),
            "kv_efficiency": _constant(engine.kv_efficiency),
            "attention_efficiency": _constant(engine.attention_efficiency),
            "memory": engine.memory.source,
        },
        "accelerators": [_accelerator(k, roles) for k in chosen.kinds],
        "model": {
            "id": problem.model.id,
            "params": problem.model.params_total,
            "bytes": problem.model.weight_bytes(roles[0].weights),
        },
    }


def _constant(c: Constant) -> dict[str, Any]:
    return {"value": c.value, "fitError": c.fit_error, "rows": c.rows, "origin": c.origin, "source": c.source}


def _accelerator(kind: Kind, roles: Sequence[Role]) -> dict[str, Any]:
    """One accelerator's constants, and its price."""
    facts, gemm = kind.facts, kind.facts.gemm[roles[0].weights]
    # All-reduces over several nodes are built from those inside one.
    groups = {n for r in roles if r.pool == kind.index for n in (r.tp, r.tp // r.dp)} - {1}
    tps = sorted({n if n in facts.allreduce_alpha_s else kind.plan.per_node for n in groups})
    own = {"kv_efficiency": facts.kv_efficiency, "attention_efficiency": facts.attention_efficiency}
    return {
        "id": facts.id,
        "hbm_bytes_per_s": facts.hbm_bytes_per_s,
        "usable_bytes": facts.usable_bytes,
        "peak_flops": dict(facts.peak_flops),
        "gemm": {
            "ew": gemm.ew,
            "ec": gemm.ec,
            "fitError": gemm.fit_error,
            "rows": gemm.rows,
            "origin": gemm.origin,
            "source": gemm.source,
        },
        **{name: _constant(c) for name, c in own.items() if c is not None},
        "allreduce_alpha_s": {str(t): facts.allreduce_alpha_s[t] for t in tps},
        "allreduce_bytes_per_s": {str(t): facts.allreduce_bytes_per_s[t] for t in tps},
        "pricePerHour": kind.plan.price_per_hour,
        "priceSource": kind.plan.price_source,
    }
