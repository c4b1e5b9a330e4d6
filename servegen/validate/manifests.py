"""Checks inside one object of any kind, and of the set as files: kinds, versions, names, labels, duplicates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from servegen.governing import of_field
from servegen.validate.objects import FOLDER, KUSTOMIZATION, TEMPLATES, Manifest, Scene, mapping, sequence
from servegen.validate.schema import NEWEST, problems
from servegen.validate.syntax import is_label_key, is_label_value, is_name, is_service_name, minor_version, shown

#: With any value but "false" (kustomize, api/resource/factory.go, DropLocalNodes).
_LOCAL = "config.kubernetes.io/local-config"
HASH_ANNOTATION = "servegen.dev/plan-hash"

#: Every kind that is rendered: its apiVersion and the first Kubernetes that serves it (kubernetes.io, deprecated API
#: migration guide). Custom resources are served by their operator, whatever the release.
SERVED: Mapping[str, tuple[str, tuple[int, int]]] = {
    "Deployment": ("apps/v1", (1, 9)),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", (0, 0)),
    "Service": ("v1", (1, 0)),
    "ServiceAccount": ("v1", (1, 0)),
    "PersistentVolumeClaim": ("v1", (1, 0)),
    "Role": ("rbac.authorization.k8s.io/v1", (1, 8)),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", (1, 8)),
    "NetworkPolicy": ("networking.k8s.io/v1", (1, 7)),
    "PodDisruptionBudget": ("policy/v1", (1, 21)),
    "HorizontalPodAutoscaler": ("autoscaling/v2", (1, 23)),
    "PodMonitor": ("monitoring.coreos.com/v1", (0, 0)),
    "ScaledObject": ("keda.sh/v1alpha1", (0, 0)),
}


def check_objects(scene: Scene) -> None:
    """Schema, kind, apiVersion, name, namespace and labels of every object, and that none is there twice."""
    target = minor_version(scene.plan.deploy.kubernetes_version)
    seen: dict[tuple[str, str, str], str] = {}
    for m in scene.manifests:
        _check_version(scene, m, target)
        for path, problem in problems(m.body, m.kind, target or NEWEST):
            if path not in ("apiVersion", "kind"):  # judged above
                scene.add("schema", m, path, problem, governing(path, problem))
        _check_name(scene, m)
        _check_labels(scene, m)
        _check_local(scene, m)
        key = (m.kind, m.namespace, m.name)
        if key in seen:
            scene.add("duplicate", m, "metadata.name", f"{seen[key]} holds the same object", "metadata.name")
        seen[key] = m.path


def governing(path: str, problem: str) -> str:
    """The spec key that governs a field of which nothing but its path is known."""
    if "the target is" in problem:
        return "deploy.kubernetesVersion"
    return of_field(path)


def _check_version(scene: Scene, m: Manifest, target: tuple[int, int] | None) -> None:
    if m.kind not in SERVED:
        scene.add("kind", m, "kind", f"{shown(m.kind)} is no kind that servegen knows to check", "deploy.overrides.patches")
        return
    version, since = SERVED[m.kind]
    if m.body.get("apiVersion") != version:
        scene.add(
            "api-version",
            m,
            "apiVersion",
            f"is {shown(m.body.get('apiVersion'))}, {m.kind} is {version}",
            "deploy.kubernetesVersion",
        )
    elif target is not None and target < since:
        problem = f"{version} is served from Kubernetes {since[0]}.{since[1]} on, the target is {target[0]}.{target[1]}"
        scene.add("api-version", m, "apiVersion", problem, "deploy.kubernetesVersion")


def _check_name(scene: Scene, m: Manifest) -> None:
    if not is_name(m.name):
        problem = f"{shown(m.name)} is no RFC 1123 label of at most 63 characters"
        scene.add("name", m, "metadata.name", problem, "metadata.name")
    elif m.kind == "Service" and not is_service_name(m.name):
        problem = f"{shown(m.name)} starts with a digit, which a Service may not"
        scene.add("name", m, "metadata.name", problem, "metadata.name")
    expected = scene.plan.deploy.namespace or "default"
    if m.namespace != expected:
        scene.add(
            "namespace", m, "metadata.namespace", f"is {shown(m.namespace)}, the plan's is {shown(expected)}", "deploy.namespace"
        )
    elif not is_name(m.namespace):
        scene.add("namespace", m, "metadata.namespace", f"{shown(m.namespace)} is no RFC 1123 label", "deploy.namespace")


def _check_labels(scene: Scene, m: Manifest) -> None:
    templates = TEMPLATES.get(m.kind, ())
    places = dict.fromkeys(("metadata.labels", *(f"{at}.metadata.labels" for at in templates)), "metadata.name")
    places |= {f"{at}.spec.nodeSelector": "hardware.pool[].nodeSelector" for at in templates}
    for path, key in places.items():
        for name, value in mapping(m.get(path)).items():
            if not is_label_key(str(name)):
                scene.add("label", m, path, f"{shown(name)} is no legal label key", key)
            elif not is_label_value(value):
                scene.add("label", m, path, f"{name}: {shown(value)} is no legal label value", key)
    for path in ("metadata.annotations", *(f"{at}.metadata.annotations" for at in templates)):
        for name, value in mapping(m.get(path)).items():
            if not is_label_key(str(name)) or not isinstance(value, str):
                scene.add("label", m, path, f"{name}: {shown(value)} is no legal annotation", "metadata.name")
    for at in templates:
        if HASH_ANNOTATION in {**mapping(m.get(f"{at}.metadata.annotations")), **mapping(m.get(f"{at}.metadata.labels"))}:
            problem = "holds the plan's hash, so that every new plan restarts all pods"
            scene.add("hash", m, f"{at}.metadata", problem, "metadata.name")


def _check_local(scene: Scene, m: Manifest) -> None:
    """What kustomize takes for a file of its own it reads, and puts out nothing of."""
    value = mapping(m.get("metadata.annotations")).get(_LOCAL)
    if value not in (None, "false"):
        problem = f"{_LOCAL} is {shown(value)}: kustomize leaves the whole object out of what is applied; take it out"
        scene.add("local", m, "metadata.annotations", problem, "metadata.name")


def check_kustomization(scene: Scene) -> None:
    """The kustomization lists exactly the files there are."""
    body = scene.kustomization
    if body.get("kind") != "Kustomization":
        scene.add_file("kustomization", KUSTOMIZATION, "is missing or of another kind", "deploy.namespace")
        return
    there = {p.removeprefix(FOLDER) for p in scene.bundle.files if p.startswith(FOLDER)}
    patches = {p for p in there if p.startswith("patches/")}
    objects = there - patches - {PurePosixPath(KUSTOMIZATION).name}
    listed = [str(r) for r in sequence(body.get("resources"))]
    _compare_lists(scene, "resources", listed, objects)
    _compare_lists(scene, "patches", [str(mapping(p).get("path")) for p in sequence(body.get("patches"))], patches)
    if body.get("namespace") != (scene.plan.deploy.namespace or "default"):
        scene.add_file("kustomization", KUSTOMIZATION, f"namespace is {shown(body.get('namespace'))}", "deploy.namespace")


def _compare_lists(scene: Scene, field: str, listed: list[str], there: set[str]) -> None:
    key = "deploy.overrides.patches"
    for name in sorted(set(listed) - there):
        scene.add_file("kustomization", KUSTOMIZATION, f"{field} lists {shown(name)}, which is not there", key)
    for name in sorted(there - set(listed)):
        scene.add_file("kustomization", KUSTOMIZATION, f"{field} leaves out {shown(name)}", key)
    if len(set(listed)) < len(listed):
        scene.add_file("kustomization", KUSTOMIZATION, f"{field} lists a file twice", key)
