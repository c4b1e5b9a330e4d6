"""What the model says of a row: the same physics as a plan's, in the setting in which the row was measured."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from servegen.calibrate.rows import Metric, Row
from servegen.catalog.calibration import NONE, Calibration
from servegen.catalog.engines import resolve_engine
from servegen.catalog.facts import AcceleratorFacts, EngineFacts, ModelFacts
from servegen.catalog.models import resolve_model
from servegen.errors import CatalogError, Diagnostic
from servegen.lower import Config, Lowered, Physics, lower
from servegen.record import record
from servegen.simulate.benchmark import Benchmark, run
from servegen.simulate.deployment import Deployment, Pool
from servegen.simulate.engine import Limits
from servegen.simulate.started import WHOLE_PROMPTS, Started, started
from servegen.simulate.steps import StepModel
from servegen.solve.budget import budget

#: Share of an engine's cost per sequence that an offline benchmark has: nobody is answered, token by token, while it runs.
#: B200's rows of trtllm-bench are met without bias at a half; the rows of other devices have no part in it.
OFFLINE_SEQUENCE_SHARE = 0.5
#: Sequences that an engine's offline benchmark runs at a time at most, where nobody says otherwise (trtllm-bench's 2048).
OFFLINE_SEQUENCES = 2048


@record
class Setting:
    """A row with its names resolved and its blanks filled."""

    row: Row
    model: ModelFacts
    accelerator: AcceleratorFacts
    engine: EngineFacts
    weights: str
    kv: str


def setting(row: Row, calibration: Calibration = NONE) -> Setting:
    """Resolve a row. CatalogError where a name is unknown or the pair cannot be predicted."""
    if row.pp != 1:
        raise CatalogError(Diagnostic("not-built", f"{row.id}: pipeline parallelism is not predicted yet"))
    model = resolve_model(row.model)
    accelerator = calibration.resolve_accelerator(row.accelerator)
    engine = calibration.engine(resolve_engine(row.engine))
    weights = row.weights or model.native_precision
    if weights not in accelerator.gemm:
        raise CatalogError(Diagnostic("unsupported", f"{row.id}: {accelerator.id} cannot serve {weights} weights"))
    if row.tp > 1 and row.tp not in accelerator.allreduce_alpha_s:
        raise CatalogError(Diagnostic("unsupported", f"{row.id}: no all-reduce figures of {accelerator.id} for TP {row.tp}"))
    kv = row.kv or ("fp8" if weights in ("fp8", "nvfp4") and "fp8" in engine.kv_cache else "bf16")
    return Setting(row, model, accelerator, engine, weights, kv)


@record
class Replica:
    """A row as the replay takes it: seconds of steps, bytes of KV, what the engine was told."""

    row: Row
    model: StepModel
    request_s: float
    limits: Limits
    scheduler: str
    lowered: Lowered


def replica(s: Setting, physics: Physics = "calibrated") -> Replica:
    """The replica that a row was measured on."""
    lowered = lower(s.model, s.engine, [Config(s.accelerator, s.weights, s.kv, s.row.tp)], physics)
    memory = lowered.memory
    begun = _started(s)
    pool = _pool_bytes(s, lowered, begun.chunk)
    step = StepModel.of(lowered.terms, 0, [float(v) for v in memory.kv_bytes[0]], float(memory.state_bytes[0]))
    step = dataclasses.replace(step, prompt_s=step.prompt_s * begun.launches)
    limits = Limits(begun.slots, begun.chunk, pool, s.engine.memory.kv_reserve_osl, begun.wait_steps)
    request_s = 0.0 if physics == "ideal" else s.engine.request_s.value
    whole = s.engine.id in WHOLE_PROMPTS
    return Replica(s.row, step, request_s, limits, "whole" if whole else s.engine.schedulers[0], lowered)


def _started(s: Setting) -> Started:
    row, capability = s.row, s.accelerator.compute_capability
    users = row.concurrency or OFFLINE_SEQUENCES
    if row.kind != "closed":  # a table's own settings are its defaults
        return Started(started(s.engine.id, capability, s.engine.token_budget, row.tp, users, 0, 0).chunk, users)
    return started(s.engine.id, capability, s.engine.token_budget, row.tp, users, round(row.isl), round(row.osl))


def _pool_bytes(s: Setting, lowered: Lowered, chunk: int) -> float:
    """KV pool of one device by the engine's rule for memory."""
    m = lowered.memory
    chunks, tps, limits = (np.array([float(v)]) for v in (chunk, s.row.tp, s.row.concurrency or OFFLINE_SEQUENCES))
    room = budget(s.engine.memory, s.model, m.usable_bytes, m.weight_bytes, chunks, tps, limits)
    return max(float(room.pool[0, 0]), 0.0)


def predict(row: Row, calibration: Calibration = NONE, physics: Physics = "calibrated") -> dict[Metric, float]:
    """The metrics that a row measured, as predicted; nan where the configuration does not fit. CatalogError as `setting`."""
    return predict_replica(replica(setting(row, calibration), physics))


def predict_replica(r: Replica) -> dict[Metric, float]:
    """As :func:`predict`, for a row that has become a replica."""
    return {"closed": _closed, "offline": _offline, "decode": _decode, "prefill": _prefill, "batch": _batch}[r.row.kind](r)


def _closed(r: Replica) -> dict[Metric, float]:
    pool = Pool(r.model, r.limits, r.scheduler, 1, r.request_s)
    bench = Benchmark(r.row.concurrency, round(r.row.isl), max(round(r.row.osl), 1), r.row.shortest, not r.row.warm)
    figures = run(Deployment((pool,)), bench)
    each_s = figures.ttft_s + (r.row.mean_osl - 1.0) * figures.tpot_s
    return {
        "ttft_s": figures.ttft_s,
        "tpot_s": figures.tpot_s,
        "output_tokens_per_s": r.row.concurrency * r.row.mean_osl / each_s,
    }


def _offline(r: Replica) -> dict[Metric, float]:
    """Everything queued at once: as many at a time as memory holds, each finished one replaced by the next."""
    row = r.row
    each = r.model.held_bytes(round(row.isl + r.limits.reserve_share * row.osl))
    fits = int(r.limits.pool_bytes / each)
    if not fits:
        return {"output_tokens_per_s": math.nan}
    users = min(fits, row.concurrency or OFFLINE_SEQUENCES)
    share = row.osl / (row.isl + row.osl)
    # In the steady state every step carries as many prompt tokens as its share of all tokens, within the step's budget.
    tokens = users / share - users
    budget = max(r.limits.chunk - users, 1)
    steps = max(tokens / budget, 1.0)
    context = round(row.isl + row.osl / 2.0)
    attention = r.model.attention_s(0, round(row.isl)) * users / row.osl
    each = r.model.decode_s - (1.0 - OFFLINE_SEQUENCE_SHARE) * r.model.sequence_s
    seconds = r.model.fixed_s * steps + each * users + r.model.wire_s * tokens + attention
    seconds += steps * r.model.gemm_s(round((users + tokens) / steps)) + users * _read_s(r.model, context)
    # A step with a prompt takes what the host needs to launch it; where fewer than one prompt comes per step, only some do.
    seconds += min(users / row.osl, 1.0) * max(steps * r.model.prompt_s - seconds, 0.0)
    return {"output_tokens_per_s": users / seconds}


def _read_s(model: StepModel, context: float) -> float:
    """Seconds to read the KV of one sequence."""
    return model.read_s * context + sum(w.read_s * min(context, w.tokens) for w in model.windows)


def _decode(r: Replica) -> dict[Metric, float]:
    """The mean step while outputs grow from nothing to ``osl`` behind prompts of ``isl`` tokens."""
    batch = r.row.concurrency
    context = r.row.isl + r.row.osl / 2.0
    step = r.model.batch_s(batch) + batch * _read_s(r.model, context)
    return {"step_s": step, "output_tokens_per_s": batch / step}


def _prefill(r: Replica) -> dict[Metric, float]:
    return {"prefill_s": _prompts_s(r)}


def _prompts_s(r: Replica) -> float:
    """Seconds to compute the prompts of a batch together, in steps of the engine's size."""
    left = total = round(r.row.concurrency * r.row.isl)
    seconds = r.row.concurrency * (r.model.sequence_s + r.model.attention_s(0, round(r.row.isl)))
    while left > 0:
        now = min(left, r.limits.chunk)
        seconds += max(r.model.fixed_s + r.model.gemm_s(now) + r.model.wire_s * now, r.model.prompt_s)
        left -= now
    return seconds if total else 0.0


def _batch(r: Replica) -> dict[Metric, float]:
    step = _decode(r)["step_s"]
    return {"batch_s": _prompts_s(r) + max(r.row.osl - 1.0, 0.0) * step + r.request_s}
