"""Memory of one replica as plain arithmetic, and which configurations there can be at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servegen.catalog.facts import BYTES_PER_KV, BYTES_PER_WEIGHT, AcceleratorFacts, EngineFacts
from servegen.solve.problem import EngineOption, Kind, Problem, WeightOption
from tests.solver.plain_replica import Traffic


@dataclass
class Memory:
    usable: float
    weights: float
    token: float  # bytes of a cached token on one device
    reserve: float
    pool: float


def memory(
    problem: Problem,
    acc: AcceleratorFacts,
    engine: EngineFacts,
    weights: str,
    kv: str,
    tp: int,
    chunk: int,
    limit: int,
    handoff: bool,
) -> Memory:
    model, rule = problem.model, engine.memory
    (group,) = model.layers
    att = group.attention
    total = sum(
        t.stored_bytes if weights == model.native_precision or not t.quantizable else t.params * BYTES_PER_WEIGHT[weights]
        for t in model.tensors
    )
    repeated = group.count * 2 * model.hidden_size * att.num_kv_heads * att.head_dim * max(tp / att.num_kv_heads - 1, 0)
    mine = (total + repeated * total / model.params_total) / tp * rule.weights_overhead
    activations = chunk * (model.hidden_size + 2 * group.intermediate / tp) * 2 + limit * model.vocab_size * 4 / tp
    graphs = rule.per_graph_sequence_bytes * limit
    by_rule = rule.context_bytes + rule.usable_share * acc.usable_bytes + rule.per_device_bytes * tp + graphs
    by_rule += rule.per_chunk_token_bytes * max(chunk, rule.least_chunk_tokens)
    floor = min(max(acc.usable_bytes - (rule.floor_above_bytes - rule.floor_bytes), 0.0), rule.floor_bytes)
    reserve = max(by_rule, floor, activations + graphs) + (rule.handoff_bytes if handoff else 0.0)
    setup = rule.setup_parallel_bytes if tp > 1 else rule.setup_bytes
    process = (acc.usable_bytes - 2.3 * 2**30 - 0.05 * mine) / (acc.usable_bytes - setup)
    share = min((acc.usable_bytes - reserve) / acc.usable_bytes, process)
    fraction = max(math.floor(share * 1000 + 1e-6) / 1000, 0.0)
    heads = att.num_kv_heads / min(tp, att.num_kv_heads)
    token = group.count * heads * 2 * att.head_dim * BYTES_PER_KV[kv]
    return Memory(acc.usable_bytes, mine, token, reserve, fraction * (acc.usable_bytes - setup) - mine)


def holds(problem: Problem, m: Memory, load: Traffic, limit: int, cached: bool = True) -> bool:
    """Weights, the longest request, and the batch limit at 99 % of all times, of which the shared head is held once."""
    if m.pool <= 0 or problem.context_length * m.token > m.pool:
        return False
    head = problem.workload.prefix_shared if cached else 0.0
    common = problem.workload.isl.mean - load.new_mean if head else 0.0
    varied = 2.326 * math.sqrt(limit) * load.held_std
    fits = head + limit * max(load.held - common, 0.0) + varied <= m.pool / m.token * (1 + 1e-12)
    return fits and (not cached or found(problem) < m.pool / m.token)


def found(problem: Problem) -> float:
    """Tokens that must lie in the cache for the longest prompt to find its stated share."""
    return problem.workload.prefix_hit * problem.workload.isl.longest


def beside_cache(problem: Problem, m: Memory, load: Traffic) -> float:
    """Sequences whose answers leave what is to be found its room."""
    answers = max(load.held - problem.workload.isl.mean, 1e-9 * load.held)
    return (m.pool / m.token - found(problem)) / answers if found(problem) else math.inf


def exists(problem: Problem, engine: EngineOption, kind: Kind, option: WeightOption, kv: str, tp: int) -> bool:
    acc, model = kind.facts, problem.model
    (group,) = model.layers
    att = group.attention
    native = option.precision in acc.peak_flops and option.precision != "int4"
    return (
        acc.vendor in engine.facts.vendors
        and option.precision in acc.gemm
        and (not option.quantization or native)
        and (kv != "fp8" or "fp8" in acc.peak_flops)
        and tp <= min(kind.plan.per_node, acc.scaleup_domain)
        and (tp == 1 or tp in acc.allreduce_alpha_s)
        and att.num_heads % tp == 0
        and (att.num_kv_heads % tp == 0 or tp % att.num_kv_heads == 0)
        and group.intermediate % tp == 0
        and not (
            model.weight_block
            and not option.quantization
            and option.precision == model.native_precision
            and (group.intermediate // tp) % model.weight_block
        )
    )


def tps(problem: Problem, kind: Kind) -> list[int]:
    if problem.tps:
        return sorted(problem.tps)
    return sorted({1, 2, 4, 8, 16, 32, 64, kind.plan.per_node})


def chunks_worth(load: Traffic, chunks: Sequence[int]) -> list[int]:
    return [c for i, c in enumerate(chunks) if i == 0 or chunks[i - 1] < load.new[-1]]
