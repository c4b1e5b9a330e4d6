"""Checks of how a monitor asks pods for their metrics, and of what it does with them before they are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from servegen.regex import broken, meets
from servegen.validate.objects import Manifest, Scene, admits, dig, mapping, sequence
from servegen.validate.syntax import shown

_KEY, _ENDPOINTS = "deploy.monitoring", "spec.podMetricsEndpoints"
#: A duration as Prometheus reads it, and what its units have of a millisecond.
_PARTS = re.compile(r"([0-9]{1,9})(ms|[ywdhms])")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}
#: A series of an engine in a query, and labels by which an autoscaler tells its own pods from others.
_SERIES, _OWN = re.compile(r"(?<![\w:])[a-z]+:\w+(?![\w:])"), ("namespace", "pod")
#: What tells how loaded a server of SGLang is.
_LOAD = ("sglang:num_queue_reqs", "sglang:num_running_reqs", "sglang:token_usage")


def check_monitors(scene: Scene) -> None:
    """Every endpoint of every monitor."""
    for m in scene.of_kind("PodMonitor"):
        read = dict(_read(scene, m))
        for i, endpoint in enumerate(map(mapping, sequence(m.get(_ENDPOINTS)))):
            path = f"{_ENDPOINTS}[{i}]"
            _check_asking(scene, m, path, endpoint)
            for field in ("relabelings", "metricRelabelings"):
                for k, rule in enumerate(map(mapping, sequence(endpoint.get(field)))):
                    here = f"{path}.{field}[{k}]"
                    if isinstance(rule.get("regex"), str) and broken(rule["regex"]):
                        problem = f"{shown(rule['regex'])} is no regular expression of Prometheus"
                        scene.add("monitor", m, f"{here}.regex", problem, _KEY)
                    elif field == "relabelings":
                        _check_targets(scene, m, here, rule)
                    else:
                        _check_kept(scene, m, here, rule, read)


def _check_asking(scene: Scene, m: Manifest, path: str, endpoint: Mapping[str, Any]) -> None:
    if str(endpoint.get("scheme")).lower() == "https":
        problem = f"is {shown(endpoint['scheme'])}, and the servers speak plain HTTP: nothing is collected; leave it out"
        scene.add("monitor", m, f"{path}.scheme", problem, _KEY)
    timeout, interval = _ms(endpoint.get("scrapeTimeout")), _ms(endpoint.get("interval"))
    if timeout is not None and interval is not None and timeout > interval > 0:
        problem = f"is {endpoint['scrapeTimeout']}, longer than the interval of {endpoint['interval']}: the monitor is refused"
        scene.add("monitor", m, f"{path}.scrapeTimeout", problem, _KEY)


def _ms(duration: Any) -> int | None:
    text = str(duration)
    if not _PARTS.match(text) or _PARTS.sub("", text):
        return None
    return sum(int(number) * _UNITS_MS[unit] for number, unit in _PARTS.findall(text))


def _read(scene: Scene, m: Manifest) -> Iterator[tuple[str, str]]:
    """Series of the pods of a monitor that an autoscaler asks for, each with who asks."""
    names = {pod.name for pod in scene.runners if admits(m.get("spec.selector"), pod.pod_labels)}
    for scaler in scene.of_kind("HorizontalPodAutoscaler", "ScaledObject"):
        if str(scaler.get("spec.scaleTargetRef.name")) not in names:
            continue
        asked = [str(dig(t, "metadata.query")) for t in sequence(scaler.get("spec.triggers"))]
        asked += [str(dig(x, "pods.metric.name")) for x in sequence(scaler.get("spec.metrics"))]
        for series in _SERIES.findall(" ".join(asked)):
            yield series, f"{scaler.kind}/{scaler.name}"


def _does(rule: Mapping[str, Any]) -> tuple[str, str]:
    """(action, regular expression) of a rule, with what Prometheus takes where one is not there."""
    return str(rule.get("action") or "replace").lower(), str(rule.get("regex") or "(.*)")


def _loses(action: str, pattern: str, text: str) -> bool:
    """Whether a rule for certain drops what has this text."""
    met = meets(pattern, text)
    return (action == "drop" and met is True) or (action == "keep" and met is False)


def _check_targets(scene: Scene, m: Manifest, path: str, rule: Mapping[str, Any]) -> None:
    """What a pod's labels are is the cluster's; a rule that reads none does the same to all pods."""
    action, pattern = _does(rule)
    everything = action == "drop" and pattern in ("(.*)", ".*")
    if everything or (not sequence(rule.get("sourceLabels")) and _loses(action, pattern, "")):
        does = "drops every pod" if action == "drop" else "keeps no pod"
        scene.add("monitor", m, path, f"{does}: nothing is collected", _KEY)


def _check_kept(scene: Scene, m: Manifest, path: str, rule: Mapping[str, Any], read: Mapping[str, str]) -> None:
    """A series that is dropped is not there for whoever decides by it how many pods there are."""
    action, pattern = _does(rule)
    source = [str(label) for label in sequence(rule.get("sourceLabels"))]
    if action in ("labeldrop", "labelkeep") and read:
        for label in _OWN:
            met = meets(pattern, label)
            if (action == "labeldrop" and met is True) or (action == "labelkeep" and met is False):
                problem = f"takes the label {label} from all series, and {next(iter(read.values()))} asks by it: it sees nothing"
                scene.add("monitor", m, path, problem, _KEY)
                return
    if source not in ([], ["__name__"]):
        return
    for series, who in read.items():
        if _loses(action, pattern, series if source else ""):
            problem = f"drops {series}, which {who} asks for: the count no longer follows the load"
            scene.add("monitor", m, path, problem, _KEY)
            return
    if scene.plan.choice.engine == "sglang" and all(_loses(action, pattern, s if source else "") for s in _LOAD):
        problem = "drops every figure of how loaded the servers are"
        scene.add("monitor", m, path, problem, _KEY, "warning")
