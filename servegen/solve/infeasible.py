"""When nothing meets the spec: which bound binds, the best that can be had, and the smallest change that mends it.

Every fix is found by solving again, so a fix that is offered works.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from servegen.catalog.facts import PRECISIONS
from servegen.errors import Fix, InfeasibleError
from servegen.service import latency, size
from servegen.service.disciplines import DISCIPLINES
from servegen.service.size import Bound, Slo
from servegen.solve.candidate import Block
from servegen.solve.frame import by_row
from servegen.solve.groups import most as most_of_groups
from servegen.solve.problem import EngineOption, Kind, Problem, WeightOption
from servegen.solve.reuse import open_question, without_cache
from servegen.solve.space import occupancy, shape_of
from servegen.solve.split import GAPS, START
from servegen.solve.words import duration
from servegen.solve.words import load as load_words
from servegen.units import parse_bandwidth

if TYPE_CHECKING:
    from servegen.solve.search import Searched

#: A pool is not enlarged beyond this factor: the fix would no longer be small.
LARGEST = 64.0
#: A bound is not relaxed beyond this factor: it was a slip of the unit, and even then the right one is named.
LOOSEST = 1e4
#: Halvings of the search for the smallest factor: 10,000 -> 0.2 % of the answer.
HALVINGS = 12
#: What the fabric of nodes usually has for each accelerator: a port of NDR InfiniBand, as the nodes had on which what it costs
#: was measured (servegen/roofline/collectives.py).
USUAL_FABRIC = "400Gbps"


def infeasible(problem: Problem, seen: Searched) -> InfeasibleError:
    """The error that explains itself."""
    fixes = tuple(sorted(_fixes(_probed(problem, seen)), key=lambda f: (f.relative, f.key, f.new)))
    bound, message, best = diagnosis(problem, seen, fixes)
    return InfeasibleError(problem.name, bound, message, best, fixes, dict(sorted(seen.rejected.items())), seen.searched)


def _probed(problem: Problem, seen: Searched) -> Problem:
    """The problem that fixes are tried on. Where prefix hits depend on the room for them it has the room at which the pool came
    furthest: to try every room for every fix would take minutes.
    """
    if not open_question(problem):
        return problem
    tried = [(o.stage, o.most, o.block.problem) for o in seen.outcomes if o.block is not None]
    _, _, best = max(tried, key=lambda t: t[:2], default=(0, 0.0, without_cache(problem)))
    return dataclasses.replace(best, engines=problem.engines, topology=problem.topology)


def diagnosis(problem: Problem, seen: Searched, fixes: tuple[Fix, ...] = ()) -> tuple[str, str, str]:
    """(bound id, what is wrong, best attainable) by the last hurdle that any candidate took."""
    stage = max((o.stage for o in seen.outcomes), default=0)
    if stage == 0:
        reason = max(sorted(seen.rejected), key=lambda r: seen.rejected[r], default="nothing to choose from")
        return reason.split(":")[0], f"no configuration can exist: {reason}", "none"
    blocks = [o.block for o in seen.outcomes if o.block is not None and o.stage == stage]
    if stage == 1:
        return "memory", "no configuration fits the accelerators' memory", _least_memory(problem, blocks)
    if stage == 2:
        return _latency(problem, blocks)
    most, late = max((o.most, o.late) for o in seen.outcomes)
    if problem.groups:
        most = max(most, most_of_groups(problem, seen.outcomes))
    if late and most >= problem.load:
        best = next((f.new for f in fixes if f.key == f"slo.{late}"), "not known")
        return late, f"the pool carries the load, but every candidate misses {late} at it", best
    small = problem.max_accelerators and any(problem.max_accelerators < k.devices for k in problem.pool)
    message = f"the accelerators carry {_load(problem, most)} of {_load(problem, problem.load)} within the bounds"
    return "maxAccelerators" if small else "pool", message, _load(problem, most)


def _load(problem: Problem, load: float) -> str:
    return load_words(problem.load_kind, load)


def _least_memory(problem: Problem, blocks: list[Block]) -> str:
    """How far the best configuration is from fitting: bytes over, on each device, with the longest request."""
    best, name = math.inf, ""
    for block in blocks:
        _, _, longest = occupancy(problem, block.rows)
        over = longest - block.budget.pool[:, 0]
        row = int(np.argmin(over))
        if over[row] < best:
            best = float(over[row])
            config = block.rows.lowered.configs[int(block.rows.config[row])]
            name = f"{config.accelerator.id}, {config.weights} weights, {shape_of(config).words}"
    return f"{best / 1e9:.1f} GB per device too much ({name})"


def _latency(problem: Problem, blocks: list[Block]) -> tuple[str, str, str]:
    """The bound that even an idle replica misses by the least, over all configurations that fit the memory."""
    worst: tuple[float, Bound, float] | None = None
    for bound in problem.slo.bounds:
        values = [v for b in blocks for v in _idle(problem, b, bound)]
        if not values:
            continue
        best = min(values)
        if best > bound.seconds and (worst is None or best / bound.seconds > worst[0]):
            worst = (best / bound.seconds, bound, best)
    if worst is None:
        return _together(problem, blocks)
    _, bound, best = worst
    message = f"even a single request misses {bound.id} of {duration(bound.seconds)}, whatever the number of replicas"
    return bound.id, message, f"{bound.id} = {duration(best)}"


def _together(problem: Problem, blocks: list[Block]) -> tuple[str, str, str]:
    """Each bound can be met alone: the share of requests that meets all of them, or the bounds at once."""
    if math.isnan(problem.slo.attainment):
        return "slo", "no configuration meets all bounds at once, though each alone can be met", "each bound alone"
    best = 0.0
    for block in blocks:
        if block.discipline in ("prefill", "decode"):
            continue
        p = DISCIPLINES[block.discipline](block.server, block.problem.demand, np.full(len(block.rows), size.IDLE))
        share = size.attainment(p, block.problem.demand, problem.slo.jointly, {})
        best = max(best, float(np.max(np.where(block.budget.fits.any(axis=1), share, 0.0))))
    message = f"even when nothing waits, fewer than {problem.slo.attainment * 100:.4g} % of the requests meet every bound"
    return "attainment", message, f"{best * 100:.4g} %"


def _idle(problem: Problem, block: Block, bound: Bound) -> list[float]:
    """A bounded statistic of an idle replica at the confidence that is asked, for every row whose weights fit.

    None where another role answers for it.
    """
    answers = {"prefill": START, "decode": GAPS}.get(block.discipline)
    if answers is not None and bound.metric not in answers:
        return []
    d = block.problem.demand
    fits = block.budget.fits.any(axis=1)
    p = DISCIPLINES[block.discipline](block.server, d, np.full(len(block.rows), size.IDLE))
    if math.isnan(bound.probability):
        values = size.mean(bound.metric, p, d)
    else:
        probability = bound.probability + (size.SLOT_WAIT if bound.metric in ("ttft", "e2e") else 0.0)
        guard = latency.STALL_GUARD
        values = latency.percentile_of(lambda some, t: size.exceeds(bound.metric, some, d, t, guard), probability, p)
    factors = by_row(problem, block.engine, block.kind, block.rows)
    if bound.metric in factors:
        values = values * factors[bound.metric]
    return [float(v) for v in values[fits]]


def _fixes(problem: Problem) -> Iterator[Fix]:
    """Single changes that were verified: looser bounds, more nodes or a network between them, another precision."""
    yield from _looser(problem)
    yield from _fewer_on_time(problem)
    yield from _larger(problem)
    yield from _fewer_spares(problem)
    yield from _precisions(problem)
    yield from _other_tp(problem)
    yield from _joined_nodes(problem)


def _feasible(problem: Problem) -> bool:
    from servegen.solve.search import search

    return search(problem).best is not None


def _smallest_factor(feasible: Callable[[float], bool]) -> float | None:
    """Smallest factor up to LOOSEST that works, to about two tenths of a percent; None if the largest does not."""
    if not feasible(LOOSEST):
        return None
    low, high = 0.0, math.log(LOOSEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if feasible(math.exp(middle)) else (middle, high)
    return math.exp(high)


def _relaxed(problem: Problem, bound: Bound, seconds: float) -> Problem:
    def changed(bounds: tuple[Bound, ...]) -> tuple[Bound, ...]:
        return tuple(dataclasses.replace(b, seconds=seconds) if b.id == bound.id else b for b in bounds)

    slo = Slo(changed(problem.slo.bounds), problem.slo.attainment, changed(problem.slo.jointly))
    return dataclasses.replace(problem, slo=slo)


def _looser(problem: Problem) -> Iterator[Fix]:
    for bound in problem.slo.bounds:
        factor = _smallest_factor(lambda f, b=bound: _feasible(_relaxed(problem, b, b.seconds * f)))  # type: ignore[misc]
        if factor is None:
            continue
        seconds = _rounded_up(bound.seconds * factor)
        if not _feasible(_relaxed(problem, bound, seconds)):
            continue
        old, new = duration(bound.seconds), duration(seconds)
        yield Fix(f"slo.{bound.id}", old, new, seconds / bound.seconds - 1.0, f"raise slo.{bound.id} from {old} to {new}")


def _rounded_up(value: float) -> float:
    """To two significant digits, upwards."""
    scale = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / scale - 1e-9) * scale:.6g}")


def _larger(problem: Problem) -> Iterator[Fix]:
    if problem.max_accelerators:
        roomy = dataclasses.replace(problem, max_accelerators=0)
        if _feasible(roomy):
            most = sum(k.devices for k in problem.pool)
            low, high = problem.max_accelerators, most
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if _feasible(dataclasses.replace(problem, max_accelerators=middle)) else (middle, high)
            relative = high / problem.max_accelerators - 1.0
            text = f"raise constraints.maxAccelerators from {problem.max_accelerators} to {high}"
            yield Fix("constraints.maxAccelerators", str(problem.max_accelerators), str(high), relative, text)
            return
    for i, kind in enumerate(problem.pool):

        def grown(nodes: int, i: int = i, kind: Kind = kind) -> Problem:
            more = dataclasses.replace(kind, plan=dataclasses.replace(kind.plan, nodes=nodes))
            return dataclasses.replace(problem, pool=(*problem.pool[:i], more, *problem.pool[i + 1 :]))

        low, high = kind.plan.nodes, math.floor(kind.plan.nodes * LARGEST)
        if not _feasible(grown(high)):
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _feasible(grown(middle)) else (middle, high)
        text = f"raise hardware.pool[{i}].nodes ({kind.facts.id}) from {kind.plan.nodes} to {high}"
        yield Fix(f"hardware.pool.{i}.nodes", str(kind.plan.nodes), str(high), high / kind.plan.nodes - 1.0, text)


def _fewer_on_time(problem: Problem) -> Iterator[Fix]:
    """The largest attainment, in steps of half a percent, that can be met."""
    asked = problem.slo.attainment
    if math.isnan(asked):
        return

    def less(share: float) -> Problem:
        return dataclasses.replace(problem, slo=dataclasses.replace(problem.slo, attainment=share))

    steps = [round(k * 0.005, 3) for k in range(1, 200) if k * 0.005 < asked]
    low, high = -1, len(steps)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _feasible(less(steps[middle])) else (low, middle)
    if low >= 0:
        new = steps[low]
        text = f"lower slo.attainment from {asked:g} to {new:g}"
        yield Fix("slo.attainment", f"{asked:g}", f"{new:g}", 1.0 - new / asked, text)


def _fewer_spares(problem: Problem) -> Iterator[Fix]:
    """The most spares that leave room for what the load needs."""
    low, high = -1, problem.spares
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _feasible(dataclasses.replace(problem, spares=middle)) else (low, middle)
    if low >= 0:
        old, new = str(problem.spares), str(low)
        text = f"lower constraints.spareReplicas from {old} to {new}"
        yield Fix("constraints.spareReplicas", old, new, 1.0 - low / problem.spares, text)


def _other_tp(problem: Problem) -> Iterator[Fix]:
    """The TP that the search would take if it were free."""
    if not problem.tps:
        return
    from servegen.solve.search import search

    best = search(dataclasses.replace(problem, tps=())).best
    if best is None:
        return
    wanted = sorted({*problem.tps, *(r.tp for r in best.roles)})
    if _feasible(dataclasses.replace(problem, tps=tuple(wanted))):
        old, new = ", ".join(map(str, problem.tps)), ", ".join(map(str, wanted))
        yield Fix(
            "constraints.tp",
            old,
            new,
            0.5,
            f"allow TP {', '.join(map(str, sorted({r.tp for r in best.roles})))}: constraints.tp [{new}]",
        )


def _joined_nodes(problem: Problem) -> Iterator[Fix]:
    """A fabric between the nodes of a kind, where none is declared: replicas may then span them, and roles hand KV caches on."""
    for i, kind in enumerate(problem.pool):
        if kind.plan.nodes == 1 or kind.plan.fabric_bytes_per_s:
            continue
        plan = dataclasses.replace(kind.plan, fabric_bytes_per_s=parse_bandwidth(USUAL_FABRIC))
        pool = (*problem.pool[:i], dataclasses.replace(kind, plan=plan), *problem.pool[i + 1 :])
        if _feasible(dataclasses.replace(problem, pool=pool)):
            where = f"hardware.pool[{i}].fabric ({kind.facts.id})"
            text = f"declare the network between the nodes, {where}: with a bandwidth of {USUAL_FABRIC} it is enough"
            yield Fix(f"hardware.pool.{i}.fabric.bandwidth", "none", USUAL_FABRIC, 0.5, text)


def _precisions(problem: Problem) -> Iterator[Fix]:
    """One more weight precision, the least narrow first, or an fp8 KV cache."""
    for precision in PRECISIONS:
        if precision in problem.allowed_weights:
            continue
        engines = tuple(
            dataclasses.replace(e, weights=(*e.weights, _option(problem, precision, e)))
            for e in problem.engines
            if precision in e.facts.weights
        )
        if engines and _feasible(
            dataclasses.replace(problem, engines=engines, allowed_weights=(*problem.allowed_weights, precision))
        ):
            old = ", ".join(problem.allowed_weights)
            named = any(o.load for e in engines for o in e.weights if o.precision == precision)
            where = "" if named else ", and its checkpoint to model.checkpoints"
            text = f"allow {precision} weights: add {precision} to constraints.weights{where}"
            yield Fix("constraints.weights", old, f"{old}, {precision}", 1.0, text)
            break
    if "fp8" not in problem.allowed_kv:
        engines = tuple(dataclasses.replace(e, kv=(*e.kv, "fp8")) for e in problem.engines if "fp8" in e.facts.kv_cache)
        if engines and _feasible(dataclasses.replace(problem, engines=engines, allowed_kv=(*problem.allowed_kv, "fp8"))):
            old = ", ".join(problem.allowed_kv)
            yield Fix("constraints.kvCache", old, f"{old}, fp8", 0.5, "allow an fp8 KV cache: add fp8 to constraints.kvCache")


def _option(problem: Problem, precision: str, engine: EngineOption) -> WeightOption:
    """The precision as the engine would serve it: the model's own files, quantized while loading, or a checkpoint to be named."""
    own = problem.model.native_precision
    if precision == own:
        return WeightOption(precision, problem.served_name, "", own)
    bf16 = next((o.load for o in engine.weights if o.stored == "bf16"), problem.served_name if own == "bf16" else "")
    if bf16 and precision in engine.facts.quantize_on_load:
        return WeightOption(precision, bf16, precision, "bf16")
    return WeightOption(precision, "", "", precision)
