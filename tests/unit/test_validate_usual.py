"""Patches as platform teams write them, by what they are for: none may raise an alarm, and few are told what they count on."""

from __future__ import annotations

import pytest

from servegen.manifest import documents
from tests.unit.test_validate_patched import SAFE, Any, errors, judged, warnings

#: Annotations of a pod.
NOTES = {
    "a service mesh": "{sidecar.istio.io/inject: 'true', traffic.sidecar.istio.io/excludeInboundPorts: '30000'}",
    "another mesh": "{linkerd.io/inject: enabled, config.linkerd.io/skip-outbound-ports: '8998'}",
    "a vault's agent": "{vault.hashicorp.com/agent-inject: 'true', vault.hashicorp.com/agent-inject-secret-hf: secret/data/hf,"
    " vault.hashicorp.com/agent-inject-template-hf: '{{ with secret \"secret/data/hf\" }}export T={{ .Data.token }}{{ end }}'}",
    "nodes that come and go": "{karpenter.sh/do-not-disrupt: 'true', cluster-autoscaler.kubernetes.io/safe-to-evict: 'false'}",
    "metrics": "{ad.datadoghq.com/serve.checks: '{\"openmetrics\": {\"instances\": []}}', prometheus.io/scrape: 'true'}",
    "networks": "{k8s.v1.cni.cncf.io/networks: '[{\"name\": \"roce\"}]', instrumentation.opentelemetry.io/inject-python: 'true'}",
}
#: Fields of a pod.
PODS = {
    "zones": "{topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone,"
    " whenUnsatisfiable: ScheduleAnyway,"
    " matchLabelKeys: [pod-template-hash], labelSelector: {matchLabels: {app.kubernetes.io/instance: llama-chat}}}]}",
    "nodes": "{affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 50,"
    " preference: {matchExpressions: [{key: nvidia.com/gpu.memory, operator: Gt, values: ['70000']}]}}]}}}",
    "apart": "{affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, podAffinityTerm:"
    " {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app.kubernetes.io/instance: llama-chat}}}}]}}}",
    "EKS": "{nodeSelector: {eks.amazonaws.com/nodegroup: gpu, node.kubernetes.io/instance-type: p5.48xlarge}}",
    "GKE": "{nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-80gb, cloud.google.com/gke-spot: 'true'}}",
    "a class": "{priorityClassName: llm-high, runtimeClassName: nvidia, schedulerName: volcano}",
    "seccomp": "{securityContext: {seccompProfile: {type: Localhost, localhostProfile: profiles/llm.json}}}",
    "users": "{securityContext: {fsGroup: 1000, runAsUser: 1000, runAsNonRoot: true, fsGroupChangePolicy: OnRootMismatch}}",
    "users with a home": "{securityContext: {fsGroup: 1000, runAsUser: 1000, runAsNonRoot: true}, containers: [{name: serve,"
    " env: [{name: HOME, value: /tmp}]}]}",
    "sysctls": "{securityContext: {sysctls: [{name: net.core.somaxconn, value: '4096'}]}}",
    "gates": "{readinessGates: [{conditionType: target-health.elbv2.k8s.aws/llm}], schedulingGates: [{name: kueue.x-k8s.io/x}]}",
    "a node pool": "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: ["
    "{matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-H100-80GB-HBM3, NVIDIA-H200]},"
    " {key: cloud.google.com/gke-spot, operator: DoesNotExist}]}]}}}}",
    "one a node": "{affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: ["
    "{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app.kubernetes.io/instance: llama-chat}}}]}}}",
    "racks": "{topologySpreadConstraints: [{maxSkew: 1, topologyKey: example.com/rack, whenUnsatisfiable: DoNotSchedule,"
    " labelSelector: {matchLabels: {app.kubernetes.io/instance: llama-chat}}}]}",
    "names": "{dnsConfig: {options: [{name: ndots, value: '2'}]}, hostAliases: [{ip: 10.0.0.1, hostnames: [hub.local]}]}",
    "a longer end": "{terminationGracePeriodSeconds: 3000, shareProcessNamespace: true}",
}
#: Fields of the server, and the volumes that they need.
SERVERS = {
    "a read-only root": ("{securityContext: {readOnlyRootFilesystem: true}, volumeMounts: [{name: t, mountPath: /tmp}]}",
                         "{name: t, emptyDir: {sizeLimit: 1Gi}}"),
    "a read-only root with a home": ("{securityContext: {readOnlyRootFilesystem: true}, env: [{name: HOME, value: /tmp}],"
                                     " volumeMounts: [{name: t, mountPath: /tmp}]}", "{name: t, emptyDir: {}}"),
    "huge pages": ("{resources: {limits: {hugepages-2Mi: 2Gi}}, volumeMounts: [{name: h, mountPath: /hugepages}]}",
                   "{name: h, emptyDir: {medium: HugePages}}"),
    "secrets by CSI": ("{volumeMounts: [{name: s, mountPath: /mnt/secrets, readOnly: true}]}",
                       "{name: s, csi: {driver: secrets-store.csi.k8s.io, volumeAttributes: {secretProviderClass: llm}}}"),
    "a token": ("{volumeMounts: [{name: t, mountPath: /var/run/secrets/tokens}]}",
                "{name: t, projected: {sources: [{serviceAccountToken: {path: vault, audience: v}}]}}"),
    "a disk": ("{volumeMounts: [{name: d, mountPath: /d}]}", "{name: d, ephemeral: {volumeClaimTemplate: {spec: {accessModes:"
               " [ReadWriteOnce], storageClassName: local-nvme, resources: {requests: {storage: 500Gi}}}}}}"),
    "NCCL": ("{env: [{name: NCCL_SOCKET_IFNAME, value: '^lo,docker'}, {name: NCCL_IB_HCA, value: 'mlx5_0,mlx5_1'}]}", ""),
    "a tokenizer": ("{env: [{name: TOKENIZERS_PARALLELISM, value: 'false'}, {name: HF_TOKEN_PATH, value: /var/run/hf}]}", ""),
    "a proxy": ("{env: [{name: HTTPS_PROXY, value: 'http://proxy.corp:3128'}, {name: NO_PROXY, value: '10.0.0.0/8,.svc'}]}", ""),
    "its own size": ("{env: [{name: M, valueFrom: {resourceFieldRef: {containerName: serve, resource: limits.memory}}}]}", ""),
    "scratch": ("{resources: {limits: {ephemeral-storage: 50Gi}, requests: {ephemeral-storage: 20Gi}}}", ""),
    "a hook": ("{lifecycle: {postStart: {exec: {command: [sh, -c, 'echo $(hostname) > /tmp/h']}}}}", ""),
    "a header": ("{readinessProbe: {httpGet: {httpHeaders: [{name: X-Probe, value: '1'}]}}}", ""),
    "policies": ("{imagePullPolicy: Always, terminationMessagePolicy: FallbackToLogsOnError, stdin: false}", ""),
    "profiles": ("{securityContext: {appArmorProfile: {type: RuntimeDefault}, seLinuxOptions: {type: container_t}}}", ""),
    "keys that may be there": ("{envFrom: [{secretRef: {name: keys, optional: true}}]}", ""),
}  # fmt: skip
#: Containers beside the server, or before it.
OTHERS = {
    "a collector": "{args: ['--config=/etc/otel.yaml'], env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}},"
    " {name: OTEL_RESOURCE_ATTRIBUTES, value: 'k8s.pod.name=$(POD)'}], resources: {requests: {cpu: .05, memory: 64Mi}}}",
    "a log shipper": "{env: [{name: VAULT_ADDR, value: 'https://vault:8200'}, {name: VAULT_TOKEN, value: /vault/token}]}",
    "a warmer": "{command: [sh, -c, 'until [ -f /m/ready ]; do sleep 1; done; echo $(ls /m | wc -l)']}",
    "a door keeper": "{args: ['--client-id=abc', --client-secret-file=/etc/o/s, --pass-access-token=true]}",
    "a fetcher": "{command: [aws], args: [s3, sync, 's3://bucket/llama', /m], resources: {limits: {cpu: 2, memory: 4Gi}}}",
    "a mount": "{resources: {limits: {smarter-devices/fuse: 1}, requests: {smarter-devices/fuse: 1}}}",
}
#: Other objects.
OBJECTS = {
    "a strategy": ("Deployment", "{minReadySeconds: 30, strategy: {type: Recreate, rollingUpdate: null}}"),
    "a share": ("Deployment", "{strategy: {rollingUpdate: {maxSurge: 25%, maxUnavailable: 1}}}"),
    "evictions": ("PodDisruptionBudget", "{unhealthyPodEvictionPolicy: AlwaysAllow, maxUnavailable: 50%}"),
    "a balancer": ("Service", "{type: LoadBalancer, loadBalancerClass: k8s.aws/nlb, externalTrafficPolicy: Local}"),
    "one client": ("Service", "{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 600}}}"),
    "no balancer": ("Service", "{clusterIP: None}"),
}


#: Of these, what depends on the cluster or the image, and is told as a warning.
TOLD = {
    "a class": "no pod is placed unless a scheduler 'volcano' runs in the cluster",
    "gates": "until something in the cluster has lifted 'kueue.x-k8s.io/x'",
    "users": "runAsUser: is 1000, whom the image gives no home",
    "a read-only root": "kernels that are compiled at the start are kept in /root/.cache and /root/.triton",
}


def read(text: str) -> dict[str, Any]:
    (body,) = documents(text)
    return dict(body)


def silent(kind: str, what: str = "", **body: Any) -> None:
    found = judged("serve", kind, **body)
    assert errors(found) == []
    if what in TOLD:
        (told,) = warnings(found)
        assert TOLD[what] in told
    else:
        assert warnings(found) == []


@pytest.mark.parametrize("text", NOTES.values(), ids=NOTES)
def test_annotations(text: str) -> None:
    silent("Deployment", spec={"template": {"metadata": {"annotations": read(text)}}})


@pytest.mark.parametrize("what", PODS)
def test_pods(what: str) -> None:
    silent("Deployment", what, spec={"template": {"spec": read(PODS[what])}})


@pytest.mark.parametrize("what", SERVERS)
def test_servers(what: str) -> None:
    text, volume = SERVERS[what]
    pod = {"containers": [{"name": "serve", **read(text)}], "volumes": [read(volume)] if volume else []}
    silent("Deployment", what, spec={"template": {"spec": pod}})


@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_containers_beside(text: str, field: str) -> None:
    own = {"name": "side", "image": "busybox:1.36", "securityContext": SAFE, **read(text)}
    silent("Deployment", spec={"template": {"spec": {field: [own]}}})


@pytest.mark.parametrize(("kind", "text"), OBJECTS.values(), ids=OBJECTS)
def test_objects(kind: str, text: str) -> None:
    silent(kind, spec=read(text), name="llama-chat" if kind == "Service" else "llama-chat-serve")
