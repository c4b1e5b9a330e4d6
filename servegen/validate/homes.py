"""Checks of the user that a server runs as, and of where it may write: temporary files, and the caches of compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from servegen.errors import Severity
from servegen.validate.mounts import deepest, mounts_of, within
from servegen.validate.objects import Manifest, Scene, dig, mapping, sequence

_KEY = "deploy.overrides.patches"
#: Images whose own user is root.
_RUN_AS_ROOT = ("lmsysorg/sglang", "nvcr.io/nvidia/")
#: What only root may enter in the images of any distribution.
_ROOTS_HOME = "/root"
#: Where Python looks for a folder for temporary files (tempfile), without one of which no engine starts.
_TEMPORARY_VARIABLES, _TEMPORARY = ("TMPDIR", "TEMP", "TMP"), ("/tmp", "/var/tmp", "/usr/tmp")
#: Where kernels are kept that are compiled while a server starts: folders of its home, and the variables that name another.
_CACHES = (
    (".cache", ("XDG_CACHE_HOME", "FLASHINFER_WORKSPACE_BASE", "SGLANG_CACHE_DIR")),
    (".triton", ("TRITON_CACHE_DIR", "TRITON_HOME", "SGLANG_CACHE_DIR")),
)
#: Variables that name folders into which a server writes.
_FOLDERS = ("HOME", "HF_HOME", "HF_HUB_CACHE", *_TEMPORARY_VARIABLES, *(v for _, variables in _CACHES for v in variables))


def check_homes(scene: Scene) -> None:
    """The process of every launch."""
    for m in scene.pods:
        if scene.launch(m) is None or not m.containers:
            continue
        own, pod = mapping(m.server.get("securityContext")), mapping(m.pod.get("securityContext"))
        users = [
            (f"{at}.securityContext.runAsUser", security["runAsUser"])
            for at, security in ((m.server_path, own), (m.pod_path, pod))
            if security.get("runAsUser") is not None
        ]
        root = not users or users[0][1] == 0
        if root and own.get("runAsNonRoot", pod.get("runAsNonRoot")) and _is_roots(m):
            problem = "is true, and the image runs as root: the kubelet refuses to start it without runAsUser"
            scene.add("user", m, f"{m.server_path}.securityContext.runAsNonRoot", problem, "deploy.image")
        if not root and isinstance(users[0][1], int) and users[0][1] > 0:
            _check_other(scene, m, *users[0])
        if own.get("readOnlyRootFilesystem") is True:
            _check_read_only(scene, m, root)


def _is_roots(m: Manifest) -> bool:
    return str(m.server.get("image")).startswith(_RUN_AS_ROOT)


def _named(m: Manifest) -> Iterator[tuple[str, str]]:
    """Variables of the server that name folders; what comes from elsewhere is a reference that nothing here can follow."""
    for entry in map(mapping, sequence(m.server.get("env"))):
        name, value = str(entry.get("name")), entry.get("value")
        if name in _FOLDERS and (value or entry.get("valueFrom")):
            yield name, str(value) if value else f"$({name})"


def _check_other(scene: Scene, m: Manifest, at: str, user: Any) -> None:
    """Of another user than root: what it needs may not lie in root's home, which is closed to it, mounted there or not.

    An image of root's has no other home: where nobody names one the runtime takes / for it, which only root writes.
    """
    mounts = {x.path for x in mounts_of(m, m.server)}
    if _ROOTS_HOME in mounts:
        return  # a volume is open to whom its own files say
    closed: Severity = "error" if _is_roots(m) else "warning"
    named = dict(_named(m))
    wrong = [(f"{m.server_path}.env", f"{name} is {path}", closed) for name, path in named.items() if within(path, _ROOTS_HOME)]
    if not wrong:
        under = sorted(path for path in mounts if within(path, _ROOTS_HOME))
        wrong = [(f"{m.server_path}.volumeMounts", f"{path} is mounted", "warning") for path in under]
    for path, what, severity in wrong:
        problem = f"{what}, and the server runs as user {user}, to whom {_ROOTS_HOME} is closed: it must lie outside"
        scene.add("user", m, path, problem, _KEY, severity)
    homeless = "HOME" not in named and not all(named.keys() & set(variables) for _, variables in _CACHES)
    compiles = scene.role(m) is not None and _is_roots(m)
    if homeless and compiles and not wrong and not sequence(m.server.get("envFrom")):
        problem = f"is {user}, whom the image gives no home, and kernels that are compiled at the start are kept there"
        problem += ": the server may end as it starts; HOME in a folder that it may write, such as /tmp, is the remedy"
        scene.add("user", m, at, problem, _KEY, "warning")


def _takes(m: Manifest, path: str) -> bool:
    """Whether a volume takes what is written at a path; of one that only the cluster knows the best is assumed."""
    mount = deepest(mounts_of(m, m.server), path)
    return "$(" in path or (mount is not None and mount.writable)


def _check_read_only(scene: Scene, m: Manifest, root: bool) -> None:
    """Of a root filesystem that nobody writes: volumes must take what is written while a server starts."""
    named, path = dict(_named(m)), f"{m.server_path}.securityContext.readOnlyRootFilesystem"
    unseen = bool(sequence(m.server.get("envFrom")))  # may name other folders
    folders = [*(named[v] for v in _TEMPORARY_VARIABLES if v in named), *_TEMPORARY, str(dig(m.server, "workingDir") or "/")]
    if not any(_takes(m, folder) for folder in folders):
        problem = "is true, and no volume takes temporary files, without which no engine starts; an emptyDir at /tmp takes them"
        # A router may do without; its own template gives it a volume there.
        scene.add("user", m, path, problem, _KEY, "warning" if unseen or scene.role(m) is None else "error")
    home = named.get("HOME", _ROOTS_HOME if root else "")
    if not home or unseen or scene.role(m) is None:
        return
    lost = [
        f"{home.rstrip('/')}/{folder}"
        for folder, variables in _CACHES
        if not any(_takes(m, named[v]) for v in variables if v in named) and not _takes(m, f"{home}/{folder}")
    ]
    if lost:
        problem = f"is true, and kernels that are compiled at the start are kept in {' and '.join(lost)}, which no volume takes"
        problem += ": the server may end there; HOME in a writable volume, such as /tmp, is the remedy"
        scene.add("user", m, path, problem, _KEY, "warning")
