"""Planted faults of replicas over several nodes: the group of pods that is one replica, and what may find which of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.proof.faults import BUDGET, COMPONENT, GONE, GPU, MONITOR, SCALER, SERVICE, Fault, both, put

SET, DECODE_SET, PREFILL_SET = "leaderworkerset-serve", "leaderworkerset-decode", "leaderworkerset-prefill"
POLICY, ROUTER, DECODE_HPA = "networkpolicy-serve", "deployment-router", "horizontalpodautoscaler-decode"
GROUP = "spec.leaderWorkerTemplate"
LEADER, WORKER = f"{GROUP}.leaderTemplate", f"{GROUP}.workerTemplate"
FIRST, SECOND = f"{LEADER}.spec.containers.0", f"{WORKER}.spec.containers.0"
ROLE = "servegen/dot/dev/group-role"
ROLLOUT = "spec.rolloutStrategy.rollingUpdateConfiguration"
PROBE = {"httpGet": {"path": "/health", "port": 30000}, "periodSeconds": 10, "timeoutSeconds": 20, "failureThreshold": 3}


def devices(container: str, count: str) -> Callable[[Any], object]:
    """Another number of accelerators, requested and limited alike."""
    return both(*(put(f"{container}.resources.{where}.{GPU}", count) for where in ("requests", "limits")))


def words(template: str, old: str, new: str | None) -> Callable[[Any], object]:
    """Another word for ``old`` in the arguments of one pod, or none."""

    def change(document: Any) -> None:
        args = document["spec"]["leaderWorkerTemplate"][template]["spec"]["containers"][0]["args"]
        at = args.index(old)
        args[at : at + 1] = [] if new is None else [new]

    return change


def discovers(flag: str) -> Callable[[Any], object]:
    """The router's selector without the label that tells leaders from workers."""

    def change(document: Any) -> None:
        args = document["spec"]["template"]["spec"]["containers"][0]["args"]
        del args[args.index(flag) + 3]

    return change


def alike(document: Any) -> None:
    """The worker's labels become the leader's."""
    group = document["spec"]["leaderWorkerTemplate"]
    group["workerTemplate"]["metadata"]["labels"] = dict(group["leaderTemplate"]["metadata"]["labels"])


def without_own_pods(field: str) -> Callable[[Any], object]:
    """A policy without the rule that lets the pods of a replica talk on every port."""

    def change(document: Any) -> None:
        side = "from" if field == "ingress" else "to"
        rules = document["spec"][field]
        document["spec"][field] = [r for r in rules if not (side in r and "ports" not in r)]

    return change


GROUP_FAULTS: tuple[Fault, ...] = (
    # The world: pods x accelerators = tp x pp.
    Fault("group one pod too small", "group", SET, put(f"{GROUP}.size", 1), "devices", f"{GROUP}.size", "constraints.tp",
          "2 pods of 8 accelerators are the tp x pp = 16"),
    Fault("group one pod too large", "group", SET, put(f"{GROUP}.size", 3), "devices", f"{GROUP}.size", "constraints.tp",
          "is 3: 2 pods of 8"),
    Fault("group without a size", "group", SET, put(f"{GROUP}.size", GONE), "devices", f"{GROUP}.size", "constraints.tp",
          "is nothing: 2 pods"),
    Fault("leader with half a node", "group", SET, devices(FIRST, "4"), "devices", "leaderTemplate", "constraints.tp",
          "4, the replica takes tp x pp = 16, 8 on each of 2 nodes"),
    Fault("worker with half a node", "group", SET, devices(SECOND, "4"), "devices", "workerTemplate", "constraints.tp",
          "4, the replica takes tp x pp = 16, 8 on each of 2 nodes"),
    Fault("leader with the whole world", "groups", DECODE_SET, devices(FIRST, "16"), "devices", "leaderTemplate",
          "constraints.tp", "16, the replica takes"),
    Fault("worker whose limit is not its request", "group", SET, put(f"{SECOND}.resources.limits.{GPU}", "4"), "resources",
          "workerTemplate", "hardware.pool", "must be equal"),
    Fault("worker of another resource", "group", SET, put(f"{SECOND}.resources.limits.amd/dot/com/gpu", "8"), "devices",
          "workerTemplate", "hardware.pool[].resource", "have no such resource"),
    # Labels, selectors, names.
    Fault("worker with the leader's labels", "group", SET, alike, "selector", "workerTemplate.metadata.labels", "metadata.name",
          "are the leader's"),
    Fault("worker of another component", "group", SET, put(f"{WORKER}.metadata.labels.{COMPONENT}", "x"), "group",
          "workerTemplate.metadata.labels", "metadata.name", "another component"),
    Fault("service that selects workers, too", "group", SERVICE, put(f"spec.selector.{ROLE}", GONE), "selector",
          "spec.selector", "metadata.name", "only help their leader"),
    Fault("service that selects only workers", "group", SERVICE, put(f"spec.selector.{ROLE}", "worker"), "selector",
          "spec.selector", "metadata.name", "only help their leader"),
    Fault("service that selects no leader", "groups", "service-decode", put(f"spec.selector.{ROLE}", "head"), "reference",
          "spec.selector", "metadata.name", "selects no pods"),
    Fault("service by the group's own name", "groups", "service-decode", put("metadata.name", "chat-decode"), "name",
          "metadata.name", "metadata.name", "makes a headless Service of this name"),
    Fault("monitor of workers, too", "group", MONITOR, put(f"spec.selector.matchLabels.{ROLE}", GONE), "selector",
          "spec.selector", "metadata.name", "only help their leader"),
    Fault("router that finds workers", "groups", ROUTER, discovers("--decode-selector"), "command", "args", "overrides.args",
          "planned: 'servegen.dev/group-role=leader'"),
    Fault("router that finds no leader", "groups", PREFILL_SET, put(f"{LEADER}.metadata.labels.{ROLE}", "head"), "discovery",
          "args", "metadata.name", "--prefill-selector selects no pods"),
    Fault("workers labelled as leaders", "groups", DECODE_SET, put(f"{WORKER}.metadata.labels.{ROLE}", "leader"), "discovery",
          "args", "metadata.name", "finds pods that only help their leader"),
    Fault("budget of leaders alone", "group", BUDGET, put(f"spec.selector.matchLabels.{ROLE}", "leader"), "budget",
          "spec.selector", "metadata.name", "leaves out the workers"),
    Fault("label value of a worker", "group", SET, put(f"{WORKER}.metadata.labels.{ROLE}", "a b"), "label",
          "workerTemplate.metadata.labels", "metadata.name", "no legal label value"),
    Fault("plan's hash on a worker", "group", SET,
          put(f"{WORKER}.metadata.annotations", {"servegen.dev/plan-hash": "x"}), "hash", "workerTemplate.metadata",
          "metadata.name", "restarts all pods"),
    # How a group starts, ends and is replaced.
    Fault("pods that restart alone", "group", SET, put(f"{GROUP}.restartPolicy", "None"), "group", "restartPolicy",
          "overrides.patches", "cannot join collectives"),
    Fault("workers that wait for a leader that waits for them", "group", SET, put("spec.startupPolicy", "LeaderReady"), "group",
          "startupPolicy", "overrides.patches", "would wait for it"),
    Fault("worker that ends before its leader", "group", SET, put(f"{WORKER}.spec.terminationGracePeriodSeconds", 5), "grace",
          "workerTemplate", "traffic.osl", "needs its workers"),
    Fault("leader that does not drain", "group", SET, put(f"{FIRST}.lifecycle", {}), "grace", "leaderTemplate",
          "overrides.patches", "no sleep"),
    Fault("group rollout that cannot move", "group", SET, put(ROLLOUT, {"maxSurge": 0, "maxUnavailable": 0}), "rollout",
          ROLLOUT, "hardware.pool", "no rollout can move"),
    Fault("group rollout that stops half-way", "group", SET, put(f"{ROLLOUT}.partition", 1), "rollout",
          f"{ROLLOUT}.partition", "overrides.patches", "on the old plan"),
    Fault("probe of a worker", "group", SET, put(f"{SECOND}.livenessProbe", PROBE), "probe", "workerTemplate",
          "constraints.engines", "only helps its leader"),
    Fault("leader without a probe", "group", SET, put(f"{FIRST}.readinessProbe", GONE), "probe", "leaderTemplate",
          "constraints.engines", "is missing"),
    Fault("group startup shorter than loading", "group", SET, put(f"{FIRST}.startupProbe.failureThreshold", 3), "startup",
          "leaderTemplate", "storage.bandwidth", "reading the weights alone"),
    Fault("worker without /dev/shm", "group", SET, put(f"{WORKER}.spec.volumes.1.emptyDir", {}), "shm", "workerTemplate",
          "constraints.tp", "exchanges through /dev/shm"),
    Fault("worker without the model cache", "group", SET, put(f"{SECOND}.volumeMounts.0.mountPath", "/x"), "volume",
          "workerTemplate", "modelCache", "every pod downloads anew"),
    Fault("worker of another image", "group", SET, put(f"{SECOND}.image", "lmsysorg/sglang:v0.5.22"), "image",
          "workerTemplate", "deploy.image", "the plan's is"),
    Fault("worker on any node", "group", SET, put(f"{WORKER}.spec.nodeSelector", GONE), "placement", "workerTemplate",
          "hardware.pool[].nodeSelector", "nodes that were planned for"),
    Fault("worker with a token", "group", SET, put(f"{WORKER}.spec.automountServiceAccountToken", True), "security",
          "workerTemplate", "overrides.patches", "needs no token"),
    Fault("group on the host's network", "group", SET, put(f"{WORKER}.spec.hostNetwork", True), "security", "workerTemplate",
          "overrides.patches", "opens the node"),
    # Words.
    Fault("every node is the leader", "group", SET, words("workerTemplate", "$(LWS_WORKER_INDEX)", "0"), "command",
          "workerTemplate", "overrides.args", "'$(LWS_WORKER_INDEX)', to be expanded"),
    Fault("rank that the kubelet leaves as it is", "group", SET,
          words("leaderTemplate", "$(LWS_WORKER_INDEX)", "$$(LWS_WORKER_INDEX)"), "command", "leaderTemplate",
          "overrides.args", "to be expanded"),
    Fault("nodes that meet elsewhere", "group", SET,
          words("workerTemplate", "$(LWS_LEADER_ADDRESS):20000", "$(LWS_LEADER_ADDRESS):20001"), "word", "workerTemplate",
          "overrides.args", "would expand"),
    Fault("no place to meet", "group", SET, words("leaderTemplate", "--dist-init-addr", None), "command", "leaderTemplate",
          "overrides.args", "planned: '--dist-init-addr'"),
    Fault("another variable of the controller", "group", SET, words("leaderTemplate", "$(LWS_WORKER_INDEX)", "$(LWS_GROUP_SIZE)"),
          "word", "leaderTemplate", "overrides.args", "would expand '$(LWS_GROUP_SIZE)'"),
    Fault("reference where it means something else", "group", SET, words("leaderTemplate", "0.0.0.0", "$(LWS_LEADER_ADDRESS)"),
          "word", "leaderTemplate", "overrides.args", "would expand"),
    Fault("rank of one's own making", "group", SET, put(f"{SECOND}.env.+", {"name": "LWS_WORKER_INDEX", "value": "1"}), "env",
          "workerTemplate", "overrides.env", "the controller's to set"),
    # Scaling and network.
    Fault("scaler of a Deployment that is a group", "group", SCALER,
          both(put("spec.scaleTargetRef.kind", "Deployment"), put("spec.scaleTargetRef.apiVersion", "apps/v1")), "reference",
          "scaleTargetRef", "deploy.autoscaling", "there is no Deployment 'chat-serve'"),
    Fault("scaler of a group by another API", "group", SCALER, put("spec.scaleTargetRef.apiVersion", "apps/v1"), "reference",
          "scaleTargetRef.apiVersion", "deploy.autoscaling", "a LeaderWorkerSet is leaderworkerset.x-k8s.io/v1"),
    Fault("scaler that counts pods of a Deployment", "group", SCALER,
          put("spec.triggers.0.metadata.query",
              'sum(sglang:num_queue_reqs{namespace="llm", pod=~"chat-serve-[a-z0-9]+-[a-z0-9]+"})'),
          "scaling", "query", "deploy.autoscaling", "finds nothing of pods of chat-serve"),
    Fault("more groups than nodes hold", "group", SCALER, put("spec.maxReplicaCount", 5), "scaling", "maxReplicaCount",
          "hardware.pool", "the pool holds 4 replicas of 16"),
    Fault("hpa of a group that is not there", "groups", DECODE_HPA, put("spec.scaleTargetRef.name", "chat-x"), "reference",
          "scaleTargetRef", "deploy.autoscaling", "there is no LeaderWorkerSet 'chat-x'"),
    Fault("replicas beside the autoscaler of a group", "group", SET, put("spec.replicas", 2), "replicas", "spec.replicas",
          "deploy.autoscaling", "owns the count"),
    Fault("pods of a replica are let in at one port", "group", POLICY, without_own_pods("ingress"), "network", "spec.ingress",
          "networkPolicy", "may not reach each other on every port"),
    Fault("pods of a replica are not let out", "group", POLICY, without_own_pods("egress"), "network", "spec.egress",
          "networkPolicy", "may not reach each other on every port"),
    # Schema.
    Fault("field of a group with a typo", "group", SET, put(f"{GROUP}.restartPolcy", "x"), "schema", "restartPolcy", "spec.",
          "did you mean restartPolicy"),
    Fault("word of a group with a typo", "group", SET, put("spec.startupPolicy", "LeaderCreate"), "schema", "startupPolicy",
          "spec.", "is not one of"),
    Fault("field of a Deployment in a group", "group", SET, put("spec.progressDeadlineSeconds", 60), "schema",
          "progressDeadlineSeconds", "spec.", "no such field"),
    Fault("typo in a worker's pod", "group", SET, put(f"{WORKER}.spec.nodeSelecter", {}), "schema", "nodeSelecter", "spec.",
          "did you mean nodeSelector"),
    Fault("group without workers", "group", SET, put(WORKER, GONE), "schema", "workerTemplate", "spec.", "required"),
    Fault("size as text", "group", SET, put(f"{GROUP}.size", "2"), "schema", f"{GROUP}.size", "constraints.tp", "whole number"),
)  # fmt: skip
