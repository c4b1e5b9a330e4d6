"""Checks of a Deployment and its pods against the plan: resources, probes, volumes, time limits, security."""

from __future__ import annotations

import re
from typing import Any

from servegen.engines.launch import Launch
from servegen.manifest import unescape_variables
from servegen.plan import Role
from servegen.validate.objects import Manifest, Scene, dig, mapping, selects, sequence
from servegen.validate.syntax import image_problem, is_port_name, is_variable, quantity

_SECRET_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY|PRIVATE_KEY)$", re.IGNORECASE)
_SECRET_FLAG = re.compile(r"--(.*-)?(api-key|token|password|secret|ssl-keyfile-password)")
_MAX_GRACE_S = 3600
_DEFAULT_SHM_BYTES = 64 * 2**20  # what a container has without an emptyDir
_POD = "spec.template.spec"


def check_deployments(scene: Scene) -> None:
    """Every Deployment by itself and against its role in the plan, and that each launch has one."""
    for m in scene.deployments:
        _check_selector(scene, m)
        _check_rollout(scene, m)
        _check_pod(scene, m)
        if len(m.containers) == 0:
            scene.add("container", m, f"{_POD}.containers", "there is none", "deploy.image")
        for i, container in enumerate(m.containers):
            _check_container(scene, m, f"{_POD}.containers[{i}]", container)
        role, launch = scene.role(m), scene.launch(m)
        if launch is not None and m.containers:
            _check_command(scene, m, launch, m.containers[0])
        if role is not None and m.containers:
            _check_role(scene, m, role, m.containers[0])
    covered = [launch.name for m in scene.deployments if (launch := scene.launch(m)) is not None]
    for launch in scene.launches:
        if covered.count(launch.name) != 1:
            problem = f"{covered.count(launch.name)} Deployments run {launch.name}, one must"
            scene.add_file("launch", f"kubernetes/deployment-{launch.name}.yaml", problem, "constraints.topology")


def _check_selector(scene: Scene, m: Manifest) -> None:
    selector = mapping(m.get("spec.selector.matchLabels"))
    if not selects(selector, m.pod_labels):
        scene.add(
            "selector", m, "spec.selector.matchLabels", "is no subset of the pod template's labels", "metadata.name"
        )


def _check_rollout(scene: Scene, m: Manifest) -> None:
    surge, unavailable = (quantity(m.get(f"spec.strategy.rollingUpdate.{k}")) for k in ("maxSurge", "maxUnavailable"))
    if surge == 0 and unavailable == 0:
        scene.add(
            "rollout",
            m,
            "spec.strategy.rollingUpdate",
            "neither surge nor loss is allowed: no rollout can move",
            "hardware.pool",
        )
    role = scene.role(m)
    if role is None:
        return
    pool = scene.plan.pool[role.pool]
    used = sum(r.total_devices for r in scene.plan.choice.roles if r.pool == role.pool)
    if unavailable == 0 and pool.nodes * pool.per_node - used < role.devices:
        problem = f"the pool has no {role.devices} accelerators left for a surge pod: the rollout would wait for ever"
        scene.add("rollout", m, "spec.strategy.rollingUpdate", problem, "hardware.pool")


def _check_pod(scene: Scene, m: Manifest) -> None:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if m.pod.get(name):
            scene.add("security", m, f"{_POD}.{name}", "opens the node to the pod", "deploy.overrides.patches")
    if dig(m.pod, "securityContext.seccompProfile.type") not in ("RuntimeDefault", "Localhost"):
        scene.add(
            "security",
            m,
            f"{_POD}.securityContext.seccompProfile",
            "must be RuntimeDefault",
            "deploy.overrides.patches",
        )
    _check_volumes(scene, m)
    account = m.pod.get("serviceAccountName")
    if account not in [a.name for a in scene.of_kind("ServiceAccount")]:
        scene.add(
            "reference", m, f"{_POD}.serviceAccountName", f"there is no ServiceAccount {account!r}", "metadata.name"
        )


def _check_volumes(scene: Scene, m: Manifest) -> None:
    volumes = [mapping(v) for v in sequence(m.pod.get("volumes"))]
    names = [str(v.get("name")) for v in volumes]
    mounts = [mapping(x) for c in m.containers for x in sequence(c.get("volumeMounts"))]
    mounted = [str(x.get("name")) for x in mounts]
    paths = [str(x.get("mountPath")) for x in mounts]
    for name in sorted(set(mounted) - set(names)):
        scene.add(
            "volume",
            m,
            f"{_POD}.containers[].volumeMounts",
            f"mounts {name!r}, which is no volume of the pod",
            "deploy.modelCache",
        )
    for name in sorted(set(names) - set(mounted)):
        scene.add("volume", m, f"{_POD}.volumes", f"{name!r} is mounted nowhere", "deploy.modelCache")
    for what, seen in (("volumes", names), ("volumeMounts", paths)):
        if len(set(seen)) < len(seen):
            scene.add("volume", m, f"{_POD}.{what}", "one is there twice", "deploy.modelCache")
    claims = [*(c.name for c in scene.of_kind("PersistentVolumeClaim")), scene.plan.deploy.cache.claim]
    for volume in volumes:
        claim = dig(volume, "persistentVolumeClaim.claimName")
        if claim is not None and claim not in claims:
            problem = f"the claim {claim!r} is neither in the bundle nor the spec's"
            scene.add("reference", m, f"{_POD}.volumes", problem, "deploy.modelCache.claim")
        size = dig(volume, "emptyDir.sizeLimit")
        if size is not None and quantity(size) is None:
            scene.add(
                "quantity", m, f"{_POD}.volumes.emptyDir.sizeLimit", f"{size!r} is no quantity", "deploy.modelCache"
            )


def _check_container(scene: Scene, m: Manifest, path: str, container: Any) -> None:
    problem = image_problem(container.get("image"))
    if problem:
        scene.add("image", m, f"{path}.image", problem, "deploy.image")
    _check_ports(scene, m, path, container)
    _check_resources(scene, m, f"{path}.resources", mapping(container.get("resources")))
    _check_words(scene, m, path, container)
    security = mapping(container.get("securityContext"))
    if security.get("privileged") or security.get("allowPrivilegeEscalation") is not False:
        problem = "must be unprivileged, with allowPrivilegeEscalation: false"
        scene.add("security", m, f"{path}.securityContext", problem, "deploy.overrides.patches")
    if sequence(dig(security, "capabilities.drop")) != ["ALL"]:
        scene.add(
            "security", m, f"{path}.securityContext.capabilities.drop", "must be [ALL]", "deploy.overrides.patches"
        )


def _check_ports(scene: Scene, m: Manifest, path: str, container: Any) -> None:
    ports = [mapping(p) for p in sequence(container.get("ports"))]
    names, numbers = [str(p.get("name")) for p in ports], [p.get("containerPort") for p in ports]
    for name, number in zip(names, numbers, strict=True):
        if not is_port(number):
            scene.add("port", m, f"{path}.ports", f"{name}: {number!r} is no port, 1 to 65535", "deploy.overrides.args")
        if not is_port_name(name):
            scene.add(
                "port",
                m,
                f"{path}.ports",
                f"{name!r} is no port name: at most 15 of a-z, 0-9 and '-'",
                "deploy.overrides.args",
            )
    if len(set(names)) < len(names) or len({str(n) for n in numbers}) < len(numbers):
        scene.add("port", m, f"{path}.ports", "a name or a number is there twice", "deploy.overrides.args")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        body = mapping(container.get(probe))
        if not body:
            scene.add("probe", m, f"{path}.{probe}", "is missing", "constraints.engines")
            continue
        port = dig(body, "httpGet.port") or dig(body, "tcpSocket.port")
        if not (is_port(port) or port in names):
            scene.add("port", m, f"{path}.{probe}", f"{port!r} is no port of the container", "deploy.overrides.args")
        for field in ("periodSeconds", "timeoutSeconds", "failureThreshold"):
            if not isinstance(body.get(field), int) or body[field] < 1:
                scene.add(
                    "probe",
                    m,
                    f"{path}.{probe}.{field}",
                    f"is {body.get(field)!r}, a positive number is needed",
                    "model.name",
                )


def _check_resources(scene: Scene, m: Manifest, path: str, resources: Any) -> None:
    requests, limits = mapping(resources.get("requests")), mapping(resources.get("limits"))
    for where, values in (("requests", requests), ("limits", limits)):
        for name, value in values.items():
            if quantity(value) is None:
                scene.add("quantity", m, f"{path}.{where}", f"{name}: {value!r} is no quantity", "hardware.pool")
            elif name in ("cpu", "memory") and not quantity(value):
                problem = f"{name}: {value} leaves the pod nothing to run with"
                scene.add("resources", m, f"{path}.{where}", problem, f"hardware.pool[].{name}")
    for name in ("cpu", "memory"):
        if name not in requests:
            scene.add("resources", m, f"{path}.requests", f"{name} is missing", f"hardware.pool[].{name}")
    for name in sorted({*requests, *limits}):
        request, limit = quantity(requests.get(name)), quantity(limits.get(name))
        if request is not None and limit is not None and request > limit:
            scene.add(
                "resources",
                m,
                path,
                f"{name}: the request {requests[name]} is above the limit {limits[name]}",
                "hardware.pool",
            )
        if "/" in name and request != limit:
            problem = f"{name}: request {requests.get(name)} and limit {limits.get(name)} must be equal"
            scene.add("resources", m, path, problem, "hardware.pool[].resource")


def _check_words(scene: Scene, m: Manifest, path: str, container: Any) -> None:
    env = [mapping(e) for e in sequence(container.get("env"))]
    names = [str(e.get("name")) for e in env]
    if len(set(names)) < len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        scene.add("env", m, f"{path}.env", f"{', '.join(twice)} is set twice", "deploy.overrides.env")
    for entry, name in zip(env, names, strict=True):
        if not is_variable(name):
            scene.add("env", m, f"{path}.env", f"{name!r} cannot name a variable", "deploy.overrides.env")
        if entry.get("value") and _SECRET_NAME.search(name):
            problem = f"{name} holds its value in plain text; refer to a Secret"
            scene.add(
                "secret",
                m,
                f"{path}.env",
                problem,
                "deploy.hfTokenSecret" if name.startswith("HF_") else "deploy.overrides.env",
            )
        _check_literal(scene, m, f"{path}.env", entry.get("value", ""), "deploy.overrides.env")
    words = [w for key in ("command", "args") for w in sequence(container.get(key))]
    for word in words:
        _check_literal(scene, m, f"{path}.args", word, "deploy.overrides.args")
        if isinstance(word, str) and _SECRET_FLAG.fullmatch(word.partition("=")[0]):
            scene.add(
                "secret",
                m,
                f"{path}.args",
                f"{word.partition('=')[0]} shows a secret to all who may read pods",
                "deploy.overrides.args",
            )


def _check_literal(scene: Scene, m: Manifest, path: str, word: Any, key: str) -> None:
    if not isinstance(word, str):
        scene.add("word", m, path, f"{word!r} is no string", key)
        return
    try:
        unescape_variables(word)
    except ValueError as error:
        scene.add("word", m, path, f"{error}; a literal dollar is written twice", key)


def _check_command(scene: Scene, m: Manifest, launch: Launch, container: Any) -> None:
    """The planned command must be what the container runs; words before it (a profiler) or behind it are the template's."""
    path = f"{_POD}.containers[0]"
    words = [_literal(w) for key in ("command", "args") for w in sequence(container.get(key))]
    planned = list(launch.argv())
    starts = [i for i, word in enumerate(words) if word == planned[0]] or [0]
    misses = [next((k for k, word in enumerate(planned) if words[i + k : i + k + 1] != [word]), None) for i in starts]
    if None not in misses:
        start, miss = max(zip(starts, (k or 0 for k in misses), strict=True), key=lambda pair: pair[1])
        found = words[start + miss] if start + miss < len(words) else "the end"
        problem = f"word {start + miss + 1} is {found!r}, planned: {planned[miss]!r}"
        scene.add("command", m, f"{path}.args", problem, "deploy.overrides.args")
    env = {mapping(e).get("name"): _literal(mapping(e).get("value")) for e in sequence(container.get("env"))}
    for name, value in launch.env.items():
        if env.get(name) != value:
            scene.add("command", m, f"{path}.env", f"{name} is {env.get(name)!r}, planned: {value!r}", "deploy.overrides.env")


def _literal(word: Any) -> Any:
    """What the kubelet makes of a word; a word that it would expand as it stands."""
    try:
        return unescape_variables(word) if isinstance(word, str) else word
    except ValueError:
        return word


def is_port(value: object) -> bool:
    """Whether ``value`` is a number from 1 to 65535."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535


def _check_role(scene: Scene, m: Manifest, role: Role, container: Any) -> None:
    """What the plan says of the pods of one role."""
    plan, pool = scene.plan, scene.plan.pool[role.pool]
    here = f"{_POD}.containers[0]"
    for where in ("requests", "limits"):
        count = quantity(mapping(dig(container, f"resources.{where}")).get(pool.resource))
        if count != role.tp * role.pp:
            problem = f"{pool.resource}: {count}, the replica takes tp x pp = {role.tp * role.pp}"
            scene.add("devices", m, f"{here}.resources.{where}", problem, "constraints.tp")
    if role.devices > pool.per_node:
        problem = f"a pod of {role.devices} accelerators fits no node of {pool.per_node}"
        scene.add("devices", m, f"{here}.resources", problem, "hardware.pool[].perNode")
    memory = quantity(mapping(dig(container, "resources.requests")).get("memory"))
    if memory is not None and pool.node_memory_bytes and memory > pool.node_memory_bytes:
        scene.add(
            "resources", m, f"{here}.resources.requests", "memory is more than a node has", "hardware.pool[].memory"
        )
    _check_shm(scene, m, role, container, memory)
    _check_startup(scene, m, role, container)
    _check_grace(scene, m, role, container)
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
        problem = f"is {replicas!r}, the plan has {role.total_replicas}"
        scene.add(
            "replicas",
            m,
            "spec.replicas",
            problem,
            "constraints.spareReplicas" if plan.deploy.autoscaling == "none" else "deploy.autoscaling",
        )


def _check_shm(scene: Scene, m: Manifest, role: Role, container: Any, memory: Any) -> None:
    if role.tp <= 1:
        return
    mount = next(
        (mapping(x) for x in sequence(container.get("volumeMounts")) if mapping(x).get("mountPath") == "/dev/shm"), {}
    )
    volume = next(
        (mapping(v) for v in sequence(m.pod.get("volumes")) if mapping(v).get("name") == mount.get("name")), {}
    )
    if dig(volume, "emptyDir.medium") != "Memory":
        problem = f"tp {role.tp} exchanges through /dev/shm, which needs an emptyDir in memory (the default has 64 MiB)"
        scene.add("shm", m, f"{_POD}.volumes", problem, "constraints.tp")
        return
    size = quantity(dig(volume, "emptyDir.sizeLimit"))
    if size is not None and size <= _DEFAULT_SHM_BYTES:
        problem = f"{float(size / 2**20):g} MiB is no more than the default"
        scene.add("shm", m, f"{_POD}.volumes", problem, "hardware.pool[].memory")
    if size is not None and memory is not None and size >= memory:
        scene.add(
            "shm", m, f"{_POD}.volumes", "/dev/shm is as large as the memory it is charged to", "hardware.pool[].memory"
        )


def _check_startup(scene: Scene, m: Manifest, role: Role, container: Any) -> None:
    probe = mapping(container.get("startupProbe"))
    period, failures = probe.get("periodSeconds"), probe.get("failureThreshold")
    if not isinstance(period, int) or not isinstance(failures, int):
        return
    initial = probe.get("initialDelaySeconds")
    budget_s = period * failures + (initial if isinstance(initial, int) else 0)
    storage = scene.plan.pool[role.pool].storage_bytes_per_s
    if storage > 0 and budget_s < role.checkpoint_bytes / storage:
        problem = f"gives {budget_s} s, reading the weights alone takes {role.checkpoint_bytes / storage:.0f} s"
        scene.add("startup", m, f"{_POD}.containers[0].startupProbe", problem, "hardware.pool[].storage.bandwidth")
    deadline = m.get("spec.progressDeadlineSeconds")
    if not isinstance(deadline, int) or deadline <= budget_s:
        problem = f"is {deadline!r}, a pod may take {budget_s} s to start"
        scene.add("rollout", m, "spec.progressDeadlineSeconds", problem, "hardware.pool[].storage.bandwidth")


def _check_grace(scene: Scene, m: Manifest, role: Role, container: Any) -> None:
    grace = m.pod.get("terminationGracePeriodSeconds")
    sleep = dig(container, "lifecycle.preStop.sleep.seconds")
    if sleep is None:
        words = sequence(dig(container, "lifecycle.preStop.exec.command"))
        sleep = int(words[1]) if len(words) == 2 and words[0] == "sleep" and str(words[1]).isdigit() else None
    if not isinstance(sleep, int) or sleep < 1:
        problem = "no sleep: requests that still arrive while endpoints are updated would be refused"
        scene.add("grace", m, f"{_POD}.containers[0].lifecycle.preStop", problem, "deploy.overrides.patches")
        sleep = 0
    plan = scene.plan
    decode_s = plan.traffic.longest_output * plan.prediction.itl.p99 if role.role != "prefill" else 0.0
    needed = min(_MAX_GRACE_S, sleep + decode_s)
    if not isinstance(grace, int) or grace < needed:
        problem = f"is {grace!r}; the sleep and the longest decode take {needed:.0f} s"
        scene.add("grace", m, f"{_POD}.terminationGracePeriodSeconds", problem, "traffic.osl")
