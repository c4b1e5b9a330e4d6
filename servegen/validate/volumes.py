"""Checks of what a pod mounts, and of the claim behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servegen.plan import Role
from servegen.validate.mounts import mounts_of, resolved
from servegen.validate.objects import Manifest, Scene, dig, mapping, sequence
from servegen.validate.syntax import is_name, quantity, shown

_KEY = "deploy.modelCache"
#: Engines that fetch what they load from the hub, where it is not a path.
_ASK_HUB = ("sglang",)
#: huggingface_hub asks nobody where one of these is true (its constants.py, which reads the second for older programs).
_OFFLINE, _TRUE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), ("1", "ON", "YES", "TRUE")


def check_volumes(scene: Scene) -> None:
    """Volumes and mounts of every pod, and every claim that is created."""
    for m in scene.pods:
        _check_volumes(scene, m)
        _check_sources(scene, m)
        if (role := scene.role(m)) is not None and m.containers:
            _check_cache(scene, m, role)
    for m in scene.of_kind("PersistentVolumeClaim"):
        _check_claim(scene, m)


def _check_volumes(scene: Scene, m: Manifest) -> None:
    volumes = [mapping(v) for v in sequence(m.pod.get("volumes"))]
    names = [str(v.get("name")) for v in volumes]
    containers = [*m.containers, *(mapping(c) for c in sequence(m.pod.get("initContainers")))]
    mounts = [mapping(x) for c in containers for x in sequence(c.get("volumeMounts"))]
    devices = [mapping(x) for c in containers for x in sequence(c.get("volumeDevices"))]
    mounted = [str(x.get("name")) for x in (*mounts, *devices)]
    for name in sorted(set(mounted) - set(names)):
        scene.add(
            "volume",
            m,
            f"{m.pod_path}.containers[].volumeMounts",
            f"mounts {shown(name)}, which is no volume of the pod",
            "deploy.modelCache",
        )
    for name in sorted(set(names) - set(mounted)):
        scene.add("volume", m, f"{m.pod_path}.volumes", f"{shown(name)} is mounted nowhere", "deploy.modelCache")
    for path in sorted({str(x.get("mountPath")) for x in mounts}):
        if not path.startswith("/"):
            problem = f"{shown(path)} is no absolute path"
            scene.add("volume", m, f"{m.pod_path}.containers[].volumeMounts", problem, "deploy.modelCache")
    for twice in sorted({x for x in names if names.count(x) > 1}):
        scene.add("volume", m, f"{m.pod_path}.volumes", f"{shown(twice)} is there twice", "deploy.modelCache")
    _check_raw(scene, m, volumes, {str(x.get("name")) for x in devices})
    claims = [*(c.name for c in scene.of_kind("PersistentVolumeClaim")), scene.plan.deploy.cache.claim]
    for volume in volumes:
        claim = dig(volume, "persistentVolumeClaim.claimName")
        if claim is not None and claim not in claims:
            problem = f"the claim {shown(claim)} is neither in the bundle nor the spec's"
            scene.add("claimname", m, f"{m.pod_path}.volumes", problem, "deploy.modelCache.claim")
        size = dig(volume, "emptyDir.sizeLimit")
        if size is not None and quantity(size) is None:
            scene.add(
                "quantity", m, f"{m.pod_path}.volumes.emptyDir.sizeLimit", f"{shown(size)} is no quantity", "deploy.modelCache"
            )


def _check_raw(scene: Scene, m: Manifest, volumes: list[Mapping[str, Any]], devices: set[str]) -> None:
    """Of a claim that is made here it is known that it is one of files."""
    claims = {c.name: c.get("spec.volumeMode") for c in scene.of_kind("PersistentVolumeClaim")}
    for volume in (v for v in volumes if str(v.get("name")) in devices):
        claim = str(dig(volume, "persistentVolumeClaim.claimName"))
        if claim in claims and claims[claim] != "Block":
            problem = f"{shown(volume.get('name'))} is the claim {shown(claim)}, which holds files and is no raw device; mount it"
            scene.add("volume", m, f"{m.pod_path}.containers[].volumeDevices", problem, _KEY)


def _check_sources(scene: Scene, m: Manifest) -> None:
    for volume in (mapping(v) for v in sequence(m.pod.get("volumes"))):
        name = str(volume.get("name"))
        if not is_name(name):
            scene.add("name", m, f"{m.pod_path}.volumes", f"{shown(name)} is no RFC 1123 label", _KEY)
        host = dig(volume, "hostPath.path")
        if host is not None and host != scene.plan.deploy.cache.host_path:
            problem = f"{shown(name)} opens {host} of the node to the pod"
            scene.add("security", m, f"{m.pod_path}.volumes", problem, f"{_KEY}.hostPath")


def offline(env: Mapping[str, Any]) -> str | None:
    """The variable with which huggingface_hub asks nobody, None where there is none such."""
    return next((name for name in _OFFLINE if str(env.get(name)).upper() in _TRUE), None)


def _check_cache(scene: Scene, m: Manifest, role: Role) -> None:
    """Weights are downloaded into the cache at the first start: it must be mounted where the engine looks, and take them."""
    container = m.server
    env = {str(mapping(e).get("name")): mapping(e).get("value") for e in sequence(container.get("env"))}
    home = env.get("HF_HUB_CACHE")
    if home is None:
        if scene.plan.choice.engine in _ASK_HUB and not role.load.startswith("/"):
            problem = "HF_HUB_CACHE is not set: every pod downloads the weights anew, into its own layer"
            scene.add("volume", m, f"{m.server_path}.env", problem, _KEY)
        return
    path = f"{m.server_path}.volumeMounts"
    mount = next((x for x in mounts_of(m, container) if x.path == resolved(home)), None)
    if mount is None:
        scene.add("volume", m, path, f"nothing is mounted at {home}, where HF_HUB_CACHE points: every pod downloads anew", _KEY)
        return
    if not mount.writable and offline(env) is None:
        scene.add("volume", m, path, f"{home} is read-only, and the first start downloads the weights into it", _KEY)


def _check_claim(scene: Scene, m: Manifest) -> None:
    cache = scene.plan.deploy.cache
    modes = sequence(m.get("spec.accessModes"))
    roles = scene.plan.choice.roles
    spread = sum(r.total_replicas for r in roles) > 1 or sum(scene.plan.pool[i].nodes for i in {r.pool for r in roles}) > 1
    if not modes or (spread and not {"ReadWriteMany", "ReadOnlyMany"} & {str(mode) for mode in modes}):
        problem = f"{', '.join(map(str, modes)) or 'none'}: pods of several nodes mount it, which takes ReadWriteMany"
        scene.add("claim", m, "spec.accessModes", problem, "deploy.modelCache.size")
    if modes and {str(mode) for mode in modes} <= {"ReadOnlyMany"}:
        problem = "ReadOnlyMany: the first start downloads the weights into it, which takes ReadWriteMany"
        scene.add("claim", m, "spec.accessModes", problem, "deploy.modelCache.size")
    if m.get("spec.volumeMode") not in (None, "Filesystem"):
        scene.add("claim", m, "spec.volumeMode", "weights are files, which a raw device does not hold", "deploy.modelCache.size")
    if (m.get("spec.storageClassName") or "") != cache.storage_class:
        problem = f"is {shown(m.get('spec.storageClassName'))}, the spec says {cache.storage_class or 'nothing'}"
        # Where the spec names none, the cluster's default is only the first guess.
        code = "claim" if cache.storage_class else "storageclass"
        scene.add(code, m, "spec.storageClassName", problem, "deploy.modelCache.storageClass")
    size = m.get("spec.resources.requests.storage")
    held = quantity(size)
    if held is None:
        scene.add(
            "quantity", m, "spec.resources.requests.storage", f"{shown(size)} is no quantity", "deploy.modelCache.size"
        )
        return
    needed = sum({r.load: r.checkpoint_bytes for r in scene.plan.choice.roles}.values())
    if held < needed:
        problem = f"{size} is less than the {needed / 1e9:.0f} GB of weights"
        scene.add("claim", m, "spec.resources.requests.storage", problem, "deploy.modelCache.size")
