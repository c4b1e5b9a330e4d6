"""Checks of what runs a launch and of its pods against the plan: selector, command, resources, security."""

from __future__ import annotations

from typing import Any

from servegen.engines.launch import IN_POD, Launch
from servegen.engines.startup import LEAST_PROCESS_BYTES, PROCESS_BYTES
from servegen.plan import Role
from servegen.record import record
from servegen.validate.containers import literal, node_words
from servegen.validate.objects import Manifest, Scene, admits, dig, mapping, sequence
from servegen.validate.syntax import quantity, shown

_VERSION_LABEL = "app.kubernetes.io/version"
_DEFAULT_SHM_BYTES = 64 * 2**20  # what a container has without an emptyDir


def check_pods(scene: Scene) -> None:
    """Every pod by itself and against its role in the plan, and that each launch has what runs it."""
    for m in scene.pods:
        if m.kind == "Deployment":
            _check_selector(scene, m)
        _check_pod(scene, m)
        role, launch = scene.role(m), scene.launch(m)
        if launch is not None and m.containers:
            _check_command(scene, m, launch, m.server)
        if role is not None and m.containers:
            _check_role(scene, m, role, m.server)
            if not m.is_worker:
                _check_replicas(scene, m, role)
    covered = [(launch.name, m.kind) for m in scene.runners if (launch := scene.launch(m)) is not None]
    for launch in scene.launches:
        kind = "LeaderWorkerSet" if launch.group is not None else "Deployment"
        runs = [k for name, k in covered if name == launch.name]
        if runs != [kind]:
            problem = f"{len(runs)} objects run {launch.name} ({', '.join(runs) or 'none'}), one {kind} must"
            scene.add_file("launch", f"kubernetes/{kind.lower()}-{launch.name}.yaml", problem, "constraints.topology")


def _check_selector(scene: Scene, m: Manifest) -> None:
    selector, path = m.get("spec.selector"), "spec.selector.matchLabels"
    if not mapping(mapping(selector).get("matchLabels")) or not admits(selector, m.pod_labels):
        scene.add("selector", m, path, "is no subset of the pod template's labels", "metadata.name")
        return
    others = [d.name for d in scene.pods if d != m and admits(selector, d.pod_labels)]
    if others:
        scene.add("selector", m, path, f"selects the pods of {', '.join(others)}, too", "metadata.name")
    if _VERSION_LABEL in mapping(m.get(path)):
        problem = f"{_VERSION_LABEL} changes with the engine, and a selector can never change"
        scene.add("selector", m, path, problem, "metadata.name")


def _check_pod(scene: Scene, m: Manifest) -> None:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if m.pod.get(name):
            scene.add("security", m, f"{m.pod_path}.{name}", "opens the node to the pod", "deploy.overrides.patches")
    if dig(m.pod, "securityContext.seccompProfile.type") not in ("RuntimeDefault", "Localhost"):
        scene.add(
            "security",
            m,
            f"{m.pod_path}.securityContext.seccompProfile",
            "must be RuntimeDefault",
            "deploy.overrides.patches",
        )
    account = m.pod.get("serviceAccountName")
    if account not in [a.name for a in scene.of_kind("ServiceAccount")]:
        problem = f"there is no ServiceAccount {shown(account)}"
        scene.add("account", m, f"{m.pod_path}.serviceAccountName", problem, "metadata.name")


def _check_command(scene: Scene, m: Manifest, launch: Launch, container: Any) -> None:
    """The planned command must be what the container runs; words before it (a profiler) or behind it are the template's."""
    path = m.server_path
    references = node_words(scene, m)
    words = [w for key in ("command", "args") for w in sequence(container.get(key))]
    words = [_Reference(w) if w in references else literal(w) for w in words]
    fixed = len(launch.argv())
    planned = [_Reference(w) if i >= fixed and w in references else w for i, w in enumerate(launch.at(IN_POD).argv())]
    starts = [i for i, word in enumerate(words) if word == planned[0]] or [0]
    misses = [next((k for k, word in enumerate(planned) if words[i + k : i + k + 1] != [word]), None) for i in starts]
    if None not in misses:
        start, miss = max(zip(starts, (k or 0 for k in misses), strict=True), key=lambda pair: pair[1])
        found = words[start + miss] if start + miss < len(words) else "the end"
        problem = f"word {start + miss + 1} is {shown(found)}, planned: {shown(planned[miss])}"
        scene.add("command", m, f"{path}.args", problem, "deploy.overrides.args")
    env = {str(mapping(e).get("name")): literal(mapping(e).get("value")) for e in sequence(container.get("env"))}
    for name, value in launch.env.items():
        if env.get(name) != value:
            problem = f"{name} is {shown(env.get(name))}, planned: {value!r}"
            scene.add("command", m, f"{path}.env", problem, "deploy.overrides.env")


@record
class _Reference:
    """A word that the kubelet expands, which is another than the same letters in themselves."""

    word: str

    def __repr__(self) -> str:
        return f"{shown(self.word)}, to be expanded"


def _check_role(scene: Scene, m: Manifest, role: Role, container: Any) -> None:
    """What the plan says of the pods of one role."""
    pool = scene.plan.pool[role.pool]
    here = m.server_path
    world, over = role.tp * role.pp, scene.plan.nodes(role) if m.kind == "LeaderWorkerSet" else 1
    for where in ("requests", "limits"):
        limits = mapping(dig(container, "resources.limits"))  # what is not requested is requested as the limit says
        values = {**limits, **mapping(dig(container, "resources.requests"))} if where == "requests" else limits
        count = quantity(values.get(pool.resource))
        if count is None or count * over != world:
            share = f", {world // over} on each of {over} nodes" if over > 1 else ""
            problem = f"{pool.resource}: {count}, the replica takes tp x pp = {world}{share}"
            scene.add("devices", m, f"{here}.resources.{where}", problem, "constraints.tp")
    if role.devices > pool.per_node * over:
        problem = f"a pod of {role.devices} accelerators fits no node of {pool.per_node}"
        scene.add("devices", m, f"{here}.resources", problem, "hardware.pool[].perNode")
    memory = quantity(mapping(dig(container, "resources.requests")).get("memory"))
    if memory is not None and pool.node_memory_bytes and memory > pool.node_memory_bytes:
        scene.add(
            "resources", m, f"{here}.resources.requests", "memory is more than a node has", "hardware.pool[].memory"
        )
    if "memory" not in mapping(dig(container, "resources.limits")):
        problem = "memory is missing: /dev/shm and the page cache may take the node from its other pods"
        scene.add("resources", m, f"{here}.resources.limits", problem, "hardware.pool[].memory")
    _check_fabric(scene, m, role, container)
    _check_room(scene, m, role, mapping(dig(container, "resources.limits")).get("memory"))
    _check_shm(scene, m, role, container, memory)


def _check_room(scene: Scene, m: Manifest, role: Role, limit: Any) -> None:
    """Whether the host side of a server can live in its pod: weights pass through memory, and each rank keeps a core busy.

    The files of the weights are mapped and their pages reclaimed, so less than their size makes a start slower, not
    impossible; what a process holds besides cannot be reclaimed, and what goes beyond the limit is killed.
    """
    pool, memory = scene.plan.pool[role.pool], quantity(limit)
    devices = pool.pod_devices(role.devices)
    here = f"{m.server_path}.resources.limits"
    if memory and memory < LEAST_PROCESS_BYTES * devices:
        least = f"{devices} x {LEAST_PROCESS_BYTES / 2**30:g} GiB"
        problem = f"memory: {limit}, and the processes hold at least {least} before they load anything: they are killed"
        scene.add("resources", m, here, problem, "hardware.pool[].memory")
    elif memory and memory < PROCESS_BYTES * devices:
        problem = f"memory: {limit}, and the processes take about {devices} x {PROCESS_BYTES / 2**30:g} GiB: they may be killed"
        scene.add("resources", m, here, problem, "hardware.pool[].memory", "warning")
    if 0 < pool.node_cpus < pool.per_node and not m.is_worker:
        few = f"a node has fewer CPUs ({pool.node_cpus}) than accelerators ({pool.per_node})"
        problem = f"{few}, each of which keeps one busy: steps are launched later than predicted"
        scene.add("resources", m, f"{m.server_path}.resources.requests", problem, "hardware.pool[].cpu", "warning")


def _check_fabric(scene: Scene, m: Manifest, role: Role, container: Any) -> None:
    """A server whose traffic leaves its node over RDMA needs the adapter, and leave to pin memory for it."""
    pool = scene.plan.pool[role.pool]
    if not pool.rdma or (scene.plan.choice.topology != "disaggregated" and scene.plan.nodes(role) == 1):
        return
    if pool.rdma_resource and pool.rdma_resource not in mapping(dig(container, "resources.limits")):
        problem = f"{pool.rdma_resource} is missing: the pod does not see the fabric that the plan counts on"
        scene.add("devices", m, f"{m.server_path}.resources.limits", problem, "hardware.pool[].fabric.resource")
    security = mapping(container.get("securityContext"))
    if "IPC_LOCK" not in sequence(dig(security, "capabilities.add")) and not security.get("privileged"):
        problem = "IPC_LOCK is missing: without it RDMA cannot pin memory"
        scene.add("devices", m, f"{m.server_path}.securityContext.capabilities.add", problem, "hardware.pool[].fabric.rdma")


def _check_replicas(scene: Scene, m: Manifest, role: Role) -> None:
    plan = scene.plan
    replicas = m.get("spec.replicas")
    scaled = any(
        dig(s.body, "spec.scaleTargetRef.name") == m.name
        for s in scene.of_kind("HorizontalPodAutoscaler", "ScaledObject")
    )
    if scaled and replicas is not None:
        scene.add(
            "replicas",
            m,
            "spec.replicas",
            "an autoscaler owns the count, applying would reset it",
            "deploy.autoscaling",
        )
    if not scaled and replicas != role.total_replicas:
        problem = f"is {shown(replicas)}, the plan has {role.total_replicas}"
        scene.add(
            "replicas",
            m,
            "spec.replicas",
            problem,
            "constraints.spareReplicas" if plan.deploy.autoscaling == "none" else "deploy.autoscaling",
        )


def _check_shm(scene: Scene, m: Manifest, role: Role, container: Any, memory: Any) -> None:
    if min(role.devices, scene.plan.pool[role.pool].per_node) <= 1:
        return
    mount = next(
        (mapping(x) for x in sequence(container.get("volumeMounts")) if mapping(x).get("mountPath") == "/dev/shm"), {}
    )
    volume = next(
        (mapping(v) for v in sequence(m.pod.get("volumes")) if mapping(v).get("name") == mount.get("name")), {}
    )
    if dig(volume, "emptyDir.medium") != "Memory":
        problem = f"tp {role.tp} exchanges through /dev/shm, which needs an emptyDir in memory (the default has 64 MiB)"
        scene.add("shm", m, f"{m.pod_path}.volumes", problem, "constraints.tp")
        return
    size = quantity(dig(volume, "emptyDir.sizeLimit"))
    if size is not None and size <= _DEFAULT_SHM_BYTES:
        problem = f"{float(size / 2**20):g} MiB is no more than the default"
        scene.add("shm", m, f"{m.pod_path}.volumes", problem, "hardware.pool[].memory")
    if size is not None and memory is not None and size >= memory:
        scene.add(
            "shm", m, f"{m.pod_path}.volumes", "/dev/shm is as large as the memory it is charged to", "hardware.pool[].memory"
        )
