"""Planted faults that a cluster takes without a word: pods that nobody reaches, signals that say nothing, plans undone."""

from __future__ import annotations

from typing import Any

from tests.proof.faults import (
    BUDGET,
    CLAIM,
    CONTAINER,
    GONE,
    HPA,
    LIMITS,
    MONITOR,
    REQUESTS,
    SCALER,
    SERVE,
    SERVICE,
    Fault,
    both,
    put,
)
from tests.proof.further_faults import AUTOSCALER, DECODE_POLICY, POD, POLICY, ROLE, ROUTER_POLICY

GROUP = "leaderworkerset-serve"
LEADER = "spec.leaderWorkerTemplate.leaderTemplate.spec.containers.0"
INSTANCE = "app/dot/kubernetes/dot/io/instance"
QUERY, KEY = "spec.triggers.0.metadata.query", "deploy.autoscaling"
OWN = 'namespace="llm", pod=~"chat-serve-[a-z0-9]+-[a-z0-9]+"'
NOT_SERVE = [{"key": "app.kubernetes.io/component", "operator": "NotIn", "values": ["serve"]}]


def closed(*ports: int) -> Any:
    """A policy whose rules of egress no longer name these ports."""

    def change(document: Any) -> None:
        rules = document["spec"]["egress"]
        for rule in rules:
            if "ports" in rule:
                rule["ports"] = [p for p in rule["ports"] if p["port"] not in ports]
        document["spec"]["egress"] = [r for r in rules if r.get("ports", True)]

    return change


def unwatched(document: Any) -> None:
    """A policy that lets nobody from another namespace in."""
    document["spec"]["ingress"] = [r for r in document["spec"]["ingress"] if not any("namespaceSelector" in p for p in r["from"])]


def apart(field: str, side: str) -> Any:
    """A policy without the rule by which servers reach each other on every port."""

    def change(document: Any) -> None:
        document["spec"][field] = [r for r in document["spec"][field] if not (side in r and "ports" not in r)]

    return change


SERVICE_FAULTS: tuple[Fault, ...] = (
    # Pods.
    Fault("cache that no variable names", "one", SERVE, put(f"{CONTAINER}.env.0", GONE), "volume", "env", "deploy.modelCache",
          "HF_HUB_CACHE is not set"),
    Fault("root image as nobody", "one", SERVE, put(f"{POD}.securityContext.runAsNonRoot", True), "user", "runAsNonRoot",
          "deploy.image", "the kubelet refuses to start it"),
    Fault("no limit of memory", "one", SERVE, put(f"{LIMITS}.memory", GONE), "resources", "limits", "hardware.pool[].memory",
          "memory is missing: /dev/shm"),
    Fault("too little memory for the processes", "one", SERVE,
          both(put(f"{LIMITS}.memory", "12Gi"), put(f"{REQUESTS}.memory", "12Gi")), "resources", "limits",
          "hardware.pool[].memory", "the processes hold at least 8 x 2 GiB"),
    Fault("server that is ended before it is taken out", "one", SERVE, put(f"{CONTAINER}.livenessProbe.failureThreshold", 1),
          "probe", "livenessProbe", "deploy.overrides.patches", "before the 30 s after which it is taken out"),
    Fault("fabric without leave to pin memory", "group", GROUP, put(f"{LEADER}.securityContext.capabilities.add", GONE),
          "devices", "capabilities.add", "fabric.rdma", "IPC_LOCK is missing"),
    Fault("fabric without its adapter", "group", GROUP,
          both(put(f"{LEADER}.resources.limits.rdma/ib", GONE), put(f"{LEADER}.resources.requests.rdma/ib", GONE)), "devices",
          "resources.limits", "fabric.resource", "rdma/ib is missing"),
    Fault("spread of no pods", "one", SERVE, put(f"{POD}.topologySpreadConstraints.0.labelSelector", GONE), "selector",
          "topologySpreadConstraints", "metadata.name", "it counts no pods"),
    # Selectors.
    Fault("deployment of every plan's pods", "one", SERVE, put(f"spec.selector.matchLabels.{INSTANCE}", GONE), "selector",
          "spec.selector.matchLabels", "metadata.name", "takes the pods of other deployments"),
    Fault("service of every plan's pods", "one", SERVICE, put(f"spec.selector.{INSTANCE}", GONE), "selector", "spec.selector",
          "metadata.name", "takes the pods of other deployments"),
    Fault("budget of every plan's pods", "one", BUDGET, put(f"spec.selector.matchLabels.{INSTANCE}", GONE), "selector",
          "spec.selector.matchLabels", "metadata.name", "takes the pods of other deployments"),
    Fault("monitor of every plan's pods", "one", MONITOR, put(f"spec.selector.matchLabels.{INSTANCE}", GONE), "selector",
          "spec.selector.matchLabels", "metadata.name", "takes the pods of other deployments"),
    Fault("policy of every plan's pods", "one", POLICY, put("spec.podSelector", {}), "selector", "spec.podSelector",
          "metadata.name", "takes the pods of other deployments"),
    Fault("budget whose expression leaves nobody", "one", BUDGET, put("spec.selector.matchExpressions", NOT_SERVE), "reference",
          "spec.selector", "metadata.name", "selects no pods"),
    Fault("monitor whose expression leaves nobody", "one", MONITOR, put("spec.selector.matchExpressions", NOT_SERVE), "reference",
          "spec.selector", "metadata.name", "selects no pods"),
    Fault("door to servers that still load", "one", SERVICE, put("spec.publishNotReadyAddresses", True), "entry",
          "publishNotReadyAddresses", "metadata.name", "still load their weights"),
    Fault("budget of all groups at once", "groups", "poddisruptionbudget-decode", put("spec.maxUnavailable", 99), "budget",
          "spec.maxUnavailable", "spareReplicas", "it protects nothing"),
    # Network.
    Fault("names over TCP alone", "one", POLICY, put("spec.egress.0.ports", [{"protocol": "TCP", "port": 53}]), "network",
          "spec.egress", "networkPolicy", "port 53 is closed for UDP"),
    Fault("policy that closes the hub", "one", POLICY, closed(443), "network", "spec.egress", "networkPolicy", "cannot fetch"),
    Fault("router that cannot ask for its servers", "split", ROUTER_POLICY, closed(443, 6443), "network", "spec.egress",
          "networkPolicy", "cannot ask the Kubernetes API"),
    Fault("monitor that is kept out", "one", POLICY, unwatched, "network", "spec.ingress", "deploy.monitoring",
          "its monitor collects nothing"),
    Fault("hand-off that is not let in", "split", DECODE_POLICY, apart("ingress", "from"), "network", "spec.ingress",
          "networkPolicy", "hand over no KV cache"),
    Fault("hand-off that is not let out", "split", DECODE_POLICY, apart("egress", "to"), "network", "spec.egress",
          "networkPolicy", "hand over no KV cache"),
    # Scaling.
    Fault("scaler with a typo", "one", SCALER, put("spec.triggers.0.type", "promethues"), "scaling", "spec.triggers.type", KEY,
          "did you mean prometheus?"),
    Fault("metric type that KEDA has not", "one", SCALER, put("spec.triggers.0.metricType", "Utilization"), "scaling",
          "spec.triggers.metricType", KEY, "must be AverageValue or Value"),
    Fault("switch that is no word", "one", SCALER, put("spec.triggers.0.metadata.ignoreNullValues", "never"), "scaling",
          "ignoreNullValues", KEY, "must be 'true' or 'false'"),
    Fault("series with a typo", "one", SCALER, put(QUERY, f"sum(sglang:num_queue_req{{{OWN}}})"), "scaling", "query", KEY,
          "did you mean sglang:num_queue_reqs?"),
    Fault("series of the whole cluster", "one", SCALER, put(QUERY, "sum(sglang:num_queue_reqs)"), "scaling", "query", KEY,
          "counts every deployment of the cluster"),
    Fault("query that ends too early", "one", SCALER, put(QUERY, f"sum(sglang:num_queue_reqs{{{OWN}}}"), "scaling", "query", KEY,
          "( has no end"),
    Fault("metric of a pod with a typo", "split", HPA, put("spec.metrics.0.pods.metric.name", "sglang:num_queue_rqs"), "scaling",
          "metric.name", KEY, "did you mean sglang:num_queue_reqs?"),
    Fault("fallback to nothing", "one", SCALER, put("spec.fallback.replicas", 0), "scaling", "fallback.replicas", KEY,
          "nobody is served"),
    Fault("idle above the least", "one", SCALER, put("spec.idleReplicaCount", 5), "scaling", "idleReplicaCount", KEY,
          "KEDA takes fewer than the least"),
    Fault("pods that all go at once", "one", SCALER, put(f"{AUTOSCALER}.scaleDown.policies", GONE), "scaling",
          "scaleDown.policies", KEY, "ended at once"),
    Fault("pods that all go at once by Kubernetes", "split", HPA, put("spec.behavior", GONE), "scaling",
          "scaleDown.policies", KEY, "ended at once"),
    Fault("door that nobody opens", "split", "deployment-router", put("spec.replicas", 0), "replicas", "spec.replicas",
          "overrides.patches", "nobody answers at the door"),
    # Storage, rights.
    Fault("claim that nobody may write", "one", CLAIM, put("spec.accessModes", ["ReadOnlyMany"]), "claim", "spec.accessModes",
          "modelCache.size", "downloads the weights into it"),
    Fault("role for pods of no group", "split", ROLE, put("rules.0.apiGroups", ["apps"]), "reference", "serviceAccountName",
          "constraints.topology", "no RoleBinding gives 'chat-router' the Role"),
    Fault("service for its own node only", "one", SERVICE, put("spec.internalTrafficPolicy", "Local"), "localtraffic",
          "spec.internalTrafficPolicy", "overrides.patches", "clients on nodes without a pod of it get no answer"),
    Fault("router for its own node only", "split", "service-router", put("spec.internalTrafficPolicy", "Local"), "localtraffic",
          "spec.internalTrafficPolicy", "overrides.patches", "Cluster reaches all pods"),
    Fault("image that is never pulled", "one", SERVE, put(f"{CONTAINER}.imagePullPolicy", "Never"), "pullpolicy",
          "imagePullPolicy", "deploy.image", "a node that does not hold the image already starts no pod"),
    Fault("token that may be missing", "one", SERVE, put(f"{CONTAINER}.env.2.valueFrom.secretKeyRef.optional", True), "reference",
          "env[2].valueFrom.secretKeyRef.optional", "deploy.hfTokenSecret", "the hub refuses it the model"),
    # Variables.
    Fault("no folder of programs", "one", SERVE, put(f"{CONTAINER}.env.+", {"name": "PATH", "value": ""}), "env", "env",
          "overrides.env", "PATH is '': no program is found"),
    Fault("path that a shell would expand", "split", "deployment-router",
          put(f"{CONTAINER}.env.+", {"name": "PATH", "value": "/opt/bin:$$PATH"}), "env", "env", "overrides.env",
          "nothing expands it"),
    Fault("group by loopback", "group", GROUP, put(f"{LEADER}.env.+", {"name": "NCCL_SOCKET_IFNAME", "value": "lo"}), "env",
          "leaderTemplate.spec.containers[0].env", "overrides.env", "loopback does not reach the other nodes of its replica"),
    Fault("hand-off by loopback", "split", "deployment-prefill",
          put(f"{CONTAINER}.env.+", {"name": "UCX_NET_DEVICES", "value": "lo"}), "env", "env", "overrides.env",
          "loopback does not reach the servers that it hands KV caches to"),
    Fault("leader that calls itself localhost", "group", GROUP,
          put(f"{LEADER}.env.+", {"name": "SGLANG_HOST_IP", "value": "127.0.0.1"}), "env", "env", "overrides.env",
          "the other nodes of its replica find themselves"),
    Fault("hub that may not be asked", "one", SERVE,
          both(put(f"{CONTAINER}.env.+", {"name": "HF_HUB_OFFLINE", "value": "1"}),
               put(f"{POD}.volumes.0", {"name": "models", "emptyDir": {}})),
          "env", "env", "overrides.env", "is never loaded"),
)  # fmt: skip
