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
from servegen.solve.problem import Kind, Problem, WeightOption
from servegen.solve.space import occupancy
from servegen.solve.words import duration
from servegen.solve.words import load as load_words

if TYPE_CHECKING:
    from servegen.solve.search import Searched

#: A bound is not relaxed beyond this factor, a pool not enlarged beyond it: the fix would no longer be small.
LARGEST = 64.0
#: Halvings of the search for the smallest factor: 64 -> 0.1 % of the answer.
HALVINGS = 12


def infeasible(problem: Problem, seen: Searched) -> InfeasibleError:
    """The error that explains itself."""
    stage = max((o.stage for o in seen.outcomes), default=0)
    fixes = tuple(sorted(_fixes(problem), key=lambda f: (f.relative, f.key, f.new)))
    bound, message, best = _diagnosis(problem, seen, stage, fixes)
    return InfeasibleError(problem.name, bound, message, best, fixes, dict(sorted(seen.rejected.items())), seen.searched)


def _diagnosis(problem: Problem, seen: Searched, stage: int, fixes: tuple[Fix, ...]) -> tuple[str, str, str]:
    """(bound id, what is wrong, best attainable) by the last hurdle that any candidate took."""
    if stage == 0:
        reason = max(sorted(seen.rejected), key=lambda r: seen.rejected[r], default="nothing to choose from")
        return reason.split(":")[0], f"no configuration can exist: {reason}", "none"
    blocks = [o.block for o in seen.outcomes if o.block is not None]
    if stage == 1:
        return "memory", "no configuration fits the accelerators' memory", _least_memory(problem, blocks)
    if stage == 2:
        return _latency(problem, blocks)
    most = max(o.most for o in seen.outcomes)
    limit = (
        "maxAccelerators"
        if problem.max_accelerators and any(problem.max_accelerators < k.devices for k in problem.pool)
        else "pool"
    )
    latency_fix = next((f.key for f in fixes if f.key.startswith("slo.")), "")
    hint = f" (and {latency_fix} could be looser instead)" if latency_fix and fixes and fixes[0].key == latency_fix else ""
    return (
        limit,
        f"the accelerators carry {_load(problem, most)} of {_load(problem, problem.load)} within the bounds{hint}",
        _load(problem, most),
    )


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
            name = f"{config.accelerator.id}, {config.weights} weights, TP {config.tp}"
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
        return "slo", "no configuration meets all bounds at once, though each alone can be met", "each bound alone"
    _, bound, best = worst
    message = f"even a single request misses {bound.id} of {duration(bound.seconds)}, whatever the number of replicas"
    return bound.id, message, f"{bound.id} = {duration(best)}"


def _idle(problem: Problem, block: Block, bound: Bound) -> list[float]:
    """A bounded statistic of an idle replica, for every row whose weights fit."""
    d = problem.demand
    fits = block.budget.fits.any(axis=1)
    p = DISCIPLINES[block.discipline](block.server, d, np.full(len(block.rows), size.IDLE))
    if math.isnan(bound.probability):
        values = size.mean(bound.metric, p, d)
    else:
        probability = bound.probability + (size.SLOT_WAIT if bound.metric in ("ttft", "e2e") else 0.0)
        values = latency.quantile(lambda t: size.exceeds(bound.metric, p, d, t), probability, len(block.rows))
    return [float(v) for v in values[fits]]


def _fixes(problem: Problem) -> Iterator[Fix]:
    """Single changes that were verified: looser bounds, more nodes, another precision."""
    yield from _looser(problem)
    yield from _larger(problem)
    yield from _narrower(problem)


def _feasible(problem: Problem) -> bool:
    from servegen.solve.search import search

    return search(problem).best is not None


def _smallest_factor(feasible: Callable[[float], bool]) -> float | None:
    """Smallest factor up to LARGEST that works, to about a tenth of a percent; None if the largest does not."""
    if not feasible(LARGEST):
        return None
    low, high = 0.0, math.log(LARGEST)
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


def _narrower(problem: Problem) -> Iterator[Fix]:
    """One more weight precision that the engine could load if a checkpoint were named, or an fp8 KV cache."""
    for precision in PRECISIONS:
        if precision in problem.allowed_weights or precision == "bf16":
            continue
        engines = tuple(
            dataclasses.replace(e, weights=(*e.weights, _option(precision, e.facts.quantize_on_load, e.weights)))
            for e in problem.engines
            if precision in e.facts.weights
        )
        if engines and _feasible(
            dataclasses.replace(problem, engines=engines, allowed_weights=(*problem.allowed_weights, precision))
        ):
            old = ", ".join(problem.allowed_weights)
            text = f"allow {precision} weights: add {precision} to constraints.weights, and its checkpoint to model.checkpoints"
            yield Fix("constraints.weights", old, f"{old}, {precision}", 1.0, text)
            break
    if "fp8" not in problem.allowed_kv:
        engines = tuple(dataclasses.replace(e, kv=(*e.kv, "fp8")) for e in problem.engines if "fp8" in e.facts.kv_cache)
        if engines and _feasible(dataclasses.replace(problem, engines=engines, allowed_kv=(*problem.allowed_kv, "fp8"))):
            old = ", ".join(problem.allowed_kv)
            yield Fix("constraints.kvCache", old, f"{old}, fp8", 0.5, "allow an fp8 KV cache: add fp8 to constraints.kvCache")


def _option(precision: str, on_load: tuple[str, ...], known: tuple[WeightOption, ...]) -> WeightOption:
    """The precision as the engine would serve it: quantized while loading if it can, else from a checkpoint yet to be named."""
    bf16 = next((o for o in known if o.stored == "bf16"), None)
    if bf16 is not None and precision in on_load:
        return WeightOption(precision, bf16.load, precision, "bf16")
    return WeightOption(precision, known[0].load if known else "", "", precision)
