"""Variables that a container takes without a word, and with which its process cannot do what was planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servegen.engines.launch import Launch
from servegen.engines.overrides import value_of
from servegen.errors import Severity
from servegen.plan import Role
from servegen.validate.containers import literal
from servegen.validate.objects import Manifest, Scene, dig, mapping, sequence
from servegen.validate.syntax import is_loopback, shown, whole
from servegen.validate.volumes import offline

_KEY = "deploy.overrides.env"
#: By which interfaces the processes of one replica meet (NCCL, Gloo, TensorPipe), and servers that hand over KV caches (UCX).
_WITHIN = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_BETWEEN = ("UCX_NET_DEVICES",)
_LOOPBACK = ("127.", "::1", "localhost")
#: What a server calls itself when it tells others where it is.
_CALLED = ("SGLANG_HOST_IP", "HOST_IP")
#: By whose address SGLang takes its own.
_OWN_NIC, _HEALTH = "SGLANG_LOCAL_IP_NIC", "SGLANG_HEALTH_CHECK_TIMEOUT"
#: Transports of UCX that leave no node, and TCP.
_NO_FABRIC = frozenset(
    ("tcp", "self", "sm", "shm", "mm", "posix", "sysv", "cma", "knem", "xpmem", "cuda", "cuda_copy", "cuda_ipc", "gdr_copy")
)


def check_variables(scene: Scene) -> None:
    """What each planned process is told by its environment."""
    for m in scene.pods:
        launch, role = scene.launch(m), scene.role(m)
        if launch is None or not m.containers:
            continue
        entries = [mapping(e) for e in sequence(m.server.get("env"))]
        env = {str(e.get("name")): text for e in entries if isinstance(text := literal(e.get("value")), str)}
        _check_path(scene, m, env)
        _check_python(scene, m, env)
        if role is not None:
            _check_reach(scene, m, launch, env)
            _check_speed(scene, m, role, env)
            _check_health(scene, m, env)
            _check_offline(scene, m, value_of(launch.args, "--model-path", role.load), env)
            _check_optional(scene, m, entries)


def _add(scene: Scene, m: Manifest, name: str, problem: str, severity: Severity = "error") -> None:
    key = f"{_KEY}.{name}" if name in scene.plan.deploy.env else _KEY
    scene.add("env", m, f"{m.server_path}.env", problem, key, severity)


def _check_path(scene: Scene, m: Manifest, env: Mapping[str, str]) -> None:
    """Programs are looked for where PATH says, and nobody adds the image's own to it."""
    if "PATH" not in env:
        return
    folders = env["PATH"].split(":")
    problem = ""
    if any("$" in folder for folder in folders):
        problem = f"PATH is {shown(env['PATH'])}, and nothing expands it: the image's programs are not found; name its folders"
    elif not any(folder.startswith("/") for folder in folders):
        problem = f"PATH is {shown(env['PATH'])}: no program is found, that of the server neither; name the image's folders"
    if problem:
        _add(scene, m, "PATH", problem)


def _check_python(scene: Scene, m: Manifest, env: Mapping[str, str]) -> None:
    """Python looks for its own library where PYTHONHOME says, and ends at once where it is not there."""
    home = env.get("PYTHONHOME")
    if home:
        problem = f"PYTHONHOME is {shown(home)}: Python looks for its own library there, not where the image has it; leave it out"
        _add(scene, m, "PYTHONHOME", problem)


def _check_health(scene: Scene, m: Manifest, env: Mapping[str, str]) -> None:
    """SGLang answers a probe with what a small request of its own says, for which it waits so long."""
    wait = env.get(_HEALTH)
    if scene.plan.choice.engine == "sglang" and wait is not None and (wait.startswith("-") or whole(wait) == 0):
        problem = f"{_HEALTH} is {shown(wait)}: every probe is answered before the server knows, and fails; its own is 20"
        _add(scene, m, _HEALTH, problem)


def _check_speed(scene: Scene, m: Manifest, role: Role, env: Mapping[str, str]) -> None:
    """What works, and is slower than what the plan predicts."""
    pool, over = scene.plan.pool[role.pool], scene.plan.nodes(role) > 1
    several = pool.pod_devices(role.devices) > 1
    fabric = pool.rdma and (over or scene.plan.choice.topology == "disaggregated")
    slow = {
        "CUDA_LAUNCH_BLOCKING": ("each kernel waits for the last, and none is launched ahead", _is_on, True),
        "NCCL_P2P_DISABLE": ("the accelerators of a node exchange through its memory, not over their links", _is_on, several),
        "NCCL_SHM_DISABLE": ("the accelerators of a node may exchange over its network", _is_on, several),
        "NCCL_IB_DISABLE": ("the nodes of a replica exchange over TCP, not over the RDMA fabric", _is_on, pool.rdma and over),
        "NCCL_NET": ("the nodes of a replica exchange over TCP, not over the RDMA fabric", _is_socket, pool.rdma and over),
        "UCX_TLS": ("KV caches go over TCP, not over the RDMA fabric", _is_tcp, fabric),
    }
    for name, (does, told, matters) in slow.items():
        if matters and name in env and told(env[name]):
            problem = f"{name} is {shown(env[name])}: {does}, and every prediction counts on the other; leave it out"
            _add(scene, m, name, problem, "warning")


def _is_on(value: str) -> bool:
    return value.strip() not in ("", "0")


def _is_socket(value: str) -> bool:
    return value.strip().lower() == "socket"


def _is_tcp(value: str) -> bool:
    """Whether a list of transports has TCP and none of a fabric's."""
    names = {name.strip() for name in value.split(",")}
    return "tcp" in names and names <= _NO_FABRIC


def _check_reach(scene: Scene, m: Manifest, launch: Launch, env: Mapping[str, str]) -> None:
    """Loopback reaches no other node, and no other pod."""
    over, split = launch.group is not None, scene.plan.choice.topology == "disaggregated"
    names = (*(_WITHIN if over else ()), *(_BETWEEN if over or split else ()))
    others = "the other nodes of its replica" if over else "the servers that it hands KV caches to"
    for name in (n for n in names if n in env):
        devices = [device.strip().lstrip("=") for device in env[name].split(",")]
        if all(device == "lo" for device in devices):
            problem = f"{name} is {shown(env[name])}: loopback does not reach {others}; name an interface between nodes, as eth0"
            _add(scene, m, name, problem)
    if (over or split) and env.get(_OWN_NIC, "").strip() == "lo":
        problem = f"{_OWN_NIC} is 'lo', of which SGLang takes no address: it guesses one, if it finds any; name one between nodes"
        _add(scene, m, _OWN_NIC, problem, "warning")
    for name in (n for n in _CALLED if (over or split) and _is_itself(env.get(n, ""))):
        problem = f"{name} is {shown(env[name])}: there {others} find themselves; leave it out"
        _add(scene, m, name, problem)


def _is_itself(address: str) -> bool:
    """Whether it starts with what means whoever asks, in a port's company or in short."""
    host = address.strip()
    return host.lower().startswith(_LOOPBACK) or is_loopback(host)


def _check_offline(scene: Scene, m: Manifest, load: str, env: Mapping[str, str]) -> None:
    """Who may not ask the hub loads what is there already."""
    told = offline(env)
    home = env.get("HF_HUB_CACHE")
    if told is None or home is None or load.startswith("/"):
        return
    mount = next((x for x in map(mapping, sequence(m.server.get("volumeMounts"))) if x.get("mountPath") == home), {})
    first = [mapping(c) for c in sequence(m.pod.get("initContainers"))]
    if any(mapping(x).get("name") == mount.get("name") for c in first for x in sequence(c.get("volumeMounts"))):
        return  # it may be filled there
    volume = next((v for v in map(mapping, sequence(m.pod.get("volumes"))) if v.get("name") == mount.get("name")), {})
    claim = dig(volume, "persistentVolumeClaim.claimName")
    if "emptyDir" in volume:
        problem = f"{told} is {env[told]}, and {home} is empty in a new pod: {load} is never loaded; leave it out"
        _add(scene, m, told, problem)
    elif claim in [c.name for c in scene.of_kind("PersistentVolumeClaim")]:
        problem = f"{told} is {env[told]}, and the claim {claim} is made empty: no server starts until {load} was put there"
        _add(scene, m, told, problem, "warning")


def _check_optional(scene: Scene, m: Manifest, entries: list[Mapping[str, Any]]) -> None:
    """The Secret of the spec must be there when a pod starts: later, nobody would say why the hub refuses a model."""
    if scene.plan.deploy.hf_token_secret is None:
        return
    for i, entry in enumerate(entries):
        if entry.get("name") == "HF_TOKEN" and dig(entry, "valueFrom.secretKeyRef.optional") is True:
            problem = "is true: without the Secret the server starts all the same, and the hub refuses it the model; leave it out"
            path = f"{m.server_path}.env[{i}].valueFrom.secretKeyRef.optional"
            scene.add("reference", m, path, problem, "deploy.hfTokenSecret")
