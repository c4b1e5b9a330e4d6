"""Proof that a rendered object says what its view means: a value that broke out of its place is found here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

from servegen.errors import Diagnostic, RenderError, Where
from servegen.governing import of_planned, written
from servegen.manifest import documents, unescape_variables
from servegen.render.views import (
    ClaimView,
    DeploymentView,
    DisruptionBudgetView,
    KustomizationView,
    LeaderWorkerSetView,
    NetworkPolicyView,
    ObjectView,
    PodMonitorView,
    PodView,
    Probe,
    RoleBindingView,
    RoleView,
    ScalingView,
    ServiceAccountView,
    ServiceView,
    Volume,
)

Path = tuple[str | int, ...]
Leaves = list[tuple[Path, Any]]

_MISSING = object()
_WHY = "a value of the spec broke out of its place, or the template writes something else than the plan says"


def prove(
    path: str, text: str, view: ObjectView | KustomizationView, template: str, extendable: bool, place: str = ""
) -> None:
    """Parse ``text`` and compare it with ``view``. ``extendable``: a user's template may add to it, never change it.
    ``template`` wrote it, and ``place`` is the file to mend.

    Raises RenderError that names the object, the field, the spec key and the template.
    """
    kind, name = ("Kustomization", path) if isinstance(view, KustomizationView) else (view.meta.kind, view.meta.name)

    def differs(field: str, problem: str) -> RenderError:
        message = f"{kind}/{name}: {field}: {problem}" if field else f"{kind}/{name}: {path} {problem}"
        hint = f"{written(of_planned(kind, field))}; written by template {template}; {_WHY}"
        return RenderError(Diagnostic("render-differs", message, Where(place or f"templates/{template}"), hint))

    try:
        found = documents(text)
    except ValueError as error:
        raise differs("", f"is no YAML: {error}") from error
    if len(found) != 1 or not isinstance(found[0], dict):
        what = "a list" if isinstance(found[0] if found else None, list) else "plain text, or a single value"
        held = f"{len(found)} documents" if len(found) > 1 else what if found else "nothing"
        raise differs("", f"holds {held}, one object was meant")
    leaves = list(intended(view))
    if not isinstance(view, KustomizationView):
        leaves += _head(view)
    for leaf, meant in leaves:
        actual = _at(found[0], leaf)
        problem = _compare(actual, meant, extendable)
        if problem:
            raise differs(_dotted(leaf), problem)


def _dotted(path: Path) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")


def _at(node: Any, path: Path) -> Any:
    for step in path:
        try:
            node = node[step]
        except (KeyError, IndexError, TypeError):  # the text may hold any shape
            return _MISSING
    return node


def _compare(actual: Any, meant: Any, extendable: bool) -> str:
    """What differs, "" if nothing does. ``meant`` None: there must be none. Types count (``true`` is not ``1``)."""
    if meant is None:
        return "" if actual is _MISSING or extendable else f"is {_said(actual)}, none was meant"
    if actual is _MISSING:
        return "is missing"
    if isinstance(meant, Words):
        return meant.differ(actual, extendable)
    return "" if _same(actual, meant, extendable) else f"is {_said(actual)}, {_said(meant)} was meant"


def _same(actual: Any, meant: Any, extendable: bool) -> bool:
    if isinstance(meant, Mapping):
        if not isinstance(actual, Mapping) or not all(
            k in actual and _same(actual[k], v, extendable) for k, v in meant.items()
        ):
            return False
        return extendable or len(actual) == len(meant)
    if isinstance(meant, (list, tuple)):
        if not isinstance(actual, list):
            return False
        if extendable:
            rest = iter(actual)
            return all(any(_same(a, m, True) for a in rest) for m in meant)
        return len(actual) == len(meant) and all(_same(a, m, False) for a, m in zip(actual, meant, strict=True))
    return type(actual) is type(meant) and bool(actual == meant)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _said(value: Any) -> str:
    """A value in a message, as YAML has it."""
    return "nothing" if value is _MISSING else json.dumps(_plain(value), ensure_ascii=False, default=str)


class Words:
    """Words as the process shall get them, after the kubelet's expansion. Their order and number are exact always.

    ``references`` are words that come last and hold what the kubelet shall expand, as they are written.
    """

    def __init__(self, words: Sequence[str], references: Sequence[str] = ()) -> None:
        self.words, self.references = list(words), list(references)

    def differ(self, actual: Any, extendable: bool) -> str:
        if not isinstance(actual, list) or not all(isinstance(w, str) for w in actual):
            return f"is {_said(actual)}, a list of strings was meant"
        own = len(actual) - len(self.references)
        try:
            got = [unescape_variables(w) for w in actual[:own]]
        except ValueError as error:
            return f"is not literal: {error}"
        if own < 0 or actual[own:] != self.references or got != self.words:
            return f"is {_said([*got, *actual[max(own, 0):]])}, {_said([*self.words, *self.references])} was meant"
        return ""


class Variables(Words):
    """Environment entries: plain values after expansion, and secret references as they stand."""

    def __init__(self, plain: Sequence[Mapping[str, str]], secret: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(())
        self.plain, self.secret = [dict(p) for p in plain], [dict(s) for s in secret]

    def differ(self, actual: Any, extendable: bool) -> str:
        if not isinstance(actual, list) or not all(isinstance(e, dict) for e in actual):
            return f"is {_said(actual)}, a list of variables was meant"
        got = []
        for entry in actual:
            value = entry.get("value")
            try:
                got.append({**entry, "value": unescape_variables(value)} if isinstance(value, str) else entry)
            except ValueError as error:
                return f"is not literal: {error}"
        meant = self.plain + self.secret
        return "" if _same(got, meant, extendable) else f"is {_said(got)}, {_said(meant)} was meant"


def _head(view: ObjectView) -> Leaves:
    meta = view.meta
    head = {"name": meta.name, "namespace": meta.namespace, "labels": meta.labels, "annotations": meta.annotations}
    return [(("apiVersion",), meta.api_version), (("kind",), meta.kind), (("metadata",), head)]


@singledispatch
def intended(view: Any) -> Leaves:
    """The leaves that a view fixes, whatever a template makes of the rest. TypeError for what is no view."""
    raise TypeError(f"{type(view).__name__} is no view")


@intended.register
def _(v: DeploymentView) -> Leaves:
    leaves: Leaves = [
        (("spec", "replicas"), v.replicas),
        (("spec", "selector"), {"matchLabels": v.selector}),
        (("spec", "progressDeadlineSeconds"), v.progress_deadline_s),
        (("spec", "strategy", "rollingUpdate"), _rollout(v.surge)),
        *_template(("spec", "template"), v.pod),
    ]
    return leaves


@intended.register
def _(v: LeaderWorkerSetView) -> Leaves:
    group: Path = ("spec", "leaderWorkerTemplate")
    return [
        (("spec", "replicas"), v.replicas),
        (("spec", "startupPolicy"), "LeaderCreated"),
        (("spec", "rolloutStrategy", "rollingUpdateConfiguration"), _rollout(v.surge)),
        ((*group, "size"), v.size),
        ((*group, "restartPolicy"), "RecreateGroupOnPodRestart"),
        *_template((*group, "leaderTemplate"), v.leader),
        *_template((*group, "workerTemplate"), v.worker),
    ]


def _rollout(surge: bool) -> dict[str, int]:
    return {"maxSurge": int(surge), "maxUnavailable": int(not surge)}


def _template(at: Path, v: PodView) -> Leaves:
    """The leaves of a pod template."""
    pod: Path = (*at, "spec")
    container: Path = (*pod, "containers", 0)
    probes = v.probes
    return [
        ((*at, "metadata"), {"labels": v.labels} | ({"annotations": v.annotations} if v.annotations else {})),
        ((*pod, "serviceAccountName"), v.service_account),
        ((*pod, "automountServiceAccountToken"), v.mount_token),
        ((*pod, "terminationGracePeriodSeconds"), v.grace_s),
        ((*pod, "priorityClassName"), v.priority_class or None),
        ((*pod, "runtimeClassName"), v.runtime_class or None),
        ((*pod, "imagePullSecrets"), [{"name": n} for n in v.image_pull_secrets] or None),
        ((*pod, "nodeSelector"), v.node_selector or None),
        ((*pod, "tolerations"), list(v.tolerations) or None),
        ((*pod, "volumes"), [_volume(x) for x in v.volumes] or None),
        ((*container, "name"), v.component),
        ((*container, "image"), v.image),
        ((*container, "command"), Words(v.command)),
        ((*container, "args"), Words(v.args, v.node_args)),
        ((*container, "env"), Variables(v.env, v.secret_env) if v.env or v.secret_env else None),
        ((*container, "ports"), list(v.ports) or None),
        ((*container, "resources"), {"requests": v.requests, "limits": v.limits}),
        ((*container, "startupProbe"), _probe(probes.startup) if probes is not None else None),
        ((*container, "livenessProbe"), _probe(probes.liveness) if probes is not None else None),
        ((*container, "readinessProbe"), _probe(probes.readiness) if probes is not None else None),
        ((*container, "volumeMounts"), [{"name": x.name, "mountPath": x.mount} for x in v.volumes] or None),
    ]


def _probe(p: Probe) -> dict[str, Any]:
    how = {"httpGet": {"path": p.path, "port": "http"}} if p.path else {"tcpSocket": {"port": "http"}}
    return {**how, "periodSeconds": p.period_s, "timeoutSeconds": p.timeout_s, "failureThreshold": p.failures}


def _volume(v: Volume) -> dict[str, Any]:
    source: dict[str, Any]
    if v.kind == "claim":
        source = {"persistentVolumeClaim": {"claimName": v.source}}
    elif v.kind == "host":
        source = {"hostPath": {"path": v.source, "type": "DirectoryOrCreate"}}
    elif v.kind == "memory":
        source = {"emptyDir": {"medium": "Memory", "sizeLimit": v.size}}
    else:
        source = {"emptyDir": {"sizeLimit": v.size} if v.size else {}}
    return {"name": v.name, **source}


@intended.register
def _(v: ServiceView) -> Leaves:
    return [(("spec",), {"type": "ClusterIP", "selector": v.selector, "ports": list(v.ports)})]


@intended.register
def _(v: ServiceAccountView) -> Leaves:
    secrets = [{"name": n} for n in v.image_pull_secrets] or None
    return [(("automountServiceAccountToken",), False), (("imagePullSecrets",), secrets)]


@intended.register
def _(v: RoleView) -> Leaves:
    return [(("rules",), list(v.rules))]


@intended.register
def _(v: RoleBindingView) -> Leaves:
    subject = {"kind": "ServiceAccount", "name": v.service_account, "namespace": v.meta.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": v.role}
    return [(("roleRef",), role), (("subjects",), [subject])]


@intended.register
def _(v: DisruptionBudgetView) -> Leaves:
    return [(("spec", "maxUnavailable"), v.max_unavailable), (("spec", "selector"), {"matchLabels": v.selector})]


@intended.register
def _(v: ClaimView) -> Leaves:
    return [
        (("spec", "accessModes"), [v.access_mode]),
        (("spec", "storageClassName"), v.storage_class or None),
        (("spec", "resources"), {"requests": {"storage": v.size}}),
    ]


@intended.register
def _(v: NetworkPolicyView) -> Leaves:
    return [
        (("spec", "podSelector"), {"matchLabels": v.selector}),
        (("spec", "policyTypes"), ["Ingress", "Egress"]),
        (("spec", "ingress"), list(v.ingress)),
        (("spec", "egress"), list(v.egress)),
    ]


@intended.register
def _(v: PodMonitorView) -> Leaves:
    endpoint = {"port": v.port, "path": v.path, "interval": f"{v.interval_s}s"}
    return [(("spec", "selector"), {"matchLabels": v.selector}), (("spec", "podMetricsEndpoints"), [endpoint])]


@intended.register
def _(v: ScalingView) -> Leaves:
    target = {"apiVersion": v.target.api_version, "kind": v.target.kind, "name": v.target.name}
    leaves: Leaves = [(("spec", "scaleTargetRef"), target)]
    if v.triggers:
        return [
            *leaves,
            (("spec", "minReplicaCount"), v.min_replicas),
            (("spec", "maxReplicaCount"), v.max_replicas),
            (("spec", "triggers"), list(v.triggers)),
            (("spec", "advanced", "horizontalPodAutoscalerConfig", "behavior"), v.behavior),
        ]
    return [
        *leaves,
        (("spec", "minReplicas"), v.min_replicas),
        (("spec", "maxReplicas"), v.max_replicas),
        (("spec", "metrics"), list(v.metrics)),
        (("spec", "behavior"), v.behavior),
    ]


@intended.register
def _(v: KustomizationView) -> Leaves:
    return [
        (("namespace",), v.namespace),
        (("labels",), [{"includeSelectors": False, "pairs": v.labels}]),
        (("resources",), list(v.resources)),
        (("patches",), list(v.patches) or None),
    ]
