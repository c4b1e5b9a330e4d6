"""Where pods go, beside whom, and what they find there: tables of patches that are right, and of what is nearly the same."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from servegen.errors import Diagnostic
from servegen.manifest import documents
from servegen.plan import CachePlan, Plan
from servegen.render.bundle import render
from servegen.validate.check import findings
from servegen.validate.nodes import misspelt
from tests.proof.node_faults import HOST, PRODUCT, REQUIRED, apart, beside, nodes, wants
from tests.unit.plans import POOL, make_plan, make_role, make_split_plan
from tests.unit.test_validate_bundle import FULL
from tests.unit.test_validate_patched import errors, patched, planned, served, warnings

H100 = "NVIDIA-H100-80GB-HBM3"
OURS = {"matchLabels": {"app.kubernetes.io/instance": "llama-chat"}}


@pytest.mark.parametrize(
    ("affinity", "right"),
    [
        (nodes([wants(PRODUCT, "In", "NVIDIA-L4", H100)]), True),
        (nodes([wants(PRODUCT, "In", "NVIDIA-L4")], [wants("zone", "Exists")]), True),
        (nodes([wants(PRODUCT, "In", "NVIDIA-L4")], [wants(PRODUCT, "DoesNotExist")]), False),
        (nodes([wants(PRODUCT, "NotIn", "NVIDIA-L4"), wants(PRODUCT, "Exists")]), True),
        (nodes([wants("nvidia.com/gpu.memory", "Gt", "70000"), wants("nvidia.com/gpu.memory", "Lt", "90000")]), True),
        (nodes([wants("nvidia.com/gpu.memory", "Gt", "70000"), wants("nvidia.com/gpu.memory", "Lt", "70001")]), False),
        (nodes([wants("cores", "Gt", "9"), wants("cores", "In", "4", "8")]), False),
        (nodes([wants("cores", "Gt", "7"), wants("cores", "In", "4", "8")]), True),
        (nodes([wants("spot", "DoesNotExist"), wants("spot", "NotIn", "true")]), True),
        (nodes([wants("spot", "DoesNotExist"), wants("spot", "Exists")]), False),
        (nodes([wants("zone", "In", "a", "b"), wants("zone", "In", "b", "c")]), True),
        (nodes([wants("zone", "In", "a"), wants("zone", "In", "b")]), False),
        (nodes([]), False),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [wants("metadata.name", "In", "a", "b")]}]}}}, True),
    ],
)  # fmt: skip
def test_nodes_that_are_asked_for(affinity: dict[str, Any], right: bool) -> None:
    found = errors(served({"affinity": affinity}))
    assert (found == []) is right and (right or "no node can ever meet it" in found[0]), found


@pytest.mark.parametrize(
    ("label", "meant"),
    [
        ("topology.kubernetes.io/zones", "topology.kubernetes.io/zone"), ("kubernetes.io/hostnames", HOST),
        ("topology.kubernets.io/region", "topology.kubernetes.io/region"), ("topology.kubernetes.io/hostname", HOST),
        ("kubernetes.io/zone", "topology.kubernetes.io/zone"), ("topology.kubernetes.io/Zone", "topology.kubernetes.io/zone"),
        (HOST, ""), ("zone", ""), ("rack", ""), ("corp.io/zone", ""), ("topology.kubernetes.io/rack", ""),
        ("topology.ebs.csi.aws.com/zone", ""), ("topology.gke.io/zone", ""), ("node-restriction.kubernetes.io/zone", ""),
        ("cloud.google.com/gke-nodepool", ""), ("failure-domain.beta.kubernetes.io/zone", ""), ("topology.k8s.aws/zone-id", ""),
        ("feature.node.kubernetes.io/os", ""), ("topology.disk.csi.azure.com/zone", ""), ("node.kubernetes.io/pool", ""),
    ],
)  # fmt: skip
def test_labels_of_nodes(label: str, meant: str) -> None:
    assert misspelt(label) == meant


def test_a_typo_in_a_wish_is_a_warning() -> None:
    spread = {"maxSkew": 1, "topologyKey": f"{HOST}s", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": OURS}
    found = served({"topologySpreadConstraints": [spread]})
    assert errors(found) == [] and "nothing comes of it; did you mean kubernetes.io/hostname?" in warnings(found)[0]
    term = {"topologyKey": "topology.kubernetes.io/zones", "labelSelector": OURS}
    wish = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}
    found = served({"affinity": wish})
    assert errors(found) == [] and "did you mean topology.kubernetes.io/zone?" in warnings(found)[0]
    own = {**spread, "topologyKey": "corp.io/rack", "whenUnsatisfiable": "DoNotSchedule"}
    assert served({"topologySpreadConstraints": [own]}) == []


def of(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name}, "spec": spec}


def changed(plan: Plan, kind: str, name: str, spec: dict[str, Any]) -> list[Diagnostic]:
    return patched(plan, of(kind, name, spec))


def on(count: int, **role: Any) -> Plan:
    """A plan of servers of four accelerators on so many nodes of eight."""
    return make_plan(make_role(tp=4, **role), pool=(replace(POOL, nodes=count),))


@pytest.mark.parametrize(
    ("count", "replicas", "affinity", "says"),
    [
        (2, 3, apart(selector=OURS), "the plan has 3 of them, the pool has 2 nodes: some never start"),
        (3, 3, apart(selector=OURS), "keeps the new pods of a rollout off the old ones, which are on all 3 nodes"),
        (3, 3, apart(selector=OURS, matchLabelKeys=["pod-template-hash"]), ""),
        (4, 3, apart(selector=OURS), ""),
        (2, 3, apart(selector={"matchLabels": {"app": "cache"}}), ""),
        (2, 3, apart(selector={}), "some never start"),
        (2, 3, apart(selector=None), ""),
        (2, 3, apart("topology.kubernetes.io/zone", OURS), ""),
        (2, 3, apart(selector=OURS, namespaces=["other"]), ""),
        (2, 3, apart(selector=OURS, namespaces=["other", "llm"]), "some never start"),
        (2, 3, apart(selector=OURS, namespaceSelector={}), "some never start"),
        (2, 3, apart(selector=OURS, mismatchLabelKeys=["tenant"]), ""),
    ],
)  # fmt: skip
def test_pods_that_share_no_node(count: int, replicas: int, affinity: dict[str, Any], says: str) -> None:
    plan = on(count, replicas=replicas)
    found = errors(changed(plan, "Deployment", "llama-chat-serve", {
        "template": {"spec": {"affinity": affinity}},
        "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    }))  # fmt: skip
    assert (len(found) == 1 and says in found[0]) if says else found == [], found


@pytest.mark.parametrize(
    ("replicas", "affinity", "right"),
    [
        (2, apart(selector=OURS, kind="podAffinity"), True), (3, apart(selector=OURS, kind="podAffinity"), False),
        (3, apart("topology.kubernetes.io/zone", OURS, kind="podAffinity"), True),
        (3, apart(selector={"matchLabels": {"app": "cache"}}, kind="podAffinity"), True),
        (3, apart(selector={}, kind="podAffinity"), True),
    ],
)  # fmt: skip
def test_pods_that_must_share_a_node(replicas: int, affinity: dict[str, Any], right: bool) -> None:
    spec = {"template": {"spec": {"affinity": affinity}}}
    found = errors(changed(on(4, replicas=replicas), "Deployment", "llama-chat-serve", spec))
    assert (found == []) is right and (right or "12 accelerators, on one node of 8" in found[0]), found


HOSTS = [wants(HOST, "In", "n1", "n2")]


@pytest.mark.parametrize(
    ("replicas", "pod", "right"),
    [
        (2, {"nodeSelector": {HOST: "n1"}}, True), (3, {"nodeSelector": {HOST: "n1"}}, False),
        (4, {"affinity": nodes(HOSTS)}, True), (5, {"affinity": nodes(HOSTS)}, False),
        (5, {"affinity": nodes(HOSTS, [wants(HOST, "In", "n2", "n3")])}, True),
        (5, {"affinity": nodes(HOSTS, [wants("zone", "Exists")])}, True),
        (5, {"affinity": nodes([wants(HOST, "NotIn", "n1")])}, True),
    ],
)  # fmt: skip
def test_nodes_that_are_named(replicas: int, pod: dict[str, Any], right: bool) -> None:
    found = errors(changed(on(4, replicas=replicas), "Deployment", "llama-chat-serve", {"template": {"spec": pod}}))
    assert (found == []) is right and (right or "some never start" in found[0]), found


def test_a_rollout_that_may_lose_a_replica_moves_on_full_nodes() -> None:
    moves = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    spec = {"template": {"spec": {"affinity": apart(selector=OURS)}}, "strategy": moves}
    assert errors(changed(on(3, replicas=3), "Deployment", "llama-chat-serve", spec)) == []


def test_pods_that_keep_others_off() -> None:
    spec = {"template": {"spec": {"affinity": apart(selector=OURS)}}}
    for count, right in ((4, False), (5, True)):  # three that decode, a node each; two that prefill share one, besides the surge
        plan = make_split_plan(pool=(replace(POOL, nodes=count),))
        found = errors(changed(plan, "Deployment", "llama-chat-decode", spec))
        assert (found == []) is right, found
    plan = make_split_plan(pool=(replace(POOL, nodes=3),))
    found = errors(changed(plan, "Deployment", "llama-chat-decode", spec))
    assert "the pool has 3 nodes, 1 of which go to the other pods" in found[0]


def test_pods_that_an_autoscaler_may_add_are_a_warning() -> None:
    plan = make_split_plan(deploy_autoscaling="hpa", **FULL)
    own = {"matchLabels": {"app.kubernetes.io/component": "decode"}}
    spec = {"template": {"spec": {"affinity": apart(selector=own)}}}
    plan = replace(plan, pool=(replace(POOL, nodes=3),), deploy=replace(plan.deploy, autoscaling_max={"decode": 4, "prefill": 2}))
    found = changed(plan, "Deployment", "llama-chat-decode", spec)
    assert any("the autoscaler may go up to 4 of them, the pool has 3 nodes" in m for m in warnings(found)), found


def test_who_places_a_pod_and_who_lets_it_go_is_a_warning() -> None:
    found = served({"schedulerName": "volcano", "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]})
    assert errors(found) == []
    says = " ".join(warnings(found))
    assert "no pod is placed unless a scheduler 'volcano' runs in the cluster" in says
    assert "no pod is scheduled until something in the cluster has lifted 'kueue.x-k8s.io/admission'" in says
    assert served({"schedulerName": "default-scheduler", "schedulingGates": []}) == []


@pytest.mark.parametrize(
    ("least", "low", "right"),
    [(1, 1, False), (1, 2, True), ("50%", 1, False), ("50%", 2, True), (2, 2, False), ("99%", 3, False)],
)
def test_budgets_against_the_least_of_an_autoscaler(least: Any, low: int, right: bool) -> None:
    plan = make_split_plan(deploy_autoscaling="hpa", **{**FULL, "deploy_autoscaling_min": {"prefill": 1, "decode": low}})
    budget = {"maxUnavailable": None, "minAvailable": least}
    found = errors(changed(plan, "PodDisruptionBudget", "llama-chat-decode", budget))
    assert (found == []) is right and (right or "drains hang" in found[0] or "every node drain would hang" in found[0]), found


def test_a_budget_of_a_server_that_keda_stops() -> None:
    plan = make_split_plan(deploy_autoscaling="keda", **FULL)
    budget = {"maxUnavailable": None, "minAvailable": 1}
    found = errors(changed(plan, "PodDisruptionBudget", "llama-chat-decode", budget))
    assert "is 1, and the autoscaler goes down to 1: no pod could be evicted then" in found[0]


TMP = {"name": "t", "emptyDir": {}}
RO = {"readOnlyRootFilesystem": True}


def at(*paths: str) -> dict[str, Any]:
    return {"volumeMounts": [{"name": "t", "mountPath": path} for path in paths]}


@pytest.mark.parametrize(
    ("pod", "container", "severity", "says"),
    [
        ({}, {"securityContext": RO}, "error", "no volume takes temporary files"),
        ({"volumes": [TMP]}, {"securityContext": RO, **at("/tmp")}, "warning", "/root/.cache and /root/.triton"),
        ({"volumes": [TMP]}, {"securityContext": RO, **at("/tmp", "/root/.cache")}, "warning", "kept in /root/.triton, which"),
        ({"volumes": [TMP]}, {"securityContext": RO, **at("/tmp", "/root")}, "", ""),
        ({"volumes": [TMP]}, {"securityContext": RO, **at("/tmp"), "env": [{"name": "HOME", "value": "/tmp"}]}, "", ""),
        ({"volumes": [TMP]}, {"securityContext": RO, **at("/tmp", "/c"), "env": [
            {"name": "TRITON_CACHE_DIR", "value": "/c/t"}, {"name": "XDG_CACHE_HOME", "value": "/c"}]}, "", ""),
        ({"volumes": [TMP]}, {"securityContext": RO, **at("/s"), "env": [
            {"name": "TMPDIR", "value": "/s"}, {"name": "HOME", "value": "/s"}]}, "", ""),
        ({"volumes": [TMP], "securityContext": {"runAsUser": 1000}}, at("/root/.cache"), "warning", "/root/.cache is"),
        ({"volumes": [TMP], "securityContext": {"runAsUser": 1000}}, at("/root"), "", ""),
        ({"volumes": [TMP]}, at("/root/.cache"), "", ""),
        ({"securityContext": {"runAsUser": 1000}}, {"env": [{"name": "HOME", "value": "/tmp"}]}, "", ""),
        ({"securityContext": {"runAsUser": 1000}}, {}, "warning", "spec.template.spec.securityContext.runAsUser: is 1000, whom"),
        ({"securityContext": {"runAsUser": 1000}}, {"env": [{"name": "SGLANG_CACHE_DIR", "value": "/tmp/c"}]}, "", ""),
        ({}, {"securityContext": {"runAsUser": 1000}}, "warning", "containers[0].securityContext.runAsUser: is 1000, whom"),
        ({"securityContext": {"runAsUser": 1000}}, {"env": [{"name": "HF_HOME", "value": "/root/h"}]}, "error", "HF_HOME is"),
    ],
)  # fmt: skip
def test_what_a_server_may_write(pod: dict[str, Any], container: dict[str, Any], severity: str, says: str) -> None:
    found = served(pod, **container)
    assert [d.severity for d in found if says in d.message][:1] == [severity] if says else found == [], [str(d) for d in found]


def test_a_router_compiles_nothing() -> None:
    tmp = {"name": "tmp", "$patch": "delete"}
    container = {"name": "router", "securityContext": RO, "volumeMounts": [{"mountPath": "/tmp", "$patch": "delete"}]}
    spec = {"template": {"spec": {"volumes": [tmp], "containers": [container]}}}
    (found,) = changed(planned("hpa"), "Deployment", "llama-chat-router", spec)
    assert found.severity == "warning" and "no volume takes temporary files" in found.message
    container = {"name": "router", "env": [{"name": "HOME", "$patch": "delete"}]}
    assert changed(planned("hpa"), "Deployment", "llama-chat-router", {"template": {"spec": {"containers": [container]}}}) == []


CLAIM = {"name": "t", "persistentVolumeClaim": {"claimName": "model-cache"}}


@pytest.mark.parametrize(
    ("volume", "path", "says"),
    [
        (TMP, "/models/", "'/models' is there twice"), (TMP, "/models/adapters", ""), (CLAIM, "/adapters", ""),
        (TMP, "/models/models--meta-llama--Llama-3.1-70B-Instruct", "hides the weights"),
        (TMP, "/models/models--meta-llama--Llama-3.1-70B-Instruct/snapshots", "hides the weights"),
        (CLAIM, "/models/models--meta-llama--Llama-3.1-70B-Instruct", ""),
        (TMP, "/usr", "hides what the image has there"), (TMP, "/usr/local/share", ""), (TMP, "/root", ""),
        (TMP, "/models", "in place of the volume of deploy.modelCache"),
    ],
)  # fmt: skip
def test_what_a_mount_hides(volume: dict[str, Any], path: str, says: str) -> None:
    found = errors(served({"volumes": [volume]}, **at(path)))
    assert any(says in m for m in found) if says else found == [], found


def test_a_volume_that_is_filled_first_hides_nothing() -> None:
    fetch = {"name": "fetch", "image": "busybox:1.36", "securityContext": {"allowPrivilegeEscalation": False,
             "capabilities": {"drop": ["ALL"]}}, "volumeMounts": [{"name": "t", "mountPath": "/m"}]}  # fmt: skip
    pod = {"volumes": [TMP, {"name": "models", "$patch": "delete"}], "initContainers": [fetch]}
    assert errors(served(pod, **at("/models"))) == []


def test_a_name_of_a_port_leads_to_the_first_container_for_all_who_use_it() -> None:
    plan = make_split_plan(deploy_autoscaling="hpa", **FULL)
    scraper = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "prometheus"}}}
    policy = {"ingress": [{"from": [{"podSelector": OURS}]}, {"from": [scraper], "ports": [{"port": "http"}]}]}
    named = of("NetworkPolicy", "llama-chat-decode", policy)
    assert errors(patched(plan, named, sidecar("web"))) == []
    found = errors(patched(plan, named, sidecar("http")))
    for kind in ("Service", "PodMonitor", "NetworkPolicy"):
        says = "'http' leads to port 80 of container side, which comes first in llama-chat-decode; the port of the server is"
        assert any(m.startswith(f"with the patch, {kind}/llama-chat-decode: ") and says in m for m in found), found
    assert not any("asks llama-chat-decode for" in m for m in found), "told once"


def sidecar(port: str) -> dict[str, Any]:
    return of("Deployment", "llama-chat-decode", {"template": {"spec": {"containers": [beside(80, port)]}}})


@pytest.mark.parametrize(
    ("cache", "severity"), [(CachePlan(size_bytes=2e11), "warning"), (CachePlan(size_bytes=2e11, storage_class="fast"), "error")]
)
def test_a_storage_class_is_the_users_word_where_the_spec_names_none(cache: CachePlan, severity: str) -> None:
    plan = make_plan(deploy_cache=cache)
    found = changed(plan, "PersistentVolumeClaim", "llama-chat-models", {"storageClassName": "slow"})
    assert [d.severity for d in found] == [severity], found


def test_what_a_cluster_takes_hides_nothing_that_it_refuses() -> None:
    """A finding that a patch turns into a warning does not silence the error of the same field."""
    found = served({"serviceAccountName": "Not_A_Name"})
    assert any("no RFC 1123 subdomain" in m for m in errors(found)), found
    assert any("there is no ServiceAccount 'Not_A_Name'" in m for m in warnings(found)), found


def test_a_manifest_is_judged_as_a_patch_is() -> None:
    plan, path = on(2, replicas=3), "kubernetes/deployment-serve.yaml"
    bundle = render(plan)
    (document,) = copy.deepcopy(documents(bundle.files[path]))
    changes = {"affinity": apart(selector=OURS), "schedulingGates": [{"name": "a/b"}], "schedulerName": "x"}
    document["spec"]["template"]["spec"] |= changes
    found = findings(plan, replace(bundle, files={**bundle.files, path: json.dumps(document)}))
    assert {d.severity for d in found if d.code == "bundle-placement"} == {"error"}
    assert [d.severity for d in found if d.code == "bundle-outside"] == ["warning", "warning"]
    assert all("written by template kubernetes/deployment.yaml.j2" in d.hint for d in found)
    assert all(d.message.startswith("Deployment/llama-chat-serve: spec.template.spec.") for d in found)
