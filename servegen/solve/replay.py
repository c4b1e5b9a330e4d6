"""From a plan to a replay: its replicas as the simulator takes them, the requests it was sized for, and whether it held.

A plan keeps no coefficients of the step. They are lowered again from the catalogue by the facts that the plan names: model,
engine, accelerator, precisions and TP.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from servegen.catalog.accelerators import resolve_accelerator
from servegen.catalog.engines import resolve_engine
from servegen.catalog.facts import AcceleratorFacts, EngineFacts, ModelFacts
from servegen.catalog.models import resolve_model
from servegen.errors import CatalogError, Diagnostic, UserError
from servegen.plan import Plan, Role
from servegen.record import record
from servegen.simulate.deployment import Deployment, Handoff, Pool, replay
from servegen.simulate.engine import Limits
from servegen.simulate.result import RequestBound, Result, Spread
from servegen.simulate.steps import StepModel
from servegen.solve.arrivals import Sent, Traffic, sent
from servegen.solve.draft import speculation
from servegen.solve.drafting import Speculation, lower_drafting
from servegen.solve.problem import Problem
from servegen.solve.space import Shape, configured
from servegen.spec.load import loads
from servegen.workload import HASH_BLOCK_TOKENS, Lengths, TraceRequests, Workload

#: Tokens of a page of the KV cache, by engine: SGLang's --page-size, vLLM's --block-size and TensorRT-LLM's tokens per block
#: as they are by default; others hold whole sequences.
PAGE_TOKENS: Mapping[str, int] = {"vllm": 16, "tensorrt-llm": 32}


@record
class Subject:
    """A plan with what the replay needs beside it. ``attainment`` nan = none is bounded; ``trace`` is the one that the spec
    names as its traffic, None where that is no trace or it is not at hand.
    """

    plan: Plan
    model: ModelFacts
    workload: Workload
    attainment: float
    engine: EngineFacts
    accelerators: tuple[AcceleratorFacts, ...]  # one for each role
    trace: TraceRequests | None = None
    speculation: Speculation | None = None


@record
class Loss:
    """A replica of the ``role``-th role dies at ``at_s``, ``spares`` more than the load needs standing by."""

    at_s: float
    role: int
    spares: int


@record
class Verdict:
    """A bound of the SLO, the value that the replay gave, and whether that keeps it. Seconds; shares for ``attainment``."""

    bound: str
    allowed: float
    found: float
    met: bool


def of_problem(problem: Problem, plan: Plan) -> Subject:
    """A plan that was just solved, with the very facts of its problem."""
    engine = next(e.facts for e in problem.engines if e.facts.id == plan.choice.engine)
    accelerators = tuple(problem.pool[role.pool].facts for role in plan.choice.roles)
    workload, asked = _as_found(problem.workload, plan, engine), problem.slo.attainment
    return Subject(plan, problem.model, workload, asked, engine, accelerators, problem.trace, problem.speculation)


def of_lock(plan: Plan) -> Subject:
    """A plan from its lock. CatalogError when the catalogue does not know its model, or not its constants (both from files)."""
    if "deploy.calibration" in plan.inputs:
        hint = "simulate the spec instead: it names the calibration file"
        raise CatalogError(Diagnostic("own-constants", "the plan was made with constants of its own", hint=hint))
    try:
        model = resolve_model(plan.model.id)
    except CatalogError as error:
        hint = "simulate the spec instead: it names the model's file"
        raise CatalogError(Diagnostic("unknown-model", f"the catalogue has no model {plan.model.id!r}", hint=hint)) from error
    attainment = plan.spec.get("spec", {}).get("slo", {}).get("attainment") if plan.spec else None
    engine = resolve_engine(plan.choice.engine)
    accelerators = tuple(resolve_accelerator(role.accelerator) for role in plan.choice.roles)
    for role, facts in zip(plan.choice.roles, accelerators, strict=True):
        inside = role.tp if role.tp <= facts.scaleup_domain else facts.scaleup_domain
        if inside > 1 and inside not in facts.allreduce_alpha_s:
            raise ValueError(f"nothing is known of tp = {role.tp} on {facts.id}")
    asked = math.nan if attainment is None else float(attainment)
    workload = _as_found(_workload(plan), plan, engine)
    return Subject(plan, model, workload, asked, engine, accelerators, speculation=_speculation(plan, model))


def _speculation(plan: Plan, model: ModelFacts) -> Speculation | None:
    """What the spec that a plan carries allows to draft; None where the plan drafts nothing."""
    if plan.speculative is None or not plan.speculative.drafted:
        return None
    if "model.speculative.draftConfig" in plan.inputs:
        hint = "simulate the spec instead: it names the draft's file"
        raise CatalogError(Diagnostic("unknown-draft", f"the catalogue has no draft {plan.speculative.draft!r}", hint=hint))
    return speculation(loads(json.dumps(dict(plan.spec)), plan.name)[0], model)


def _as_found(workload: Workload, plan: Plan, engine: EngineFacts) -> Workload:
    """The workload with the hits that the plan counts on; none by an engine without a prefix cache."""
    if not engine.prefix_cache:
        return workload.unshared()
    return workload if workload.prefix_shared else dataclasses.replace(workload, prefix_hit=plan.traffic.prefix_hit)


def _workload(plan: Plan) -> Workload:
    """The workload of the spec that a plan carries; where that was a trace, which is not at hand, what the plan keeps of it."""
    from servegen.solve.resolve import resolve

    traffic = plan.traffic
    if plan.spec and "trace" not in {k for k, v in plan.spec.get("spec", {}).get("traffic", {}).items() if v is not None}:
        try:
            return resolve(loads(json.dumps(dict(plan.spec)), plan.name)[0]).workload
        except UserError:  # a file that the spec names does not lie where the lock lies
            pass
    return Workload(
        isl=_lengths(traffic.isl_mean, traffic.isl_p95),
        osl=_lengths(traffic.osl_mean, traffic.osl_p95),
        rate_per_s=traffic.rate,
        concurrency=0 if traffic.rate else int(traffic.concurrency),
        saturate=not traffic.rate and not traffic.concurrency,
        burstiness=traffic.burstiness,
        prefix_hit=traffic.prefix_hit,
    )


def _lengths(mean: float, p95: float) -> Lengths:
    try:
        return Lengths.stated(mean=mean, p95=p95)
    except ValueError:  # an empirical distribution may have figures that no lognormal has
        return Lengths.fixed(mean)


def deployment(
    subject: Subject, policy: str = "", given: Sent | None = None, loss: Loss | None = None
) -> Deployment:
    """The plan's replicas without its spares, but for those that stand by for a ``loss``, as the requests ``given`` find them.

    ``policy`` "" is the one that the plan deploys.
    """
    plan, engine = subject.plan, subject.engine
    block_tokens = HASH_BLOCK_TOKENS if given is not None and given.hashed and engine.prefix_cache else 0
    pools = []
    handoff = Handoff(0.0, 0.0)
    split = plan.choice.topology == "disaggregated"
    for index, role in enumerate(plan.choice.roles):
        accelerator = subject.accelerators[index]
        config = configured(accelerator, plan.pool[role.pool], role.weights, role.kv, _shape(role))
        config = dataclasses.replace(config, drafted=plan.speculative.drafted if plan.speculative else 0)
        lowered = lower_drafting(subject.model, engine, [config], subject.speculation)
        memory = lowered.memory
        page = PAGE_TOKENS.get(engine.id, 1)
        model = StepModel.of(lowered.terms, 0, memory.kv_bytes[0].tolist(), float(memory.state_bytes[0]), page)
        if role.role == "prefill":
            handoff = _handoff(plan, subject.accelerators, model)
        limits = Limits(
            max_running=role.max_running_requests,
            chunk=role.chunked_prefill_size,
            pool_bytes=role.memory.kv_pool_bytes * role.dp,
            reserve_share=engine.memory.kv_reserve_osl,
            head_tokens=given.head_tokens if given is not None and role.role != "decode" else 0,
        )
        # Both servers of a split take the request in; the client sees that once, before its first token.
        request_s = engine.request_s.value * (2.0 if split else 1.0) if index == 0 or role.grouped else 0.0
        request_s += model.later_stages_s(min(role.chunked_prefill_size, round(plan.traffic.isl_mean)))
        count = role.replicas + (loss.spares if loss is not None and loss.role == index else 0)
        pools.append(Pool(model, limits, _scheduler(engine, role), count, request_s, block_tokens))
    # Drawn lengths are as declared; a recorded request that is longer than the plan's context the engine refuses.
    context = min(r.context_length for r in plan.choice.roles) if given is not None and given.kind == "trace" else 0
    return Deployment(tuple(pools), policy or deployed_policy(plan), handoff, context, plan.choice.balance)


def deployed_policy(plan: Plan) -> str:
    """How requests find a replica: the router of a split plan, or of two groups, follows its cache or the load; a Service, which
    knows neither, picks one at random for each connection.
    """
    if len(plan.choice.roles) == 1:
        return "random"
    return "cache-aware" if plan.traffic.prefix_hit > 0 else "power-of-two"


def _shape(role: Role) -> Shape:
    return Shape(role.tp, role.pp, role.dp, role.ep)


def _scheduler(engine: EngineFacts, role: Role) -> str:
    if role.role != "serve":
        return role.role
    if role.mixed_chunk:
        return "whole" if engine.id == "tensorrt-llm" else "mixed"
    return "static" if "static" in engine.schedulers else "prefill-first"


def _handoff(plan: Plan, accelerators: Sequence[AcceleratorFacts], model: StepModel) -> Handoff:
    """From the prefill servers to the decode servers: as many links as the narrower side has, of the slower fabric."""
    roles = plan.choice.roles
    speeds = (plan.pool[r.pool].fabric_bytes_per_s or a.link_bytes_per_s for r, a in zip(roles, accelerators, strict=True))
    return Handoff.of(model, roles[0].tp // roles[0].dp, min(speeds) * min(r.tp // r.dp for r in roles))


def requests(subject: Subject, traffic: Traffic) -> Sent:
    """What is sent; errors as :func:`servegen.solve.arrivals.sent`."""
    return sent(subject.plan, subject.workload, subject.trace, traffic)


def run(
    subject: Subject,
    given: Sent,
    seed: int = 0,
    policy: str = "",
    loss: Loss | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Replay what :func:`requests` gave, once, through the plan; its source is used up."""
    deployed = deployment(subject, policy, given, loss)
    fail_s, pool = (loss.at_s, loss.role) if loss is not None else (math.inf, 0)
    return replay(deployed, given.source, seed, request_bounds(subject.plan.slo), fail_s, progress, fail_pool=pool)


def request_bounds(slo: Mapping[str, float]) -> tuple[RequestBound, ...]:
    """The bounds that one request meets or misses: the lowest stated percentile's of ttft, tpot and e2e.

    Without a stated attainment, which counts just those, a bound on itl stands in for tpot: held against the mean gap.
    """

    def lowest(metric: str, as_metric: str) -> list[RequestBound]:
        stated = sorted(k for k in slo if k.startswith(f"{metric}.p"))
        return [RequestBound(as_metric, slo[k]) for k in stated[:1]]

    gaps = lowest("tpot", "tpot") or ([] if "attainment" in slo else lowest("itl", "tpot"))
    return (*lowest("ttft", "ttft"), *gaps, *lowest("e2e", "e2e"))


def verdicts(subject: Subject, result: Result) -> tuple[Verdict, ...]:
    """Every bound of the SLO against the replay. Requests that were never answered break every bound they count for."""
    out = []
    missing = result.requests - result.completed
    for bound, allowed in subject.plan.slo.items():
        if bound == "attainment":
            continue  # below, as a share
        metric, _, statistic = bound.partition(".")
        found: Spread = getattr(result, metric)
        value = (
            math.inf
            if missing and metric in ("ttft", "e2e") and missing > _spare(statistic) * result.requests
            else getattr(found, statistic)
        )
        # Requests of one token have no gaps, and so keep any bound on them.
        out.append(Verdict(bound, allowed, value, bool(np.isnan(value)) or value <= allowed))
    if not math.isnan(subject.attainment):
        share = result.attainment
        out.append(Verdict("attainment", subject.attainment, share, share >= subject.attainment))
    return tuple(out)


def _spare(statistic: str) -> float:
    """Share of requests that a bound on this statistic leaves free."""
    return 0.0 if statistic == "mean" else 1.0 - float(statistic[1:]) / 100.0
