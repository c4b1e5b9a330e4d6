"""Plan and launches -> the views of all Kubernetes objects. All arithmetic of the manifests is done by here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from servegen.engines.launch import Launch
from servegen.engines.startup import startup_budget_s
from servegen.errors import Diagnostic, RenderError
from servegen.plan import Plan, Role
from servegen.render import network, scaling, sizing
from servegen.render.names import HASH_ANNOTATION, common_labels, namespace, object_name, selector_labels
from servegen.render.views import (
    ClaimView,
    DeploymentView,
    DisruptionBudgetView,
    KustomizationView,
    Meta,
    NetworkPolicyView,
    ObjectView,
    PodMonitorView,
    Probe,
    RoleBindingView,
    RoleView,
    ServiceAccountView,
    ServiceView,
    Volume,
)
from servegen.rollout import surge_fits

API_VERSIONS: Mapping[str, str] = {
    "Deployment": "apps/v1",
    "Service": "v1",
    "ServiceAccount": "v1",
    "PersistentVolumeClaim": "v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "PodMonitor": "monitoring.coreos.com/v1",
    "ScaledObject": "keda.sh/v1alpha1",
}
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
SCRAPE_INTERVAL_S = 15
#: preStop.sleep is on by default from 1.30 (KEP-3960); before, the image's own sleep does it.
SLEEP_ACTION_SINCE = (1, 30)


@dataclass(frozen=True)
class Context:
    """What every builder below needs of one plan."""

    plan: Plan
    launches: tuple[Launch, ...]

    @cached_property
    def plan_hash(self) -> str:
        return self.plan.content_hash

    @property
    def entry(self) -> Launch:
        """The launch that clients talk to: the router, else the server."""
        return next((launch for launch in self.launches if launch.role is None), self.launches[0])

    def role(self, launch: Launch) -> Role | None:
        """The plan's role behind a launch, None for the router."""
        return self.plan.role(launch.role) if launch.role is not None else None

    def meta(self, kind: str, suffix: str, name: str, component: str = "") -> Meta:
        return Meta(
            api_version=API_VERSIONS[kind],
            kind=kind,
            name=name,
            namespace=namespace(self.plan),
            labels=common_labels(self.plan, component),
            annotations={HASH_ANNOTATION: self.plan_hash},
            suffix=suffix,
        )


def object_views(plan: Plan, launches: Sequence[Launch]) -> tuple[ObjectView, ...]:
    """Every object of the bundle except the kustomization, in a stable order.

    Raises RenderError for a plan without launches or a name that Kubernetes does not allow.
    """
    if not launches:
        raise RenderError(Diagnostic("render-empty", f"{plan.name}: the engine starts nothing"))
    c = Context(plan, tuple(launches))
    views: list[ObjectView] = [_server_account(c)]
    if any(launch.role is None for launch in launches):
        views += _router_rights(c)
    if plan.deploy.cache.size_bytes:
        views.append(_claim(c))
    for launch in launches:
        views += _launch_views(c, launch)
    return tuple(views)


def kustomization_view(plan: Plan, resources: Sequence[str], patches: Sequence[Mapping[str, Any]]) -> KustomizationView:
    """The kustomization over file names relative to ``kubernetes/``; ``patches`` are whole entries."""
    labels = {k: v for k, v in common_labels(plan).items() if k.endswith(("/part-of", "/managed-by"))}
    return KustomizationView(namespace(plan), tuple(sorted(resources)), labels, tuple(patches))


def _launch_views(c: Context, launch: Launch) -> list[ObjectView]:
    role = c.role(launch)
    name = object_name(c.plan, launch.name)
    selector = selector_labels(c.plan, launch.name)
    views: list[ObjectView] = [deployment(c, launch), _service(c, launch)]
    budget_meta = c.meta("PodDisruptionBudget", launch.name, name, launch.name)
    views.append(DisruptionBudgetView(budget_meta, selector, max_unavailable=1))
    if c.plan.deploy.network_policy_from is not None:
        views.append(
            NetworkPolicyView(
                c.meta("NetworkPolicy", launch.name, name, launch.name),
                selector,
                network.ingress(c.plan, launch, c.launches, c.entry),
                network.egress(c.plan, launch, c.launches),
            )
        )
    if c.plan.deploy.monitoring and launch.metrics_port:
        views.append(
            PodMonitorView(
                c.meta("PodMonitor", launch.name, name, launch.name),
                selector,
                port=_metrics_port_name(launch),
                path=launch.metrics_path,
                interval_s=SCRAPE_INTERVAL_S,
                target_labels=tuple(selector),
            )
        )
    if role is not None and c.plan.deploy.autoscaling != "none":
        if not launch.metrics_port:
            message = f"{c.plan.choice.engine} publishes no metrics, so nothing can scale its servers"
            raise RenderError(Diagnostic("render-scaling", message, hint="deploy.autoscaling: none"))
        kind = "ScaledObject" if c.plan.deploy.autoscaling == "keda" else "HorizontalPodAutoscaler"
        meta = c.meta(kind, launch.name, name, launch.name)
        scaler = scaling.scaling(c.plan, role, meta, startup_budget_s(c.plan, role))
        if scaler is not None:
            views.append(scaler)
    return views


def deployment(c: Context, launch: Launch) -> DeploymentView:
    """The Deployment of one launch."""
    plan, deploy, role = c.plan, c.plan.deploy, c.role(launch)
    selector = selector_labels(plan, launch.name)
    budget_s = sizing.ROUTER_STARTUP_S if role is None else startup_budget_s(plan, role)
    # A router is ready once servers are, so its rollout may take as long as theirs.
    slowest_s = budget_s if role is not None else max(startup_budget_s(plan, r) for r in plan.choice.roles)
    grace = sizing.grace_s(plan, role)
    requests, limits, shm_bytes = _resources(c, role)
    pool = plan.pool[role.pool] if role is not None else None
    autoscaled = role is not None and deploy.autoscaling != "none"
    return DeploymentView(
        meta=c.meta("Deployment", launch.name, object_name(plan, launch.name), launch.name),
        component=launch.name,
        replicas=None if autoscaled else (role.total_replicas if role is not None else sizing.ROUTER_REPLICAS),
        selector=selector,
        pod_labels={**common_labels(plan, launch.name), **selector},
        pod_annotations=_pod_annotations(launch),
        surge=role is None or surge_fits(plan, role),
        progress_deadline_s=int(slowest_s) + sizing.IMAGE_PULL_S + grace,
        service_account=object_name(plan, "router" if role is None else ""),
        mount_token=role is None,
        image=deploy.image,
        image_pull_secrets=deploy.image_pull_secrets,
        command=launch.program,
        args=tuple(word for arg in launch.args for word in arg.words()),
        env=_env(c, launch),
        secret_env=_secret_env(c, role),
        ports=_ports(launch),
        # Failing to find servers is no reason to restart a router: it starts when it is alive.
        startup=_probe(
            launch,
            launch.probes.liveness if role is None else launch.probes.readiness,
            sizing.startup_failures(budget_s),
        ),
        liveness=_probe(launch, launch.probes.liveness, LIVENESS_FAILURES),
        readiness=_probe(launch, launch.probes.readiness, READINESS_FAILURES),
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
        grace_s=grace,
        pre_stop_s=sizing.PRE_STOP_S,
        pre_stop_exec=version_of(deploy.kubernetes_version) < SLEEP_ACTION_SINCE,
    )


def version_of(text: str) -> tuple[int, int]:
    """(major, minor) of ``1.34``, ``v1.34.2``. Raises RenderError on anything else."""
    parts = text.removeprefix("v").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
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
    both = {"memory": sizing.mib(size.memory_bytes), pool.resource: str(role.devices)}
    if _uses_rdma(c, role) and pool.rdma_resource:
        both[pool.rdma_resource] = "1"
    return {"cpu": size.cpu, **both}, both, size.shm_bytes


def _uses_rdma(c: Context, role: Role | None) -> bool:
    """Only a KV hand-off leaves the node; replicas themselves fit one."""
    return role is not None and c.plan.choice.topology == "disaggregated" and c.plan.pool[role.pool].rdma


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


def _metrics_port_name(launch: Launch) -> str:
    return "http" if launch.metrics_port == launch.port else "metrics"


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
    """Spread where all pods of a pool are of one size; else pack the small ones, which would break up every node."""
    if role is None:
        return "spread"
    sizes = {r.devices for r in c.plan.choice.roles if r.pool == role.pool}
    if len(sizes) == 1:
        return "spread"
    return "any" if role.devices == max(sizes) else "pack"


def _service(c: Context, launch: Launch) -> ServiceView:
    entry = launch is c.entry
    name = object_name(c.plan, "" if entry else launch.name)
    port = {"name": "http", "port": launch.port, "targetPort": "http", "protocol": "TCP"}
    return ServiceView(
        c.meta("Service", launch.name, name, launch.name), selector_labels(c.plan, launch.name), (port,), entry
    )


def _server_account(c: Context) -> ServiceAccountView:
    return ServiceAccountView(c.meta("ServiceAccount", "server", object_name(c.plan)), c.plan.deploy.image_pull_secrets)


def _router_rights(c: Context) -> list[ObjectView]:
    name = object_name(c.plan, "router")
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    return [
        ServiceAccountView(c.meta("ServiceAccount", "router", name, "router"), c.plan.deploy.image_pull_secrets),
        RoleView(c.meta("Role", "router", name, "router"), (rule,)),
        RoleBindingView(c.meta("RoleBinding", "router", name, "router"), role=name, service_account=name),
    ]


def _claim(c: Context) -> ClaimView:
    cache = c.plan.deploy.cache
    # Even one replica moves between nodes in a rollout, while the old one still holds the volume; and a cluster may have
    # more nodes of the kind than the pool counts.
    nodes = sum(c.plan.pool[i].nodes for i in {role.pool for role in c.plan.choice.roles})
    replicas = sum(role.total_replicas for role in c.plan.choice.roles)
    mode = "ReadWriteMany" if nodes > 1 or replicas > 1 else "ReadWriteOnce"
    meta = c.meta("PersistentVolumeClaim", "models", object_name(c.plan, "models"))
    return ClaimView(meta, mode, cache.storage_class, sizing.gib(cache.size_bytes))
