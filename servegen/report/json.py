"""The stable keys for machines: camelCase, seconds, tokens, dollars. docs/cli.md lists them."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Mapping
from typing import Any

from servegen.codec import to_jsonable
from servegen.errors import InfeasibleError
from servegen.plan import Plan, Quantiles, Role


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as ``servegen plan --format json`` prints it."""
    choice, found = plan.choice, plan.prediction
    return _rounded({
        "name": plan.name,
        "feasible": plan.feasible,
        "choice": {
            "engine": choice.engine,
            "topology": choice.topology,
            "roles": [_role(role) for role in choice.roles],
            "devices": choice.devices,
            "costPerHour": choice.cost_per_hour,
            "costPerMillionOutputTokens": choice.cost_per_million_output_tokens,
        },
        "prediction": {
            "ttft": _quantiles(found.ttft),
            "itl": _quantiles(found.itl),
            "e2e": _quantiles(found.e2e),
            "outputTokensPerSecond": found.output_tokens_per_second,
            "utilization": found.utilization,
            "sloAttainment": found.slo_attainment,
            "band": found.band,
        },
        "prefixCache": {
            "source": plan.traffic.prefix_source,
            "hitShare": plan.traffic.prefix_hit,
            "unboundedShare": plan.traffic.prefix_unbounded,
            "spreadShare": plan.traffic.prefix_spread,
            "keptTokens": plan.traffic.prefix_kept_tokens,
            "caches": plan.traffic.prefix_caches,
        },
        "binding": plan.binding,
        "why": plan.why,
        "flips": [{"parameter": flip.parameter, "text": flip.text} for flip in plan.flips],
        "cases": {
            case.end: {
                "summary": case.summary,
                "replicas": case.replicas,
                "devices": case.devices,
                "costPerHour": case.cost_per_hour,
            }
            for case in plan.cases
        },
        "missing": [
            {
                "role": gap.role,
                "left": gap.left,
                "utilization": gap.utilization,
                "boundsHold": gap.bounds_hold,
                "ttftP95": gap.ttft_p95_s,
                "itlP95": gap.itl_p95_s,
            }
            for gap in plan.missing
        ],
        "alternatives": [
            {
                "name": a.name,
                "topology": a.topology,
                "summary": a.summary,
                "devices": a.devices,
                "costPerHour": a.cost_per_hour,
                "ttftP95": a.ttft_p95_s,
                "itlP95": a.itl_p95_s,
                "outputTokensPerSecond": a.output_tokens_per_second,
                "whyLost": a.why_lost,
            }
            for a in plan.alternatives
        ],
        "pareto": [
            {
                "name": p.name,
                "devices": p.devices,
                "costPerHour": p.cost_per_hour,
                "ttftP95": p.ttft_p95_s,
                "itlP95": p.itl_p95_s,
                "outputTokensPerSecond": p.output_tokens_per_second,
            }
            for p in plan.pareto
        ],
        "searched": plan.searched,
        "rejected": plan.rejected,
        "verification": plan.verification,
    })  # fmt: skip


def infeasible_json(error: InfeasibleError) -> dict[str, Any]:
    """What ``plan`` prints for a spec that nothing meets: the bound, the best value, the smallest changes."""
    return _rounded({
        "name": error.name,
        "feasible": False,
        "binding": [error.bound],
        "why": [error.message],
        "best": error.best,
        "fixes": [{"key": fix.key, "old": fix.old, "new": fix.new, "text": fix.text} for fix in error.fixes],
        "searched": error.searched,
        "rejected": error.rejected,
    })  # fmt: skip


def estimate_json(estimate: Any) -> dict[str, Any]:
    """The estimate by its attribute names, SI units; every digit, as there are exact values to compare it with."""
    found: dict[str, Any] = _plain(estimate)
    return found


def json_text(value: Any) -> str:
    """Two spaces of indent, the order of the keys kept, no NaN, a final newline."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def yaml_text(value: Any) -> str:
    """The same data as block YAML, the order of the keys kept."""
    from ruamel.yaml import YAML

    writer = YAML()
    writer.width = 4096
    stream = io.StringIO()
    writer.dump(_plain(value), stream)
    return stream.getvalue()


def _role(role: Role) -> dict[str, Any]:
    return {
        "role": role.role,
        "name": role.name,
        "share": role.share,
        "accelerator": role.accelerator,
        "weights": role.weights,
        "kv": role.kv,
        "tp": role.tp,
        "pp": role.pp,
        "dp": role.dp,
        "ep": role.ep,
        "replicas": role.replicas,
        "spares": role.spares,
        "devices": role.devices,
        "maxRunningRequests": role.max_running_requests,
        "chunkedPrefillSize": role.chunked_prefill_size,
        "memFractionStatic": role.mem_fraction_static,
        "contextLength": role.context_length,
    }


def _quantiles(found: Quantiles) -> dict[str, float]:
    return {"mean": found.mean, "p50": found.p50, "p95": found.p95, "p99": found.p99}


def _plain(value: Any) -> Any:
    """Plain JSON types; what is no number is null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rounded(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = to_jsonable(value)
    return plain
