"""What templates see of a Kubernetes object: every number, name and word final, so that a template only writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from servegen.record import record


@record
class Meta:
    """Head of an object. ``suffix`` ends its file name: ``<kind>-<suffix>.yaml``."""

    api_version: str
    kind: str
    name: str
    namespace: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    suffix: str

    @property
    def path(self) -> str:
        return f"kubernetes/{self.kind.lower()}-{self.suffix}.yaml"


@record
class Probe:
    """``path`` "" means that an open port is all there is to ask."""

    path: str
    timeout_s: int
    period_s: int
    failures: int


@record
class Volume:
    """``source`` is a claim's name or a path of the node, ``size`` a quantity ("" = no limit)."""

    name: str
    kind: Literal["claim", "host", "empty", "memory"]
    mount: str
    source: str = ""
    size: str = ""


@record
class Probes:
    """Of one container."""

    startup: Probe
    liveness: Probe
    readiness: Probe


@record
class PodView:
    """A pod template. ``env`` and ``args`` are what the process shall see; ``node_args`` are for the kubelet to expand.

    ``selector`` selects the pods of the same launch. ``probes`` None: nothing answers in this pod. ``pre_stop_s`` 0: it
    need not wait before it ends.
    """

    component: str
    selector: Mapping[str, str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    service_account: str
    mount_token: bool
    image: str
    image_pull_secrets: tuple[str, ...]
    command: tuple[str, ...]
    args: tuple[str, ...]
    node_args: tuple[str, ...]
    env: tuple[Mapping[str, str], ...]
    secret_env: tuple[Mapping[str, Any], ...]
    ports: tuple[Mapping[str, Any], ...]
    probes: Probes | None
    requests: Mapping[str, str]
    limits: Mapping[str, str]
    run_as_user: int | None  # None: the image's user, which is root
    capabilities: tuple[str, ...]
    volumes: tuple[Volume, ...]
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    placement: Literal["spread", "pack", "any"]
    priority_class: str
    runtime_class: str
    grace_s: int
    pre_stop_s: int
    pre_stop_exec: bool


@record
class DeploymentView:
    """``replicas`` None: an autoscaler owns the count."""

    template: ClassVar[str] = "kubernetes/deployment.yaml.j2"
    meta: Meta
    replicas: int | None
    selector: Mapping[str, str]
    surge: bool
    progress_deadline_s: int
    pod: PodView


@record
class LeaderWorkerSetView:
    """Replicas of ``size`` nodes, a pod each. ``replicas`` None: an autoscaler owns the count."""

    template: ClassVar[str] = "kubernetes/leaderworkerset.yaml.j2"
    meta: Meta
    replicas: int | None
    size: int
    surge: bool
    leader: PodView
    worker: PodView


@record
class ServiceView:
    template: ClassVar[str] = "kubernetes/service.yaml.j2"
    meta: Meta
    selector: Mapping[str, str]
    ports: tuple[Mapping[str, Any], ...]
    entry: bool


@record
class ServiceAccountView:
    template: ClassVar[str] = "kubernetes/serviceaccount.yaml.j2"
    meta: Meta
    image_pull_secrets: tuple[str, ...]


@record
class RoleView:
    template: ClassVar[str] = "kubernetes/role.yaml.j2"
    meta: Meta
    rules: tuple[Mapping[str, Any], ...]


@record
class RoleBindingView:
    template: ClassVar[str] = "kubernetes/rolebinding.yaml.j2"
    meta: Meta
    role: str
    service_account: str


@record
class DisruptionBudgetView:
    template: ClassVar[str] = "kubernetes/poddisruptionbudget.yaml.j2"
    meta: Meta
    selector: Mapping[str, str]
    max_unavailable: int


@record
class ClaimView:
    template: ClassVar[str] = "kubernetes/persistentvolumeclaim.yaml.j2"
    meta: Meta
    access_mode: str
    storage_class: str
    size: str


@record
class NetworkPolicyView:
    """``ingress`` and ``egress`` are whole rules."""

    template: ClassVar[str] = "kubernetes/networkpolicy.yaml.j2"
    meta: Meta
    selector: Mapping[str, str]
    ingress: tuple[Mapping[str, Any], ...]
    egress: tuple[Mapping[str, Any], ...]


@record
class PodMonitorView:
    template: ClassVar[str] = "kubernetes/podmonitor.yaml.j2"
    meta: Meta
    selector: Mapping[str, str]
    port: str
    path: str
    interval_s: int
    target_labels: tuple[str, ...]


@record
class Target:
    """The object whose replicas are counted."""

    api_version: str
    kind: str
    name: str


@record
class ScalingView:
    """A HorizontalPodAutoscaler (``metrics``) or a ScaledObject (``triggers``) of what runs one launch."""

    template: str
    meta: Meta
    target: Target
    min_replicas: int
    max_replicas: int
    planned_replicas: int
    behavior: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...] = ()
    triggers: tuple[Mapping[str, Any], ...] = ()
    polling_s: int = 0
    cooldown_s: int = 0


@record
class KustomizationView:
    template: ClassVar[str] = "kubernetes/kustomization.yaml.j2"
    namespace: str
    resources: tuple[str, ...]
    labels: Mapping[str, str]
    patches: tuple[Mapping[str, Any], ...] = ()


ObjectView = (
    DeploymentView
    | LeaderWorkerSetView
    | ServiceView
    | ServiceAccountView
    | RoleView
    | RoleBindingView
    | DisruptionBudgetView
    | ClaimView
    | NetworkPolicyView
    | PodMonitorView
    | ScalingView
)
