"""The candidates of one engine on one kind of accelerator, as columns; what cannot be is masked with its reason."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servegen.catalog.accelerators import arithmetic
from servegen.catalog.facts import ModelFacts
from servegen.lower import Config, Lowered, MemoryTerms
from servegen.roofline.step import StepTerms, take
from servegen.solve import drafting
from servegen.solve.budget import Budget, budget
from servegen.solve.problem import EngineOption, Kind, Problem, WeightOption

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Batch limits: each one up to 512, then every eighth. Engines capture a CUDA
#: graph for each size, so larger ones would cost minutes at every start.
BATCH_LIMITS = np.concatenate((np.arange(1, 513), np.arange(520, 1025, 8))).astype(np.float64)
#: Prefill chunks, tokens: powers of two, as every page size divides them.
CHUNKS = (512, 1024, 2048, 4096, 8192, 16384)
#: Standard deviations of KV occupancy that the pool must hold: 99 % of the time no running request is retracted.
KV_SLACK = 2.326


@dataclass(frozen=True)
class Rows:
    """Columns of (weights, kv, tp, chunk), shape (rows,); ``config`` indexes ``lowered.configs``."""

    lowered: Lowered
    option: tuple[WeightOption, ...]  # per config
    config: NDArray[np.int64]
    chunk: Array
    terms: StepTerms
    memory: MemoryTerms
    tp: Array

    def __len__(self) -> int:
        return len(self.config)

    def at(self, index: NDArray[np.int64]) -> Rows:
        """The rows of an index, which may repeat some."""
        return dataclasses.replace(
            self,
            config=self.config[index],
            chunk=self.chunk[index],
            terms=take(self.terms, index),
            memory=take(self.memory, index),
            tp=self.tp[index],
        )


def tensor_parallel(problem: Problem, kind: Kind) -> tuple[int, ...]:
    """TP values that are tried on a kind, ascending: powers of two and what the spec names, within the scale-up domain."""
    most = min(max(kind.facts.scaleup_domain, 1), kind.devices)
    values = {2**i for i in range(10) if 2**i <= most} | ({kind.plan.per_node} if kind.plan.per_node <= most else set())
    if problem.tps:
        values = set(problem.tps)
    return tuple(sorted(values))


def refusal(problem: Problem, engine: EngineOption, kind: Kind, option: WeightOption, kv: str, tp: int) -> str:
    """Why a configuration cannot exist, "" if it can. The first reason in this order counts."""
    facts, model = kind.facts, problem.model
    if facts.vendor not in engine.facts.vendors:
        return f"engine: {engine.facts.id} does not run on {facts.vendor}"
    if option.precision not in facts.gemm:
        return f"dtype: {facts.id} cannot serve {option.precision} weights"
    if option.quantization and arithmetic(facts, option.precision) != option.precision:
        return f"dtype: {facts.id} cannot quantize to {option.precision} while loading"
    if kv == "fp8" and "fp8" not in facts.peak_flops:
        return f"dtype: {facts.id} has no fp8 for the KV cache"
    if tp > kind.devices or tp > max(facts.scaleup_domain, 1):
        return "scale-up domain: TP reaches beyond it"
    if facts.legal_tp and tp not in facts.legal_tp:
        return "slice: no such slice"
    spans = bool(facts.legal_tp) or facts.scaleup_domain > facts.host_devices  # TPU slices, NVL72
    if tp > kind.plan.per_node and (engine.facts.renders or not spans):
        return "node: TP across nodes is not built yet"
    if tp > kind.plan.per_node and tp % kind.plan.per_node:
        return "node: TP does not fill whole nodes"
    if tp > 1 and tp not in facts.allreduce_alpha_s:
        return f"interconnect: no all-reduce figures for TP {tp}"
    return cut(model, option, tp)


def cut(model: ModelFacts, option: WeightOption, tp: int) -> str:
    """Why TP cannot cut the model's matrices evenly, "" if it can."""
    for group in model.layers:
        att = group.attention
        if att.num_heads and att.num_heads % tp:
            return f"heads: {att.num_heads} query heads do not divide by TP {tp}"
        if att.num_kv_heads and att.kind != "mla" and att.num_kv_heads % tp and tp % att.num_kv_heads:
            return f"heads: {att.num_kv_heads} KV heads do not divide by TP {tp}"
        for width in (group.intermediate, group.moe_intermediate, group.shared_intermediate):
            if width and width % tp:
                return f"width: an MLP of {width} does not divide by TP {tp}"
            stored_blocks = model.weight_block and not option.quantization and option.precision == model.native_precision
            if stored_blocks and width and (width // tp) % model.weight_block:
                return f"quantization block: TP {tp} cuts the {model.weight_block}-wide blocks of an MLP of {width}"
    return ""


def build(problem: Problem, engine: EngineOption, kind: Kind, chunks: Sequence[int], rejected: Counter[str]) -> Rows | None:
    """All rows of an engine on a kind, None if none is left.

    Refusals are counted; each stands for its chunks x batch limits.
    """
    configs: list[Config] = []
    options: list[WeightOption] = []
    weight = len(chunks) * len(BATCH_LIMITS)
    tps = tensor_parallel(problem, kind)
    for why in engine.refused.values():
        rejected[f"checkpoint: {why}"] += weight * len(engine.kv) * len(tps)
    for why in engine.refused_kv.values():
        rejected[f"kv cache: {why}"] += weight * len(engine.weights) * len(tps)
    for option in engine.weights:
        for kv in engine.kv:
            for tp in tps:
                why = refusal(problem, engine, kind, option, kv, tp)
                if why:
                    rejected[why] += weight
                else:
                    for drafted in draftable(problem, engine, kind, tp, weight, rejected):
                        configs.append(Config(kind.facts, option.precision, kv, tp, drafted))
                        options.append(option)
    if not configs:
        return None
    lowered = drafting.lower_drafting(problem.model, engine.facts, configs, problem.speculation)
    config = np.repeat(np.arange(len(configs)), len(chunks))
    return Rows(
        lowered=lowered,
        option=tuple(options),
        config=config,
        chunk=np.tile(np.array(chunks, dtype=np.float64), len(configs)),
        terms=take(lowered.terms, config),
        memory=take(lowered.memory, config),
        tp=np.array([float(c.tp) for c in configs])[config],
    )


def draftable(
    problem: Problem, engine: EngineOption, kind: Kind, tp: int, weight: int, rejected: Counter[str]
) -> list[int]:
    """Numbers of drafted tokens that a configuration may have; refusals are counted with ``weight`` each."""
    asked = problem.speculation
    out = []
    for drafted in drafting.depths(asked):
        why = drafting.refusal(asked, engine.facts, kind.facts, drafted)
        if not why and drafted and asked is not None and asked.draft is not None:
            own = asked.draft.native_precision
            found = cut(asked.draft, WeightOption(own, asked.load, "", own), tp)
            why = f"draft: {found}" if found else ""
        if why:
            rejected[why] += weight
        else:
            out.append(drafted)
    return out


def chunks_for(problem: Problem) -> tuple[int, ...]:
    """Chunks that are tried: those that some prompt fills, and the first that holds the longest one."""
    longest = problem.demand.uncached_edges[-1]
    return tuple(c for i, c in enumerate(CHUNKS) if i == 0 or CHUNKS[i - 1] < longest)


def budget_of(problem: Problem, engine: EngineOption, rows: Rows, limits: Array, handoff: bool = False) -> Budget:
    """Memory of every (row, limit)."""
    m = rows.memory
    sizes = m.usable_bytes, m.weight_bytes, rows.chunk, rows.tp, limits
    return budget(engine.facts.memory, problem.model, *sizes, handoff, m.draft)


def occupancy(problem: Problem, rows: Rows) -> tuple[Array, Array, Array]:
    """Bytes on one device of a running request (mean, standard deviation) and of the longest one, shape (rows,)."""
    d = problem.demand
    mean = rows.memory.sequence_bytes(d.held_mean)
    return mean, rows.memory.token_bytes * d.held_std, rows.memory.sequence_bytes(float(problem.context_length))


def replicas_that_fit(kind: Kind, tp: Array) -> Array:
    """Replicas of ``tp`` devices that the kind's nodes hold."""
    per, nodes = kind.plan.per_node, kind.plan.nodes
    return np.where(tp <= per, nodes * np.floor(per / tp), np.floor(nodes / np.ceil(tp / per)))


def beside(kind: Kind, big: float, count: Array, small: float) -> Array:
    """Replicas of ``small`` devices that fit the nodes beside ``count`` of ``big`` >= ``small`` devices; -1 if those do not fit.

    Exact where each node is filled with big replicas first, which is best when the sizes divide a node.
    """
    per, nodes = float(kind.plan.per_node), float(kind.plan.nodes)
    if big > per:
        used = count * np.ceil(big / per)
        free = (nodes - used) * np.floor(per / small) if small <= per else np.floor((nodes - used) / np.ceil(small / per))
        return np.where(used <= nodes, free, -1.0)
    each = np.floor(per / big)
    full = np.floor(count / each)
    rest = count - full * each
    free = (
        full * np.floor((per - each * big) / small)
        + np.where(rest > 0, np.floor((per - rest * big) / small), 0.0)
        + (nodes - full - (rest > 0)) * np.floor(per / small)
    )
    return np.where(full + (rest > 0) <= nodes, free, -1.0)
