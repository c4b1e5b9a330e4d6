"""Planted faults of where pods go and what they find there: nodes, neighbours, drains, mounts, the user and what it may write."""

from __future__ import annotations

from typing import Any

from tests.proof.faults import BUDGET, CONTAINER, GONE, SERVE, Fault, both, put

POD = "spec.template.spec"
SET, LEADER = "leaderworkerset-serve", "spec.leaderWorkerTemplate.leaderTemplate.spec"
AFFINITY, WHERE, PATCHES = f"{POD}.affinity", "hardware.pool[].nodeSelector", "deploy.overrides.patches"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PRODUCT, HOST = "nvidia.com/gpu.product", "kubernetes.io/hostname"
OURS = {"matchLabels": {"app.kubernetes.io/instance": "chat"}}
SAFE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def wants(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def nodes(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    """An affinity to nodes that meet one of the terms."""
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}}}


def apart(topology: str = HOST, selector: Any = OURS, kind: str = "podAntiAffinity", **more: Any) -> dict[str, Any]:
    return {kind: {REQUIRED: [{"topologyKey": topology, "labelSelector": selector, **more}]}}


def beside(port: int, name: str) -> dict[str, Any]:
    """A container that comes before the server, with a port of a name."""
    ports = [{"name": name, "containerPort": port, "protocol": "TCP"}]
    return {"name": "side", "image": "busybox:1.36", "securityContext": SAFE, "ports": ports}


def scratch(path: str, **source: Any) -> Any:
    """A volume of its own at a path of the server."""
    volume = {"name": "scratch", **(source or {"emptyDir": {}})}
    return both(put(f"{POD}.volumes.+", volume), put(f"{CONTAINER}.volumeMounts.+", {"name": "scratch", "mountPath": path}))


def spread(key: str) -> Any:
    return put(f"{POD}.topologySpreadConstraints", [
        {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": OURS}])


READ_ONLY = put(f"{CONTAINER}.securityContext.readOnlyRootFilesystem", True)
OTHER = put(f"{POD}.securityContext", {"runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}})

NODE_FAULTS: tuple[Fault, ...] = (
    # Nodes.
    Fault("affinity to another GPU", "one", SERVE, put(AFFINITY, nodes([wants(PRODUCT, "In", "NVIDIA-L4", "NVIDIA-A10")])),
          "placement", f"affinity.nodeAffinity.{REQUIRED}", WHERE,
          f"no node can ever meet it: {PRODUCT} must be In 'NVIDIA-L4', 'NVIDIA-A10', and nodeSelector has 'NVIDIA-H100"),
    Fault("affinity away from the GPU", "one", SERVE, put(AFFINITY, nodes([wants(PRODUCT, "NotIn", "NVIDIA-H100-80GB-HBM3")])),
          "placement", "nodeAffinity", WHERE, "NotIn 'NVIDIA-H100-80GB-HBM3', and nodeSelector has"),
    Fault("affinity to nodes without a GPU", "one", SERVE, put(AFFINITY, nodes([wants(PRODUCT, "DoesNotExist")])),
          "placement", "nodeAffinity", WHERE, "DoesNotExist, and nodeSelector has"),
    Fault("affinity to two impossible nodes", "one", SERVE,
          put(AFFINITY, nodes([wants(PRODUCT, "Exists"), wants("z", "In", "a"), wants("z", "NotIn", "a")], [wants("n", "Gt", "5"),
              wants("n", "Lt", "6")])),
          "placement", "nodeAffinity", WHERE, "z must be In 'a' and NotIn 'a', and nothing is all of it; or n must be Gt '5'"),
    Fault("affinity of a group to another GPU", "group", SET,
          put(f"{LEADER}.affinity", nodes([wants(PRODUCT, "In", "NVIDIA-L4")])),
          "placement", "leaderTemplate.spec.affinity", WHERE, "and nodeSelector has"),
    Fault("affinity to a zone with a typo", "one", SERVE, put(AFFINITY, nodes([wants("topology.kubernetes.io/zones", "Exists")])),
          "placement", "nodeAffinity", PATCHES, "did you mean topology.kubernetes.io/zone?"),
    Fault("node selector with a typo", "one", SERVE, put(f"{POD}.nodeSelector.kubernetes/dot/io/archs", "amd64"),
          "placement", "nodeSelector", WHERE, "no node has the label kubernetes.io/archs"),
    Fault("spread over zones with a typo", "one", SERVE, spread("topology.kubernetes.io/zones"),
          "placement", "topologySpreadConstraints[0].topologyKey", PATCHES, "did you mean topology.kubernetes.io/zone?"),
    Fault("spread over hosts with a typo", "one", SERVE, spread("kubernetes.io/hostnames"),
          "placement", "topologySpreadConstraints[0].topologyKey", PATCHES, "no pod is placed as it asks; did you mean kube"),
    # Neighbours.
    Fault("apart by a label with a typo", "one", SERVE, put(AFFINITY, apart("kubernetes.io/hostnam")),
          "placement", f"podAntiAffinity.{REQUIRED}[0].topologyKey", PATCHES, f"did you mean {HOST}?"),
    Fault("together by a label with a typo", "one", SERVE, put(AFFINITY, apart("kubernetes.io/zone", kind="podAffinity")),
          "placement", f"podAffinity.{REQUIRED}[0].topologyKey", PATCHES, "did you mean topology.kubernetes.io/zone?"),
    # Drains.
    Fault("budget of a share that rounds up to all", "fixed", BUDGET,
          both(put("spec.maxUnavailable", GONE), put("spec.minAvailable", "50%")),
          "budget", "spec.minAvailable", "constraints.spareReplicas", "no pod could ever be evicted"),
    Fault("budget that the least of an autoscaler cannot keep", "split", "poddisruptionbudget-decode",
          both(put("spec.maxUnavailable", GONE), put("spec.minAvailable", 1)),
          "budget", "spec.minAvailable", "constraints.spareReplicas", "no pod could"),
    # Mounts.
    Fault("mount of the cache under another spelling", "one", SERVE, scratch("/models/"),
          "volume", "containers[0].volumeMounts", "deploy.modelCache", "'/models' is there twice: the one hides the other"),
    Fault("mount over the weights", "one", SERVE, scratch("/models/models--meta-llama--Llama-3.1-70B-Instruct"),
          "volume", "volumeMounts", "deploy.modelCache", "hides the weights, which lie in /models/models--"),
    Fault("mount over the image", "one", SERVE, scratch("/"),
          "volume", "volumeMounts", PATCHES, "a volume at / hides what the image has there"),
    Fault("cache that nobody keeps", "one", SERVE,
          put(f"{POD}.volumes.0", {"name": "models", "emptyDir": {}}),
          "volume", "volumeMounts", "deploy.modelCache", "'models' is mounted at /models in place of the volume of deploy"),
    # Users.
    Fault("root that nobody writes", "one", SERVE, READ_ONLY,
          "user", "readOnlyRootFilesystem", PATCHES, "no volume takes temporary files"),
    Fault("temporary files in a volume that nobody writes", "one", SERVE,
          both(READ_ONLY, scratch("/tmp", configMap={"name": "t"})),
          "user", "readOnlyRootFilesystem", PATCHES, "no volume takes temporary files"),
    Fault("home of root for another", "one", SERVE, both(OTHER, put(f"{CONTAINER}.env.+", {"name": "HOME", "value": "/root"})),
          "user", "env", PATCHES, "HOME is /root, and the server runs as user 1000, to whom /root is closed"),
    Fault("cache below root's home for another", "one", SERVE,
          both(OTHER, scratch("/root/.t"), put(f"{CONTAINER}.env.+", {"name": "TRITON_CACHE_DIR", "value": "/root/.t"})),
          "user", "env", PATCHES, "TRITON_CACHE_DIR is /root/.t, and the server runs as user 1000"),
)  # fmt: skip
