"""Manifests of a bundle as objects, tolerant of any shape: a user's template may have written anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from servegen.bundle import Bundle
from servegen.engines.launch import Launch
from servegen.errors import Diagnostic, Severity, Where
from servegen.governing import written
from servegen.plan import Plan, Role
from servegen.record import record

FOLDER = "kubernetes/"
KUSTOMIZATION = "kubernetes/kustomization.yaml"
PATCHES = "kubernetes/patches/"

#: Codes of what a cluster takes from a user who asks for it, as only a patch can: what opens a pod, accounts, claims and
#: storage classes that may stand in the cluster already, where no bundle shows them, images that its nodes may hold already,
#: a server that nobody restarts, a door for each node's own clients.
ON_PURPOSE = frozenset(
    f"bundle-{what}"
    for what in ("security", "account", "claimname", "storageclass", "pullpolicy", "liveness", "localtraffic")
)

Labels = Mapping[str, Any]


def mapping(value: Any) -> Mapping[str, Any]:
    """``value`` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> list[Any]:
    """``value`` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def dig(node: Any, path: str) -> Any:
    """The value at a dotted path of mappings, None where there is none."""
    for step in path.split("."):
        node = mapping(node).get(step)
    return node


#: Where kinds that run pods keep their pod templates; of a LeaderWorkerSet the leader's first.
_GROUP = "spec.leaderWorkerTemplate"
TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "Deployment": ("spec.template",),
    "LeaderWorkerSet": (f"{_GROUP}.leaderTemplate", f"{_GROUP}.workerTemplate"),
}


@record
class Manifest:
    """One document of one file under ``kubernetes/``, seen from one of its pod templates where it has more than one."""

    path: str
    body: Mapping[str, Any]
    template: str = "spec.template"

    @property
    def kind(self) -> str:
        return str(self.body.get("kind", ""))

    @property
    def name(self) -> str:
        return str(dig(self.body, "metadata.name") or "")

    @property
    def namespace(self) -> str:
        return str(dig(self.body, "metadata.namespace") or "")

    def get(self, path: str) -> Any:
        """The value at a dotted path, None where there is none."""
        return dig(self.body, path)

    @property
    def pod_labels(self) -> Labels:
        return mapping(self.get(f"{self.template}.metadata.labels"))

    @property
    def pod_path(self) -> str:
        return f"{self.template}.spec"

    @property
    def pod(self) -> Mapping[str, Any]:
        return mapping(self.get(self.pod_path))

    @property
    def is_worker(self) -> bool:
        """Whether this is a pod that only helps its leader."""
        return self.template == TEMPLATES["LeaderWorkerSet"][1]

    @property
    def containers(self) -> list[Mapping[str, Any]]:
        return [mapping(c) for c in sequence(self.pod.get("containers"))]

    @property
    def main(self) -> int:
        """Which container runs the planned process: that of the component's name, as patches put others first; else the first."""
        name = self.pod_labels.get("app.kubernetes.io/component")
        return next((i for i, c in enumerate(self.containers) if c.get("name") == name), 0)

    @property
    def server(self) -> Mapping[str, Any]:
        """The container that runs the planned process. IndexError where there is none."""
        return self.containers[self.main]

    @property
    def server_path(self) -> str:
        return f"{self.pod_path}.containers[{self.main}]"

    @property
    def ports(self) -> list[Mapping[str, Any]]:
        """All container ports of a pod."""
        return [mapping(p) for c in self.containers for p in sequence(c.get("ports"))]


@dataclass
class Scene:
    """The bundle, the plan behind it, and what was found so far."""

    plan: Plan
    bundle: Bundle
    launches: tuple[Launch, ...]
    manifests: list[Manifest]
    kustomization: Mapping[str, Any]
    found: list[Diagnostic] = field(default_factory=list)

    def of_kind(self, *kinds: str) -> list[Manifest]:
        return [m for m in self.manifests if m.kind in kinds]

    @property
    def pods(self) -> list[Manifest]:
        """Every pod template: one of a Deployment, two of a LeaderWorkerSet."""
        return [replace(m, template=at) for m in self.manifests for at in TEMPLATES.get(m.kind, ())]

    @property
    def runners(self) -> list[Manifest]:
        """What runs a launch, seen from the pod that serves."""
        return [m for m in self.pods if not m.is_worker]

    def bounds(self, pod: Manifest) -> tuple[int, int] | None:
        """Between which counts an autoscaler keeps the replicas of what runs a pod, None where none does."""
        for scaler in self.of_kind("HorizontalPodAutoscaler", "ScaledObject"):
            ref = mapping(scaler.get("spec.scaleTargetRef"))
            if (str(ref.get("kind") or "Deployment"), ref.get("name")) != (pod.kind, pod.name):
                continue
            unit = "Replicas" if scaler.kind == "HorizontalPodAutoscaler" else "ReplicaCount"
            low, high = scaler.get(f"spec.min{unit}"), scaler.get(f"spec.max{unit}")
            low = low if isinstance(low, int) else 1 if unit == "Replicas" else 0
            return low, high if isinstance(high, int) else low
        return None

    def launch(self, pod: Manifest) -> Launch | None:
        """The launch that a pod runs, by its component label."""
        component = pod.pod_labels.get("app.kubernetes.io/component")
        return next((x for x in self.launches if x.name == component), None)

    def role(self, pod: Manifest) -> Role | None:
        """The plan's role that a pod runs; None for the router."""
        launch = self.launch(pod)
        if launch is None or launch.role is None:
            return None
        return next((r for r in self.plan.choice.roles if r.name == launch.name), None)

    def add(self, code: str, manifest: Manifest, path: str, problem: str, key: str, severity: Severity = "error") -> None:
        """Record that ``path`` of ``manifest`` is wrong; ``key`` is the spec key that governs it."""
        message = f"{manifest.kind}/{manifest.name}: {path}: {problem}"
        role = self.role(manifest) if "pool[]" in key else None
        hint = self._hint(manifest.path, key if role is None else key.replace("pool[]", f"pool[{role.pool}]"))
        self.found.append(Diagnostic(f"bundle-{code}", message, Where(manifest.path), hint, severity))

    def add_file(self, code: str, path: str, problem: str, key: str) -> None:
        """Record a finding about a file that holds no object."""
        self.found.append(Diagnostic(f"bundle-{code}", f"{path}: {problem}", Where(path), self._hint(path, key)))

    def _hint(self, path: str, key: str) -> str:
        """Where to mend it: the key in the spec, and the template that wrote the file."""
        template = self.bundle.templates.get(path, "")
        if key == "deploy.overrides.patches" and not self.plan.deploy.patches and template.count("/") > 1:
            return f"template {template} wrote it"  # with a file of the user's own in it
        return f"{written(key)}; written by template {template}" if template else written(key)


def admits(selector: Any, labels: Labels) -> bool:
    """Whether a label selector (matchLabels and matchExpressions; an empty one selects everything) selects these labels."""
    if not isinstance(selector, Mapping):
        return False
    if not all(labels.get(k) == v for k, v in mapping(selector.get("matchLabels")).items()):
        return False
    for term in sequence(selector.get("matchExpressions")):
        key, operator = (str(mapping(term).get(k)) for k in ("key", "operator"))
        there = labels.get(key) in sequence(mapping(term).get("values"))
        if not {"In": there, "NotIn": not there, "Exists": key in labels, "DoesNotExist": key not in labels}.get(operator):
            return False
    return True


def selects(selector: Labels, labels: Labels) -> bool:
    """Whether a non-empty set of matchLabels selects these labels."""
    return bool(selector) and all(labels.get(k) == v for k, v in selector.items())


def matched(scene: Scene, selector: Labels) -> list[Manifest]:
    """The pods that a set of matchLabels selects."""
    return [d for d in scene.pods if selects(selector, d.pod_labels)]


def require_pods(scene: Scene, m: Manifest, path: str) -> list[Manifest]:
    """The pods that the selector at ``path`` selects, of which there must be some."""
    pods = matched(scene, mapping(m.get(path)))
    if path.endswith(".matchLabels"):  # expressions narrow what the labels leave
        pods = [pod for pod in pods if admits(m.get(path.removesuffix(".matchLabels")), pod.pod_labels)]
    if not pods:
        scene.add("reference", m, path, "selects no pods of this bundle", "metadata.name")
    return pods
