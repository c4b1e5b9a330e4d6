"""From names to facts: a loaded spec becomes a :class:`Problem`, or an error at the line that caused it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from servegen.catalog.calibration import NONE, Calibration, load_calibration
from servegen.catalog.engines import resolve_engine
from servegen.catalog.facts import AcceleratorFacts, EngineFacts, ModelFacts
from servegen.catalog.models import model_from_architecture, model_from_file, resolve_model
from servegen.errors import CatalogError, Diagnostic, ServegenError, SpecError, UserError
from servegen.plan import PoolPlan
from servegen.service.demand import demand
from servegen.service.size import Bound, Slo
from servegen.solve.deploy import base_deploy, versioned
from servegen.solve.digests import digests
from servegen.solve.draft import speculation
from servegen.solve.problem import EngineOption, Kind, Problem, WeightOption
from servegen.spec.load import LoadedSpec
from servegen.spec.traffic import LengthSpec
from servegen.workload import Lengths, Reuse, TraceRequests, Workload, of_trace, trace_requests

T = TypeVar("T")

PROBABILITIES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "mean": math.nan}
#: Precisions that keep a model's answers within measurement noise of bf16, so they need no asking (design: spec language).
NEAR_LOSSLESS = ("fp8",)
#: Storage that a spec does not describe: a network file system's usual sequential read.
DEFAULT_STORAGE_BYTES_PER_S = 1e9
#: Rounding of a context length that a spec does not state, tokens.
CONTEXT_STEP = 1024


def resolve(loaded: LoadedSpec) -> Problem:
    """The problem that a spec states. Raises SpecError or CatalogError at the spec's line."""
    body = loaded.spec.spec
    model = _model(loaded)
    trace = _trace(loaded)
    workload = _workload(loaded, trace)
    own = _calibration(loaded)
    kinds = tuple(_kind(loaded, i, own) for i in range(len(body.hardware.pool)))
    allowed = tuple(body.constraints.weights or _default_weights(model))
    engines = tuple(_engine(loaded, model, kinds, allowed, i, own) for i in range(len(body.constraints.engines)))
    kind, load, think = _load(workload)
    bounds, no_gaps = _bounds(loaded, workload)
    joint = _jointly(bounds) if body.slo.attainment is not None else ()
    drafting = speculation(loaded, model)
    facts = {"model": model, "accelerators": [k.facts for k in kinds], "engines": [e.facts for e in engines]}
    facts |= {"speculation": drafting} if drafting else {}
    return Problem(
        name=loaded.name,
        model=model,
        served_name=_own_id(loaded, model),
        engines=engines,
        pool=kinds,
        workload=workload,
        demand=demand(workload, bounded=bool(bounds)),
        load_kind=kind,
        load=load,
        think_s=think,
        slo=Slo(bounds, math.nan if body.slo.attainment is None else body.slo.attainment, joint),
        objective=body.objective,
        topology=body.constraints.topology,
        tps=tuple(body.constraints.tp or ()),
        pps=tuple(body.constraints.pp or ()),
        dps=tuple(body.constraints.dp or ()),
        eps=tuple(body.constraints.ep or ()),
        max_accelerators=body.constraints.max_accelerators or 0,
        utilization=body.constraints.utilization,
        spares=body.constraints.spare_replicas,
        gain=body.constraints.disaggregation_gain,
        confidence=body.constraints.confidence,
        context_length=_context_length(loaded, model, workload),
        trust_remote_code=body.model.trust_remote_code,
        deploy=base_deploy(loaded),
        allowed_weights=allowed,
        allowed_kv=tuple(body.constraints.kv_cache),
        shown=loaded.shown,
        inputs=digests(loaded, facts),
        trace=trace,
        reuse=Reuse(trace) if trace is not None and body.traffic.prefix is None and workload.prefix_hit else None,
        kept_tokens=workload.prefix_hit * workload.isl.longest if body.traffic.prefix is not None else 0.0,
        notes=((f"speculation: {drafting.assumed}",) if drafting and drafting.assumed else ()) + no_gaps,
        speculation=drafting,
    )


def _at(loaded: LoadedSpec, key: str, error: ServegenError) -> SpecError:
    """The catalogue's complaint at the spec's line."""
    found = error.diagnostics if isinstance(error, UserError) else (Diagnostic("unresolved", str(error)),)
    return SpecError(tuple(d.at(loaded.where.at(key)) for d in found))


def _fail(loaded: LoadedSpec, key: str, code: str, message: str, hint: str) -> SpecError:
    return SpecError(Diagnostic(code, message, loaded.where.at(key), hint))


def _model(loaded: LoadedSpec) -> ModelFacts:
    m = loaded.spec.spec.model
    try:
        if m.config is not None:
            return model_from_file(loaded.path(m.config, "spec.model.config"))
        if m.architecture is not None:
            return model_from_architecture(m.architecture)
        return resolve_model(m.name or "")
    except CatalogError as error:
        key = "config" if m.config is not None else "architecture" if m.architecture is not None else "name"
        raise _at(loaded, f"spec.model.{key}", error) from error


def _own_id(loaded: LoadedSpec, model: ModelFacts) -> str:
    """What the engine loads and answers to: a base and a tuned model share facts, so the id that the spec names decides.

    A name without its organisation stands for the id that ends in it.
    """
    name = loaded.spec.spec.model.name
    if name is None or "/" in name:
        return name or model.id
    return next((i for i in (model.id, *model.aliases) if i.lower().rpartition("/")[2] == name.lower() and "/" in i), model.id)


def _default_weights(model: ModelFacts) -> tuple[str, ...]:
    """The checkpoint's own precision, then the near-lossless ones narrower than it."""
    own = model.native_precision
    return (own, *(p for p in NEAR_LOSSLESS if own == "bf16"))


def _lengths(spec: LengthSpec) -> Lengths:
    if spec.fixed is not None:
        return Lengths.fixed(spec.fixed)
    if spec.histogram is not None:
        return Lengths.histogram(spec.histogram)
    return Lengths.stated(mean=spec.mean, p50=spec.p50, p95=spec.p95, p99=spec.p99)


def _trace(loaded: LoadedSpec) -> TraceRequests | None:
    """The requests that the spec names as its traffic, if it does."""
    named, key = loaded.spec.spec.traffic.trace, "spec.traffic.trace"
    if named is None:
        return None
    return _named_by(key, lambda: trace_requests(loaded.path(named, key)))


def _named_by(key: str, read: Callable[[], T]) -> T:
    """What ``read`` makes of a file: a fault stands at its own line, and the hint leads back to the ``key`` that names it."""
    try:
        return read()
    except UserError as error:
        found = [replace(d, hint=f"{key} names this file" + (f"; {d.hint}" if d.hint else "")) for d in error.diagnostics]
        raise UserError(found) from error


def _workload(loaded: LoadedSpec, trace: TraceRequests | None) -> Workload:
    t = loaded.spec.spec.traffic
    if trace is not None:
        key = "spec.traffic.trace"
        workload = _named_by(key, lambda: of_trace(trace, str(loaded.path(t.trace or "", key))))
        if t.prefix is None:
            return workload
        base: dict[str, Any] = {
            "isl": workload.isl,
            "osl": workload.osl,
            "rate_per_s": workload.rate_per_s,
            "trough_per_s": workload.trough_per_s,
            "burstiness": workload.burstiness,
        }
    else:
        lengths = {}
        for key in ("isl", "osl"):
            try:
                lengths[key] = _lengths(getattr(t, key))
            except ValueError as error:
                raise _fail(
                    loaded, f"spec.traffic.{key}", "bad-lengths", str(error), "state other figures, or a histogram"
                ) from error
        base = {**lengths, "burstiness": t.burstiness}
        if t.rate is not None:
            base |= {"rate_per_s": t.rate}
        elif t.concurrency is not None:
            base |= {"concurrency": t.concurrency, "burstiness": 1.0}
        elif t.users is not None:
            base |= {"users": t.users.active, "think_time_s": t.users.think_time, "burstiness": 1.0}
        else:
            base |= {"saturate": True}
    if t.trough is not None:
        base |= {"trough_per_s": t.trough}
    if t.prefix is not None:
        if (t.prefix.shared or 0) > base["isl"].mean:  # of a trace; stated lengths were compared when the spec was read
            message = f"prefix.shared {t.prefix.shared} is above the trace's mean prompt of {base['isl'].mean:.0f} tokens"
            raise _fail(loaded, "spec.traffic.prefix.shared", "conflict", message, "every prompt holds the shared head")
        base |= {"prefix_hit": t.prefix.hit_rate or 0.0, "prefix_shared": t.prefix.shared or 0}
    try:
        return Workload(**base)
    except ValueError as error:
        raise _fail(loaded, "spec.traffic", "bad-traffic", str(error), "") from error


def _load(w: Workload) -> tuple[Any, float, float]:
    if w.concurrency:
        return "concurrency", float(w.concurrency), 0.0
    if w.users:
        return "users", float(w.users), w.think_time_s
    return "rate", 0.0 if w.saturate else w.rate_per_s, 0.0


def _bounds(loaded: LoadedSpec, workload: Workload) -> tuple[tuple[Bound, ...], tuple[str, ...]]:
    """The bounds, and a note on those that hold whatever is served: answers of one token have no gaps."""
    out: list[Bound] = []
    for key, seconds in loaded.spec.spec.slo.bounds().items():
        metric, statistic = key.split(".")
        out.append(Bound(key, metric, PROBABILITIES[statistic], seconds))  # type: ignore[arg-type]
    if workload.osl.longest > 1:
        return tuple(out), ()
    free = [b for b in out if b.metric in ("itl", "tpot")]
    note = f"{', '.join(b.id for b in free)}: no answer has a second token, so nothing can be late"
    return tuple(b for b in out if b not in free), (note,) if free else ()


def _jointly(bounds: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """Of ttft, tpot and e2e the bound of the lowest stated percentile (a mean bounds no single request)."""
    out = []
    for metric in ("ttft", "tpot", "e2e"):
        stated = sorted((b for b in bounds if b.metric == metric and not math.isnan(b.probability)), key=lambda b: b.probability)
        out += stated[:1]
    return tuple(out)


def _context_length(loaded: LoadedSpec, model: ModelFacts, workload: Workload) -> int:
    longest = workload.longest_context()
    stated = loaded.spec.spec.model.context_length
    if stated is None:
        rounded = math.ceil(longest / CONTEXT_STEP) * CONTEXT_STEP
        if longest > model.max_context:
            message = f"the longest request of the traffic has {longest} tokens, and {model.id} holds {model.max_context}"
            raise _fail(
                loaded,
                "spec.traffic",
                "context-too-long",
                message,
                "shorten isl and osl, or serve a model with a longer context",
            )
        return min(rounded, model.max_context)
    if stated > model.max_context:
        message = f"contextLength {stated} is above the {model.max_context} tokens of {model.id}"
        raise _fail(loaded, "spec.model.contextLength", "context-too-long", message, f"at most {model.max_context}")
    if stated < workload.isl.mean + workload.osl.mean:
        message = f"contextLength {stated} cannot hold the mean request of {workload.isl.mean + workload.osl.mean:.0f} tokens"
        raise _fail(
            loaded,
            "spec.model.contextLength",
            "context-too-short",
            message,
            f"the longest request has {longest} tokens",
        )
    return stated


def _calibration(loaded: LoadedSpec) -> Calibration:
    """The constants that the spec puts in place of the catalogue's."""
    named = loaded.spec.spec.deploy.calibration
    if named is None:
        return NONE
    key = "spec.deploy.calibration"
    try:
        return load_calibration(loaded.path(named, key))
    except CatalogError as error:
        raise _at(loaded, key, error) from error


def _kind(loaded: LoadedSpec, index: int, own: Calibration) -> Kind:
    entry = loaded.spec.spec.hardware.pool[index]
    key = f"spec.hardware.pool.{index}"
    try:
        facts = own.resolve_accelerator(entry.accelerator)
    except CatalogError as error:
        raise _at(loaded, f"{key}.accelerator", error) from error
    price = entry.price if entry.price is not None else facts.price_per_h
    if math.isnan(price):
        raise _fail(loaded, key, "no-price", f"no price of {facts.id} is known", "state price, for example price: 2.95/h")
    scale = entry.per_node / facts.host_devices
    tolerations = [t.manifest() for t in entry.tolerations] if entry.tolerations is not None else _default_tolerations(facts)
    return Kind(
        index,
        facts,
        PoolPlan(
            accelerator=facts.id,
            name=facts.name,
            vendor=facts.vendor,
            nodes=entry.nodes,
            per_node=entry.per_node,
            price_per_hour=price,
            price_source="spec" if entry.price is not None else f"catalogue: median of {_on_demand(facts)} dated on-demand rows",
            node_cpus=int(entry.cpu if entry.cpu is not None else max(facts.host_cpus * scale, 1)),
            node_memory_bytes=entry.memory if entry.memory is not None else facts.host_memory_bytes * scale,
            resource=entry.resource or facts.resource,
            node_selector=dict(entry.node_selector) if entry.node_selector is not None else dict(facts.node_selector),
            tolerations=tuple(tolerations),
            fabric_bytes_per_s=entry.fabric.bandwidth if entry.fabric else 0.0,
            rdma=bool(entry.fabric and entry.fabric.rdma),
            rdma_resource=(entry.fabric.resource or "") if entry.fabric else "",
            storage_bytes_per_s=entry.storage.bandwidth if entry.storage else DEFAULT_STORAGE_BYTES_PER_S,
        ),
    )


def _on_demand(facts: AcceleratorFacts) -> int:
    return sum(row["kind"] == "on_demand" for row in facts.price_rows)


def _default_tolerations(facts: AcceleratorFacts) -> list[dict[str, Any]]:
    """GPU nodes are usually tainted with their resource's name."""
    return [{"key": facts.resource, "operator": "Exists", "effect": "NoSchedule"}]


def _engine(
    loaded: LoadedSpec, model: ModelFacts, kinds: tuple[Kind, ...], allowed: tuple[str, ...], index: int, own: Calibration
) -> EngineOption:
    constraints = loaded.spec.spec.constraints
    facts = own.engine(resolve_engine(constraints.engines[index]))
    kv = tuple(constraints.kv_cache)
    version = versioned(loaded, facts)
    foreign = sorted(({k.facts.vendor for k in kinds} & set(facts.vendors)) - {"nvidia"}) if facts.renders else []
    if facts.renders and (not facts.images.get(version) or foreign) and loaded.spec.spec.deploy.image is None:
        message = (
            f"{facts.id} has no public image{f' for {foreign[0]}' if foreign else ''} that is known, so the spec must name one"
        )
        raise _fail(
            loaded,
            f"spec.constraints.engines.{index}",
            "image-missing",
            message,
            "state deploy.image with its tag or digest",
        )
    if facts.renders:
        _check_deployable(loaded, facts)
    weights, refused = _weights(loaded, model, facts, allowed)
    legal = tuple(k for k in kv if k in facts.kv_cache)
    return EngineOption(
        facts, version, weights, refused, legal, {k: f"{facts.id} has no {k} KV cache" for k in kv if k not in legal}
    )


def _check_deployable(loaded: LoadedSpec, engine: EngineFacts) -> None:
    """What the spec asks of a deployment that the engine cannot give."""
    d = loaded.spec.spec.deploy
    if not engine.metrics:
        for key, asked in (("monitoring", d.monitoring), ("autoscaling", d.autoscaling != "none")):
            if asked:
                message = f"{engine.id} exposes no metrics, so there is nothing to monitor or to scale by"
                raise _fail(loaded, f"spec.deploy.{key}", "no-metrics", message, f"leave {key} out, or choose another engine")
    if engine.own_checkpoints and (d.model_cache is None or d.model_cache.size):
        message = f"{engine.id} loads only a converted checkpoint, and a claim that is created is empty"
        hint = "state deploy.modelCache.claim or hostPath: where the converted checkpoint lies"
        raise _fail(loaded, "spec.deploy.modelCache", "checkpoint-missing", message, hint)


def _weights(
    loaded: LoadedSpec, model: ModelFacts, engine: EngineFacts, allowed: tuple[str, ...]
) -> tuple[tuple[WeightOption, ...], dict[str, str]]:
    """What the engine can serve of the allowed precisions, in their order, and why it cannot serve the rest."""
    files = {
        str(k): v for k, v in (loaded.spec.spec.model.checkpoints or {model.native_precision: _own_id(loaded, model)}).items()
    }
    if not loaded.spec.spec.model.checkpoints and "/" not in next(iter(files.values())):
        key = "spec.model.config" if loaded.spec.spec.model.config is not None else "spec.model.architecture"
        message = "the model has no Hugging Face id of its own, so there is nothing to load"
        hint = f"state model.checkpoints, for example {model.native_precision}: organisation/model"
        raise _fail(loaded, key, "checkpoint-missing", message, hint)
    options, refused = [], {}
    for precision in allowed:
        if precision in files:
            if precision in engine.weights:
                options.append(WeightOption(precision, files[precision], "", precision))
            else:
                refused[precision] = f"{engine.id} does not load {precision} checkpoints"
        elif precision in engine.quantize_on_load and "bf16" in files:
            options.append(WeightOption(precision, files["bf16"], precision, "bf16"))
        elif "bf16" in files:
            refused[precision] = (
                f"{engine.id} does not quantize to {precision} while loading, and no {precision} checkpoint is stated"
            )
        else:
            refused[precision] = f"no {precision} checkpoint is stated"
    return tuple(options), refused
