"""The planted faults: each a change to one rendered object, and what the finding about it must name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.proof.harness import spec

GATEWAY = {"from": [{"namespaceSelector": {"matchLabels": {"role": "gateway"}}}]}
DEPLOY = {
    "namespace": "llm",
    "monitoring": True,
    "networkPolicy": GATEWAY,
    "modelCache": {"size": "400GiB"},
    "hfTokenSecret": {"name": "hf-token"},
}
BIG: dict[str, Any] = {
    "model__name": "meta-llama/Llama-3.1-70B-Instruct",
    "slo": {"ttft": "4s", "itl": "60ms"},
    "hardware__pool": [{"accelerator": "h100-sxm-80gb", "nodes": 4, "perNode": 8, "fabric": {"bandwidth": "400Gbps"}}],
}
#: More than one node holds, so that a replica takes two.
HUGE: dict[str, Any] = {
    "model__name": "meta-llama/Llama-3.1-405B-Instruct",
    "slo": {"ttft": "5s", "itl": "100ms"},
    "hardware__pool": [
        {
            "accelerator": "h100-sxm-80gb",
            "nodes": 8,
            "perNode": 8,
            "fabric": {"bandwidth": "400Gbps", "rdma": True, "resource": "rdma/ib"},
        }
    ],
    "constraints__weights": ["bf16"],
    "traffic__rate": "1/s",
}
HUGE_DEPLOY = DEPLOY | {"modelCache": {"size": "1000GiB"}}
#: One set of servers, scaled by KEDA; and prefill and decode apart behind a router, scaled by Kubernetes itself.
SPECS: Mapping[str, dict[str, Any]] = {
    "one": spec(**BIG, traffic__rate="4/s", constraints__tp=[8], deploy=DEPLOY | {"autoscaling": "keda"}),
    "split": spec(**BIG, traffic__rate="2/s", constraints__topology="disaggregated", deploy=DEPLOY | {"autoscaling": "hpa"}),
    "fixed": spec(**BIG, traffic__rate="4/s", constraints__tp=[8], deploy=DEPLOY),
    "group": spec(**HUGE, deploy=HUGE_DEPLOY | {"autoscaling": "keda"}),
    "groups": spec(**HUGE, constraints__topology="disaggregated", deploy=HUGE_DEPLOY | {"autoscaling": "hpa"}),
}
GONE = object()
CONTAINER = "spec.template.spec.containers.0"


@dataclass(frozen=True)
class Fault:
    """``change`` breaks the document of ``file`` (its stem). The finding has ``code``, names ``field`` and ``key``."""

    what: str
    spec: str
    file: str
    change: Callable[[Any], object]
    code: str
    field: str
    key: str
    says: str = ""


def put(path: str, value: Any) -> Callable[[Any], object]:
    """Set the value at a dotted path, or take it out (GONE); ``+`` as the last step appends to a list."""

    def change(document: Any) -> None:
        *steps, last = path.split(".")
        node = document
        for step in steps:
            step = step.replace("/dot/", ".")
            node = node[int(step)] if isinstance(node, list) else node.setdefault(step, {})
        if last == "+":
            node.append(value)
        elif value is GONE:
            del node[int(last) if isinstance(node, list) else last.replace("/dot/", ".")]
        else:
            node[int(last) if isinstance(node, list) else last.replace("/dot/", ".")] = value

    return change


def both(*changes: Callable[[Any], object]) -> Callable[[Any], object]:
    """Every one of the changes."""
    return lambda document: [change(document) for change in changes]


def word(old: str, new: str) -> Callable[[Any], object]:
    """Another word after the flag ``old`` of the first container."""

    def change(document: Any) -> None:
        args = document["spec"]["template"]["spec"]["containers"][0]["args"]
        args[args.index(old) + 1] = new

    return change


SERVE, SERVICE, BUDGET, MONITOR = "deployment-serve", "service-serve", "poddisruptionbudget-serve", "podmonitor-serve"
SCALER, HPA, CLAIM = "scaledobject-serve", "horizontalpodautoscaler-decode", "persistentvolumeclaim-models"
GPU = "nvidia/dot/com/gpu"
LIMITS, REQUESTS = f"{CONTAINER}.resources.limits", f"{CONTAINER}.resources.requests"
COMPONENT = "app/dot/kubernetes/dot/io/component"
LABEL = "app/dot/kubernetes/dot/io/version"

FAULTS: tuple[Fault, ...] = (
    # Quantities, names, labels.
    Fault("quantity of memory", "one", SERVE, put(f"{REQUESTS}.memory", "512GiB"), "quantity", "requests",
          "hardware.pool", "512GiB"),
    Fault("quantity of a claim", "one", CLAIM, put("spec.resources.requests.storage", "400 Gi"), "quantity", "storage",
          "modelCache"),
    Fault("quantity of /dev/shm", "one", SERVE, put("spec.template.spec.volumes.1.emptyDir.sizeLimit", "16GB "), "quantity",
          "sizeLimit", "modelCache"),
    Fault("no memory at all", "one", SERVE, put(f"{LIMITS}.memory", "0"), "resources", "limits", "hardware.pool[].memory"),
    Fault("name in capitals", "one", BUDGET, put("metadata.name", "Chat"), "name", "metadata.name", "metadata.name",
          "RFC 1123"),
    Fault("name of 64 characters", "one", BUDGET, put("metadata.name", "x" * 64), "name", "metadata.name",
          "metadata.name", "63"),
    Fault("label value with a space", "one", SERVICE, put(f"metadata.labels.{LABEL}", "a b"), "label", "labels",
          "metadata.name"),
    Fault("another namespace", "one", SERVICE, put("metadata.namespace", "prod"), "namespace", "metadata.namespace",
          "deploy.namespace"),
    Fault("the same object twice", "one", BUDGET, put("", ""), "duplicate", "metadata.name", "metadata.name"),
    # Selectors and references.
    Fault("selector beyond the labels", "one", SERVE, put(f"spec.selector.matchLabels.{COMPONENT}", "x"), "selector",
          "spec.selector.matchLabels", "metadata.name", "subset"),
    Fault("service that selects nothing", "one", SERVICE, put(f"spec.selector.{COMPONENT}", "x"), "reference",
          "spec.selector",
          "metadata.name"),
    Fault("budget that selects nothing", "one", BUDGET, put(f"spec.selector.matchLabels.{COMPONENT}", "x"), "reference",
          "spec.selector", "metadata.name"),
    Fault("monitor that selects nothing", "one", MONITOR, put(f"spec.selector.matchLabels.{COMPONENT}", "x"), "reference",
          "spec.selector", "metadata.name"),
    Fault("policy that selects nothing", "split", "networkpolicy-decode",
          put(f"spec.podSelector.matchLabels.{COMPONENT}", "x"),
          "reference", "spec.podSelector", "metadata.name"),
    Fault("scaler without a target", "one", SCALER, put("spec.scaleTargetRef.name", "x"), "reference", "scaleTargetRef",
          "deploy.autoscaling"),
    Fault("autoscaler without a target", "split", HPA, put("spec.scaleTargetRef.name", "x"), "reference", "scaleTargetRef",
          "deploy.autoscaling"),
    Fault("two autoscalers of one target", "split", HPA, put("spec.scaleTargetRef.name", "chat-prefill"), "scaling",
          "spec.replicas",
          "deploy.autoscaling"),
    Fault("account that is not there", "one", SERVE, put("spec.template.spec.serviceAccountName", "x"), "account",
          "serviceAccountName", "metadata.name"),
    Fault("role that is not there", "split", "rolebinding-router", put("roleRef.name", "x"), "reference", "roleRef",
          "metadata.name"),
    Fault("claim that is not there", "one", SERVE, put("spec.template.spec.volumes.0.persistentVolumeClaim.claimName", "x"),
          "claimname", "volumes", "deploy.modelCache"),
    Fault("router that finds nobody", "split", "deployment-decode", put(f"spec.template.metadata.labels.{COMPONENT}", "x"),
          "discovery", "args", "metadata.name"),
    # Ports.
    Fault("named port that nothing has", "one", SERVICE, put("spec.ports.0.targetPort", "web"), "port", "targetPort",
          "overrides.args"),
    Fault("port of a probe", "one", SERVE, put(f"{CONTAINER}.livenessProbe.httpGet.port", "web"), "port", "livenessProbe",
          "overrides.args"),
    Fault("port of a monitor", "one", MONITOR, put("spec.podMetricsEndpoints.0.port", "web"), "port", "port",
          "overrides.args"),
    Fault("port 70000", "one", SERVICE, put("spec.ports.0.port", 70000), "port", "spec.ports", "overrides.args", "65535"),
    Fault("port 0", "one", SERVE, put(f"{CONTAINER}.ports.0.containerPort", 0), "port", "ports", "overrides.args", "65535"),
    # Accelerators, volumes, image.
    Fault("limit that is not the request", "one", SERVE, put(f"{LIMITS}.{GPU}", "4"), "resources", "resources",
          "hardware.pool",
          "must be equal"),
    Fault("fewer accelerators than ranks", "one", SERVE, both(put(f"{LIMITS}.{GPU}", "4"), put(f"{REQUESTS}.{GPU}", "4")),
          "devices",
          "resources", "constraints.tp", "tp x pp = 8"),
    Fault("more ranks than accelerators", "one", SERVE, word("--tp-size", "16"), "command", "args", "overrides.args", "16"),
    Fault("mount without a volume", "one", SERVE, put(f"{CONTAINER}.volumeMounts.0.name", "x"), "volume", "volumeMounts",
          "modelCache"),
    Fault("volume without a mount", "one", SERVE, put("spec.template.spec.volumes.+", {"name": "x", "emptyDir": {}}),
          "volume",
          "volumes", "modelCache"),
    Fault("no image", "one", SERVE, put(f"{CONTAINER}.image", GONE), "image", "image", "deploy.image"),
    Fault("image :latest", "one", SERVE, put(f"{CONTAINER}.image", "lmsysorg/sglang:latest"), "image", "image",
          "deploy.image"),
    Fault("image without a tag", "one", SERVE, put(f"{CONTAINER}.image", "lmsysorg/sglang"), "image", "image",
          "deploy.image"),
    # Scaling, budgets, time limits.
    Fault("least above most", "one", SCALER, put("spec.minReplicaCount", 99), "scaling", "minReplicaCount", "traffic.trough"),
    Fault("more than the pool holds", "split", HPA, put("spec.maxReplicas", 99), "scaling", "maxReplicas", "hardware.pool"),
    Fault("budget with both fields", "one", BUDGET, put("spec.minAvailable", 1), "budget", "spec", "spareReplicas",
          "exactly one"),
    Fault("budget with neither field", "one", BUDGET, put("spec.maxUnavailable", GONE), "budget", "spec", "spareReplicas"),
    Fault("budget that blocks every drain", "one", BUDGET, put("spec.maxUnavailable", 0), "budget", "maxUnavailable",
          "spareReplicas"),
    Fault("startup shorter than loading", "one", SERVE, put(f"{CONTAINER}.startupProbe.failureThreshold", 3), "startup",
          "startupProbe", "storage.bandwidth"),
    Fault("rollout given up before startup", "one", SERVE, put("spec.progressDeadlineSeconds", 60), "rollout",
          "progressDeadlineSeconds",
          "storage.bandwidth"),
    Fault("no /dev/shm for tp 8", "one", SERVE, put("spec.template.spec.volumes.1.emptyDir", {}), "shm", "volumes",
          "constraints.tp"),
    Fault("/dev/shm of 64 MiB", "one", SERVE, put("spec.template.spec.volumes.1.emptyDir.sizeLimit", "64Mi"), "shm",
          "volumes",
          "hardware.pool[].memory"),
    Fault("grace shorter than the longest decode", "one", SERVE,
          put("spec.template.spec.terminationGracePeriodSeconds", 20), "grace",
          "terminationGracePeriodSeconds", "traffic.osl"),
    Fault("no drain", "one", SERVE, put(f"{CONTAINER}.lifecycle", {}), "grace", "preStop", "overrides.patches"),
    Fault("replicas beside an autoscaler", "one", SERVE, put("spec.replicas", 3), "replicas", "spec.replicas",
          "deploy.autoscaling"),
    Fault("replicas that were not planned", "fixed", SERVE, put("spec.replicas", 9), "replicas", "spec.replicas",
          "spareReplicas"),
    Fault("rollout that cannot move", "one", SERVE,
          put("spec.strategy.rollingUpdate", {"maxSurge": 0, "maxUnavailable": 0}), "rollout",
          "rollingUpdate", "hardware.pool"),
    # Versions, kinds, schema.
    Fault("apiVersion that is not served", "one", BUDGET, put("apiVersion", "policy/v1beta1"), "api-version", "apiVersion",
          "deploy.kubernetesVersion"),
    Fault("unknown kind", "one", BUDGET, put("kind", "LeaderWorkerSets"), "kind", "kind", "overrides.patches"),
    Fault("field with a typo", "one", SERVE, put("spec.replcas", 2), "schema", "spec.replcas", "overrides.patches",
          "did you mean replicas"),
    Fault("field at the wrong level", "one", SERVE, put("spec.template.spec.livenessProbe", {}), "schema",
          "livenessProbe", "spec."),
    Fault("text where a number belongs", "one", SERVE, put("spec.revisionHistoryLimit", "5"), "schema",
          "revisionHistoryLimit", "spec."),
    Fault("number of 33 bits", "one", SERVE, put("spec.progressDeadlineSeconds", 2**33), "schema",
          "progressDeadlineSeconds", "storage"),
    Fault("required field left out", "one", SERVICE, put("spec.ports.0.port", GONE), "schema", "spec.ports[0].port",
          "spec.", "required"),
    Fault("field of a later Kubernetes", "one", SERVE, put("spec.template.spec.hostnameOverride", "x"), "schema",
          "hostnameOverride",
          "deploy.kubernetesVersion", "needs Kubernetes 1.34"),
    Fault("word with a typo", "one", SERVE, put(f"{CONTAINER}.imagePullPolicy", "IfNotPresnt"), "schema",
          "imagePullPolicy", "deploy.image"),
    Fault("typo in a custom resource", "one", SCALER, put("spec.cooldownPeriodSeconds", 9), "schema",
          "cooldownPeriodSeconds", "spec."),
    # Security and words.
    Fault("token in plain text", "one", SERVE, put(f"{CONTAINER}.env.+", {"name": "MY_API_KEY", "value": "x"}), "secret",
          "env",
          "overrides.env"),
    Fault("variable twice", "one", SERVE, put(f"{CONTAINER}.env.+", {"name": "HF_HUB_CACHE", "value": "x"}), "env", "env",
          "overrides.env"),
    Fault("argument that the kubelet expands", "one", SERVE, word("--host", "$(HOST)"), "word", "args", "overrides.args"),
    Fault("argument that is a number", "one", SERVE, word("--port", 30000), "word", "args",
          "overrides.args"),  # type: ignore[arg-type]
    Fault("privileged", "one", SERVE, put(f"{CONTAINER}.securityContext.privileged", True), "security", "securityContext",
          "overrides.patches"),
    Fault("host network", "one", SERVE, put("spec.template.spec.hostNetwork", True), "security", "hostNetwork",
          "overrides.patches"),
    Fault("policy that lets everybody in", "split", "networkpolicy-router", put("spec.ingress.0.from", []), "network",
          "ingress.from",
          "networkPolicy.from"),
    Fault("claim smaller than the weights", "one", CLAIM, put("spec.resources.requests.storage", "50Gi"), "claim", "storage",
          "modelCache.size"),
)  # fmt: skip
