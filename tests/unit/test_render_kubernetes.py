"""Rendered objects: what the plan says must stand in them, and nothing of what it does not say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from servegen.bundle import Bundle
from servegen.compile import compile_spec
from servegen.engines.startup import startup_budget_s
from servegen.errors import RenderError
from servegen.manifest import documents
from servegen.plan import CachePlan, Plan
from servegen.render.bundle import launches_of, render
from servegen.spec.load import loads
from servegen.validate.check import findings
from tests.unit.plans import POOL, make_plan, make_role, make_split_plan

OF_TWO_SIZES = """
apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {name: mixed}
spec:
  model: {name: meta-llama/Llama-3.1-405B-Instruct}
  slo: {itl: {p95: 200ms}}
  traffic: {isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}}
  objective: throughput
  hardware:
    pool:
      - {accelerator: h100-sxm-80gb, nodes: 4, perNode: 4, fabric: {bandwidth: 400Gbps}}
      - {accelerator: h200-sxm-141gb, nodes: 2, perNode: 8, fabric: {bandwidth: 400Gbps}}
  constraints: {engines: [sglang], topology: aggregated}
  deploy: {modelCache: {claim: weights}}
"""
GATEWAY = {"namespaceSelector": {"matchLabels": {"role": "gateway"}}}


def body(bundle: Bundle, path: str) -> Any:
    (only,) = documents(bundle.files[f"kubernetes/{path}.yaml"])
    return only


def pod(bundle: Bundle, component: str = "serve") -> Any:
    return body(bundle, f"deployment-{component}")["spec"]["template"]["spec"]


def container(bundle: Bundle, component: str = "serve") -> Any:
    return pod(bundle, component)["containers"][0]


def kinds(bundle: Bundle) -> list[str]:
    return sorted(
        p.removeprefix("kubernetes/").removesuffix(".yaml") for p in bundle.files if p.startswith("kubernetes/")
    )


def test_an_aggregated_plan_is_one_server() -> None:
    assert kinds(render(make_plan(deploy_monitoring=False))) == [
        "deployment-serve",
        "kustomization",
        "poddisruptionbudget-serve",
        "service-serve",
        "serviceaccount-server",
    ]


def test_a_split_plan_has_a_router_with_rights_of_its_own() -> None:
    bundle = render(make_split_plan(deploy_monitoring=False))
    assert [k for k in kinds(bundle) if k.endswith("-router")] == [
        "deployment-router",
        "poddisruptionbudget-router",
        "role-router",
        "rolebinding-router",
        "service-router",
        "serviceaccount-router",
    ]
    assert body(bundle, "role-router")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    assert pod(bundle, "router")["automountServiceAccountToken"] is True
    assert pod(bundle, "router")["serviceAccountName"] == "llama-chat-router"
    for component in ("prefill", "decode"):
        assert pod(bundle, component)["automountServiceAccountToken"] is False
        assert pod(bundle, component)["serviceAccountName"] == "llama-chat"


def test_a_router_finds_the_replicas_of_one_node_beside_those_of_several() -> None:
    """One selector serves two groups of replicas: the label of leaders must not hide those that lead nobody."""
    loaded = loads(OF_TWO_SIZES, "mixed.yaml")[0]
    result = compile_spec(loaded, until="render")
    assert result.bundle is not None and result.plan is not None
    assert findings(result.plan, result.bundle) == []
    wanted = container(result.bundle, "router")["args"]
    wanted = dict(w.split("=") for w in wanted[wanted.index("--selector") + 1 :] if "=" in w)
    group = body(result.bundle, "leaderworkerset-serve-0")["spec"]["leaderWorkerTemplate"]
    lone = body(result.bundle, "deployment-serve-1")["spec"]["template"]
    for template, served in ((group["leaderTemplate"], True), (lone, True), (group["workerTemplate"], False)):
        assert (wanted.items() <= template["metadata"]["labels"].items()) is served


def test_the_entry_service_bears_the_plans_name() -> None:
    assert body(render(make_plan()), "service-serve")["metadata"]["name"] == "llama-chat"
    split = render(make_split_plan())
    names = {c: body(split, f"service-{c}")["metadata"]["name"] for c in ("router", "prefill", "decode")}
    assert names == {"router": "llama-chat", "prefill": "llama-chat-prefill", "decode": "llama-chat-decode"}


def test_the_command_is_the_launch_word_for_word() -> None:
    plan = make_plan()
    (launch,) = launches_of(plan)
    found = container(render(plan))
    assert found["command"] == list(launch.program)
    assert found["command"] + found["args"] == list(launch.argv())


def test_the_routers_pods_are_selected_by_no_one_else() -> None:
    bundle = render(make_split_plan())
    selectors = [
        body(bundle, f"deployment-{c}")["spec"]["selector"]["matchLabels"] for c in ("router", "prefill", "decode")
    ]
    assert len({tuple(sorted(s.items())) for s in selectors}) == 3


def test_selectors_outlive_an_upgrade_of_the_engine() -> None:
    old, new = render(make_plan()), render(make_plan(deploy_image="lmsysorg/sglang:v0.5.24"))
    assert body(old, "deployment-serve")["spec"]["selector"] == body(new, "deployment-serve")["spec"]["selector"]
    assert "app.kubernetes.io/version" not in body(old, "deployment-serve")["spec"]["selector"]["matchLabels"]


def test_a_refit_changes_annotations_but_no_pod() -> None:
    plan = make_split_plan()
    refit = replace(plan, facts={"refit": 1}, prediction=replace(plan.prediction, output_tokens_per_second=6000.0))
    before, after = render(plan), render(refit)
    for component in ("prefill", "decode", "router"):
        old, new = (body(b, f"deployment-{component}") for b in (before, after))
        assert old["metadata"]["annotations"] == {"servegen.dev/plan-hash": plan.content_hash}
        assert new["metadata"]["annotations"] == {"servegen.dev/plan-hash": refit.content_hash}
        assert old["spec"] == new["spec"]


def test_accelerators_are_requested_and_limited_alike() -> None:
    resources = container(render(make_plan(make_role(tp=4, pp=2))))["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == "8"
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert "cpu" not in resources["limits"]


def test_rdma_only_where_kv_leaves_the_node() -> None:
    alone, split = render(make_plan()), render(make_split_plan())
    assert "rdma/ib" not in container(alone)["resources"]["limits"]
    assert container(alone)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    for component in ("prefill", "decode"):
        assert container(split, component)["resources"]["limits"]["rdma/ib"] == "1"
        assert container(split, component)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert "rdma/ib" not in container(split, "router")["resources"]["limits"]
    tcp = render(make_split_plan(pool=(replace(POOL, rdma=False),)))
    assert container(tcp, "decode")["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_only_engine_images_run_as_root() -> None:
    bundle = render(make_split_plan())
    assert pod(bundle, "prefill")["securityContext"]["runAsNonRoot"] is False
    assert pod(bundle, "router")["securityContext"]["runAsNonRoot"] is True
    for component in ("prefill", "decode", "router"):
        assert pod(bundle, component)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container(bundle, component)["securityContext"]["allowPrivilegeEscalation"] is False


def test_probes_follow_the_startup_budget_and_the_engine() -> None:
    plan = make_plan()
    found = container(render(plan))
    startup, budget_s = found["startupProbe"], startup_budget_s(plan, plan.role("serve"))
    assert (
        startup["periodSeconds"] * startup["failureThreshold"]
        >= budget_s
        > startup["periodSeconds"] * (startup["failureThreshold"] - 1)
    )
    assert startup["httpGet"] == found["readinessProbe"]["httpGet"] == {"path": "/health_generate", "port": "http"}
    assert found["livenessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert {found[p]["timeoutSeconds"] for p in ("startupProbe", "livenessProbe", "readinessProbe")} == {20}
    assert body(render(plan), "deployment-serve")["spec"]["progressDeadlineSeconds"] > budget_s


def test_a_router_without_servers_is_not_restarted() -> None:
    bundle = render(make_split_plan())
    found = container(bundle, "router")
    assert (
        found["startupProbe"]["httpGet"] == found["livenessProbe"]["httpGet"] == {"path": "/liveness", "port": "http"}
    )
    assert found["readinessProbe"]["httpGet"]["path"] == "/readiness"
    deadlines = {c: body(bundle, f"deployment-{c}")["spec"]["progressDeadlineSeconds"] for c in ("router", "prefill")}
    assert deadlines["router"] >= deadlines["prefill"]


def megatron(**changes: Any) -> Plan:
    return make_plan(make_role(tp=4), choice_engine="megatron", choice_engine_version="0.19.2", **changes)


def test_an_engine_without_health_paths_is_probed_by_its_port() -> None:
    found = container(render(megatron()))
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert found[probe]["tcpSocket"] == {"port": "http"}
        assert "httpGet" not in found[probe]


def test_an_engine_without_metrics_cannot_be_scaled() -> None:
    with pytest.raises(RenderError, match="no metrics"):
        render(megatron(deploy_autoscaling="keda"))


def test_prefill_pods_tell_the_router_their_bootstrap_port() -> None:
    bundle = render(make_split_plan())
    annotations = body(bundle, "deployment-prefill")["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"sglang.ai/bootstrap-port": "8998"}
    assert "annotations" not in body(bundle, "deployment-decode")["spec"]["template"]["metadata"]
    assert {"name": "bootstrap", "containerPort": 8998, "protocol": "TCP"} in container(bundle, "prefill")["ports"]


@pytest.mark.parametrize(("version", "field"), [("1.29", "exec"), ("1.30", "sleep"), ("v1.34.2", "sleep")])
def test_the_sleep_before_the_end_is_one_that_the_cluster_has(version: str, field: str) -> None:
    found = container(render(make_plan(deploy_kubernetes_version=version)))
    assert list(found["lifecycle"]["preStop"]) == [field]


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(RenderError, match="no Kubernetes version"):
        render(make_plan(deploy_kubernetes_version="latest"))


@pytest.mark.parametrize(("nodes", "surge"), [(2, 0), (3, 1)])
def test_a_full_pool_rolls_without_surge(nodes: int, surge: int) -> None:
    bundle = render(make_plan(make_role(tp=8, replicas=2), pool=(replace(POOL, nodes=nodes),)))
    strategy = body(bundle, "deployment-serve")["spec"]["strategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": surge, "maxUnavailable": 1 - surge}


@pytest.mark.parametrize(
    ("cache", "volume", "claims"),
    [
        (CachePlan(claim="mine"), {"name": "models", "persistentVolumeClaim": {"claimName": "mine"}}, 0),
        (
            CachePlan(host_path="/data"),
            {"name": "models", "hostPath": {"path": "/data", "type": "DirectoryOrCreate"}},
            0,
        ),
        (
            CachePlan(size_bytes=200e9),
            {"name": "models", "persistentVolumeClaim": {"claimName": "llama-chat-models"}},
            1,
        ),
        (CachePlan(), {"name": "models", "emptyDir": {}}, 0),
    ],
)
def test_weights_lie_where_the_spec_says(cache: CachePlan, volume: dict[str, Any], claims: int) -> None:
    bundle = render(make_plan(deploy_cache=cache))
    assert volume in pod(bundle)["volumes"]
    assert {"name": "models", "mountPath": "/models"} in container(bundle)["volumeMounts"]
    assert {"name": "HF_HUB_CACHE", "value": "/models"} in container(bundle)["env"]
    assert kinds(bundle).count("persistentvolumeclaim-models") == claims


@pytest.mark.parametrize(("nodes", "mode"), [(1, "ReadWriteOnce"), (2, "ReadWriteMany")])
def test_a_claim_is_shared_when_several_nodes_may_mount_it(nodes: int, mode: str) -> None:
    plan = make_plan(
        make_role(replicas=1),
        deploy_cache=CachePlan(size_bytes=200e9, storage_class="fast"),
        pool=(replace(POOL, nodes=nodes),),
    )
    spec = body(render(plan), "persistentvolumeclaim-models")["spec"]
    assert spec == {"accessModes": [mode], "storageClassName": "fast", "resources": {"requests": {"storage": "187Gi"}}}


def test_a_path_in_the_image_is_not_hidden_by_a_volume() -> None:
    bundle = render(make_plan(make_role(load="/models/baked"), deploy_cache=CachePlan()))
    assert [v["name"] for v in pod(bundle)["volumes"]] == ["shm"]
    assert "HF_HUB_CACHE" not in [e["name"] for e in container(bundle)["env"]]


def test_the_token_is_only_referred_to() -> None:
    bundle = render(make_split_plan())
    entry = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN"}}}
    assert entry in container(bundle, "decode")["env"]
    assert entry not in container(bundle, "router")["env"]


def test_scheduling_of_the_spec_reaches_servers_and_not_the_router() -> None:
    plan = make_split_plan(
        deploy_priority_class="serving", deploy_runtime_class="nvidia", deploy_image_pull_secrets=("regcred",)
    )
    bundle = render(plan)
    decode, router = pod(bundle, "decode"), pod(bundle, "router")
    assert decode["nodeSelector"] == dict(POOL.node_selector)
    assert decode["tolerations"] == [dict(t) for t in POOL.tolerations]
    assert (decode["runtimeClassName"], decode["priorityClassName"]) == ("nvidia", "serving")
    assert router["priorityClassName"] == "serving"
    assert decode["imagePullSecrets"] == router["imagePullSecrets"] == [{"name": "regcred"}]
    assert not {"nodeSelector", "tolerations", "runtimeClassName"} & set(router)
    assert "nvidia.com/gpu" not in container(bundle, "router")["resources"]["limits"]


def test_small_replicas_pack_where_larger_ones_need_whole_nodes() -> None:
    bundle = render(make_plan(make_role("prefill", tp=2), make_role("decode", tp=8)))
    assert "podAffinity" in pod(bundle, "prefill")["affinity"]
    assert not {"affinity", "topologySpreadConstraints"} & set(pod(bundle, "decode"))
    (spread,) = pod(render(make_split_plan()), "decode")["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"


def test_every_pod_may_be_evicted_one_at_a_time() -> None:
    for replicas in (1, 3):
        spec = body(render(make_plan(make_role(replicas=replicas))), "poddisruptionbudget-serve")["spec"]
        assert spec["maxUnavailable"] == 1
        assert "minAvailable" not in spec


def test_monitors_follow_the_port_of_the_metrics() -> None:
    bundle = render(make_split_plan())
    ends = {c: body(bundle, f"podmonitor-{c}")["spec"]["podMetricsEndpoints"] for c in ("decode", "router")}
    assert ends == {
        "decode": [{"port": "http", "path": "/metrics", "interval": "15s"}],
        "router": [{"port": "metrics", "path": "/metrics", "interval": "15s"}],
    }


def peers(bundle: Bundle, component: str) -> list[Any]:
    return [r.get("from") for r in body(bundle, f"networkpolicy-{component}")["spec"]["ingress"]]


def test_only_the_entry_is_open_to_the_specs_peers() -> None:
    bundle = render(make_split_plan(deploy_network_policy_from=(GATEWAY,), deploy_monitoring=False))
    assert peers(bundle, "router") == [[GATEWAY]]
    rules = body(bundle, "networkpolicy-prefill")["spec"]["ingress"]
    router, each_other = rules
    assert router["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "router"
    assert [p["port"] for p in router["ports"]] == [8998, 30000]
    assert each_other["from"][0]["podSelector"]["matchExpressions"][0]["values"] == ["prefill", "decode"]
    assert "ports" not in each_other


def test_no_peers_means_nobody_and_no_key_means_no_policy() -> None:
    closed = render(make_plan(deploy_network_policy_from=(), deploy_monitoring=False))
    assert body(closed, "networkpolicy-serve")["spec"]["ingress"] == []
    assert "networkpolicy-serve" not in kinds(render(make_plan()))


def test_egress_reaches_names_weights_and_a_stated_proxy() -> None:
    plan = make_plan(
        deploy_network_policy_from=(GATEWAY,), deploy_env={"HTTPS_PROXY": "http://proxy:3128", "http_proxy": "http://p"}
    )
    ports = [[p["port"] for p in r["ports"]] for r in body(render(plan), "networkpolicy-serve")["spec"]["egress"]]
    assert ports == [[53, 53], [80, 443, 3128]]


SCALED: dict[str, Any] = {
    "deploy_autoscaling_min": {"prefill": 1, "decode": 2},
    "deploy_autoscaling_max": {"prefill": 3, "decode": 4},
    "deploy_autoscaling_queue": {"prefill": 4.0, "decode": 2.5},
}


def test_keda_scales_on_the_queue_and_holds_the_planned_load() -> None:
    bundle = render(make_split_plan(deploy_autoscaling="keda", **SCALED))
    assert "replicas" not in body(bundle, "deployment-decode")["spec"]
    assert body(bundle, "deployment-router")["spec"]["replicas"] == 2
    spec = body(bundle, "scaledobject-decode")["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], spec["fallback"]["replicas"]) == (2, 4, 3)
    assert (spec["pollingInterval"], spec["cooldownPeriod"]) == (15, 360)
    queue, load = spec["triggers"]
    assert queue["metadata"]["threshold"] == "2.5"
    assert 'sum(sglang:num_queue_reqs{namespace="llm", pod=~"llama-chat-decode-' in queue["metadata"]["query"]
    assert "sglang:num_decode_prealloc_queue_reqs" in queue["metadata"]["query"]
    assert load["metadata"]["threshold"] == "60"  # the running requests of one replica in the plan
    assert "sglang:num_running_reqs" in load["metadata"]["query"]
    prefill = body(bundle, "scaledobject-prefill")["spec"]["triggers"]
    assert prefill[1]["metadata"]["threshold"] == "12288"  # 12 requests/s of 2048 tokens over 2 replicas


def test_hpa_uses_pod_metrics_and_windows_within_the_api() -> None:
    bundle = render(make_split_plan(deploy_autoscaling="hpa", **SCALED))
    spec = body(bundle, "horizontalpodautoscaler-decode")["spec"]
    assert [m["pods"]["metric"]["name"] for m in spec["metrics"]] == [
        "sglang:num_queue_reqs",
        "sglang:num_decode_prealloc_queue_reqs",
        "sglang:num_running_reqs",
    ]
    assert spec["metrics"][0]["pods"]["target"] == {"type": "AverageValue", "averageValue": "2500m"}
    for rules in spec["behavior"].values():
        assert rules["stabilizationWindowSeconds"] <= 3600
        assert all(p["periodSeconds"] <= 1800 for p in rules["policies"])


def test_a_name_that_cannot_be_is_refused() -> None:
    for name in ("Upper", "x" * 60, "-a", "a_b"):
        with pytest.raises(RenderError, match="cannot name"):
            render(replace(make_plan(), name=name))
