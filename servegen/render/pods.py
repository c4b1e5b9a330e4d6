"""The pods of a plan: what each process asks of its node, sees, mounts, and how it is probed and ended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from servegen.engines.launch import IN_POD, ROLE_LABEL, Launch
from servegen.engines.startup import startup_budget_s
from servegen.errors import Diagnostic, RenderError
from servegen.plan import Role
from servegen.render import sizing
from servegen.render.context import Context
from servegen.render.names import GROUP_ROLE, common_labels, object_name, selector_labels
from servegen.render.views import PodView, Probe, Probes, Volume

MODELS_MOUNT = "/models"
#: sglang-router reads a prefill pod's bootstrap port from this annotation (its default bootstrap_port_annotation).
BOOTSTRAP_ANNOTATION = "sglang.ai/bootstrap-port"
#: Engines whose public images run as root: lmsysorg/sglang and nvcr.io/nvidia/pytorch keep caches and JIT output there.
ROOT_IMAGES = frozenset({"sglang", "megatron"})
NOBODY = 65534
#: Engines that read converted checkpoints from a path and never ask the hub.
WITHOUT_HUB = frozenset({"megatron"})
#: A false alarm of the liveness probe costs minutes of loading weights, a late one only a minute of a replica that
#: readiness has taken out already.
LIVENESS_FAILURES = 6
READINESS_FAILURES = 3
#: preStop.sleep is on by default from 1.30 (KEP-3960); before, the image's own sleep does it.
SLEEP_ACTION_SINCE = (1, 30)


def pod_view(c: Context, launch: Launch, group_role: Literal["", "leader", "worker"] = "") -> PodView:
    """The pod of a launch; of a replica over several nodes its leader's, or that of any other node.

    Only the leader answers requests, so that a worker has no ports and nothing to probe: when its process ends, the whole
    group starts again. Nor does a worker wait before it ends: it ignores the signal until its leader, which drains, stops
    it (SGLang: the shutdown request of rank 0).
    """
    plan, deploy, role = c.plan, c.plan.deploy, c.role(launch)
    serves = group_role != "worker"
    selector = selector_labels(plan, launch.name)
    group = role.role if role is not None and role.grouped else ""
    budget_s = startup_s(c, role)
    requests, limits, shm_bytes = _resources(c, role)
    pool = plan.pool[role.pool] if role is not None else None
    return PodView(
        component=launch.name,
        selector=selector,
        labels={
            **common_labels(plan, launch.name),
            **selector,
            # What a router selects two groups of replicas by, with one selector: beside leaders a lone pod is one, too.
            **({ROLE_LABEL: group} if group else {}),
            **({GROUP_ROLE: group_role or "leader"} if group_role or (group and c.led) else {}),
        },
        annotations=_pod_annotations(launch) if serves else {},
        service_account=object_name(plan, "router" if role is None else ""),
        mount_token=role is None,
        image=deploy.image,
        image_pull_secrets=deploy.image_pull_secrets,
        command=launch.program,
        args=tuple(word for arg in launch.args for word in arg.words()),
        node_args=tuple(w for arg in launch.group.args(IN_POD) for w in arg.words()) if launch.group is not None else (),
        env=_env(c, launch),
        secret_env=_secret_env(c, role),
        ports=_ports(launch) if serves else (),
        probes=_probes(c, launch, budget_s) if serves else None,
        requests=requests,
        limits=limits,
        run_as_user=None if role is not None and plan.choice.engine in ROOT_IMAGES else NOBODY,
        capabilities=("IPC_LOCK",) if _uses_rdma(c, role) else (),
        volumes=_volumes(c, role, shm_bytes),
        node_selector=dict(sorted(pool.node_selector.items())) if pool is not None else {},
        tolerations=pool.tolerations if pool is not None else (),
        placement=_placement(c, role),
        priority_class=deploy.priority_class,
        runtime_class=deploy.runtime_class if role is not None else "",
        grace_s=sizing.grace_s(plan, role),
        pre_stop_s=sizing.PRE_STOP_S if serves else 0,
        pre_stop_exec=version_of(deploy.kubernetes_version) < SLEEP_ACTION_SINCE,
    )


def startup_s(c: Context, role: Role | None) -> float:
    """What the startup probe allows, seconds."""
    return sizing.ROUTER_STARTUP_S if role is None else startup_budget_s(c.plan, role)


def _probes(c: Context, launch: Launch, budget_s: float) -> Probes:
    # Failing to find servers is no reason to restart a router: it starts when it is alive.
    first = launch.probes.liveness if launch.role is None else launch.probes.readiness
    return Probes(
        startup=_probe(launch, first, sizing.startup_failures(budget_s)),
        liveness=_probe(launch, launch.probes.liveness, LIVENESS_FAILURES),
        readiness=_probe(launch, launch.probes.readiness, READINESS_FAILURES),
    )


def version_of(text: str) -> tuple[int, int]:
    """(major, minor) of ``1.34``, ``v1.34.2``. Raises RenderError on anything else."""
    parts = text.removeprefix("v").split(".")
    if len(parts) < 2 or not all(re.fullmatch("[0-9]{1,3}", part) for part in parts[:2]):
        raise RenderError(
            Diagnostic(
                "render-version",
                f"{text!r} is no Kubernetes version",
                hint='deploy.kubernetesVersion: a string such as "1.34"',
            )
        )
    return int(parts[0]), int(parts[1])


def _resources(c: Context, role: Role | None) -> tuple[dict[str, str], dict[str, str], int]:
    """(requests, limits, bytes of /dev/shm)."""
    if role is None:
        memory = {"memory": sizing.ROUTER_MEMORY}
        return {"cpu": sizing.ROUTER_CPU, **memory}, memory, 0
    pool = c.plan.pool[role.pool]
    size = sizing.pod_size(role, pool)
    both = {"memory": sizing.mib(size.memory_bytes), pool.resource: str(pool.pod_devices(role.devices))}
    if _uses_rdma(c, role) and pool.rdma_resource:
        both[pool.rdma_resource] = "1"
    return {"cpu": size.cpu, **both}, both, size.shm_bytes


def _uses_rdma(c: Context, role: Role | None) -> bool:
    """Whether a role's traffic leaves its node, by a KV hand-off or within a replica, over a fabric with RDMA."""
    if role is None or not c.plan.pool[role.pool].rdma:
        return False
    return c.plan.choice.topology == "disaggregated" or c.plan.nodes(role) > 1


def _env(c: Context, launch: Launch) -> tuple[Mapping[str, str], ...]:
    role = c.role(launch)
    defaults = {"HOME": "/tmp"} if role is None else {"HF_HUB_CACHE": MODELS_MOUNT} if _asks_hub(c, role) else {}
    merged = {**defaults, **launch.env}
    return tuple({"name": name, "value": merged[name]} for name in sorted(merged))


def _asks_hub(c: Context, role: Role) -> bool:
    """Whether the engine downloads what it loads; a path of the image must not be hidden by a volume."""
    return c.plan.choice.engine not in WITHOUT_HUB and not role.load.startswith("/")


def _secret_env(c: Context, role: Role | None) -> tuple[Mapping[str, Any], ...]:
    secret = c.plan.deploy.hf_token_secret
    if secret is None or role is None:
        return ()
    return ({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret[0], "key": secret[1]}}},)


def _ports(launch: Launch) -> tuple[Mapping[str, Any], ...]:
    ports: list[Mapping[str, Any]] = [{"name": "http", "containerPort": launch.port, "protocol": "TCP"}]
    if launch.metrics_port not in (0, launch.port):
        ports.append({"name": "metrics", "containerPort": launch.metrics_port, "protocol": "TCP"})
    for name, port in sorted(launch.extra_ports.items()):
        ports.append({"name": name, "containerPort": port, "protocol": "TCP"})
    return tuple(ports)


def _pod_annotations(launch: Launch) -> dict[str, str]:
    if launch.role == "prefill" and "bootstrap" in launch.extra_ports:
        return {BOOTSTRAP_ANNOTATION: str(launch.extra_ports["bootstrap"])}
    return {}


def _probe(launch: Launch, path: str, failures: int) -> Probe:
    return Probe(path, max(1, launch.probes.timeout_s), sizing.PROBE_PERIOD_S, failures)


def _volumes(c: Context, role: Role | None, shm_bytes: int) -> tuple[Volume, ...]:
    if role is None:
        return (Volume("tmp", "empty", "/tmp", size="1Gi"),)
    cache = c.plan.deploy.cache
    volumes: list[Volume] = []
    if cache.claim or cache.size_bytes:
        volumes.append(Volume("models", "claim", MODELS_MOUNT, source=cache.claim or object_name(c.plan, "models")))
    elif cache.host_path:
        volumes.append(Volume("models", "host", MODELS_MOUNT, source=cache.host_path))
    elif _asks_hub(c, role):
        volumes.append(Volume("models", "empty", MODELS_MOUNT))
    if shm_bytes:
        volumes.append(Volume("shm", "memory", "/dev/shm", size=sizing.mib(shm_bytes)))
    return tuple(volumes)


def _placement(c: Context, role: Role | None) -> Literal["spread", "pack", "any"]:
    """Spread where all pods of a pool are of one size; else pack the small ones, which would break up every node.

    A pod of a replica over several nodes takes a whole node, so that there is nothing to choose.
    """
    if role is None:
        return "spread"
    if c.plan.nodes(role) > 1:
        return "any"
    sizes = {c.plan.pool[r.pool].pod_devices(r.devices) for r in c.plan.choice.roles if r.pool == role.pool}
    if len(sizes) == 1:
        return "spread"
    return "any" if role.devices == max(sizes) else "pack"
