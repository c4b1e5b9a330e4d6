"""The candidates of one engine on one kind of accelerator, as columns; what cannot be is masked with its reason."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servegen.catalog.accelerators import arithmetic
from servegen.catalog.engines import engines_on
from servegen.catalog.facts import AcceleratorFacts, ModelFacts
from servegen.lower import Config, Lowered, MemoryTerms
from servegen.plan import PoolPlan
from servegen.record import record
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
#: Devices that one host's own links join at the most (an NVSwitch baseboard, a PCIe root): only a wider domain, such as NVL72,
#: has switches between hosts.
WIDEST_HOST = 8
#: Standard deviations of KV occupancy that the pool must hold: 99 % of the time no running request is retracted.
KV_SLACK = 2.326


@dataclass(frozen=True, order=True)
class Shape:
    """How a replica is cut: ``tp * pp`` devices, ``dp`` attention groups inside TP, experts over ``ep`` ranks of it."""

    tp: int
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def devices(self) -> int:
        return self.tp * self.pp

    @property
    def words(self) -> str:
        """As engineers write it: TP8, TP8 PP2, TP8 DP8 EP8."""
        others = (("PP", self.pp), ("DP", self.dp), ("EP", self.ep))
        return " ".join([f"TP{self.tp}", *(f"{name}{n}" for name, n in others if n > 1)])


@record
class Rows:
    """Columns of (weights, kv, shape, chunk), shape (rows,); ``config`` indexes ``lowered.configs``.

    ``devices`` is what a replica takes, ``groups`` how many share its sequences out.
    """

    lowered: Lowered
    option: tuple[WeightOption, ...]  # per config
    config: NDArray[np.int64]
    chunk: Array
    terms: StepTerms
    memory: MemoryTerms
    tp: Array
    devices: Array
    groups: Array

    def __len__(self) -> int:
        return len(self.config)

    def is_cut(self, kind: Kind) -> Mask:
        """Rows whose replicas are cut in other ways than by TP inside a node: no measurement of such is in the fit."""
        experts = np.array([c.ep > 1 for c in self.lowered.configs])[self.config]
        return np.asarray((self.devices > kind.plan.per_node) | (self.devices != self.tp) | (self.groups > 1.0) | experts)

    def at(self, index: NDArray[np.int64]) -> Rows:
        """The rows of an index, which may repeat some."""
        return dataclasses.replace(
            self,
            config=self.config[index],
            chunk=self.chunk[index],
            terms=take(self.terms, index),
            memory=take(self.memory, index),
            tp=self.tp[index],
            devices=self.devices[index],
            groups=self.groups[index],
        )


def tensor_parallel(problem: Problem, kind: Kind) -> tuple[int, ...]:
    """TP values that are tried on a kind, ascending: powers of two and what the spec names, within the scale-up domain, and
    whole nodes beyond it where a fabric joins them."""
    if problem.tps:
        return tuple(sorted(set(problem.tps)))
    per, most = kind.plan.per_node, min(max(kind.facts.scaleup_domain, 1), kind.devices)
    values = {2**i for i in range(10) if 2**i <= most} | ({per} if per <= most else set())
    if kind.plan.fabric_bytes_per_s and not spans_nodes(kind.facts):
        values |= {per * n for n in _powers(kind.plan.nodes)[1:]}
    return tuple(sorted(values))


def _powers(most: int) -> tuple[int, ...]:
    """Powers of two from 1 up to ``most``."""
    return tuple(2**i for i in range(most.bit_length()))


def spans_nodes(facts: AcceleratorFacts) -> bool:
    """Whether the devices' own links reach over hosts (TPU slices, NVL72)."""
    return bool(facts.legal_tp) or facts.scaleup_domain > WIDEST_HOST


def shapes(problem: Problem, engine: EngineOption, kind: Kind) -> tuple[Shape, ...]:
    """How a replica may be cut, ascending: what the spec allows, else pipelines over whole nodes and, of models with experts,
    attention groups and expert parallelism, as far as the engine has them."""
    has, experts = engine.facts.parallel, any(g.num_experts for g in problem.model.layers)
    out = []
    for tp in tensor_parallel(problem, kind):
        nodes = _powers(kind.plan.nodes) if tp == kind.plan.per_node and kind.plan.fabric_bytes_per_s else (1,)
        pps = problem.pps or (nodes if "pp" in has else (1,))
        dps = problem.dps or (_powers(tp) if "dp" in has and experts else (1,))
        eps = problem.eps or ({1, tp} if "ep" in has and experts else (1,))
        out += [Shape(tp, pp, dp, ep) for pp in pps for dp in dps for ep in sorted(eps)]
    return tuple(sorted(set(out)))


def refusal(problem: Problem, engine: EngineOption, kind: Kind, option: WeightOption, kv: str, shape: Shape) -> str:
    """Why a configuration cannot exist, "" if it can. The first reason in this order counts."""
    facts = kind.facts
    if facts.vendor not in engine.facts.vendors:
        others = " and ".join(engines_on(facts.vendor))
        return f"engine: {engine.facts.id} does not run on {facts.vendor}" + (f"; {others} would" if others else "")
    if option.precision not in facts.gemm:
        return f"dtype: {facts.id} cannot serve {option.precision} weights"
    if option.quantization and arithmetic(facts, option.precision) != option.precision:
        return f"dtype: {facts.id} cannot quantize to {option.precision} while loading"
    if kv == "fp8" and "fp8" not in facts.peak_flops:
        return f"dtype: {facts.id} has no fp8 for the KV cache"
    return placement(engine, kind, shape) or cut(problem.model, option, shape)


def placement(engine: EngineOption, kind: Kind, shape: Shape) -> str:
    """Why the devices of a kind cannot be a replica of this shape, "" if they can."""
    facts, per, devices = kind.facts, kind.plan.per_node, shape.devices
    for name in ("pp", "dp", "ep"):
        if getattr(shape, name) > 1 and name not in engine.facts.parallel:
            return f"engine: {engine.facts.id} has no {name.upper()}, or this version does not know it"
    if devices > kind.devices:
        return "pool: a replica takes more accelerators than there are"
    if facts.legal_tp and shape.tp not in facts.legal_tp:
        return "slice: no such slice"
    if devices > per:
        if devices % per or (shape.tp > per and shape.tp % per) or (shape.tp < per and per % shape.tp):
            return "node: the replica does not fill whole nodes"
        if spans_nodes(facts):
            if shape.tp > facts.scaleup_domain:
                return "scale-up domain: TP reaches beyond it"
            if engine.facts.renders:
                return "node: links that reach over hosts are not rendered yet"
        elif not engine.facts.multi_node:
            return f"node: {engine.facts.id} over several nodes is not built"
        elif not kind.plan.fabric_bytes_per_s:
            return "fabric: none is declared between nodes"
    elif shape.tp > max(facts.scaleup_domain, 1):
        return "scale-up domain: TP reaches beyond it"
    inside = shape.tp if spans_nodes(facts) else min(shape.tp, per)
    if inside > 1 and inside not in facts.allreduce_alpha_s:
        return f"interconnect: no all-reduce figures for TP {inside}"
    return ""


def cut(model: ModelFacts, option: WeightOption, shape: Shape) -> str:
    """Why a shape cannot cut the model evenly, "" if it can."""
    tp, groups = shape.tp, shape.tp // shape.dp if shape.tp % shape.dp == 0 else 0
    if not groups:
        return f"groups: TP {tp} is no multiple of DP {shape.dp}"
    if tp % shape.ep:
        return f"experts: TP {tp} is no multiple of EP {shape.ep}"
    if shape.pp > model.num_layers:
        return f"stages: {model.num_layers} layers do not fill {shape.pp} stages"
    if max(shape.dp, shape.ep) > 1 and not any(g.num_experts for g in model.layers):
        return "experts: the model has none, and attention groups are served only with them"
    for group in model.layers:
        att = group.attention
        if att.num_heads and att.num_heads % groups:
            return f"heads: {att.num_heads} query heads do not divide by TP {groups}"
        if att.num_kv_heads and att.kind != "mla" and att.num_kv_heads % groups and groups % att.num_kv_heads:
            return f"heads: {att.num_kv_heads} KV heads do not divide by TP {groups}"
        if group.num_experts and group.num_experts % shape.ep:
            return f"experts: {group.num_experts} do not divide by EP {shape.ep}"
        for width, by in ((group.intermediate, tp), (group.moe_intermediate, tp // shape.ep), (group.shared_intermediate, tp)):
            if width and width % by:
                return f"width: an MLP of {width} does not divide by TP {by}"
            stored_blocks = model.weight_block and not option.quantization and option.precision == model.native_precision
            if stored_blocks and width and (width // by) % model.weight_block:
                return f"quantization block: TP {by} cuts the {model.weight_block}-wide blocks of an MLP of {width}"
    return ""


def configured(facts: AcceleratorFacts, entry: PoolPlan, weights: str, kv: str, shape: Shape) -> Config:
    """What :func:`servegen.lower.lower` takes for a shape on an entry of the pool."""
    node = 0 if spans_nodes(facts) else entry.per_node
    return Config(facts, weights, kv, shape.tp, shape.pp, shape.dp, shape.ep, node, entry.fabric_bytes_per_s)


def shape_of(config: Config) -> Shape:
    """The shape of a configuration."""
    return Shape(config.tp, config.pp, config.dp, config.ep)


def build(
    problem: Problem, engine: EngineOption, kind: Kind, chunks: Sequence[int], rejected: Counter[str], split: bool = False
) -> Rows | None:
    """All rows of an engine on a kind, None if none is left; without pipelines for the roles of a ``split``.

    Refusals are counted; each stands for its chunks x batch limits.
    """
    configs: list[Config] = []
    options: list[WeightOption] = []
    weight = len(chunks) * len(BATCH_LIMITS)
    every = shapes(problem, engine, kind)
    ways = [w for w in every if w.pp == 1 or not split]
    rejected["stages: a role of a split is not cut into any"] += (
        weight * len(engine.weights) * len(engine.kv) * (len(every) - len(ways))
    )
    for why in engine.refused.values():
        rejected[f"checkpoint: {why}"] += weight * len(engine.kv) * len(ways)
    for why in engine.refused_kv.values():
        rejected[f"kv cache: {why}"] += weight * len(engine.weights) * len(ways)
    for option in engine.weights:
        for kv in engine.kv:
            for shape in ways:
                why = refusal(problem, engine, kind, option, kv, shape)
                if why:
                    rejected[why] += weight
                else:
                    undrafted = configured(kind.facts, kind.plan, option.precision, kv, shape)
                    for drafted in draftable(problem, engine, kind, shape, weight, rejected):
                        configs.append(dataclasses.replace(undrafted, drafted=drafted))
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
        devices=np.array([float(c.devices) for c in configs])[config],
        groups=np.array([float(c.dp) for c in configs])[config],
    )


def _draft_cut(draft: ModelFacts, shape: Shape) -> str:
    """Why a draft cannot be cut as its target is, "" if it can. One without experts is cut by attention group alone."""
    option = WeightOption(draft.native_precision, "", "", draft.native_precision)
    routed = any(g.num_experts for g in draft.layers)
    return cut(draft, option, shape if routed else Shape(shape.tp // shape.dp))


def draftable(
    problem: Problem, engine: EngineOption, kind: Kind, shape: Shape, weight: int, rejected: Counter[str]
) -> list[int]:
    """Numbers of drafted tokens that a configuration may have; refusals are counted with ``weight`` each."""
    asked = problem.speculation
    out = []
    for drafted in drafting.depths(asked):
        why = drafting.refusal(asked, engine.facts, kind.facts, drafted, shape.pp, shape.dp)
        if not why and drafted and asked is not None and asked.draft is not None:
            found = _draft_cut(asked.draft, shape)
            why = f"draft: {found}" if found else ""
        if why:
            rejected[why] += weight
        else:
            out.append(drafted)
    return out


def chunks_for(problem: Problem) -> tuple[int, ...]:
    """Chunks that are tried: those that some prompt fills, and the first that holds the longest one."""
    longest = problem.demand.uncached_edges[-1]
    return tuple(
        c for i, c in enumerate(CHUNKS) if (i == 0 or CHUNKS[i - 1] < longest) and c not in problem.without_chunks
    )


def budget_of(problem: Problem, engine: EngineOption, rows: Rows, limits: Array, handoff: bool = False) -> Budget:
    """Memory of every (row, limit)."""
    m = rows.memory
    sizes = m.usable_bytes, m.weight_bytes, rows.chunk, rows.tp
    return budget(engine.facts.memory, problem.model, *sizes, limits, handoff, rows.devices, rows.groups, m.draft)


def occupancy(problem: Problem, rows: Rows) -> tuple[Array, Array, Array]:
    """Bytes on one device of a running request (mean, standard deviation) and of the longest one, shape (rows,)."""
    d = problem.demand
    mean = rows.memory.sequence_bytes(d.held_mean)
    return mean, rows.memory.token_bytes * d.held_std, rows.memory.sequence_bytes(float(problem.context_length))


def replicas_that_fit(kind: Kind, devices: Array) -> Array:
    """Replicas of ``devices`` devices that the kind's nodes hold."""
    per, nodes = kind.plan.per_node, kind.plan.nodes
    return np.where(devices <= per, nodes * np.floor(per / devices), np.floor(nodes / np.ceil(devices / per)))


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
