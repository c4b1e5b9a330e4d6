"""Checks of the containers of a pod: image, ports, probes, resources, words, security."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

from servegen.engines.launch import IN_POD, Launch
from servegen.errors import Severity
from servegen.manifest import unescape_variables
from servegen.secrecy import secret, secret_name, secret_value
from servegen.validate.objects import Manifest, Scene, dig, mapping, sequence
from servegen.validate.syntax import image_problem, is_loopback, is_name, is_port, is_port_name, is_variable, quantity, shown

#: How resources are called that are accelerators, and of which a node of the plan has one kind.
_ACCELERATORS = ("nvidia.com/", "amd.com/gpu", "google.com/tpu", "gpu.intel.com/", "habana.ai/", "aws.amazon.com/neuron")
#: Which accelerators a process sees: in a pod those that it asked for, which the device plugin has said already.
_DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS")
#: How variables begin that the kubelet gives to every container.
_GIVEN = ("KUBERNETES_SERVICE_", "KUBERNETES_PORT")
#: What a group's controller tells every container (sigs.k8s.io/lws, api v1); it takes precedence over what a template says.
GROUP_VARIABLES = ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX")
#: The name of a variable that the kubelet would look for.
_REFERENCE = re.compile(r"\$\(([^)]*)\)")


def check_containers(scene: Scene) -> None:
    """Every container of every pod, those that run before the others included."""
    for m in scene.pods:
        if not m.containers:
            scene.add("container", m, f"{m.pod_path}.containers", "there is none", "deploy.image")
        first = [mapping(c) for c in sequence(m.pod.get("initContainers"))]
        for i, container in enumerate(m.containers):
            _check_container(scene, m, f"{m.pod_path}.containers[{i}]", container)
            _check_ports(scene, m, f"{m.pod_path}.containers[{i}]", container)
            _check_probes(scene, m, f"{m.pod_path}.containers[{i}]", container, i == m.main)
        for i, container in enumerate(first):
            _check_container(scene, m, f"{m.pod_path}.initContainers[{i}]", container)
        _check_names(scene, m, [*first, *m.containers])
        launch = scene.launch(m)
        if launch is not None and m.containers:
            if not m.is_worker:
                _check_listening(scene, m, launch)
            _check_devices(scene, m, [*(c for i, c in enumerate(m.containers) if i != m.main), *first])
        _check_shared_ports(scene, m, first)


def _check_shared_ports(scene: Scene, m: Manifest, first: list[Mapping[str, Any]]) -> None:
    """The containers of a pod share one network: of two processes on one port the second does not start."""
    # Of those that run before the others only such as go on running.
    beside = [(f"initContainers[{i}]", c) for i, c in enumerate(first) if c.get("restartPolicy") == "Always"]
    # The server first: where a patch puts a container before it, that is the one to change.
    served = sorted(((f"containers[{i}]", c) for i, c in enumerate(m.containers)), key=lambda c: c[0] != f"containers[{m.main}]")
    taken: dict[tuple[Any, str], str] = {}
    for at, container in [*served, *beside]:
        for port in map(mapping, sequence(container.get("ports"))):
            number, protocol = port.get("containerPort"), str(port.get("protocol", "TCP"))
            other = taken.setdefault((number, protocol), at) if is_port(number) else at
            if other != at:
                problem = f"port {number} is that of {other}, too, and the containers of a pod share one network"
                scene.add("port", m, f"{m.pod_path}.{at}.ports", problem, "deploy.overrides.patches")


def _check_names(scene: Scene, m: Manifest, containers: list[Any]) -> None:
    names = [str(c.get("name")) for c in containers]
    for name in sorted({n for n in names if not is_name(n)}):
        scene.add("name", m, f"{m.pod_path}.containers[].name", f"{shown(name)} is no RFC 1123 label", "deploy.overrides.patches")
    for name in sorted({n for n in names if names.count(n) > 1}):
        scene.add("container", m, f"{m.pod_path}.containers[].name", f"{shown(name)} is there twice", "deploy.overrides.patches")


def _check_listening(scene: Scene, m: Manifest, launch: Launch) -> None:
    """What the process of the first container listens on must be declared, and be what the probes ask."""
    path = m.server_path
    declared = {str(mapping(p).get("name")): mapping(p).get("containerPort") for p in sequence(m.server.get("ports"))}
    for port in sorted({launch.port, launch.metrics_port or launch.port}):
        if port not in declared.values():
            problem = f"the process listens on {port}, which is no port of the container"
            scene.add("port", m, f"{path}.ports", problem, "deploy.overrides.args")
    alive, ready = (launch.probes.liveness,), (launch.probes.liveness, launch.probes.readiness)
    for probe, known in (("startupProbe", ready), ("livenessProbe", alive), ("readinessProbe", ready)):
        body = mapping(m.server.get(probe))
        get = mapping(body.get("httpGet"))
        if "exec" in body or "grpc" in body:
            problem = "asks a command, not the process" if "exec" in body else "the process speaks HTTP, not gRPC"
            scene.add("probe", m, f"{path}.{probe}", problem, "constraints.engines")
        if not get:
            continue
        if get.get("path") not in known:
            does = " or ".join(map(repr, known))
            problem = f"{shown(get.get('path'))} does not tell what it should; of this process {does} does"
            scene.add("probe", m, f"{path}.{probe}.httpGet.path", problem, "constraints.engines")
        if get.get("scheme", "HTTP") != "HTTP":
            scene.add("probe", m, f"{path}.{probe}.httpGet.scheme", "the process speaks plain HTTP", "constraints.engines")
        asked = declared.get(str(get.get("port")), get.get("port"))
        if is_port(asked) and asked != launch.port:
            problem = f"asks port {asked}, the process answers on {launch.port}"
            scene.add("port", m, f"{path}.{probe}.httpGet.port", problem, "deploy.overrides.args")
        timeout = body.get("timeoutSeconds")
        if isinstance(timeout, int) and timeout < launch.probes.timeout_s:
            problem = f"is {timeout}, an honest answer may take {launch.probes.timeout_s} s"
            scene.add("probe", m, f"{path}.{probe}.timeoutSeconds", problem, "constraints.engines")


def _check_devices(scene: Scene, m: Manifest, others: list[Any]) -> None:
    """Accelerators belong to the process that was planned for them, and only those of its pool."""
    role = scene.role(m)
    pool = scene.plan.pool[role.pool] if role is not None else None
    known = {pool.resource, *([pool.rdma_resource] if pool.rdma_resource else [])} if pool is not None else set()
    for name in sorted(k for k in mapping(dig(m.server, "resources.limits")) if "/" in k and k not in known):
        if name.startswith(_ACCELERATORS):
            problem = f"{name}: the nodes of the plan's pool have no such resource"
            scene.add("devices", m, f"{m.server_path}.resources", problem, "hardware.pool[].resource")
        else:  # a network adapter, a device of a plugin: the nodes may well have it
            problem = f"{name}: the spec does not say that the nodes have it"
            scene.add("devices", m, f"{m.server_path}.resources", problem, "hardware.pool[].fabric.resource", "warning")
    for container in others:
        taken = (k for k in mapping(dig(container, "resources.limits")) if k in known or str(k).startswith(_ACCELERATORS))
        for name in sorted(taken):
            problem = f"{container.get('name')} takes {name}, which the plan gives to {m.server.get('name')} alone"
            scene.add("devices", m, f"{m.pod_path}.containers[].resources", problem, "constraints.tp")


def _check_container(scene: Scene, m: Manifest, path: str, container: Any) -> None:
    serves = bool(m.containers) and container is m.server
    problem = image_problem(container.get("image"))
    if problem:
        scene.add("image", m, f"{path}.image", problem, "deploy.image")
    if container.get("imagePullPolicy") == "Never":
        problem = "is Never: a node that does not hold the image already starts no pod; IfNotPresent pulls it there"
        scene.add("pullpolicy", m, f"{path}.imagePullPolicy", problem, "deploy.image")
    _check_resources(scene, m, f"{path}.resources", mapping(container.get("resources")), serves)
    _check_words(scene, m, path, container)
    security = mapping(container.get("securityContext"))
    if security.get("privileged") or security.get("allowPrivilegeEscalation") is not False:
        problem = "must be unprivileged, with allowPrivilegeEscalation: false"
        scene.add("security", m, f"{path}.securityContext", problem, "deploy.overrides.patches")
    kind = dig(security, "seccompProfile.type")
    if kind not in (None, "RuntimeDefault", "Localhost"):
        problem = f"is {shown(kind)}, must be RuntimeDefault"
        scene.add("security", m, f"{path}.securityContext.seccompProfile", problem, "deploy.overrides.patches")
    role = scene.role(m)
    rdma = role is not None and scene.plan.pool[role.pool].rdma
    for added in sequence(dig(security, "capabilities.add")):
        if not (added == "IPC_LOCK" and rdma):  # RDMA pins memory
            problem = f"{added} is more than serving needs"
            scene.add("security", m, f"{path}.securityContext.capabilities.add", problem, "deploy.overrides.patches")
    if sequence(dig(security, "capabilities.drop")) != ["ALL"]:
        scene.add(
            "security", m, f"{path}.securityContext.capabilities.drop", "must be [ALL]", "deploy.overrides.patches"
        )


def _check_ports(scene: Scene, m: Manifest, path: str, container: Any) -> None:
    ports = [mapping(p) for p in sequence(container.get("ports"))]
    names = [str(p["name"]) for p in ports if p.get("name") is not None]
    numbers = [(str(p.get("containerPort")), p.get("protocol", "TCP")) for p in ports]
    for port in ports:
        number = port.get("containerPort")
        if not is_port(number):
            problem = f"{port.get('name', 'one')}: {shown(number)} is no port, 1 to 65535"
            scene.add("port", m, f"{path}.ports", problem, "deploy.overrides.args")
    for name in names:
        if not is_port_name(name):
            problem = f"{shown(name)} is no port name: at most 15 of a-z, 0-9 and '-'"
            scene.add("port", m, f"{path}.ports", problem, "deploy.overrides.args")
    if any("hostPort" in p for p in ports):
        problem = "hostPort opens the node to the pod, and lets one pod a node start"
        scene.add("security", m, f"{path}.ports", problem, "deploy.overrides.patches")
    if len(set(names)) < len(names) or len(set(numbers)) < len(numbers):
        scene.add("port", m, f"{path}.ports", "a name or a number is there twice", "deploy.overrides.args")


def _check_probes(scene: Scene, m: Manifest, path: str, container: Any, serves: bool) -> None:
    """The probes of one container; what the planned process must have, others may leave out. Handlers: ``unions.py``."""
    names = [str(mapping(p).get("name")) for p in sequence(container.get("ports"))]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        body = mapping(container.get(probe))
        if m.is_worker and body:
            problem = "asks a pod that only helps its leader, and answers nothing"
            scene.add("probe", m, f"{path}.{probe}", problem, "constraints.engines")
        if m.is_worker:
            continue
        if not body:
            if serves:
                code = "liveness" if probe == "livenessProbe" else "probe"
                scene.add(code, m, f"{path}.{probe}", "is missing", "constraints.engines")
            continue
        _check_asked(scene, m, f"{path}.{probe}", body)
        port = dig(body, "httpGet.port") or dig(body, "tcpSocket.port")
        if ("httpGet" in body or "tcpSocket" in body) and not (is_port(port) or port in names):
            scene.add("port", m, f"{path}.{probe}", f"{shown(port)} is no port of the container", "deploy.overrides.args")
        for field in ("periodSeconds", "timeoutSeconds", "failureThreshold") if serves else ():
            if not isinstance(body.get(field), int) or body[field] < 1:
                scene.add(
                    "probe",
                    m,
                    f"{path}.{probe}.{field}",
                    f"is {shown(body.get(field))}, a positive number is needed",
                    "model.name",
                )


def _check_asked(scene: Scene, m: Manifest, path: str, probe: Mapping[str, Any]) -> None:
    """The kubelet asks the pod's own address; a host of a probe is one that it asks instead, from where it runs: the node."""
    for handler in ("httpGet", "tcpSocket"):
        host = dig(probe, f"{handler}.host")
        if not isinstance(host, str) or not host or (is_loopback(host) and m.pod.get("hostNetwork") is True):
            continue
        loopback = is_loopback(host)
        where = "the node's own" if loopback else "whatever answers there"
        problem = f"is {shown(host)}: the kubelet asks {where}, and not the pod; leave it out"
        severity: Severity = "error" if loopback else "warning"
        scene.add("probe", m, f"{path}.{handler}.host", problem, "deploy.overrides.patches", severity)


def _check_resources(scene: Scene, m: Manifest, path: str, resources: Any, serves: bool) -> None:
    requests, limits = mapping(resources.get("requests")), mapping(resources.get("limits"))
    for where, values in (("requests", requests), ("limits", limits)):
        for name, value in values.items():
            if quantity(value) is None:
                scene.add("quantity", m, f"{path}.{where}", f"{name}: {shown(value)} is no quantity", "hardware.pool")
            elif name in ("cpu", "memory") and not quantity(value):
                problem = f"{name}: {value} leaves the pod nothing to run with"
                scene.add("resources", m, f"{path}.{where}", problem, f"hardware.pool[].{name}")
    for name in ("cpu", "memory") if serves else ():
        if name not in requests and name not in limits:  # what is not requested is requested as the limit says
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
        if "/" in name and request != limit and not (name in limits and name not in requests):
            problem = f"{name}: request {requests.get(name)} and limit {limits.get(name)} must be equal"
            scene.add("resources", m, path, problem, "hardware.pool[].resource")


def _check_words(scene: Scene, m: Manifest, path: str, container: Any) -> None:
    env = [mapping(e) for e in sequence(container.get("env"))]
    names = [str(e.get("name")) for e in env]
    if len(set(names)) < len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        scene.add("env", m, f"{path}.env", f"{', '.join(twice)} is set twice", "deploy.overrides.env")
    for i, (entry, name) in enumerate(zip(env, names, strict=True)):
        here = f"{path}.env[{i}]"
        if not is_variable(name):
            scene.add("env", m, here, f"{shown(name)} cannot name a variable", "deploy.overrides.env")
        value = entry.get("value")
        if name in _DEVICES and container is m.server and scene.launch(m) is not None and m.containers:
            problem = f"{name} hides accelerators that the device plugin gives the server"
            scene.add("env", m, here, problem, "deploy.overrides.env")
        if isinstance(value, str) and secret(name, value):
            problem = f"{name} holds {secret_value(value) or 'its value'} in plain text; refer to a Secret"
            scene.add(
                "secret",
                m,
                here,
                problem,
                "deploy.hfTokenSecret" if name.startswith("HF_") else "deploy.overrides.env",
            )
    _check_expanded(scene, m, path, container, env)
    words = [w for key in ("command", "args") for w in sequence(container.get(key))]
    for word, after in itertools.pairwise((*words, "")):
        if not isinstance(word, str) or not word.startswith("--"):
            continue
        flag, equals, value = word.partition("=")
        value = value if equals else str(after)
        if secret_name(flag) and value and not (value.startswith("--") and not equals) and secret(flag, value):
            problem = f"{flag} shows a secret to all who may read pods"
            scene.add("secret", m, f"{path}.args", problem, "deploy.overrides.args")


def _check_expanded(scene: Scene, m: Manifest, path: str, container: Any, env: list[Mapping[str, Any]]) -> None:
    """Words that are meant as text, and of which the kubelet would make something else.

    Only the server's are judged, of which the plan knows what they should be; those of others may be scripts for a shell.
    A reference to a variable that is set before it is meant as one, but where the plan has text.
    """
    launch, serves = scene.launch(m), bool(m.containers) and container is m.server
    planned, texts = (launch.env, set(launch.argv())) if launch is not None else ({}, set())
    hidden = bool(sequence(container.get("envFrom")))  # sets names that are not seen here
    before = set(GROUP_VARIABLES) if m.kind == "LeaderWorkerSet" else set[str]()

    def meant(name: str) -> bool:
        return not serves or hidden or name in before or name.startswith(_GIVEN)

    for i, entry in enumerate(env):
        name = str(entry.get("name"))
        text = serves and name in planned
        _check_literal(scene, m, f"{path}.env[{i}]", entry.get("value", ""), "deploy.overrides.env", _never if text else meant)
        before.add(name)
    before -= set(GROUP_VARIABLES)  # what a node must be told in its arguments is planned to the word
    references = node_words(scene, m)
    for word in (w for key in ("command", "args") for w in sequence(container.get(key))):
        if word not in references:
            text = serves and word in texts
            _check_literal(scene, m, f"{path}.args", word, "deploy.overrides.args", _never if text else meant)


def _never(_: str) -> bool:
    return False


def _check_literal(scene: Scene, m: Manifest, path: str, word: Any, key: str, meant: Callable[[str], bool]) -> None:
    """``meant`` tells of the name of a variable whether a reference to it is one."""
    if not isinstance(word, str):
        scene.add("word", m, path, f"{shown(word)} is no string", key)
        return
    try:
        unescape_variables(word)
    except ValueError as error:
        if not all(meant(name) for name in _REFERENCE.findall(word.replace("$$", ""))):
            scene.add("word", m, path, f"{error}; a literal dollar is written twice", key)


def node_words(scene: Scene, m: Manifest) -> tuple[str, ...]:
    """The words of the planned command that the kubelet shall expand: what only the node of a pod knows."""
    launch = scene.launch(m)
    if launch is None or launch.group is None or m.kind != "LeaderWorkerSet":
        return ()
    return tuple(word for arg in launch.group.args(IN_POD) for word in arg.values)


def literal(word: Any) -> Any:
    """What the kubelet makes of a word; a word that it would expand as it stands."""
    try:
        return unescape_variables(word) if isinstance(word, str) else word
    except ValueError:
        return word
