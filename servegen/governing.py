"""Which spec key governs a field of a rendered object: where a user mends what they are told of it."""

from __future__ import annotations

from collections.abc import Mapping

#: What no other key governs, only a patch of the user's can say.
PATCHES = "deploy.overrides.patches"
#: By a part of the field's path; the first that fits.
_BY_PATH = (
    ("resources.limits", "hardware.pool"), ("resources.requests", "hardware.pool"),
    ("tolerations", "hardware.pool[].tolerations"),
    ("nodeSelector", "hardware.pool[].nodeSelector"), (".env", "deploy.overrides.env"), (".args", "deploy.overrides.args"),
    (".imagePullSecrets", "deploy.imagePullSecrets"), (".image", "deploy.image"), ("olume", "deploy.modelCache"),
    ("storage", "deploy.modelCache"), ("ngress", "deploy.networkPolicy"), ("leaderWorkerTemplate.size", "constraints.tp"),
    ("eplica", "deploy.autoscaling"), ("startupProbe", "hardware.pool[].storage.bandwidth"),
    ("progressDeadline", "hardware.pool[].storage.bandwidth"), ("etadata", "metadata.name"),
)  # fmt: skip
#: The same, of what a plan and not a user has chosen.
_PLANNED = (
    (".resources", "hardware.pool"), ("priorityClassName", "deploy.priorityClass"),
    ("runtimeClassName", "deploy.runtimeClass"), ("serviceAccount", "metadata.name"), ("elector", "metadata.name"),
    ("terminationGrace", "traffic.osl"), ("rolling", "hardware.pool"), (".ports", "deploy.overrides.args"),
    ("namespace", "deploy.namespace"), ("patches", PATCHES),
)  # fmt: skip
#: Why there is an object of a kind at all.
_BY_KIND: Mapping[str, str] = {
    **dict.fromkeys(("Kustomization", "Service", "ServiceAccount"), "metadata.name"),
    **dict.fromkeys(("Deployment", "LeaderWorkerSet"), "constraints.engines"),
    **dict.fromkeys(("Role", "RoleBinding"), "constraints.topology"),
    **dict.fromkeys(("HorizontalPodAutoscaler", "ScaledObject"), "deploy.autoscaling"),
    "PodDisruptionBudget": "constraints.spareReplicas",
    "PersistentVolumeClaim": "deploy.modelCache",
    "NetworkPolicy": "deploy.networkPolicy",
    "PodMonitor": "deploy.monitoring",
}


def written(key: str) -> str:
    """A key as it is written of a whole document."""
    return key if key.startswith("metadata.") else f"spec.{key}"


def of_field(path: str) -> str:
    """The key of a field of which nothing but its path is known."""
    return next((key for part, key in _BY_PATH if part in path), PATCHES)


def of_planned(kind: str, path: str) -> str:
    """The key behind what a plan says of one field of an object of this kind; of the whole object where ``path`` is ""."""
    found = next((key for part, key in (*_BY_PATH, *_PLANNED) if part in path), _BY_KIND.get(kind, PATCHES))
    return found.partition("[]")[0]  # of which pool, the object does not say
