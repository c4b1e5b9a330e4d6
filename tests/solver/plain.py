"""A second solver, as plain as can be: nested loops over every candidate, Python floats, no columns.

It shares facts and request lengths with servegen and nothing else: step, memory, queues, bisection, replicas, packing and
the total order are written again from their definitions, for dense models with full attention. It answers small questions
slowly, so that a test can compare the real search with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from servegen.catalog.facts import BYTES_PER_KV, BYTES_PER_WEIGHT, AcceleratorFacts, EngineFacts
from servegen.solve.problem import EngineOption, Kind, Problem, WeightOption
from tests.solver.plain_replica import EDGES, Replica, Seen, Traffic, step, traffic

SLOT_WAIT = 1e-3
STALL_GUARD = 1.1
IDLE = 1e-4


def meets(problem: Problem, seen: Seen, load: Traffic, metrics: Sequence[str] = ("ttft", "itl", "tpot", "e2e")) -> bool:
    """Whether every bound on these metrics holds."""
    slo = problem.slo
    for b in slo.bounds:
        if b.metric not in metrics:
            continue
        if math.isnan(b.probability):
            if seen.mean(b.metric, load) > b.seconds:
                return False
        elif seen.over(b.metric, b.seconds, load, STALL_GUARD) > 1 - b.probability - SLOT_WAIT * (b.metric in ("ttft", "e2e")):
            return False
    joint = [b for b in slo.jointly if b.metric in metrics]
    if not math.isnan(slo.attainment) and joint:
        missed = sum(seen.over(b.metric, b.seconds, load) for b in joint)
        return 1.0 - min(max(1.0 - missed, 0.0), 1.0) <= 1.0 - slo.attainment
    return True


def largest(ok: Callable[[float], bool], high: float) -> float:
    """Largest level up to ``high`` that is still right, 0 if none is."""
    idle = min(IDLE, high)
    if not ok(idle):
        return 0.0
    if ok(high):
        return high
    low_t, width = math.log(idle), math.log(high) - math.log(idle)
    for _ in range(6):  # eighths, to the same last one as the search
        good = next((i - 1 for i in range(1, 8) if not ok(math.exp(low_t + width * i / 8))), 7)
        width /= 8
        low_t += width * good
    return math.exp(low_t)


def carried(problem: Problem, seen: Seen, load: Traffic) -> float:
    if problem.load_kind == "rate":
        return seen.rate
    think = problem.think_s if problem.load_kind == "users" else 0.0
    return seen.rate * (seen.mean("e2e", load) + think)


def level_of(problem: Problem, replica: Replica, discipline: str, share: float, high: float) -> float:
    """Level at which a replica carries ``share``."""
    low_t, high_t = math.log(1e-8), math.log(high)
    for _ in range(30):
        middle = (low_t + high_t) / 2
        over = carried(problem, replica.at(discipline, math.exp(middle)), replica.load) > share
        low_t, high_t = (low_t, middle) if over else (middle, high_t)
    return math.exp(high_t)


def quantile(over: Callable[[float], float], probability: float) -> float:
    low_t, high_t = math.log(1e-7), math.log(1e5)
    for _ in range(32):
        middle = (low_t + high_t) / 2
        low_t, high_t = (middle, high_t) if over(math.exp(middle)) > 1.0 - probability else (low_t, middle)
    return math.exp(high_t)


def three_digits(value: float) -> float:
    return float(f"{value:.3g}") if math.isfinite(value) else value


# ---- memory -------------------------------------------------------------------------------------------------------------


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


def holds(problem: Problem, m: Memory, load: Traffic, limit: int) -> bool:
    """Weights, the longest request, and the batch limit at 99 % of all times."""
    if m.pool <= 0 or problem.context_length * m.token > m.pool:
        return False
    return limit * load.held * m.token + 2.326 * math.sqrt(limit) * load.held_std * m.token <= m.pool * (1 + 1e-12)


# ---- candidates ---------------------------------------------------------------------------------------------------------


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


@dataclass
class Found:
    """The optimum. ``key`` is the total order's tuple, the name last."""

    key: tuple[object, ...]
    name: str
    replicas: tuple[int, ...]
    devices: int
    cost: float


def _narrow(problem: Problem, weights: str, kv: str) -> tuple[int, int]:
    return problem.allowed_weights.index(weights), problem.allowed_kv.index(kv)


def best_aggregated(problem: Problem, limits: Sequence[int], chunks: Sequence[int]) -> Found | None:
    """The optimum over every aggregated candidate."""
    load = traffic(problem)
    best: Found | None = None
    for engine in problem.engines:
        for kind in problem.pool:
            for discipline in engine.facts.schedulers:
                for option in engine.weights:
                    for kv in engine.kv:
                        for tp in tps(problem, kind):
                            if not exists(problem, engine, kind, option, kv, tp):
                                continue
                            for chunk in chunks_worth(load, chunks):
                                for found in _row(
                                    problem, load, engine, kind, discipline, option.precision, kv, tp, chunk, limits
                                ):
                                    if best is None or found.key < best.key:
                                        best = found
    return best


def _row(
    problem: Problem,
    load: Traffic,
    engine: EngineOption,
    kind: Kind,
    discipline: str,
    weights: str,
    kv: str,
    tp: int,
    chunk: int,
    limits: Sequence[int],
) -> list[Found]:
    acc = kind.facts
    fitting = [b for b in limits if holds(problem, memory(problem, acc, engine.facts, weights, kv, tp, chunk, b, False), load, b)]
    if not fitting:
        return []
    replica = Replica(
        step(problem.model, acc, engine.facts, weights, kv, tp), chunk, load, engine.facts.request_s.value, [0.0] * len(EDGES)
    )
    levels = {b: slot_level(problem, b) for b in fitting}
    cap = largest(lambda n: meets(problem, replica.at(discipline, n), load), max(levels.values()))
    if cap == 0.0:
        return []
    most = kind.plan.nodes * (kind.plan.per_node // tp)
    if problem.max_accelerators:
        most = min(most, problem.max_accelerators // tp)
    most -= problem.spares
    out, cache = [], {}
    for b in fitting:
        level = min(levels[b], cap)
        seen = replica.at(discipline, level)
        one = carried(problem, seen, load)
        if not problem.open_loop:  # who is being served holds a slot, only who thinks holds none
            one = min(one, b + seen.rate * problem.think_s)
        enough = [n for n in range(1, most + 1) if problem.saturate or n * problem.utilization * one >= problem.load * (1 - 1e-9)]
        if not enough:
            continue
        if problem.saturate or problem.objective == "throughput":
            n = most
        elif problem.objective == "latency":
            n = max(enough[0], most if problem.open_loop else min(most, math.ceil(problem.load)))
        else:
            n = enough[0]
        devices = (n + problem.spares) * tp
        cost, watts = devices * kind.plan.price_per_hour, devices * acc.tdp_w
        output = n * seen.rate * problem.utilization * load.output_mean
        if problem.objective == "throughput":
            objective: tuple[float, ...] = (-three_digits(output),)
        elif problem.objective == "latency":
            if n not in cache:
                now = replica.at(discipline, level_of(problem, replica, discipline, problem.load / n, cap))
                cache[n] = (three_digits(quantile(now.itl_over, 0.95)), three_digits(quantile(now.ttft_over, 0.95)))
            objective = cache[n]
        else:
            spent = cost if problem.objective == "cost" else watts
            objective = (spent / output if problem.saturate else spent,)
        mixed = "-mixed" if discipline == "mixed" else ""
        name = f"{engine.facts.id}/{acc.id}/{weights}-kv-{kv}/serve-tp{tp:02d}-c{chunk:05d}-b{b:04d}{mixed}"
        headroom = n * one if problem.open_loop else min(n * one, problem.load / problem.utilization)
        key = (*objective, devices, tp, *_narrow(problem, weights, kv), -three_digits(headroom), 1, name)
        out.append(Found(key, name, (n,), devices, cost))
    return out


def slot_level(problem: Problem, limit: int) -> float:
    """Mean sequences at which a thousandth of arrivals finds all slots taken, where first tokens are bounded."""
    starts = any(b.metric in ("ttft", "e2e") for b in (*problem.slo.bounds, *problem.slo.jointly))
    if not starts or problem.load_kind == "concurrency":
        return float(limit)
    peak = 1.0 + max(problem.demand.arrival_cv2 - 1.0, 0.0) * problem.demand.overlap
    return limit * SLOT_WAIT ** (1.0 / (math.sqrt(2.0 * (limit / peak + 1.0)) - 1.0))


# ---- split --------------------------------------------------------------------------------------------------------------


def packs(kind: Kind, first: int, x: int, second: int, y: int) -> bool:
    """Whether ``x`` servers of ``first`` and ``y`` of ``second`` devices fit the nodes: all ways to fill them are tried."""
    room = {0: 0}  # servers of the first size placed -> most of the second size beside them
    for _ in range(kind.plan.nodes):
        wider: dict[int, int] = {}
        for placed, other in room.items():
            for more in range(min(kind.plan.per_node // first, x - placed) + 1):
                beside = (kind.plan.per_node - more * first) // second
                wider[placed + more] = max(wider.get(placed + more, -1), other + beside)
        room = wider
    return room.get(x, -1) >= y


def best_split(problem: Problem, limits: Sequence[int], chunks: Sequence[int]) -> Found | None:
    """The optimum over every split candidate of an open loop: every count of prefill and decode servers that fits is tried.

    Bounds on whole requests are checked at the sized load of each pair of counts.
    """
    load = traffic(problem)
    best: Found | None = None
    for engine in problem.engines:
        for kind in problem.pool:
            link = kind.plan.fabric_bytes_per_s
            if not engine.facts.disaggregation or not link:
                continue
            for option in engine.weights:
                for kv in engine.kv:
                    legal = [tp for tp in tps(problem, kind) if exists(problem, engine, kind, option, kv, tp)]
                    starts = [
                        s
                        for tp in legal
                        for peer in legal
                        for s in _prefills(problem, load, engine, kind, option.precision, kv, tp, peer, chunks, link)
                    ]
                    gaps = [
                        g for tp in legal for g in _decodes(problem, load, engine, kind, option.precision, kv, tp, limits, link)
                    ]
                    for start in starts:
                        for gap in (g for g in gaps if g.tp == start.peer):
                            for found in _pair(problem, load, engine, kind, option.precision, kv, start, gap):
                                if best is None or found.key < best.key:
                                    best = found
    return best


@dataclass
class Server:
    tp: int
    chunk: int
    limit: int
    rate: float
    replica: Replica
    peer: int = 0


def _prefills(
    problem: Problem,
    load: Traffic,
    engine: EngineOption,
    kind: Kind,
    weights: str,
    kv: str,
    tp: int,
    peer: int,
    chunks: Sequence[int],
    link: float,
) -> list[Server]:
    out = []
    for chunk in chunks_worth(load, chunks):
        m = memory(problem, kind.facts, engine.facts, weights, kv, tp, chunk, 64, True)
        if m.pool <= 0 or problem.context_length * m.token > m.pool:
            continue
        one = step(problem.model, kind.facts, engine.facts, weights, kv, tp)
        handoff: list[float] = []
        for new, whole in zip(load.new, load.whole, strict=True):
            moved = (whole * m.token * tp + 60e6) / (0.72 * link * min(tp, peer))
            left = max(moved / math.ceil(new / chunk), moved - one.prefill(new, whole, chunk))
            handoff.append(max(left, handoff[-1] if handoff else left))
        replica = Replica(one, chunk, load, 2 * engine.facts.request_s.value, handoff)
        busy = largest(lambda u, r=replica: meets(problem, r.at("prefill", u), load, ("ttft",)), 1 - 1e-6)
        if busy > 0:
            links = 1.0 / ((float(problem.demand.total_mean) * m.token * tp + 60e6) / (0.72 * link * min(tp, peer)))
            out.append(Server(tp, chunk, 64, min(replica.at("prefill", busy).rate, links), replica, peer))
    return out


def _decodes(
    problem: Problem,
    load: Traffic,
    engine: EngineOption,
    kind: Kind,
    weights: str,
    kv: str,
    tp: int,
    limits: Sequence[int],
    link: float,
) -> list[Server]:
    replica = Replica(step(problem.model, kind.facts, engine.facts, weights, kv, tp), 512, load, 0.0, [0.0] * len(EDGES))
    fitting = [
        b for b in limits if holds(problem, memory(problem, kind.facts, engine.facts, weights, kv, tp, 512, b, True), load, b)
    ]
    if not fitting:
        return []
    cap = largest(
        lambda n: meets(problem, replica.at("decode", n), load, ("itl", "tpot")), max(slot_level(problem, b) for b in fitting)
    )
    token = memory(problem, kind.facts, engine.facts, weights, kv, tp, 512, fitting[0], True).token
    links = 1.0 / ((float(problem.demand.total_mean) * token * tp + 60e6) / (0.72 * link * tp))
    rates = {b: min(replica.at("decode", min(cap, slot_level(problem, b))).rate, links) for b in fitting if cap > 0}
    return [Server(tp, 512, b, rate, replica) for b, rate in rates.items()]


def _pair(
    problem: Problem, load: Traffic, engine: EngineOption, kind: Kind, weights: str, kv: str, start: Server, gap: Server
) -> list[Found]:
    out, u, spare = [], problem.utilization, problem.spares
    most = min(problem.max_accelerators or kind.devices, kind.devices)
    ends = any(b.metric == "e2e" for b in problem.slo.bounds) or not math.isnan(problem.slo.attainment)
    by_need = problem.objective in ("cost", "energy") and not problem.saturate and not ends
    for x in range(1, most // start.tp + 1):
        if not problem.saturate and x * start.rate * u < problem.load * (1 - 1e-9):
            continue
        for y in range(1, most // gap.tp + 1):
            devices = (x + spare) * start.tp + (y + spare) * gap.tp
            if devices > most:
                break
            one = min(x * start.rate, y * gap.rate)
            if not problem.saturate and one * u < problem.load * (1 - 1e-9):
                continue
            if not packs(kind, start.tp, x + spare, gap.tp, y + spare):
                continue
            sized = u * one if problem.saturate or problem.objective == "throughput" else problem.load
            if ends and not meets(problem, _joined(problem, start, gap, sized / x, sized / y), load, ("ttft", "tpot", "e2e")):
                continue
            cost, watts = devices * kind.plan.price_per_hour, devices * kind.facts.tdp_w
            output = sized * load.output_mean
            spent = cost if problem.objective == "cost" else watts
            objective = (
                -three_digits(output) if problem.objective == "throughput" else spent / output if problem.saturate else spent
            )
            pair = f"prefill-tp{start.tp:02d}-c{start.chunk:05d}-b0064+decode-tp{gap.tp:02d}-c00512-b{gap.limit:04d}"
            name = f"{engine.facts.id}/{kind.facts.id}/{weights}-kv-{kv}/{pair}"
            key = (objective, devices, max(start.tp, gap.tp), *_narrow(problem, weights, kv), -three_digits(one), 2, name)
            out.append(Found(key, name, (x, y), devices, cost))
            if by_need:
                break  # more decode servers cost more and change nothing else
        if by_need and out:
            break
    return out


def _joined(problem: Problem, start: Server, gap: Server, load_p: float, load_d: float) -> Seen:
    first = start.replica.at("prefill", _at_rate(start.replica, "prefill", load_p, 1 - 1e-6))
    then = gap.replica.at("decode", _at_rate(gap.replica, "decode", load_d, 4096.0))
    return Seen(
        min(first.rate, then.rate),
        first.start,
        first.start_mean,
        first.delayed,
        first.wait,
        first.wait_cv2,
        first.service,
        first.service_mean,
        then.gap,
        then.gap_sd,
        then.stalled,
        then.stalls,
        then.longest,
        then.gap_mean,
    )


def _at_rate(replica: Replica, discipline: str, rate: float, high: float) -> float:
    low_t, high_t = math.log(1e-8), math.log(high)
    for _ in range(30):
        middle = (low_t + high_t) / 2
        low_t, high_t = (low_t, middle) if replica.at(discipline, math.exp(middle)).rate > rate else (middle, high_t)
    return math.exp(high_t)
