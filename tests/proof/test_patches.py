"""Patches of the user's: merged as kustomize does, and what they make of the objects is judged like what is rendered."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from servegen.manifest import documents
from servegen.validate.merge import PatchError, merged
from tests.proof.harness import Ran, command, spec, write_spec

#: What no message may show: values and errors as Python writes them.
PYTHON = re.compile(r"\b(None|True|False|OrderedDict|Fraction|Traceback)\b|\{'|unpack|<class|object at 0x")
BODY: dict[str, Any] = {
    "apiVersion": "apps/v1", "kind": "Deployment",
    "metadata": {"name": "d", "namespace": "x", "labels": {"a": "b"}, "finalizers": ["e/f1", "e/f2"]},
    "spec": {
        "replicas": 2, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
        "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "Exists"}]},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
            "tolerations": [{"key": "g", "operator": "Exists"}], "imagePullSecrets": [{"name": "s1"}], "nodeSelector": {"n": "1"},
            "volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "shm", "emptyDir": {}}],
            "topologySpreadConstraints": [{"topologyKey": "h", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1}],
            "containers": [{
                "name": "serve", "image": "i:1", "args": ["a", "b"], "resources": {"limits": {"cpu": "1"}},
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}],
                "volumeMounts": [{"name": "m", "mountPath": "/m"}, {"name": "shm", "mountPath": "/dev/shm"}],
            }],
        }},
    },
}  # fmt: skip
SET = {
    "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "d"},
    "spec": {"leaderWorkerTemplate": {"workerTemplate": copy.deepcopy(BODY["spec"]["template"])}},
}  # fmt: skip


def pod(**fields: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": fields}}}


def serve(**fields: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "serve", **fields}])


MERGES: tuple[dict[str, Any], ...] = (
    {"spec": {"replicas": 7, "strategy": {"type": "Recreate", "rollingUpdate": None}}},
    {"metadata": {"labels": {"c": "d"}, "annotations": {"n": 7}, "finalizers": ["e/f3", "e/f1"]}},
    {"spec": {"selector": {"matchExpressions": [{"key": "z", "operator": "Exists"}]}}},
    pod(tolerations=[{"key": "q", "operator": "Exists"}], imagePullSecrets=[{"name": "s2"}], nodeSelector=None),
    pod(volumes=[{"name": "m", "hostPath": {"path": "/m"}}, {"name": "new", "emptyDir": {}}]),
    pod(volumes=[{"name": "m", "$patch": "delete"}], dnsConfig={"nameservers": None, "searches": ["a"]}),
    pod(containers=[{"name": "side", "image": "b:1"}, {"name": "serve", "args": ["z"], "image": 7}]),
    pod(containers=[{"$patch": "replace"}, {"name": "only", "image": "b:1"}]),
    serve(env=[{"name": "C", "value": "3"}, {"name": "A", "$patch": "delete"}, {"name": "B", "value": None, "valueFrom": {}}]),
    serve(ports=[{"containerPort": 81, "name": "m", "protocol": "TCP"}, {"containerPort": 80, "protocol": "UDP", "name": "u"}]),
    serve(volumeMounts=[{"name": "q", "mountPath": "/m"}, {"name": "shm", "mountPath": "/shm"}], resources={"limits": None}),
    pod(topologySpreadConstraints=[{"topologyKey": "h", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 2}]),
    {"spec": {"template": {"$patch": "replace", "spec": {"containers": []}}}},
    pod(containers=[{"$patch": "delete"}, {"name": "only", "image": "b:1"}]),
    pod(containers=[{"name": "only", "image": "b:1"}, {"$patch": "merge"}], volumes=[{"$patch": "delete"}]),
    serve(env=[{"$patch": "delete"}], args=["only"]),
    pod(volumes=[{"$patch": "replace"}]),
)
#: Parts that kustomize drops, or makes something else of, and says nothing.
LOST = (
    (serve(ports=[{"containerPort": 80, "name": "x"}]), "ports[0]", "has no protocol"),
    (pod(topologySpreadConstraints=[{"topologyKey": "h"}]), "topologySpreadConstraints[0]", "has no whenUnsatisfiable"),
    (pod(containers=[{"image": "x:1"}]), "containers[0]", "has no name"),
    (serve(**{"$patch": "replace"}), "containers[0]", "$patch: replace of one item"),
    ({"metadata": {"labels": {"a": None}}}, "metadata.labels.a", "the text 'null'"),
    (pod(**{"$retainKeys": ["x"]}), "$retainKeys", "no directive $retainKeys"),
    (pod(**{"$patch": "keep"}), "spec.template.spec", "must be delete, replace or merge"),
    (pod(volumes=[{"$patch": "replace"}, {"$patch": "delete"}]), "spec.volumes", "must be one of delete, replace and merge"),
    (pod(volumes=[{"$patch": "keep"}]), "spec.volumes", "must be one of delete, replace and merge"),
    (pod(initContainers=[{"$patch": "delete"}]), "initContainers[0]", "there is no such list"),
    (pod(initContainers=[{"$patch": "replace"}, {"name": "a"}]), "initContainers[0]", "there is no such list"),
)  # fmt: skip


def patch_of(body: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    head = {"apiVersion": body["apiVersion"], "kind": body["kind"]}
    return {**head, **changes, "metadata": {**changes.get("metadata", {}), "name": "d"}}


def unordered(node: Any) -> Any:
    """The same without the order of ports, which kustomize keeps and nobody reads."""
    if isinstance(node, dict):
        text = {k: [json.dumps(x, sort_keys=True) for x in v] for k, v in node.items() if k == "ports"}
        return {k: sorted(text[k]) if k in text else unordered(v) for k, v in node.items()}
    return [unordered(v) for v in node] if isinstance(node, list) else node


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl brings the kustomize that clusters are applied with")
def test_a_merge_is_that_of_kustomize(tmp_path: Path) -> None:
    for number, changes in enumerate((*MERGES, {"$patch": "delete"})):
        for body in (BODY, SET):
            own = changes
            if body is SET and "template" in changes.get("spec", {}):
                own = {"spec": {"leaderWorkerTemplate": {"workerTemplate": changes["spec"]["template"]}}}
            patch, folder = patch_of(body, own), tmp_path / f"{number}-{body['kind']}"
            folder.mkdir()
            target = {"kind": body["kind"], "name": "d"}
            (folder / "o.yaml").write_text(json.dumps(body))
            (folder / "p.yaml").write_text(json.dumps(patch))
            (folder / "kustomization.yaml").write_text(
                json.dumps({"resources": ["o.yaml"], "patches": [{"path": "p.yaml", "target": target}]})
            )
            ran = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
            theirs = documents(ran.stdout)[0] if ran.stdout.strip() else None
            assert unordered(merged(body, patch)) == unordered(theirs), (body["kind"], own)


def test_a_merge_changes_neither_side() -> None:
    before = copy.deepcopy((BODY, MERGES))
    out = [merged(BODY, patch_of(BODY, changes)) for changes in MERGES]
    assert before == (BODY, MERGES) and len({json.dumps(o, sort_keys=True) for o in out}) == len(MERGES)
    server = next(c for c in (out[6] or {})["spec"]["template"]["spec"]["containers"] if c["name"] == "serve")
    assert server["args"] == ["z"] and server["env"] == BODY["spec"]["template"]["spec"]["containers"][0]["env"]


@pytest.mark.parametrize(("changes", "at", "says"), LOST, ids=[at for _, at, _ in LOST])
def test_what_kustomize_would_lose_in_silence_is_refused(changes: dict[str, Any], at: str, says: str) -> None:
    with pytest.raises(PatchError, match=re.escape(says)) as caught:
        merged(BODY, patch_of(BODY, changes))
    assert caught.value.path.endswith(at)


# --- Whole builds

HEAD = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: chat-serve}\n"
SERVICE = "kind: Service\nmetadata: {name: chat}\n"
SIDE = "{name: side, image: 'busybox:1.36', securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}"


def build(tmp_path: Path, *patches: str, more: tuple[str, ...] = (), **deploy: Any) -> Ran:
    (tmp_path / "sub").mkdir(exist_ok=True)
    for number, text in enumerate(patches):
        (tmp_path / "sub" / f"p{number}.yaml").write_text(text, encoding="utf-8")
    named = [f"sub/p{number}.yaml" for number in range(len(patches))]
    document = spec(deploy={"monitoring": True, "overrides": {"patches": named}, **deploy})
    return command("build", write_spec(tmp_path / "s.yaml", document), "-o", tmp_path / "out", *more)


def of(container: str) -> str:
    return f"{HEAD}spec:\n  template:\n    spec:\n      containers:\n        - {container}\n"


AFFINITY, REQUIRED = f"{HEAD}spec: {{template: {{spec: {{affinity: {{", "requiredDuringSchedulingIgnoredDuringExecution"
#: A patch with a mark where the fault stands, and what is said.
FAULTS = (
    (f"{HEAD}spec:\n  §replicas: 99\n", "spec.replicas: is 99, the plan has 1"),
    (f"{HEAD}spec:\n  §minReadySecond: 7\n", "did you mean minReadySeconds?"),
    (f"{HEAD}§spec: {{template: {{metadata: {{labels: {{app.kubernetes.io/component: x}}}}}}}}\n", "is no subset of the pod"),
    (of("{name: serve, §volumeMounts: [{name: data, mountPath: /data}]}"), "mounts 'data', which is no volume of the pod"),
    (of("{name: serve, §image: 'lmsysorg/sglang:latest'}"), "means another build tomorrow"),
    (of("§{name: server, imagePullPolicy: Always}"), "no image is given"),
    (of("{name: serve, §args: [--tp-size, '2']}"), "planned:"),
    (of("{name: serve, §resources: {limits: {nvidia.com/gpu: '2'}}}"), "must be equal"),
    (of("{name: serve, resources: {requests: {§memory: 64GiB}}}"), "'64GiB' is no quantity"),
    (of("{name: serve, §startupProbe: {failureThreshold: 1}}"), "reading the weights alone takes"),
    (of("{name: serve, §livenessProbe: {tcpSocket: {port: http}}}"), "has httpGet and tcpSocket at once"),
    (of("{name: serve, env: [§{name: MY_API_KEY, value: abc}]}"), "MY_API_KEY holds its value in plain text"),
    (of("{name: serve, env: [{name: NOTE, §value: ghp_abcdefghijklmnopqrstuv0123}]}"), "holds a GitHub token in plain text"),
    (of("{name: serve, ports: [§{containerPort: 30000, name: web}]}"), "has no protocol"),
    (f"{SERVICE}spec:\n  ports:\n    - {{port: 80, name: web, protocol: TCP, §targetPort: webx}}\n", "'webx' is no port of"),
    (f"{SERVICE}spec: {{§selector: {{app.kubernetes.io/component: x}}}}\n", "selects no pods"),
    ("kind: PodDisruptionBudget\nmetadata: {name: chat-serve}\n§spec: {minAvailable: 1}\n", "exactly one is needed"),
    ("kind: PodMonitor\nmetadata: {name: chat-serve}\nspec: {podMetricsEndpoints: [{port: http, §interval: 15}]}\n",
     "must be text"),
    (f"{HEAD}spec: {{template: {{spec: {{§containers: [{{$patch: delete}}]}}}}}}\n", "is missing, and it is required"),
    (f"{HEAD}spec: {{template: {{spec: {{tolerations: [{{§$patch: delete}}]}}}}}}\n", "there is no such field in Toleration"),
    (of("§{name: side, image: 'busybox:1.36', ports: [{name: http, containerPort: 80, protocol: TCP}]}"),
     "'http' leads to port 80 of container side, which comes first"),
    (of("{name: side, image: 'busybox:1.36', §ports: [{containerPort: 30000, protocol: TCP}]}"), "share one network"),
    (of("{name: serve, env: [§{name: 'a b', value: c}]}"), "'a b' cannot name a variable"),
    (f"{SERVICE}§$patch: delete\n", "no Service is named 'chat'"),
    ("§kind: Service\nmetadata: {name: caht}\n", "patches Service/caht, which is not in the bundle; there are Service/chat"),
    (f"{AFFINITY}nodeAffinity: {{§{REQUIRED}: {{nodeSelectorTerms: [{{matchExpressions: [{{key: z, operator: In, values: [a]}},"
     " {key: z, operator: DoesNotExist}]}]}}}}}}\n", "no node can ever meet it: z must be In 'a' and DoesNotExist"),
    (f"{AFFINITY}podAffinity: {{{REQUIRED}: [{{§topologyKey: kubernetes.io/hostnames, labelSelector: {{}}}}]}}}}}}}}}}\n",
     "no node has the label kubernetes.io/hostnames"),
    (of("{name: serve, securityContext: {§readOnlyRootFilesystem: true}}"), "no volume takes temporary files"),
    (of("{name: serve, §volumeMounts: [{name: shm, mountPath: /models/}]}"), "'/models' is there twice"),
    ("kind: PodDisruptionBudget\nmetadata: {name: chat-serve}\nspec: {maxUnavailable: null, §minAvailable: 1}\n", "could ever"),
    ("kind: Deployment\n§apiVersion: apps/v1beta2\nmetadata: {name: chat-serve}\n", "the object's is 'apps/v1'"),
    ("§- {op: replace, path: /spec/replicas, value: 3}\n", "it is a list, as JSON6902 patches are"),
    ("§", "it holds no object"),
    (f"§{HEAD}---\n{HEAD}", "it holds 2 objects"),
    ("kind: [\n§", "p0.yaml: line 2: "),
    ("§kind: 7\nmetadata: {name: chat}\n", "it has no kind that is a text"),
)


@pytest.mark.parametrize(("marked", "says"), FAULTS, ids=[says[:40] for _, says in FAULTS])
def test_a_fault_of_a_patch_names_its_line(marked: str, says: str, tmp_path: Path) -> None:
    before = marked.partition("§")[0].split("\n")
    place = f"{len(before)}:{len(before[-1]) + 1}"
    ran = build(tmp_path, marked.replace("§", ""))
    assert ran.code == 1 and not (tmp_path / "out").exists(), ran
    lines = [line for line in ran.err.splitlines() if says in line]
    assert any(re.match(rf"\S*sub/p0\.yaml:{place}: error\[", line) for line in lines), (place, ran.err)
    assert re.search(r"deploy\.overrides\.patches(\[0\])? \(\S*s\.yaml:\d+:\d+\)", ran.err), ran.err
    assert not PYTHON.search(ran.err) and "abcdefghijklmnop" not in ran.err, ran.err


#: What people patch, and nothing is wrong with.
GOOD = (
    f"{HEAD}spec:\n  template:\n    metadata: {{annotations: {{sidecar: 'yes'}}, labels: {{team: a}}}}\n",
    f"{HEAD}spec: {{template: {{spec: {{tolerations: [{{operator: Exists}}], nodeSelector: {{z: a}}}}}}}}\n",
    of(f"{SIDE}}}"),
    of("{name: serve, env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}], terminationMessagePath: /x}"),
    "kind: Service\nmetadata: {name: chat}\nspec: {type: LoadBalancer, externalTrafficPolicy: Local}\n",
    "kind: Service\nmetadata: {name: chat, annotations: {a/b: c}}\nspec: {ports: [{name: web, port: 80, targetPort: http}]}\n",
    "kind: PodDisruptionBudget\nmetadata: {name: chat-serve}\nspec: {unhealthyPodEvictionPolicy: AlwaysAllow}\n",
    "kind: ServiceAccount\nmetadata: {name: chat, annotations: {eks.amazonaws.com/role-arn: 'arn:aws:iam::1:role/x'}}\n",
    "kind: PodDisruptionBudget\nmetadata: {name: chat-serve}\n$patch: delete\n",
)  # fmt: skip


@pytest.mark.parametrize("patch", GOOD, ids=[p.splitlines()[-1][:50] for p in GOOD])
def test_a_patch_that_is_right_raises_no_alarm(patch: str, tmp_path: Path) -> None:
    ran = build(tmp_path, patch)
    assert ran.code == 0 and ran.err == "", ran


#: What a cluster takes, and a user may have reasons for.
DATA = f"{HEAD}spec:\n  template:\n    spec:\n      §volumes: [{{name: d, persistentVolumeClaim: {{claimName: adapters}}}}]\n"
WARNED = (
    (f"{HEAD}spec: {{template: {{spec: {{§hostNetwork: true}}}}}}\n", "hostNetwork: opens the node to the pod"),
    (f"{HEAD}spec: {{template: {{spec: {{§serviceAccountName: mine}}}}}}\n", "there is no ServiceAccount 'mine'"),
    (DATA + "      containers: [{name: serve, volumeMounts: [{name: d, mountPath: /a}]}]\n", "'adapters' is neither"),
    (of("§{name: side, image: 'busybox:1.36'}"), "must be unprivileged"),
    (of("{name: serve, §livenessProbe: null}"), "livenessProbe: is missing"),
    (f"{HEAD}spec: {{template: {{spec: {{§schedulerName: volcano}}}}}}\n", "unless a scheduler 'volcano' runs in the cluster"),
    (f"{HEAD}spec: {{template: {{spec: {{§schedulingGates: [{{name: example.com/quota}}]}}}}}}\n", "lifted 'example.com/quota'"),
)


@pytest.mark.parametrize(("marked", "says"), WARNED, ids=[says[:30] for _, says in WARNED])
def test_the_users_last_word_is_a_warning(marked: str, says: str, tmp_path: Path) -> None:
    before = marked.partition("§")[0].split("\n")
    patch, place = marked.replace("§", ""), f"{len(before)}:{len(before[-1]) + 1}"
    ran = build(tmp_path, patch)
    assert ran.code == 0 and (tmp_path / "out" / "chat" / "files.lock").exists(), ran
    assert re.search(rf"sub/p0\.yaml:{place}: warning\[bundle-\w+\]: .*{re.escape(says)}", ran.err), ran.err
    told = json.loads(build(tmp_path, patch, more=("--format", "json")).out)
    assert told["valid"] and {d["severity"] for d in told["diagnostics"]} == {"warning"}
    assert command("build", tmp_path / "s.yaml", "-o", tmp_path / "out", "--check").code == 0


def test_patches_are_judged_together_and_named_apart(tmp_path: Path) -> None:
    mount = of("{name: serve, volumeMounts: [{name: data, mountPath: /data}]}")
    volume = f"{HEAD}spec: {{template: {{spec: {{volumes: [{{name: data, emptyDir: {{}}}}]}}}}}}\n"
    assert build(tmp_path, mount, volume).code == 0
    ran = build(tmp_path, mount, volume, f"{HEAD}spec: {{paused: true}}\n")
    assert ran.code == 1 and re.search(r"sub/p2\.yaml:4:8: error\[bundle-rollout\].*\n.*patches\[2\]", ran.err), ran.err
    assert "p0.yaml" not in ran.err and "p1.yaml" not in ran.err


def test_a_sidecar_that_comes_first_is_not_taken_for_the_server(tmp_path: Path) -> None:
    ran = build(tmp_path, of(f"{SIDE}, resources: {{limits: {{nvidia.com/gpu: 1}}, requests: {{nvidia.com/gpu: 1}}}}}}"))
    assert ran.code == 1 and "side takes nvidia.com/gpu, which the plan gives to serve alone" in ran.err, ran
