"""Planted faults in fields that no template of servegen's own has: a user's added them, and a cluster takes most of them.

``DOUBTED`` is told as a warning: it depends on the cluster, or only a patch can ask for it, and may mean it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.proof.faults import CLAIM, CONTAINER, HPA, MONITOR, SCALER, SERVE, SERVICE, Fault, both, put
from tests.proof.group_faults import FIRST, GROUP, LEADER, SET, WORKER

POD, PATCHES, KEY, ENV = "spec.template.spec", "deploy.overrides.patches", "deploy.autoscaling", "deploy.overrides.env"
MODIFIERS, BEHAVIOR = "spec.advanced.scalingModifiers", "spec.advanced.horizontalPodAutoscalerConfig.behavior"
LOCAL = "config/dot/kubernetes/dot/io/local-config"
PAUSED = "metadata.annotations.autoscaling/dot/keda/dot/sh/paused"
EXCLUSIVE = "metadata.annotations.leaderworkerset/dot/sigs/dot/k8s/dot/io/exclusive-topology"
ENDPOINT, WATCH = "spec.podMetricsEndpoints.0", "deploy.monitoring"
HOST = "kubernetes.io/hostname"


def sets(container: str, name: str, value: str) -> Callable[[Any], object]:
    """One more variable of a container."""
    return put(f"{container}.env.+", {"name": name, "value": value})


ACCEPTED: tuple[Fault, ...] = (
    # Probes.
    Fault("startup probe of loopback", "one", SERVE, put(f"{CONTAINER}.startupProbe.httpGet.host", "127.0.0.1"),
          "probe", "startupProbe.httpGet.host", PATCHES, "the kubelet asks the node's own, and not the pod"),
    Fault("readiness probe of localhost", "one", SERVE, put(f"{CONTAINER}.readinessProbe.httpGet.host", "localhost"),
          "probe", "readinessProbe.httpGet.host", PATCHES, "is 'localhost'"),
    Fault("liveness probe of a leader at loopback", "group", SET, put(f"{FIRST}.livenessProbe.httpGet.host", "::1"),
          "probe", "livenessProbe.httpGet.host", PATCHES, "and not the pod"),
    Fault("socket probe of loopback", "one", SERVE,
          put(f"{CONTAINER}.livenessProbe", {"tcpSocket": {"port": "http", "host": "127.0.0.1"}, "periodSeconds": 10,
              "timeoutSeconds": 30, "failureThreshold": 9}),
          "probe", "livenessProbe.tcpSocket.host", PATCHES, "and not the pod"),
    # What kustomize keeps to itself.
    Fault("server for kustomize alone", "one", SERVE, put(f"metadata.annotations.{LOCAL}", "true"),
          "local", "metadata.annotations", "metadata.name", "leaves the whole object out"),
    Fault("service for kustomize alone", "one", SERVICE, put("metadata.annotations", {LOCAL.replace("/dot/", "."): "true"}),
          "local", "metadata.annotations", "metadata.name", "leaves the whole object out"),
    # Names.
    Fault("leader that asks the node for names", "group", SET, put(f"{LEADER}.spec.dnsPolicy", "Default"),
          "resolving", "leaderTemplate.spec.dnsPolicy", PATCHES, "which do not know the leader's name"),
    Fault("worker that asks the node for names", "group", SET, put(f"{WORKER}.spec.dnsPolicy", "Default"),
          "resolving", "workerTemplate.spec.dnsPolicy", PATCHES, "it must be ClusterFirst"),
    Fault("worker on the node's network with its names", "group", SET, put(f"{WORKER}.spec.hostNetwork", True),
          "resolving", "workerTemplate.spec.dnsPolicy", PATCHES, "it must be ClusterFirstWithHostNet"),
    Fault("worker without anybody to ask", "group", SET, put(f"{WORKER}.spec.dnsPolicy", "None"),
          "schema", "workerTemplate.spec.dnsPolicy", PATCHES, "None needs dnsConfig.nameservers"),
    Fault("server that asks itself for names", "one", SERVE,
          both(put(f"{POD}.dnsPolicy", "None"), put(f"{POD}.dnsConfig", {"nameservers": ["127.0.0.53"]})),
          "resolving", "dnsConfig.nameservers", PATCHES, "that is the pod itself"),
    # Priorities.
    Fault("pods that preempt nobody without a class", "one", SERVE, put(f"{POD}.preemptionPolicy", "Never"),
          "placement", "spec.preemptionPolicy", "deploy.priorityClass", "every pod is refused"),
    Fault("priority of one's own", "one", SERVE, put(f"{POD}.priority", 1000),
          "value", "spec.priority", PATCHES, "the server takes it from priorityClassName"),
    # Groups.
    Fault("group on one node of its own", "group", SET, put(EXCLUSIVE, HOST),
          "placement", "metadata.annotations", PATCHES, "2 pods and 16 accelerators never fit one node of 8"),
    Fault("subgroups larger than the group", "group", SET, put(f"{GROUP}.subGroupPolicy", {"subGroupSize": 3}),
          "group", "subGroupPolicy.subGroupSize", PATCHES, "is 3, and 2 pods, nor 1 without the leader, do not come"),
    Fault("subgroups of workers alone", "group", SET,
          put(f"{GROUP}.subGroupPolicy", {"subGroupSize": 2, "subGroupPolicyType": "LeaderExcluded"}),
          "group", "subGroupPolicy.subGroupSize", PATCHES, "and the 1 workers do not come in groups of it"),
    # Autoscalers.
    Fault("HPA that never grows", "split", HPA, put("spec.behavior.scaleUp.selectPolicy", "Disabled"),
          "scaling", "spec.behavior.scaleUp.selectPolicy", KEY, "the count never grows"),
    Fault("KEDA that never grows", "one", SCALER, put(f"{BEHAVIOR}.scaleUp.selectPolicy", "Disabled"),
          "scaling", "behavior.scaleUp.selectPolicy", KEY, "the count never grows"),
    Fault("formula that never changes", "one", SCALER, put(MODIFIERS, {"formula": "1 + 2.5", "target": "2"}),
          "scaling", "scalingModifiers.formula", KEY, "the same whatever the load"),
    Fault("formula of no trigger", "one", SCALER, put(MODIFIERS, {"formula": "max(tokens, 1)", "target": "2"}),
          "scaling", "scalingModifiers.formula", KEY, "names no trigger of it: "),
    Fault("modifiers without a formula", "one", SCALER, put(MODIFIERS, {"target": "2"}),
          "scaling", "scalingModifiers.formula", KEY, "refuses modifiers without one"),
    Fault("formula without a target", "one", SCALER, put(MODIFIERS, {"formula": "queue"}),
          "scaling", "scalingModifiers.target", KEY, "the formula is held against it"),
    Fault("KEDA paused at nothing", "one", SCALER, put(f"{PAUSED}-replicas", "0"),
          "scaling", "metadata.annotations", KEY, "nobody is ever served"),
    # Variables.
    Fault("home of Python elsewhere", "one", SERVE, sets(CONTAINER, "PYTHONHOME", "/opt/python"),
          "env", "env", ENV, "PYTHONHOME is '/opt/python'"),
    Fault("health that waits for nothing", "one", SERVE, sets(CONTAINER, "SGLANG_HEALTH_CHECK_TIMEOUT", "0"),
          "env", "env", ENV, "every probe is answered before the server knows"),
    # What the API server refuses.
    Fault("resize of accelerators", "one", SERVE,
          put(f"{CONTAINER}.resizePolicy", [{"resourceName": "nvidia.com/gpu", "restartPolicy": "NotRequired"}]),
          "schema", "resizePolicy[0].resourceName", PATCHES, "is not one of cpu, memory"),
    Fault("hook that runs nothing", "one", SERVE, put(f"{CONTAINER}.lifecycle.postStart", {"exec": {"command": []}}),
          "union", "lifecycle.postStart.exec.command", PATCHES, "is empty"),
    Fault("relative folder to run in", "one", SERVE, put(f"{CONTAINER}.workingDir", "app"),
          "value", "workingDir", PATCHES, "no absolute path"),
    Fault("claim of files as a device", "one", SERVE,
          both(put(f"{CONTAINER}.volumeMounts.0", {"name": "shm", "mountPath": "/x"}),
               put(f"{CONTAINER}.volumeDevices", [{"name": "models", "devicePath": "/dev/x"}])),
          "volume", "volumeDevices", "deploy.modelCache", "holds files and is no raw device"),
    Fault("device that is mounted, too", "one", SERVE,
          put(f"{CONTAINER}.volumeDevices", [{"name": "models", "devicePath": "/dev/x"}]),
          "union", "volumeDevices[0].name", "deploy.modelCache", "is mounted as well"),
    Fault("memory as a device", "one", SERVE,
          both(put(f"{CONTAINER}.volumeDevices", [{"name": "d", "devicePath": "/dev/x"}]),
               put(f"{POD}.volumes.+", {"name": "d", "emptyDir": {}})),
          "union", "volumeDevices[0].name", "deploy.modelCache", "nothing else is a raw device"),
    Fault("claim of devices that the pod has not", "one", SERVE, put(f"{CONTAINER}.resources.claims", [{"name": "gpu"}]),
          "union", "resources.claims[0].name", PATCHES, "none of the pod's resourceClaims"),
    Fault("address that is none", "one", SERVICE, put("spec.externalIPs", ["gateway"]),
          "value", "spec.externalIPs", PATCHES, "no IP address"),
    Fault("address of loopback", "one", SERVICE, put("spec.externalIPs", ["127.0.0.1"]),
          "value", "spec.externalIPs", PATCHES, "no IP address that leads"),
    Fault("traffic to somewhere", "one", SERVICE, put("spec.trafficDistribution", "PreferNear"),
          "union", "spec.trafficDistribution", PATCHES, "is not one of PreferClose"),
    Fault("traffic to the same zone before its time", "one", SERVICE, put("spec.trafficDistribution", "PreferSameZone"),
          "union", "spec.trafficDistribution", "deploy.kubernetesVersion", "it needs Kubernetes 1.34"),
    Fault("one family twice", "one", SERVICE, put("spec.ipFamilies", ["IPv4", "IPv4"]),
          "union", "spec.ipFamilies", PATCHES, "has one twice"),
    Fault("two families of one stack", "one", SERVICE,
          both(put("spec.ipFamilies", ["IPv4", "IPv6"]), put("spec.ipFamilyPolicy", "SingleStack")),
          "union", "spec.ipFamilies", PATCHES, "PreferDualStack takes two"),
    Fault("policy of three ways", "one", "networkpolicy-serve", put("spec.policyTypes.+", "Ingress"),
          "union", "spec.policyTypes", PATCHES, "has more than two"),
    Fault("server of names by name", "one", SERVE, put(f"{POD}.dnsConfig", {"nameservers": ["dns"]}),
          "value", "dnsConfig.nameservers", PATCHES, "no IP address"),
    # Monitors.
    Fault("metrics by TLS", "one", MONITOR, put(f"{ENDPOINT}.scheme", "https"),
          "monitor", "podMetricsEndpoints[0].scheme", WATCH, "speak plain HTTP"),
    Fault("timeout beyond the interval", "one", MONITOR, put(f"{ENDPOINT}.scrapeTimeout", "2m"),
          "monitor", "scrapeTimeout", WATCH, "longer than the interval"),
    Fault("rule that is no expression", "one", MONITOR, put(f"{ENDPOINT}.relabelings", [{"regex": "(a", "action": "keep"}]),
          "monitor", "relabelings[0].regex", WATCH, "no regular expression"),
    Fault("rule that looks ahead", "one", MONITOR,
          put(f"{ENDPOINT}.metricRelabelings", [{"regex": "sglang:(?!num).*", "action": "drop", "sourceLabels": ["__name__"]}]),
          "monitor", "metricRelabelings[0].regex", WATCH, "no regular expression"),
    Fault("monitor without pods", "one", MONITOR, put(f"{ENDPOINT}.relabelings", [{"action": "drop"}]),
          "monitor", "relabelings[0]", WATCH, "drops every pod"),
    Fault("series of the autoscaler dropped", "one", MONITOR,
          put(f"{ENDPOINT}.metricRelabelings", [{"regex": "sglang:num_.*", "action": "drop", "sourceLabels": ["__name__"]}]),
          "monitor", "metricRelabelings[0]", WATCH, "the count no longer follows the load"),
    Fault("series of the autoscaler not kept", "split", "podmonitor-decode",
          put(f"{ENDPOINT}.metricRelabelings", [{"regex": "sglang:gen.*", "action": "keep", "sourceLabels": ["__name__"]}]),
          "monitor", "metricRelabelings[0]", WATCH, "HorizontalPodAutoscaler/chat-decode asks for"),
    Fault("series without their pods", "one", MONITOR,
          put(f"{ENDPOINT}.metricRelabelings", [{"regex": "pod|container", "action": "labeldrop"}]),
          "monitor", "metricRelabelings[0]", WATCH, "takes the label pod from all series"),
)  # fmt: skip

DOUBTED: tuple[Fault, ...] = (
    Fault("probe of another host", "one", SERVE, put(f"{CONTAINER}.readinessProbe.httpGet.host", "health.example.com"),
          "probe", "readinessProbe.httpGet.host", PATCHES, "whatever answers there"),
    Fault("router that asks the node for names", "split", "deployment-router", put(f"{POD}.dnsPolicy", "Default"),
          "resolving", "spec.dnsPolicy", PATCHES, "which know no Service"),
    Fault("decode server that asks the node for names", "split", "deployment-decode", put(f"{POD}.dnsPolicy", "Default"),
          "resolving", "spec.dnsPolicy", PATCHES, "which know no Service"),
    Fault("leader whose names lack their end", "group", SET,
          both(put(f"{LEADER}.spec.dnsPolicy", "None"), put(f"{LEADER}.spec.dnsConfig", {"nameservers": ["10.96.0.10"]})),
          "resolving", "spec.dnsPolicy", PATCHES, "has no searches"),
    Fault("class that may preempt", "one", SERVE,
          both(put(f"{POD}.preemptionPolicy", "Never"), put(f"{POD}.priorityClassName", "llm")),
          "placement", "spec.preemptionPolicy", "deploy.priorityClass", "unless the class 'llm' says the same"),
    Fault("KEDA paused", "one", SCALER, put(PAUSED, "true"),
          "scaling", "metadata.annotations", KEY, "the count stays where it is"),
    Fault("KEDA paused at a count", "one", SCALER, put(f"{PAUSED}-replicas", "2"),
          "scaling", "metadata.annotations", KEY, "the count stays there"),
    Fault("leader named by loopback's address", "group", SET, sets(FIRST, "SGLANG_LOCAL_IP_NIC", "lo"),
          "env", "env", ENV, "of which SGLang takes no address"),
    Fault("kernels one by one", "one", SERVE, sets(CONTAINER, "CUDA_LAUNCH_BLOCKING", "1"),
          "env", "env", ENV, "none is launched ahead"),
    Fault("accelerators without their links", "one", SERVE, sets(CONTAINER, "NCCL_P2P_DISABLE", "1"),
          "env", "env", ENV, "not over their links"),
    Fault("accelerators without shared memory", "one", SERVE, sets(CONTAINER, "NCCL_SHM_DISABLE", "1"),
          "env", "env", ENV, "may exchange over its network"),
    Fault("leader without its fabric", "group", SET, sets(FIRST, "NCCL_IB_DISABLE", "1"),
          "env", "env", ENV, "over TCP, not over the RDMA fabric"),
    Fault("leader by sockets", "group", SET, sets(FIRST, "NCCL_NET", "Socket"),
          "env", "env", ENV, "over TCP, not over the RDMA fabric"),
    Fault("caches over TCP", "groups", "leaderworkerset-decode", sets(FIRST, "UCX_TLS", "tcp,cuda_copy"),
          "env", "env", ENV, "KV caches go over TCP"),
    Fault("figures of load that nobody keeps", "fixed", MONITOR,
          put(f"{ENDPOINT}.metricRelabelings", [{"regex": "sglang:.*", "action": "drop", "sourceLabels": ["__name__"]}]),
          "monitor", "metricRelabelings[0]", WATCH, "every figure of how loaded"),
    Fault("pods ready when somebody says so", "one", SERVE, put(f"{POD}.readinessGates", [{"conditionType": "example.com/x"}]),
          "outside", "readinessGates[0]", PATCHES, "has set its condition 'example.com/x'"),
    Fault("devices of a template elsewhere", "one", SERVE,
          put(f"{POD}.resourceClaims", [{"name": "gpu", "resourceClaimTemplateName": "big"}]),
          "outside", "resourceClaimTemplateName", PATCHES, "the ResourceClaimTemplate 'big' is not in the bundle"),
    Fault("claim of a volume", "one", CLAIM, put("spec.volumeName", "pv-1"),
          "outside", "spec.volumeName", "deploy.modelCache", "the PersistentVolume 'pv-1' is not in the bundle"),
    Fault("claim filled from a snapshot", "one", CLAIM,
          put("spec.dataSource", {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}),
          "outside", "spec.dataSource", "deploy.modelCache", "the VolumeSnapshot 's' is not in the bundle"),
)  # fmt: skip

#: Nearly the same, and right: (what, spec, file, change).
ALLOWED: tuple[tuple[str, str, str, Callable[[Any], object]], ...] = (
    ("object that kustomize puts out", "one", SERVE, put(f"metadata.annotations.{LOCAL}", "false")),
    ("leader that asks the cluster", "group", SET, put(f"{LEADER}.spec.dnsPolicy", "ClusterFirst")),
    ("leader with servers of its own", "group", SET,
     both(put(f"{LEADER}.spec.dnsPolicy", "None"),
          put(f"{LEADER}.spec.dnsConfig", {"nameservers": ["10.96.0.10"], "searches": ["svc.cluster.local"]}))),
    ("one server that asks the node", "one", SERVE, put(f"{POD}.dnsPolicy", "Default")),
    ("pods that preempt as all do", "one", SERVE, put(f"{POD}.preemptionPolicy", "PreemptLowerPriority")),
    ("group in a rack of its own", "group", SET, put(EXCLUSIVE, "example.com/rack")),
    ("subgroups of one", "group", SET, put(f"{GROUP}.subGroupPolicy", {"subGroupSize": 1})),
    ("subgroup of all", "group", SET, put(f"{GROUP}.subGroupPolicy", {"subGroupSize": 2, "subGroupPolicyType": "LeaderWorker"})),
    ("HPA that grows by the least", "split", HPA, put("spec.behavior.scaleUp.selectPolicy", "Min")),
    ("HPA that never shrinks", "split", HPA, put("spec.behavior.scaleDown.selectPolicy", "Disabled")),
    ("KEDA not paused", "one", SCALER, put(PAUSED, "false")),
    ("no home of Python", "one", SERVE, sets(CONTAINER, "PYTHONHOME", "")),
    ("health that waits longer", "one", SERVE, sets(CONTAINER, "SGLANG_HEALTH_CHECK_TIMEOUT", "60")),
    ("links as they are", "one", SERVE, sets(CONTAINER, "NCCL_P2P_DISABLE", "0")),
    ("no fabric to leave out", "one", SERVE, sets(CONTAINER, "NCCL_IB_DISABLE", "1")),
    ("transports with a fabric", "groups", "leaderworkerset-decode", sets(FIRST, "UCX_TLS", "rc,tcp,cuda_copy")),
    ("address of a named interface", "group", SET, sets(FIRST, "SGLANG_LOCAL_IP_NIC", "eth0")),
    ("resize of processors", "one", SERVE,
     put(f"{CONTAINER}.resizePolicy", [{"resourceName": "cpu", "restartPolicy": "NotRequired"}])),
    ("hook that runs", "one", SERVE, put(f"{CONTAINER}.lifecycle.postStart", {"exec": {"command": ["true"]}})),
    ("absolute folder to run in", "one", SERVE, put(f"{CONTAINER}.workingDir", "/tmp")),
    ("traffic to what is near", "one", SERVICE, put("spec.trafficDistribution", "PreferClose")),
    ("both families", "one", SERVICE,
     both(put("spec.ipFamilies", ["IPv4", "IPv6"]), put("spec.ipFamilyPolicy", "PreferDualStack"))),
    ("address of a gateway", "one", SERVICE, put("spec.externalIPs", ["203.0.113.7", "fd00::7"])),
    ("metrics by HTTP", "one", MONITOR, both(put(f"{ENDPOINT}.scheme", "http"), put(f"{ENDPOINT}.scrapeTimeout", "5s"))),
    ("rules that lose nothing", "one", MONITOR,
     both(put(f"{ENDPOINT}.relabelings", [
         {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"},
         {"action": "keep", "sourceLabels": ["__meta_kubernetes_pod_phase"], "regex": "(Running|Pending)"},
         {"action": "labelmap", "regex": "__meta_kubernetes_pod_label_(.+)"}]),
         put(f"{ENDPOINT}.metricRelabelings", [
             {"action": "drop", "sourceLabels": ["__name__"], "regex": "python_gc_.*|sglang:.*_bucket"},
             {"action": "keep", "sourceLabels": ["__name__"], "regex": "sglang:.*"},
             {"action": "labeldrop", "regex": "endpoint|container"},
             {"action": "replace", "sourceLabels": ["pod"], "targetLabel": "instance"}]))),
    ("ready when a balancer says so", "one", SERVE,
     put(f"{POD}.readinessGates", [{"conditionType": "target-health.elbv2.k8s.aws/llm"}])),
)  # fmt: skip
