"""Autoscalers whose targets are the plan's own figures: what one replica carried in the prediction.

A queue alone is no level: it is empty whenever there are enough replicas, which would then be removed until it is not.
So each autoscaler has several signals and follows the largest: the waiting requests that call for another replica, the
load that the plan gives a replica, which holds the count while the queue is empty, and the KV room that its batch was
planned to take, which requests that are longer than planned exhaust first.
"""

from __future__ import annotations

import math
from typing import Any

from servegen.plan import Plan, Role
from servegen.render.context import API_VERSIONS
from servegen.render.names import namespace, object_name
from servegen.render.sizing import grace_s
from servegen.render.views import Meta, ScalingView, Target

#: Where the Prometheus operator serves queries in its usual namespace (the Service prometheus-operated).
PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
#: One scrape (PodMonitor interval); polling faster reads the same sample twice.
POLLING_S = 15
#: KEDA waits this long before going to zero replicas, which the minimum rules out; the value is production-stack's.
COOLDOWN_S = 360
#: Limits of the API: autoscaling/v2 HPAScalingPolicy.periodSeconds and HPAScalingRules.stabilizationWindowSeconds.
MAX_POLICY_PERIOD_S = 1800
MAX_STABILIZATION_S = 3600
SCALE_UP_WINDOW_S = 60
SCALE_DOWN_WINDOW_S = 300

QUEUE = "sglang:num_queue_reqs"
RUNNING = "sglang:num_running_reqs"
#: Share of the KV pool in use, 0 to 1.
KV_USAGE = "sglang:token_usage"
#: Requests that wait on a decode server for KV memory stand in a queue of their own.
DECODE_QUEUE = "sglang:num_decode_prealloc_queue_reqs"
PROMPT_TOKENS = "sglang:prompt_tokens_total"


def number(value: float) -> str:
    """Decimal text without an exponent, three significant digits at least, never zero."""
    text = f"{value:.0f}" if value >= 1000 else f"{value:.3f}".rstrip("0").rstrip(".")
    return text if float(text) > 0 else "0.001"


def quantity(value: float) -> str:
    """A Kubernetes quantity, in thousandths where it is not whole."""
    return str(int(value)) if value == int(value) else f"{max(1, round(value * 1000))}m"


def bounds(plan: Plan, role: Role) -> tuple[int, int]:
    """(min, max) replicas of ``role``; at least 1, because a cold start takes minutes."""
    low = max(1, plan.deploy.autoscaling_min.get(role.name, role.total_replicas))
    high = plan.deploy.autoscaling_max.get(role.name, role.total_replicas)
    return low, max(low, high)


def behavior(plan: Plan, role: Role, startup_s: float) -> dict[str, Any]:
    """Scaling rules from how long a pod takes to start and to end.

    Up: at most a doubling per start, since the pods of the last step do not help yet. Down: one pod per drain, after
    a window of at least one start, because the way back costs that much. ``startup_s`` is the budget of the startup
    probe, which is patient: half of it stands for a usual start.
    """
    start = math.ceil(startup_s / 2)
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": SCALE_UP_WINDOW_S,
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": min(MAX_POLICY_PERIOD_S, max(60, start))}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": min(MAX_STABILIZATION_S, max(SCALE_DOWN_WINDOW_S, start)),
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": min(MAX_POLICY_PERIOD_S, grace_s(plan, role))}],
        },
    }


def queue_threshold(plan: Plan, role: Role) -> float:
    """Waiting requests per replica that call for another; at least 1, a single one being chance."""
    return max(1.0, plan.deploy.autoscaling_queue.get(role.name, 1.0))


def kv_usage(plan: Plan, role: Role) -> float:
    """Share of the KV pool in use that calls for another replica, 0 where it says nothing."""
    return plan.deploy.autoscaling_kv.get(role.name, 0.0)


def prompt_rate(plan: Plan, role: Role) -> float:
    """Prompt tokens per second of one replica at the sized load."""
    return plan.prediction.load_rate * plan.traffic.isl_mean / max(role.replicas, 1)


def scaled_object(plan: Plan, role: Role, meta: Meta, target: Target, startup_s: float) -> ScalingView:
    """KEDA with Prometheus triggers over the pods of one launch that serve."""
    # Pods of a Deployment are named <name>-<hash>-<id>, leaders of a LeaderWorkerSet <name>-<number>; the label "pod" is
    # what every usual scrape configuration sets.
    suffix = "[0-9]+" if target.kind == "LeaderWorkerSet" else "[a-z0-9]+-[a-z0-9]+"
    pods = f'{{namespace="{namespace(plan)}", pod=~"{target.name}-{suffix}"}}'
    queue = f"sum({QUEUE}{pods})"
    if role.role == "decode":
        queue = f"{queue} + (sum({DECODE_QUEUE}{pods}) or vector(0))"
    triggers = [_trigger("queue", queue, queue_threshold(plan, role))]
    if role.role == "prefill":
        if prompt_rate(plan, role) > 0:
            triggers.append(_trigger("load", f"sum(rate({PROMPT_TOKENS}{pods}[2m]))", prompt_rate(plan, role)))
    elif role.running_requests > 0:
        triggers.append(_trigger("load", f"sum({RUNNING}{pods}) + {queue}", role.running_requests))
    if kv_usage(plan, role) > 0:
        triggers.append(_trigger("kv", f"sum({KV_USAGE}{pods})", kv_usage(plan, role)))
    low, high = bounds(plan, role)
    return ScalingView(
        template="kubernetes/scaledobject.yaml.j2",
        meta=meta,
        target=target,
        min_replicas=low,
        max_replicas=high,
        planned_replicas=min(high, max(low, role.total_replicas)),
        behavior=behavior(plan, role, startup_s),
        triggers=tuple(triggers),
        polling_s=POLLING_S,
        cooldown_s=COOLDOWN_S,
    )


def _trigger(name: str, query: str, threshold: float) -> dict[str, Any]:
    """A trigger for which no data is a failure, which leads to the fallback, and not a load of zero."""
    return {
        "type": "prometheus",
        "name": name,
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": PROMETHEUS,
            "query": query,
            "threshold": number(threshold),
            "ignoreNullValues": "false",
        },
    }


def horizontal(plan: Plan, role: Role, meta: Meta, target: Target, startup_s: float) -> ScalingView:
    """A HorizontalPodAutoscaler on metrics of the pods, which a metrics adapter has to serve."""
    metrics = [_pods_metric(QUEUE, queue_threshold(plan, role))]
    if role.role == "decode":
        metrics.append(_pods_metric(DECODE_QUEUE, queue_threshold(plan, role)))
    if role.role != "prefill" and role.running_requests > 0:
        metrics.append(_pods_metric(RUNNING, role.running_requests))
    if kv_usage(plan, role) > 0:
        metrics.append(_pods_metric(KV_USAGE, kv_usage(plan, role)))
    low, high = bounds(plan, role)
    return ScalingView(
        template="kubernetes/horizontalpodautoscaler.yaml.j2",
        meta=meta,
        target=target,
        min_replicas=low,
        max_replicas=high,
        planned_replicas=min(high, max(low, role.total_replicas)),
        behavior=behavior(plan, role, startup_s),
        metrics=tuple(metrics),
    )


def _pods_metric(name: str, value: float) -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": quantity(value)}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": target}}


def scaling(plan: Plan, role: Role, meta: Meta, startup_s: float) -> ScalingView | None:
    """The autoscaler of ``role`` that the spec asks for, None if it asks for none."""
    kind = "LeaderWorkerSet" if plan.nodes(role) > 1 else "Deployment"
    target = Target(API_VERSIONS[kind], kind, object_name(plan, role.name))
    if plan.deploy.autoscaling == "keda":
        return scaled_object(plan, role, meta, target, startup_s)
    if plan.deploy.autoscaling == "hpa":
        return horizontal(plan, role, meta, target, startup_s)
    return None
