"""Planted faults that only the API server's own rules forbid: one at least for each kind of rule."""

from __future__ import annotations

from tests.proof.faults import CLAIM, CONTAINER, HPA, LIMITS, SERVE, SERVICE, Fault, put

POD, POLICY, PATCHES = "spec.template.spec", "networkpolicy-serve", "deploy.overrides.patches"
WORKER = "spec.leaderWorkerTemplate.workerTemplate.spec"
NAME_FIELD = {"fieldRef": {"fieldPath": "metadata.name"}}

RULE_FAULTS: tuple[Fault, ...] = (
    # Unions.
    Fault("value beside valueFrom", "one", SERVE, put(f"{CONTAINER}.env.0.valueFrom", NAME_FIELD),
          "union", "env[0]", "deploy.overrides.env", "has value and valueFrom at once"),
    Fault("valueFrom nothing", "one", SERVE, put(f"{CONTAINER}.env.+", {"name": "X", "valueFrom": {}}),
          "union", "valueFrom", "deploy.overrides.env", "has none of fieldRef"),
    Fault("volume without a source", "one", SERVE, put(f"{POD}.volumes.+", {"name": "x"}),
          "union", "volumes[2]", "deploy.modelCache", "has none of"),
    Fault("two handlers before a stop", "one", SERVE, put(f"{CONTAINER}.lifecycle.preStop.exec", {"command": ["x"]}),
          "union", "lifecycle.preStop", PATCHES, "has exec and sleep at once"),
    Fault("peer of two kinds", "one", POLICY,
          put("spec.ingress.0.from.+", {"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}),
          "union", "ingress[0].from[1]", "deploy.networkPolicy", "has ipBlock and podSelector at once"),
    Fault("metric of two targets", "split", HPA, put("spec.metrics.0.pods.target.value", "3"),
          "union", "metrics[0].pods.target", PATCHES, "has value and averageValue at once"),
    Fault("subPath of both kinds of a worker", "group", "leaderworkerset-serve",
          put(f"{WORKER}.containers.0.volumeMounts.0", {"name": "models", "mountPath": "/m", "subPath": "a", "subPathExpr": "b"}),
          "union", "workerTemplate.spec.containers[0].volumeMounts[0]", "deploy.modelCache", "at once"),
    # Of one field by another.
    Fault("toleration without key", "one", SERVE, put(f"{POD}.tolerations.+", {"operator": "Equal", "value": "x"}),
          "union", ".key", "hardware.pool[].tolerations", "only the operator Exists needs none"),
    Fault("minDomains of a wish", "one", SERVE, put(f"{POD}.topologySpreadConstraints.0.minDomains", 2),
          "union", "minDomains", PATCHES, "goes only with whenUnsatisfiable DoNotSchedule"),
    Fault("selector In nothing", "one", SERVE,
          put("spec.selector.matchExpressions", [{"key": "a", "operator": "In", "values": []}]),
          "union", "matchExpressions[0].values", PATCHES, "operator In needs it"),
    Fault("ready after the deadline", "one", SERVE, put("spec.minReadySeconds", 99999),
          "union", "spec.minReadySeconds", PATCHES, "must be below progressDeadlineSeconds"),
    Fault("traffic from outside to a ClusterIP", "one", SERVICE, put("spec.externalTrafficPolicy", "Local"),
          "union", "externalTrafficPolicy", PATCHES, "goes only with type NodePort or LoadBalancer"),
    Fault("exception outside its block", "one", POLICY,
          put("spec.ingress.0.from.+", {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["192.168.0.0/16"]}}),
          "union", "ipBlock.except", "deploy.networkPolicy", "is no part of 10.0.0.0/8"),
    Fault("resource of no domain", "one", SERVE, put(f"{LIMITS}.gpu", "8"),
          "union", "limits.gpu", "hardware.pool", "is no resource of a container"),
    Fault("claim of processors", "one", CLAIM, put("spec.resources.requests.cpu", "1"),
          "union", "requests.cpu", "hardware.pool", "nothing that a volume has"),
    Fault("grace of a readiness probe", "one", SERVE, put(f"{CONTAINER}.readinessProbe.terminationGracePeriodSeconds", 5),
          "union", "readinessProbe.terminationGracePeriodSeconds", PATCHES, "ends no container"),
    Fault("mount that reaches the node", "one", SERVE, put(f"{CONTAINER}.volumeMounts.0.mountPropagation", "Bidirectional"),
          "union", "mountPropagation", "deploy.modelCache", "only a privileged container"),
    Fault("Linux terms on Windows", "one", SERVE, put(f"{POD}.os", {"name": "windows"}),
          "union", "securityContext.seccompProfile", PATCHES, "may not be set where os.name is windows"),
    # Of one field by itself.
    Fault("probe before its pod", "one", SERVE, put(f"{CONTAINER}.livenessProbe.initialDelaySeconds", -3),
          "value", "initialDelaySeconds", PATCHES, "is -3, must be at least 0"),
    Fault("user below all", "one", SERVE, put(f"{CONTAINER}.securityContext.runAsUser", -5),
          "value", "runAsUser", PATCHES, "must be at least 0"),
    Fault("host name with a capital", "one", SERVE, put(f"{POD}.hostname", "A_b"),
          "value", "spec.hostname", PATCHES, "no RFC 1123 label"),
    Fault("subPath out of its volume", "one", SERVE, put(f"{CONTAINER}.volumeMounts.0.subPath", "../x"),
          "value", "subPath", "deploy.modelCache", "no relative path"),
    Fault("no nodes at all", "one", SERVE,
          put(f"{POD}.affinity", {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}),
          "value", "nodeSelectorTerms", "hardware.pool", "is empty"),
    Fault("overhead of one's own", "one", SERVE, put(f"{POD}.overhead", {"cpu": "100m"}),
          "value", "spec.overhead", PATCHES, "the server takes it from the RuntimeClass"),
    Fault("version that only the server writes", "one", SERVE, put("metadata.resourceVersion", "12"),
          "value", "metadata.resourceVersion", "metadata.name", "only the server writes it"),
    Fault("annotations beyond measure", "one", SERVE, put("metadata.annotations.x", "y" * 300_000),
          "value", "metadata.annotations", "metadata.name", "262144 are the most"),
    Fault("word of propagation", "one", SERVE, put(f"{CONTAINER}.volumeMounts.0.mountPropagation", "Bidir"),
          "schema", "mountPropagation", "deploy.modelCache", "'Bidir' is not one of None, HostToContainer"),
)  # fmt: skip
