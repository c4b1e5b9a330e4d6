"""A plan as tables and sentences: what text, terminal and PLAN.md all show, so that they never disagree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from servegen.plan import Band, Plan, Quantiles, Role, TrafficPlan
from servegen.report.blocks import Table, table
from servegen.report.figures import (
    NONE,
    count,
    deviation,
    gigabytes,
    money,
    number,
    one_line,
    percent,
    seconds,
    size,
)  # fmt: skip
from servegen.rollout import surge_fits

TERMS = ("weights", "kv", "compute", "attention", "collectives", "overhead")
_METRICS = {"ttft": "TTFT", "itl": "ITL", "e2e": "E2E"}


def headline(plan: Plan) -> str:
    """One sentence: what runs where and what it costs."""
    choice = plan.choice
    kinds = dict.fromkeys(role.accelerator for role in choice.roles)
    shape = "split serving" if choice.topology == "disaggregated" else "aggregated serving"
    return one_line(
        f"{choice.ratio} {choice.engine} {choice.engine_version} of {plan.model.served_name} on {choice.devices} x "
        f"{' + '.join(kinds)} ({shape}), {money(choice.cost_per_hour)}/h"
    )


def roles(plan: Plan) -> Table:
    """Shape (roles, 11): what is started how often, and with which limits; of groups also who answers how many requests."""
    headers: tuple[str, ...] = (
        "role", "accelerator", "weights", "KV", "parallelism", "replicas", "spares", "accelerators",
        "max running", "prefill chunk", "context",
    )  # fmt: skip
    rows = [
        (
            role.name, role.accelerator, role.weights, role.kv, spread(plan, role), str(role.replicas), str(role.spares),
            str(role.total_devices), count(role.max_running_requests), count(role.chunked_prefill_size),
            count(role.context_length), *([percent(role.share)] if role.grouped else []),
        )
        for role in plan.choice.roles
    ]
    if any(role.grouped for role in plan.choice.roles):
        headers = (*headers, "requests")
    return table(headers, rows, left=5)


def spread(plan: Plan, role: Role) -> str:
    """``tp8 pp2 on 2 nodes``: the degrees of parallelism, and the nodes of a replica that takes more than one."""
    nodes = plan.nodes(role)
    return f"{parallelism(role)} on {nodes} nodes" if nodes > 1 else parallelism(role)


def parallelism(role: Role) -> str:
    """``tp8``, ``tp4 pp2 dp4 ep8``: the degrees above one, tensor parallelism always."""
    degrees = (("tp", role.tp), ("pp", role.pp), ("dp", role.dp), ("ep", role.ep))
    return " ".join(f"{name}{degree}" for name, degree in degrees if name == "tp" or degree > 1)


def cost(plan: Plan) -> Table:
    """Shape (4, 2)."""
    choice = plan.choice
    rows = [
        ("accelerators, spares included", count(choice.devices)),
        ("per hour", money(choice.cost_per_hour)),
        ("per million output tokens", money(choice.cost_per_million_output_tokens)),
        ("accelerator power", f"{count(choice.watts)} W" if math.isfinite(choice.watts) else NONE),
    ]
    return table(("cost", "figure"), rows)


def prices(plan: Plan) -> Table:
    """Shape (pools in use, 3): the price of each accelerator and where it comes from."""
    used = dict.fromkeys(role.pool for role in plan.choice.roles)
    pools = [plan.pool[i] for i in used if 0 <= i < len(plan.pool)]
    rows = [(p.accelerator, f"{money(p.price_per_hour)}/h", one_line(p.price_source)) for p in pools]
    return Table(("accelerator", "price each", "source"), tuple(rows), frozenset({1}))


def latencies(plan: Plan) -> Table:
    """Shape (3 or 4, 6): each latency with its band, at the sized load."""
    found = plan.prediction
    rows = []
    for key, quantiles in (("ttft", found.ttft), ("itl", found.itl), ("tpot", found.tpot), ("e2e", found.e2e)):
        if quantiles is not None:
            figures = (seconds(value) for value in (quantiles.mean, quantiles.p50, quantiles.p95, quantiles.p99))
            rows.append((_METRICS.get(key, "TPOT"), *figures, band(found.band.get("itl" if key == "tpot" else key))))
    return table(("latency", "mean", "p50", "p95", "p99", "band"), rows)


def band(value: Band | None) -> str:
    return NONE if value is None else f"{deviation(value.low)} / {deviation(value.high)}"


def bounds(plan: Plan) -> Table:
    """Shape (bounds of the SLO, 5): bound, allowed, predicted, the band around it, and whether it is met."""
    rows = []
    for key, allowed in plan.slo.items():
        if key == "attainment":
            attained = plan.prediction.slo_attainment
            met = attained >= allowed * (1 - 1e-9)
            rows.append(("attainment", f"at least {percent(allowed)}", percent(attained), NONE, "yes" if met else "NO"))
            continue
        found = predicted(plan, key)
        metric = key.partition(".")[0]
        around = plan.prediction.band.get("itl" if metric == "tpot" else metric)
        low, high = (found * around.low, found * around.high) if around else (math.nan, found)
        span = f"{seconds(low)} to {seconds(high)}" if around else NONE
        verdict = _verdict(found, high, allowed)
        rows.append((_bound(key), f"at most {seconds(allowed)}", seconds(found), span, verdict))
    return Table(("bound", "allowed", "predicted", "range", "met"), tuple(rows), frozenset({1, 2, 3}))


def predicted(plan: Plan, key: str) -> float:
    """What a plan says of a latency, as of its bounds (``ttft.p90``); nan where it says nothing."""
    if key in plan.prediction.bounds:
        return plan.prediction.bounds[key]
    metric, _, quantile = key.partition(".")
    quantiles: Quantiles | None = getattr(plan.prediction, metric, None) if metric in _METRICS else None
    value = getattr(quantiles, quantile or "p95", math.nan)
    return float(value)


def _bound(key: str) -> str:
    metric, _, quantile = key.partition(".")
    return one_line(f"{_METRICS.get(metric, metric)} {quantile}".strip())


def _verdict(predicted: float, high: float, allowed: float) -> str:
    slack = allowed * (1 + 1e-9)
    if not predicted <= slack:
        return "NO"
    return "yes" if high <= slack else "yes, but not at the high end"


def _rate(traffic: TrafficPlan) -> str:
    if traffic.rate:
        return f"{number(traffic.rate)} requests/s"
    return "what the closed loop turns" if traffic.concurrency else "saturated"


def load(plan: Plan) -> Table:
    """Shape (<= 11, 2): what the plan was sized for and what it carries."""
    traffic, found = plan.traffic, plan.prediction
    rows = [
        ("rate", _rate(traffic)),
        ("prompt tokens", f"{count(traffic.isl_mean)} mean, {count(traffic.isl_p95)} p95"),
        ("output tokens", f"{count(traffic.osl_mean)} mean, {count(traffic.osl_p95)} p95"),
        ("sized for", f"{number(found.load_rate)} requests/s"),
        ("carries at most", f"{number(found.sustained_rate)} requests/s"),
        ("utilization", percent(found.utilization)),
        ("output", f"{number(found.output_tokens_per_second)} tokens/s, band {band(found.band.get('throughput'))}"),
        ("requests that meet every bound", percent(found.slo_attainment) if plan.slo else NONE),
    ]
    if traffic.concurrency:
        rows.insert(1, ("concurrency", number(traffic.concurrency)))
    if traffic.prefix_hit or traffic.prefix_source == "trace":
        rows.insert(2, ("prompt tokens found in the prefix cache", percent(traffic.prefix_hit)))
    if traffic.prefix_source == "trace":
        rows.insert(3, ("the same without a bound on the cache", percent(traffic.prefix_unbounded)))
    return Table(("load", "figure"), tuple(rows))


def memory(plan: Plan) -> Table:
    """Shape (10 or 11, roles + 1): gigabytes on one device by purpose, and what the KV pool of one replica holds."""
    parts = {
        "weights": "weight_bytes",
        "KV cache": "kv_pool_bytes",
        "activations": "activation_bytes",
        "graphs": "graph_bytes",
        "collective buffers": "collective_bytes",
        "engine and driver": "runtime_bytes",
    }
    memories = [role.memory for role in plan.choice.roles]
    if any(m.draft_bytes for m in memories):
        parts["draft model and its graphs"] = "draft_bytes"
    rows = [(label, *(gigabytes(getattr(m, name)) for m in memories)) for label, name in parts.items()]
    free = [m.usable_bytes - sum(getattr(m, name) for name in parts.values()) for m in memories]
    rows.append(("not used", *(gigabytes(max(0.0, value)) for value in free)))
    rows.append(("usable", *(gigabytes(m.usable_bytes) for m in memories)))
    rows.append(("KV per token", *(size(m.kv_bytes_per_token) for m in memories)))
    rows.append(("tokens a replica's pool holds", *(count(m.kv_tokens) for m in memories)))
    return table(("on one device, GB", *(role.name for role in plan.choice.roles)), rows)


def steps(plan: Plan) -> Table:
    """Shape (terms + 5, roles + 1): where the time of one decode step goes, per role."""
    chosen = plan.choice.roles
    rows = [(term, *(seconds(role.breakdown_s.get(term, math.nan)) for role in chosen)) for term in TERMS]
    others = dict.fromkeys(term for role in chosen for term in role.breakdown_s if term not in TERMS)
    rows += [(one_line(term), *(seconds(role.breakdown_s.get(term, math.nan)) for role in chosen)) for term in others]
    rows.append(("decode step", *(seconds(role.step_time_s) for role in chosen)))
    rows.append(("bound by", *(one_line(role.bound) for role in chosen)))
    rows.append(("prefill of the mean prompt", *(seconds(role.prefill_time_s) for role in chosen)))
    rows.append(("running requests", *(number(role.running_requests) for role in chosen)))
    rows.append(("utilization", *(percent(role.utilization) for role in chosen)))
    return table(("one replica", *(role.name for role in chosen)), rows)


#: What stands in a waterfall, in words.
EFFECTS = {
    "floor": "ideal roofline", "efficiency": "efficiency below peak", "launch": "launches and step overhead",
    "communication": "communication", "request": "request handling", "handoff": "hand-off of the KV cache",
    "batch": "batches that vary", "interference": "prefill and decode in each other's way", "queueing": "queueing",
}  # fmt: skip
#: What is less than this share of a latency is the rounding of its percentile.
NOISE = 1e-6


def waterfalls(plan: Plan) -> Table:
    """Shape (effects + 2, waterfalls + 1): each latency from its ideal roofline to its prediction."""
    found = plan.waterfalls
    names = dict.fromkeys(e.name for w in found for e in w.effects)
    rows = [(EFFECTS["floor"], *(seconds(w.floor_s) for w in found))]
    for name in names:
        adds = [next((e.adds_s for e in w.effects if e.name == name), 0.0) for w in found]
        if any(a > NOISE * w.total_s for a, w in zip(adds, found, strict=True)):
            cells = (f"+{seconds(a)}" if a > NOISE * w.total_s else NONE for a, w in zip(adds, found, strict=True))
            rows.append((EFFECTS.get(name, one_line(name)), *cells))
    rows.append(("predicted", *(seconds(w.total_s) for w in found)))
    return table(("what adds up", *(_bound(f"{w.metric}.{w.statistic}") for w in found)), rows)


def cases(plan: Plan) -> Table:
    """Shape (ends, 5): what would be chosen where every prediction lies at one end of its band."""
    ends = {"low": "at the high end of its band", "best": "as predicted", "high": "at the low end of its band"}
    rows = []
    for case in plan.cases:
        counts = " + ".join(f"{n} {role}" for role, n in case.replicas.items()) or NONE
        cost = f"{money(case.cost_per_hour)}/h" if case.replicas else NONE
        rows.append((ends[case.end], counts, count(case.devices) if case.replicas else NONE, cost, one_line(case.summary)))
    return Table(("if latency turns out", "replicas", "accelerators", "cost", "best plan then"), tuple(rows), frozenset({2, 3}))


def missing(plan: Plan) -> Table:
    """Shape (roles, 7): what is left when one replica is down, and how a rollout replaces them."""
    rows = []
    for gap in plan.missing:
        rows.append(
            (
                gap.role, str(gap.left), percent(gap.utilization), seconds(gap.ttft_p95_s), seconds(gap.itl_p95_s),
                "yes" if gap.bounds_hold else "NO", _rollout(plan, plan.role(gap.role)),
            )
        )
    headers = ("one replica down of", "left", "utilization", "TTFT p95", "ITL p95", "bounds hold", "a rollout")
    return Table(headers, tuple(rows), frozenset({1, 2, 3, 4}))


def _rollout(plan: Plan, role: Role) -> str:
    if surge_fits(plan, role):
        return "starts each successor first: the pool has room for one more"
    return "takes one down at a time: the pool may have no room for one more"


def alternatives(plan: Plan) -> Table:
    """Shape (alternatives, 7): the runners-up and why they lost."""
    rows = [
        (
            one_line(a.summary or a.name), str(a.devices), f"{money(a.cost_per_hour)}/h", seconds(a.ttft_p95_s),
            seconds(a.itl_p95_s), number(a.output_tokens_per_second), one_line(a.why_lost),
        )
        for a in plan.alternatives
    ]
    headers = ("runner-up", "accelerators", "cost", "TTFT p95", "ITL p95", "tokens/s", "why it lost")
    return Table(headers, tuple(rows), frozenset(range(1, 6)))


def pareto(plan: Plan) -> Table:
    """Shape (points, 6): the configurations that none other beats in every figure."""
    rows = [
        (
            one_line(p.name), str(p.devices), f"{money(p.cost_per_hour)}/h", seconds(p.ttft_p95_s),
            seconds(p.itl_p95_s), number(p.output_tokens_per_second),
        )
        for p in plan.pareto
    ]
    return table(("candidate", "accelerators", "cost", "TTFT p95", "ITL p95", "tokens/s"), rows)


def rejected(counts: Mapping[str, int]) -> Table:
    """Shape (reasons, 2): the most frequent reason first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return table(("rejected because", "candidates"), [(one_line(reason), count(n)) for reason, n in ordered])


def overrides(plan: Plan, replaced: Sequence[str] = ()) -> tuple[str, ...]:
    """One line per value that the spec's overrides put in place of ours; ``replaced`` says it of flags that are known."""
    deploy = plan.deploy
    stated = [f"argument {name} = {value}" for name, value in sorted(deploy.args.items())]
    stated += [f"environment {name} = {value}" for name, value in sorted(deploy.env.items())]
    lines = list(replaced) or stated
    lines += [f"patch {name}" for name, _ in deploy.patches]
    return tuple(one_line(line) for line in lines)


def replays(plan: Plan) -> tuple[str, ...]:
    """What a replay of the plan found, one sentence each; none unless it was verified."""
    return lines(plan.verification.found) if plan.verification is not None else ()


def lines(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(one_line(text) for text in texts)
