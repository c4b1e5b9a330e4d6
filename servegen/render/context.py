"""What every builder of Kubernetes objects needs of one plan, and the API of every kind that is written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from servegen.engines.launch import Launch
from servegen.plan import Plan, Role
from servegen.record import record
from servegen.render.names import GROUP_ROLE, HASH_ANNOTATION, common_labels, namespace, selector_labels
from servegen.render.views import Meta

API_VERSIONS: Mapping[str, str] = {
    "Deployment": "apps/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
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


@record
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

    @property
    def led(self) -> bool:
        """Whether some replica spans nodes, so that a leader answers for it."""
        return any(launch.group is not None for launch in self.launches)

    def role(self, launch: Launch) -> Role | None:
        """The plan's role behind a launch, None for the router."""
        return self.plan.role(launch.name) if launch.role is not None else None

    def selector(self, launch: Launch) -> dict[str, str]:
        """What selects the pods of a launch that answer requests: of a replica over several nodes only its leader does."""
        leader = {GROUP_ROLE: "leader"} if launch.group is not None else {}
        return {**selector_labels(self.plan, launch.name), **leader}

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
