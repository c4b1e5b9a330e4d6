"""Plan and launches -> the views of all Kubernetes objects. All arithmetic of the manifests is done by here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servegen.engines.launch import Launch
from servegen.engines.startup import IMAGE_PULL_S
from servegen.errors import Diagnostic, RenderError
from servegen.plan import Plan, Role
from servegen.render import network, scaling, sizing
from servegen.render.context import Context
from servegen.render.names import common_labels, namespace, object_name, selector_labels
from servegen.render.pods import pod_view, startup_s
from servegen.render.views import (
    ClaimView,
    DeploymentView,
    DisruptionBudgetView,
    KustomizationView,
    LeaderWorkerSetView,
    NetworkPolicyView,
    ObjectView,
    PodMonitorView,
    RoleBindingView,
    RoleView,
    ServiceAccountView,
    ServiceView,
)
from servegen.rollout import surge_fits

SCRAPE_INTERVAL_S = 15


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
    runner = deployment(c, launch) if launch.group is None else leader_worker_set(c, launch)
    views: list[ObjectView] = [runner, _service(c, launch)]
    budget_meta = c.meta("PodDisruptionBudget", launch.name, name, launch.name)
    # Of all pods of a replica over several nodes: who evicts one of them ends them all.
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
                c.selector(launch),
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
        scaler = scaling.scaling(c.plan, role, meta, startup_s(c, role))
        if scaler is not None:
            views.append(scaler)
    return views


def deployment(c: Context, launch: Launch) -> DeploymentView:
    """The Deployment of a launch whose replicas take one node each, or a part of one."""
    plan, role = c.plan, c.role(launch)
    pod = pod_view(c, launch)
    # A router is ready once servers are, so its rollout may take as long as theirs.
    slowest_s = startup_s(c, role) if role is not None else max(startup_s(c, r) for r in plan.choice.roles)
    return DeploymentView(
        meta=c.meta("Deployment", launch.name, object_name(plan, launch.name), launch.name),
        replicas=sizing.ROUTER_REPLICAS if role is None else _replicas(c, role),
        selector=selector_labels(plan, launch.name),
        surge=role is None or surge_fits(plan, role),
        progress_deadline_s=int(slowest_s) + IMAGE_PULL_S + pod.grace_s,
        pod=pod,
    )


def leader_worker_set(c: Context, launch: Launch) -> LeaderWorkerSetView:
    """The LeaderWorkerSet of a launch whose replicas take several nodes each. KeyError for a launch of no role."""
    role = c.plan.role(launch.name)
    return LeaderWorkerSetView(
        meta=c.meta("LeaderWorkerSet", launch.name, object_name(c.plan, launch.name), launch.name),
        replicas=_replicas(c, role),
        size=launch.nodes,
        surge=surge_fits(c.plan, role),
        leader=pod_view(c, launch, "leader"),
        worker=pod_view(c, launch, "worker"),
    )


def _replicas(c: Context, role: Role) -> int | None:
    """None where an autoscaler owns the count."""
    return role.total_replicas if c.plan.deploy.autoscaling == "none" else None


def _metrics_port_name(launch: Launch) -> str:
    return "http" if launch.metrics_port == launch.port else "metrics"


def _service(c: Context, launch: Launch) -> ServiceView:
    """The Service of a launch. Not by the name of a LeaderWorkerSet, whose controller makes a headless one of that name."""
    entry = launch is c.entry
    name = object_name(c.plan, "" if entry else f"{launch.name}-leader" if launch.group is not None else launch.name)
    port = {"name": "http", "port": launch.port, "targetPort": "http", "protocol": "TCP"}
    return ServiceView(
        c.meta("Service", launch.name, name, launch.name), c.selector(launch), (port,), entry
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
