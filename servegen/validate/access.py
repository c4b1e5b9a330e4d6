"""Checks of what pods may ask of the Kubernetes API: accounts, roles, bindings, tokens."""

from __future__ import annotations

from collections.abc import Mapping

from servegen.validate.objects import Manifest, Scene, dig, mapping, sequence
from servegen.validate.syntax import shown

_GROUP = "rbac.authorization.k8s.io"
#: What the router needs: it finds its servers by watching pods.
_WATCHING = {"get", "list", "watch"}


def check_access(scene: Scene) -> None:
    """Every Role and RoleBinding, and that a token goes to the router alone, which may watch pods."""
    for m in scene.of_kind("Role"):
        _check_role(scene, m)
    for m in scene.of_kind("RoleBinding"):
        _check_binding(scene, m)
    for m in scene.pods:
        launch = scene.launch(m)
        if launch is None:
            continue
        if launch.role is not None and m.pod.get("automountServiceAccountToken") is not False:
            problem = "a server asks nothing of the Kubernetes API and needs no token of it"
            scene.add("security", m, f"{m.pod_path}.automountServiceAccountToken", problem, "deploy.overrides.patches")
        if launch.role is None and str(m.pod.get("serviceAccountName")) not in _bound(scene):
            problem = f"no RoleBinding gives {shown(m.pod.get('serviceAccountName'))} the Role to watch pods"
            scene.add("reference", m, f"{m.pod_path}.serviceAccountName", problem, "constraints.topology")


def _bound(scene: Scene) -> set[str]:
    """The accounts that some binding gives a Role that watches pods."""

    def watches(rule: Mapping[str, object]) -> bool:
        if not {"", "*"} & {str(g) for g in sequence(rule.get("apiGroups"))}:
            return False
        return "pods" in sequence(rule.get("resources")) and {str(v) for v in sequence(rule.get("verbs"))} >= _WATCHING

    watching = {m.name for m in scene.of_kind("Role") if any(watches(rule) for rule in _rules(m))}
    return {
        str(mapping(subject).get("name"))
        for m in scene.of_kind("RoleBinding")
        if str(m.get("roleRef.name")) in watching
        for subject in sequence(m.get("subjects"))
    }


def _rules(m: Manifest) -> list[Mapping[str, object]]:
    return [mapping(rule) for rule in sequence(m.get("rules"))]


def _check_role(scene: Scene, m: Manifest) -> None:
    key = "deploy.overrides.patches"
    for rule in _rules(m):
        more = sorted({str(v) for v in sequence(rule.get("verbs"))} - _WATCHING)
        other = sorted({str(r) for r in sequence(rule.get("resources"))} - {"pods"})
        for field, extra in (("verbs", more), ("resources", other)):
            if extra:
                scene.add("security", m, f"rules.{field}", f"{', '.join(extra)} is more than a router needs", key)


def _check_binding(scene: Scene, m: Manifest) -> None:
    kind, group = (dig(m.body, f"roleRef.{k}") for k in ("kind", "apiGroup"))
    if (kind, group) != ("Role", _GROUP):
        problem = f"is a {shown(kind)} of {shown(group)}, a Role of {_GROUP} is bound"
        scene.add("reference", m, "roleRef", problem, "metadata.name")
    if not sequence(m.get("subjects")):
        scene.add("reference", m, "subjects", "there is none", "metadata.name")
    role = dig(m.body, "roleRef.name")
    if role not in [r.name for r in scene.of_kind("Role")]:
        scene.add("reference", m, "roleRef.name", f"there is no Role {shown(role)}", "metadata.name")
    accounts = {(a.name, a.namespace) for a in scene.of_kind("ServiceAccount")}
    for subject in sequence(m.get("subjects")):
        if mapping(subject).get("kind") != "ServiceAccount":
            problem = f"is a {shown(mapping(subject).get('kind'))}, pods are known by a ServiceAccount"
            scene.add("reference", m, "subjects.kind", problem, "metadata.name")
        who = (str(mapping(subject).get("name")), str(mapping(subject).get("namespace")))
        if who not in accounts:
            problem = f"there is no ServiceAccount {shown(who[0])} in namespace {shown(who[1])}"
            scene.add("account", m, "subjects", problem, "deploy.namespace")
