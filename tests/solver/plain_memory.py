"""Memory of one replica as plain arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servegen.catalog.facts import BYTES_PER_KV, BYTES_PER_WEIGHT, EngineFacts, ModelFacts
from servegen.solve.problem import Kind, Problem
from tests.solver.plain_cut import Cut
from tests.solver.plain_traffic import Traffic


@dataclass
class Memory:
    """Bytes of one device on the fullest stage."""

    usable: float
    weights: float
    token: float  # bytes of a cached token on one device, the draft's among them
    reserve: float
    pool: float
    groups: int


def _weights(model: ModelFacts, precision: str, cut: Cut) -> float:
    """Weights on one device, where K and V projections are repeated rather than cut below a head."""
    (group,) = model.layers
    att = group.attention
    sizes: dict[str, float] = {}
    for t in model.tensors:
        stored = precision == model.native_precision or not t.quantizable
        sizes[t.kind] = sizes.get(t.kind, 0.0) + (t.stored_bytes if stored else t.params * BYTES_PER_WEIGHT[precision])
    each = sum(sizes.values()) / model.params_total
    heads = group.count * 2 * model.hidden_size * att.num_kv_heads * att.head_dim * max(cut.group / att.num_kv_heads - 1, 0)
    ends = [sizes.get("embedding", 0.0), sizes.get("lm_head", 0.0)]
    inner = sum(sizes.values()) - sum(ends) + (cut.dp - 1) * sizes["attention"] + cut.dp * heads * each
    layers = math.ceil(group.count / cut.pp) / group.count
    return (layers * inner + (max(ends) if cut.pp > 1 else sum(ends))) / cut.tp


def _token(model: ModelFacts, kv: str, cut: Cut) -> float:
    (group,) = model.layers
    att = group.attention
    heads = att.num_kv_heads / min(cut.group, att.num_kv_heads)
    return math.ceil(group.count / cut.pp) * heads * 2 * att.head_dim * BYTES_PER_KV[kv]


def memory(
    problem: Problem,
    kind: Kind,
    engine: EngineFacts,
    weights: str,
    kv: str,
    cut: Cut,
    chunk: int,
    limit: int,
    handoff: bool,
) -> Memory:
    model, rule, usable = problem.model, engine.memory, kind.facts.usable_bytes
    (group,) = model.layers
    mine = _weights(model, weights, cut) * rule.weights_overhead
    token = _token(model, kv, cut)
    widest = max(group.intermediate, group.moe_intermediate * group.experts_per_token)
    activations = chunk * (model.hidden_size + 2 * widest / cut.tp) * 2
    activations += limit * (1 + cut.ahead) * model.vocab_size * 4 / cut.tp
    slots = limit / cut.dp
    graphs = rule.per_graph_sequence_bytes * slots
    if cut.dp > 1:
        graphs += rule.per_padded_sequence_bytes * limit * (1.5 if slots > 300 else 1.0)
    graphs *= 2 if cut.ahead else 1
    by_rule = rule.context_bytes + rule.usable_share * usable + rule.per_device_bytes * cut.devices + graphs
    by_rule += rule.per_chunk_token_bytes * max(chunk, rule.least_chunk_tokens)
    floor = min(max(usable - (rule.floor_above_bytes - rule.floor_bytes), 0.0), rule.floor_bytes)
    reserve = max(by_rule, floor, activations + graphs) + (rule.handoff_bytes if handoff else 0.0)
    room = usable - (rule.setup_parallel_bytes if cut.devices > 1 else rule.setup_bytes)
    extra = draft_token = 0.0  # of the draft, beside what the fraction counts
    asked = problem.speculation
    if asked is not None and cut.ahead:
        extra = engine.drafts[asked.method]
        if asked.draft is not None:
            beside = Cut(cut.group)  # each group drafts for itself
            extra = max(extra, _weights(asked.draft, asked.draft.native_precision, beside) * rule.weights_overhead)
            draft_token = _token(asked.draft, kv, beside)
    process = (usable - 2.3 * 2**30 - 0.05 * (mine + extra)) / room
    share = min((usable - reserve) / usable, process)
    part = draft_token / (token + draft_token)
    share -= (extra + max(share * room - mine - extra, 0.0) * part) / room
    fraction = max(math.floor(share * 1000 + 1e-6) / 1000, 0.0)
    pool = (fraction * room - mine) / (1 - part)
    return Memory(usable, mine, token + draft_token, reserve, pool, cut.dp)


def holds(problem: Problem, m: Memory, load: Traffic, limit: int, cached: bool = True) -> bool:
    """Weights, the longest request, and the batch limit at 99 % of all times, in each group alike; the shared head once."""
    if m.pool <= 0 or problem.context_length * m.token > m.pool or limit % m.groups:
        return False
    slots = limit // m.groups
    head = problem.workload.prefix_shared if cached else 0.0
    common = problem.workload.isl.mean - load.new_mean if head else 0.0
    varied = 2.326 * math.sqrt(slots) * load.held_std
    fits = head + slots * max(load.held - common, 0.0) + varied <= m.pool / m.token * (1 + 1e-12)
    return fits and (not cached or found(problem) < m.pool / m.token)


def found(problem: Problem) -> float:
    """Tokens that must lie in the cache for the longest prompt to find its stated share."""
    return problem.workload.prefix_hit * problem.workload.isl.longest


def beside_cache(problem: Problem, m: Memory, load: Traffic) -> float:
    """Sequences whose answers leave what is to be found its room, in all groups."""
    answers = max(load.held - problem.workload.isl.mean, 1e-9 * load.held)
    return m.groups * (m.pool / m.token - found(problem)) / answers if found(problem) else math.inf


def chunks_worth(load: Traffic, chunks: Sequence[int]) -> list[int]:
    return [c for i, c in enumerate(chunks) if i == 0 or chunks[i - 1] < load.new[-1]]
