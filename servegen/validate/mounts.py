"""What a container sees of its volumes, and checks that no mount hides another, or what the image has there."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from servegen.plan import Role
from servegen.record import record
from servegen.validate.objects import Manifest, Scene, mapping, sequence
from servegen.validate.syntax import shown

_KEY = "deploy.modelCache"
#: Sources of volumes that nobody can write.
_FIXED = ("configMap", "secret", "projected", "downwardAPI", "image")
#: Sources of volumes that hold nothing when their pod starts.
_EMPTY = ("emptyDir", "ephemeral")
#: What no program runs without: folders of an image over which nothing may be mounted.
_OF_THE_IMAGE = ("/", "/bin", "/lib", "/lib64", "/proc", "/usr")


@record
class Mount:
    """A mount at the path that its text comes to, and the volume behind it."""

    path: str
    volume: Mapping[str, Any]
    read_only: bool

    @property
    def writable(self) -> bool:
        return not self.read_only and not any(mapping(v).get("readOnly") for v in self.volume.values()) and not self._is(_FIXED)

    @property
    def holds_nothing(self) -> bool:
        """Whether it holds no weights when the pod starts, whoever mounts it."""
        return self._is(_FIXED) or self._is(_EMPTY)

    def _is(self, sources: tuple[str, ...]) -> bool:
        return any(source in self.volume for source in sources)


def resolved(path: object) -> str:
    """What a path comes to: /models of /models/."""
    return posixpath.normpath(str(path)) if str(path).startswith("/") else str(path)


def within(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it."""
    path, folder = resolved(path), resolved(folder)
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def mounts_of(m: Manifest, container: Mapping[str, Any]) -> list[Mount]:
    """The mounts of one container of a pod."""
    volumes = {str(mapping(v).get("name")): mapping(v) for v in sequence(m.pod.get("volumes"))}
    mounts = map(mapping, sequence(container.get("volumeMounts")))
    return [
        Mount(resolved(x.get("mountPath")), volumes.get(str(x.get("name")), {}), x.get("readOnly") is True)
        for x in mounts
    ]


def deepest(mounts: list[Mount], path: str) -> Mount | None:
    """The mount that shows what lies at a path, None where it is the image."""
    return max((x for x in mounts if within(path, x.path)), key=lambda x: len(x.path), default=None)


def check_mounts(scene: Scene) -> None:
    """Every container by itself, and the server by what it loads."""
    for m in scene.pods:
        for field in ("containers", "initContainers"):
            for i, container in enumerate(map(mapping, sequence(m.pod.get(field)))):
                paths = [x.path for x in mounts_of(m, container)]
                for twice in sorted({x for x in paths if paths.count(x) > 1}):
                    problem = f"{shown(twice)} is there twice: the one hides the other"
                    scene.add("volume", m, f"{m.pod_path}.{field}[{i}].volumeMounts", problem, _KEY)
        if (role := scene.role(m)) is not None and m.containers:
            _check_image(scene, m)
            _check_weights(scene, m, role)


def _check_image(scene: Scene, m: Manifest) -> None:
    for mount in mounts_of(m, m.server):
        if mount.path in _OF_THE_IMAGE:
            problem = f"a volume at {mount.path} hides what the image has there, without which no program runs"
            scene.add("volume", m, f"{m.server_path}.volumeMounts", problem, "deploy.overrides.patches")


def _check_weights(scene: Scene, m: Manifest, role: Role) -> None:
    """The weights must be seen where the engine looks: in the cache of the hub, or at the path that it is told."""
    path, mounts = f"{m.server_path}.volumeMounts", mounts_of(m, m.server)
    env = {str(mapping(e).get("name")): mapping(e).get("value") for e in sequence(m.server.get("env"))}
    home = "" if role.load.startswith("/") else str(env.get("HF_HUB_CACHE") or "")
    if not home and not role.load.startswith("/"):
        return
    # The hub's own layout (huggingface_hub, repo_folder_name); what the engine is told is a path already.
    weights = f"{home.rstrip('/')}/models--{role.load.replace('/', '--')}" if home else role.load
    for mount in mounts:
        if within(mount.path, weights) and mount.holds_nothing and not _filled(m, mount):
            problem = f"a volume at {mount.path} hides the weights, which lie in {weights}"
            scene.add("volume", m, path, f"{problem}; another path, outside of it, is needed", _KEY)
    cache, seen = scene.plan.deploy.cache, deepest(mounts, home or weights)
    kept = bool(cache.claim or cache.host_path or cache.size_bytes)
    hidden = seen is not None and not within(seen.path, weights) and seen.holds_nothing and not _filled(m, seen)
    if kept and seen is not None and hidden:
        what = "every pod downloads the weights anew" if home else "no weights are there"
        problem = f"{shown(seen.volume.get('name'))} is mounted at {seen.path} in place of the volume of {_KEY}"
        scene.add("volume", m, path, f"{problem}, and holds nothing when a pod starts: {what}", _KEY)


def _filled(m: Manifest, mount: Mount) -> bool:
    """Whether another container of the pod mounts the volume as well, and may put the weights into it."""
    others = [c for i, c in enumerate(m.containers) if i != m.main] + [mapping(c) for c in sequence(m.pod.get("initContainers"))]
    return any(x.volume is mount.volume and x.writable for c in others for x in mounts_of(m, c))
