"""Checks of autoscalers: what they scale, between which counts, by which figures."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from servegen.regex import meets
from servegen.validate.modifiers import check_modifiers, check_paused
from servegen.validate.objects import Manifest, Scene, dig, mapping, sequence
from servegen.validate.series import engines, everywhere, misspelt, unread
from servegen.validate.syntax import quantity, shown

_KEY = "deploy.autoscaling"
#: Of what can be scaled: its apiVersion, and how the name of a pod that serves goes on behind its own.
_TARGETS = {"Deployment": ("apps/v1", "-6d4cf56db6-x7k2q"), "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", "-0")}
#: Those scalers of KEDA that a server of models may have (keda.sh/docs/scalers).
_SCALERS = (
    "prometheus", "cpu", "memory", "cron", "external", "external-push", "kafka", "redis", "redis-streams", "rabbitmq",
    "aws-cloudwatch", "aws-sqs-queue", "azure-monitor", "azure-servicebus", "datadog", "gcp-stackdriver", "gcp-pubsub",
    "graphite", "influxdb", "kubernetes-workload", "loki", "metrics-api", "mysql", "nats-jetstream", "new-relic", "postgresql",
)  # fmt: skip
#: What a trigger must say, of those kinds that are judged.
_NEEDED = {
    "prometheus": ("threshold",), "cpu": ("value",), "memory": ("value",),
    "cron": ("timezone", "start", "end", "desiredReplicas"),
}  # fmt: skip
#: Triggers that see nothing while no pod runs, unless a query of prometheus asks for what others measure.
_OF_PODS = ("cpu", "memory")
#: Kinds of metrics: their field, and the kinds of targets that they may have, each with its field (autoscaling/v2).
_METRICS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Pods": ("pods", ("AverageValue",)),
    "Object": ("object", ("Value", "AverageValue")),
    "External": ("external", ("Value", "AverageValue")),
    "Resource": ("resource", ("Utilization", "AverageValue")),
    "ContainerResource": ("containerResource", ("Utilization", "AverageValue")),
}
_TARGET_FIELDS = {"AverageValue": "averageValue", "Value": "value", "Utilization": "averageUtilization"}
_LABEL = re.compile(r"\b(namespace|pod)\s*(=~|=)\s*\"((?:[^\"\\]|\\.)*)\"")


def check_scaling(scene: Scene) -> None:
    """Every autoscaler, and that no count has two owners."""
    scalers = scene.of_kind("HorizontalPodAutoscaler", "ScaledObject")
    for m in scalers:
        _check_scaler(scene, m)
        _check_behavior(scene, m)
        if m.kind == "ScaledObject":
            _check_triggers(scene, m)
            check_modifiers(scene, m)
            check_paused(scene, m)
        else:
            _check_metrics(scene, m)
    targets = [dig(s.body, "spec.scaleTargetRef.name") for s in scalers]
    for m in scene.runners:
        if targets.count(m.name) > 1:
            scene.add("scaling", m, "spec.replicas", "two autoscalers own the count", _KEY)


def _check_scaler(scene: Scene, m: Manifest) -> None:
    hpa = m.kind == "HorizontalPodAutoscaler"
    names = ("minReplicas", "maxReplicas") if hpa else ("minReplicaCount", "maxReplicaCount")
    low, high = (m.get(f"spec.{n}") for n in names)
    target = m.get("spec.scaleTargetRef.name")
    kind = str(m.get("spec.scaleTargetRef.kind") or "Deployment")
    runner = next((d for d in scene.runners if (d.kind, d.name) == (kind, target)), None)
    if runner is None:
        scene.add("reference", m, "spec.scaleTargetRef", f"there is no {kind} {shown(target)}", "deploy.autoscaling")
    version = _TARGETS.get(kind, ("", ""))[0]
    if version and m.get("spec.scaleTargetRef.apiVersion") not in (None, version):
        problem = f"is {shown(m.get('spec.scaleTargetRef.apiVersion'))}, a {kind} is {version}"
        scene.add("reference", m, "spec.scaleTargetRef.apiVersion", problem, _KEY)
    least = 1 if hpa or low != 0 or not _wakes(scene, m) else 0
    if not isinstance(low, int) or not isinstance(high, int) or not least <= low <= high:
        problem = f"min {shown(low)}, max {shown(high)}: 1 <= min <= max is needed"
        if low == 0:
            problem += ", for who asks only the pods does not see that there are requests while none runs"
        scene.add("scaling", m, f"spec.{names[0]}", problem, "traffic.trough")
    elif runner is not None and (role := scene.role(runner)) is not None:
        pool, over = scene.plan.pool[role.pool], scene.plan.nodes(role)
        most = pool.nodes // over if over > 1 else pool.nodes * (pool.per_node // max(role.devices, 1))
        if high > most:
            problem = f"is {high}, the pool holds {most} replicas of {role.devices} accelerators"
            scene.add("scaling", m, f"spec.{names[1]}", problem, "hardware.pool")
        if low > role.total_replicas:
            problem = f"is {low}, the plan takes {role.total_replicas} at the peak"
            scene.add("scaling", m, f"spec.{names[0]}", problem, "traffic.trough")


def _wakes(scene: Scene, m: Manifest) -> bool:
    """Whether some trigger of a ScaledObject can see that there are requests, or that it is time, while no pod runs."""
    for trigger in (mapping(t) for t in sequence(m.get("spec.triggers"))):
        kind, query = trigger.get("type"), str(dig(trigger, "metadata.query"))
        if kind not in _OF_PODS and not (kind == "prometheus" and engines(query)):
            return True
    return False


def _check_triggers(scene: Scene, m: Manifest) -> None:
    triggers = [mapping(t) for t in sequence(m.get("spec.triggers"))]
    if not triggers:
        scene.add("scaling", m, "spec.triggers", "there is none", _KEY)
    names = [str(t["name"]) for t in triggers if "name" in t]
    if len(set(names)) < len(names):
        scene.add("scaling", m, "spec.triggers.name", "one is there twice", _KEY)
    for trigger in triggers:
        data, path = mapping(trigger.get("metadata")), "spec.triggers.metadata"
        kind, how = str(trigger.get("type")), trigger.get("metricType", "AverageValue")
        near = difflib.get_close_matches(kind, _SCALERS, 1, 0.8)
        if kind not in _SCALERS and near:
            scene.add("scaling", m, "spec.triggers.type", f"{kind!r} is no scaler of KEDA; did you mean {near[0]}?", _KEY)
        if how not in ("AverageValue", "Value") and not (how == "Utilization" and kind in ("cpu", "memory")):
            problem = f"is {shown(how)}, must be AverageValue or Value"
            scene.add("scaling", m, "spec.triggers.metricType", problem, _KEY)
        if data.get("ignoreNullValues", "true") not in ("true", "false"):
            problem = f"is {shown(data['ignoreNullValues'])}, must be 'true' or 'false' in quotes"
            scene.add("scaling", m, f"{path}.ignoreNullValues", problem, _KEY)
        for field in _NEEDED.get(kind, ()):
            if field in ("threshold", "value") and not (isinstance(data.get(field), str) and (quantity(data[field]) or 0) > 0):
                scene.add("scaling", m, f"{path}.{field}", "must be a positive number in quotes", _KEY)
            elif data.get(field) in (None, ""):
                scene.add("scaling", m, f"{path}.{field}", f"is missing, and a {kind} trigger needs it", _KEY)
        if kind != "prometheus":
            continue
        if not re.match(r"https?://[^\s/]", str(data.get("serverAddress"))):
            problem = f"{shown(data.get('serverAddress'))} is no address of a Prometheus"
            scene.add("scaling", m, f"{path}.serverAddress", problem, _KEY)
        _check_query(scene, m, f"{path}.query", data.get("query"))
    most, fallback = m.get("spec.maxReplicaCount"), m.get("spec.fallback.replicas")
    if isinstance(fallback, int) and isinstance(most, int) and fallback > most:
        scene.add("scaling", m, "spec.fallback.replicas", f"is {fallback}, above the most of {most}", _KEY)
    least, idle = m.get("spec.minReplicaCount"), m.get("spec.idleReplicaCount")
    if isinstance(fallback, int) and fallback < 1:
        problem = f"is {fallback}: nobody is served while Prometheus does not answer"
        scene.add("scaling", m, "spec.fallback.replicas", problem, _KEY)
    if isinstance(idle, int) and isinstance(least, int) and idle >= least:
        scene.add("scaling", m, "spec.idleReplicaCount", f"is {idle}, KEDA takes fewer than the least of {least}", _KEY)
    interval = m.get("spec.pollingInterval")
    if isinstance(interval, int) and interval < 1:
        scene.add("scaling", m, "spec.pollingInterval", f"is {interval}, a positive number is needed", _KEY)


def _check_query(scene: Scene, m: Manifest, path: str, query: Any) -> None:
    """A query must ask for series of this engine, of the target's pods, in their namespace."""
    if not isinstance(query, str) or not query.strip():
        scene.add("scaling", m, path, "there is none", _KEY)
        return
    _check_series(scene, m, path, query)
    if why := unread(query):
        scene.add("scaling", m, path, f"Prometheus cannot read it: {why}", _KEY)
    elif everywhere(query):
        scene.add("scaling", m, path, "a series without namespace=... counts every deployment of the cluster", _KEY)
    suffix = _TARGETS.get(str(m.get("spec.scaleTargetRef.kind") or "Deployment"), ("", ""))[1]
    for label, how, value in _LABEL.findall(query):
        text = value.replace("\\\\", "\\")
        wanted = m.namespace if label == "namespace" else f"{m.get('spec.scaleTargetRef.name')}{suffix}"
        if (text == wanted if how == "=" else meets(text, wanted)) is False:
            what = f"pods of {m.get('spec.scaleTargetRef.name')}" if label == "pod" else f"the namespace {m.namespace}"
            scene.add("scaling", m, path, f"{label}{how}{shown(value)} finds nothing of {what}", _KEY)


def _check_series(scene: Scene, m: Manifest, path: str, text: str) -> None:
    engine = scene.plan.choice.engine
    foreign = sorted(engines(text) - {engine})
    if foreign:
        scene.add("scaling", m, path, f"asks for series of {', '.join(foreign)}, the pods run {engine}", _KEY)
    for name, meant in misspelt(text):
        scene.add("scaling", m, path, f"{engine} has no series {name}; did you mean {meant}?", _KEY)


def _check_metrics(scene: Scene, m: Manifest) -> None:
    metrics = [mapping(x) for x in sequence(m.get("spec.metrics"))]
    if not metrics:
        scene.add("scaling", m, "spec.metrics", "there is none", _KEY)
    for metric in metrics:
        source, allowed = _METRICS.get(str(metric.get("type")), ("", ()))
        if not source:
            continue  # the schema has spoken of it
        path = f"spec.metrics.{source}"
        target = mapping(dig(metric, f"{source}.target"))
        how = str(target.get("type"))
        if how not in allowed:
            problem = f"is {shown(target.get('type'))}, must be {' or '.join(allowed)}"
            scene.add("scaling", m, f"{path}.target.type", problem, _KEY)
        field = _TARGET_FIELDS[how if how in allowed else allowed[-1]]
        value = quantity(target.get(field))
        if value is None or value <= 0:
            scene.add("quantity", m, f"{path}.target.{field}", "must be a positive quantity", _KEY)
        _check_series(scene, m, f"{path}.metric.name", str(dig(metric, f"{source}.metric.name")))


def _check_behavior(scene: Scene, m: Manifest) -> None:
    """Ranges that the API server enforces (autoscaling/v2, HPAScalingRules)."""
    root = "spec.behavior" if m.kind == "HorizontalPodAutoscaler" else "spec.advanced.horizontalPodAutoscalerConfig.behavior"
    down = mapping(m.get(f"{root}.scaleDown"))
    if not sequence(down.get("policies")) and down.get("selectPolicy") != "Disabled":
        problem = "there is none: every pod beyond need is ended at once, with what it is answering"
        scene.add("scaling", m, f"{root}.scaleDown.policies", problem, _KEY)
    if m.get(f"{root}.scaleUp.selectPolicy") == "Disabled":
        problem = "is 'Disabled': the count never grows, whatever the load; Max or Min is needed"
        scene.add("scaling", m, f"{root}.scaleUp.selectPolicy", problem, _KEY)
    for way in ("scaleUp", "scaleDown"):
        rules = mapping(m.get(f"{root}.{way}"))
        figures = [("stabilizationWindowSeconds", rules.get("stabilizationWindowSeconds"), 0, 3600)]
        for policy in (mapping(p) for p in sequence(rules.get("policies"))):
            figures += [("policies.periodSeconds", policy.get("periodSeconds"), 1, 1800)]
            figures += [("policies.value", policy.get("value"), 1, 2**31 - 1)]
        for field, value, low, high in figures:
            if isinstance(value, int) and not low <= value <= high:
                scene.add("scaling", m, f"{root}.{way}.{field}", f"is {value}, must be {low} to {high}", _KEY)
