"""Replicas over several nodes: what each process is started with, the group of pods that it becomes, and who finds whom."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.bundle import Bundle
from servegen.engines.launch import IN_POD, IN_SCRIPT, Launch, Place
from servegen.engines.registry import get_engine
from servegen.engines.startup import IMAGE_PULL_S, startup_budget_s
from servegen.errors import NotBuiltError, UserError
from servegen.manifest import documents
from servegen.plan import CachePlan, Plan
from servegen.render import sizing
from servegen.render.bundle import render
from servegen.render.environment import Environment
from servegen.report.markdown import plan_markdown
from servegen.rollout import surge_fits
from servegen.validate.check import findings
from tests.unit.plans import POOL, make_plan, make_role
from tests.unit.test_render_schema import check

GATEWAY = {"namespaceSelector": {"matchLabels": {"role": "gateway"}}}
TWO = make_plan(make_role(tp=8, pp=2, replicas=1), deploy_network_policy_from=(GATEWAY,))
#: Prefill over two nodes, decode on one: a router finds the leaders of the first and every pod of the second.
MIXED = make_plan(
    make_role("prefill", tp=16, replicas=1), make_role("decode", tp=8, replicas=2), deploy_network_policy_from=(GATEWAY,)
)
LEADER = {"servegen.dev/group-role": "leader"}


def launches(plan: Plan) -> dict[str, Launch]:
    return {launch.name: launch for launch in get_engine(plan.choice.engine).launches(plan)}


def bodies(plan: Plan) -> dict[str, Any]:
    """The objects of a bundle by the stem of their file."""
    files = render(plan).files
    return {p[11:-5]: documents(text)[0] for p, text in files.items() if p.startswith("kubernetes/") and p.endswith(".yaml")}


def group(body: Any) -> tuple[Any, Any, Any]:
    """(template, leader's pod, worker's pod) of a LeaderWorkerSet."""
    template = body["spec"]["leaderWorkerTemplate"]
    return template, template["leaderTemplate"]["spec"], template["workerTemplate"]["spec"]


@pytest.mark.parametrize(
    ("tp", "pp", "nodes"), [(8, 1, None), (4, 2, None), (8, 2, "2"), (16, 1, "2"), (4, 4, "2"), (32, 1, "4"), (16, 2, "4")]
)
def test_a_replica_of_several_nodes_says_how_many(tp: int, pp: int, nodes: str | None) -> None:
    plan = make_plan(make_role(tp=tp, pp=pp, replicas=1))
    launch = launches(plan)["serve"]
    flags = {a.flag: a.values for a in launch.args}
    assert flags.get("--nnodes") == (None if nodes is None else (nodes,))
    # Nodes wait for one another as long as a start may take, not for torch's 10 minutes.
    budget = str(int(startup_budget_s(plan, plan.role("serve"))))
    assert flags.get("--dist-timeout") == (None if nodes is None else (budget,))
    assert "--node-rank" not in flags and "--dist-init-addr" not in flags, "each node has its own"
    assert launch.nodes == plan.nodes(plan.role("serve")) == int(nodes or 1)
    added = launch.at(Place("10.0.0.1", "1")).argv()[len(launch.argv()) :]
    assert added == (() if nodes is None else ("--dist-init-addr", "10.0.0.1:20000", "--node-rank", "1"))
    assert launch.at(IN_POD).at(IN_SCRIPT) == launch.at(IN_POD), "a process has one place"


def test_a_replica_takes_whole_nodes() -> None:
    with pytest.raises(NotBuiltError, match="12 accelerators spans nodes of 8"):
        launches(make_plan(make_role(tp=4, pp=3)))
    with pytest.raises(NotBuiltError, match="16 accelerators spans nodes of 8"):
        launches(make_plan(make_role(tp=16), choice_engine="megatron", choice_engine_version="0.19.2"))


@pytest.mark.parametrize("key", ["nnodes", "node-rank", "dist-init-addr", "nccl-init-addr", "--nnodes"])
def test_where_the_nodes_are_is_not_to_be_overridden(key: str) -> None:
    with pytest.raises(UserError, match=rf"deploy\.overrides\.args\.{key}: a replica of this plan takes 2 nodes"):
        launches(replace(TWO, deploy=replace(TWO.deploy, args={key: "1"})))
    one = make_plan(deploy_args={key: "127.0.0.1:5000" if "addr" in key else 1})
    if "addr" in key:  # on one node it is only a port of this machine
        assert "127.0.0.1:5000" in launches(one)["serve"].argv()
    else:
        with pytest.raises(UserError, match=r"a replica of this plan takes 1 node\b"):
            launches(one)


def test_the_pods_of_a_replica() -> None:
    body = bodies(TWO)["leaderworkerset-serve"]
    template, leader, worker = group(body)
    assert body["apiVersion"] == "leaderworkerset.x-k8s.io/v1" and body["spec"]["replicas"] == 1
    assert (template["size"], template["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    assert body["spec"]["startupPolicy"] == "LeaderCreated"
    first, second = leader["containers"][0], worker["containers"][0]
    assert first["args"] == second["args"] and first["command"] == second["command"]
    assert [*first["command"], *first["args"]] == list(launches(TWO)["serve"].at(IN_POD).argv())
    assert first["args"][-4:] == ["--dist-init-addr", "$(LWS_LEADER_ADDRESS):20000", "--node-rank", "$(LWS_WORKER_INDEX)"]
    for container in (first, second):
        assert {where["nvidia.com/gpu"] for where in container["resources"].values()} == {"8"}
        assert {where["rdma/ib"] for where in container["resources"].values()} == {"1"}
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    alone = {"ports", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle"}
    assert alone <= set(first) and not alone & set(second), "only the leader answers"
    same = {k: v for k, v in first.items() if k not in alone}
    assert same == second
    assert {k: v for k, v in leader.items() if k != "containers"} == {k: v for k, v in worker.items() if k != "containers"}


def test_a_fabric_without_rdma_needs_no_locked_memory() -> None:
    plan = replace(TWO, pool=(replace(POOL, rdma=False),))
    for pod in group(bodies(plan)["leaderworkerset-serve"])[1:]:
        assert "add" not in pod["containers"][0]["securityContext"]["capabilities"]
        assert "rdma/ib" not in pod["containers"][0]["resources"]["limits"]


def test_only_leaders_are_found() -> None:
    found = bodies(TWO)
    chosen = {"app.kubernetes.io/instance": "llama-chat", "app.kubernetes.io/component": "serve"}
    assert found["service-serve"]["metadata"]["name"] == "llama-chat"
    assert found["service-serve"]["spec"]["selector"] == chosen | LEADER
    assert found["podmonitor-serve"]["spec"]["selector"]["matchLabels"] == chosen | LEADER
    # Evicting a worker ends the replica; and its traffic is no less to be let through.
    assert found["poddisruptionbudget-serve"]["spec"]["selector"]["matchLabels"] == chosen
    policy = found["networkpolicy-serve"]["spec"]
    assert policy["podSelector"]["matchLabels"] == chosen
    own = {"podSelector": {"matchLabels": chosen}}
    assert {"from": [own]} in policy["ingress"] and {"to": [own]} in policy["egress"]
    template = found["leaderworkerset-serve"]["spec"]["leaderWorkerTemplate"]
    labels = [template[t]["metadata"]["labels"] for t in ("leaderTemplate", "workerTemplate")]
    assert [x["servegen.dev/group-role"] for x in labels] == ["leader", "worker"]
    assert {**labels[0], "servegen.dev/group-role": "worker"} == labels[1] and chosen.items() <= labels[0].items()


def test_a_router_finds_leaders_and_whole_servers() -> None:
    found = bodies(MIXED)
    args = found["deployment-router"]["spec"]["template"]["spec"]["containers"][0]["args"]
    at = args.index("--prefill-selector")
    mine = "app.kubernetes.io/instance=llama-chat"
    assert args[at : at + 7] == [
        "--prefill-selector", mine, "app.kubernetes.io/component=prefill", "servegen.dev/group-role=leader",
        "--decode-selector", mine, "app.kubernetes.io/component=decode",
    ]  # fmt: skip
    assert args[at + 7].startswith("--")
    template = found["leaderworkerset-prefill"]["spec"]["leaderWorkerTemplate"]
    assert template["leaderTemplate"]["metadata"]["annotations"] == {"sglang.ai/bootstrap-port": "8998"}
    assert "annotations" not in template["workerTemplate"]["metadata"]
    assert "deployment-decode" in found and "leaderworkerset-decode" not in found
    # The controller makes a headless Service by the group's name, through which its pods find each other.
    assert found["leaderworkerset-prefill"]["metadata"]["name"] == "llama-chat-prefill"
    assert found["service-prefill"]["metadata"]["name"] == "llama-chat-prefill-leader"
    assert found["service-decode"]["metadata"]["name"] == "llama-chat-decode"


@pytest.mark.parametrize("autoscaling", ["hpa", "keda"])
def test_an_autoscaler_counts_replicas_by_their_leaders(autoscaling: str) -> None:
    plan = replace(TWO, deploy=replace(TWO.deploy, autoscaling=autoscaling, autoscaling_max={"serve": 2}))
    found = bodies(plan)
    scaler = found["horizontalpodautoscaler-serve" if autoscaling == "hpa" else "scaledobject-serve"]
    target = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "llama-chat-serve"}
    assert scaler["spec"]["scaleTargetRef"] == target
    assert "replicas" not in found["leaderworkerset-serve"]["spec"]
    for trigger in scaler["spec"].get("triggers", ()):
        assert 'pod=~"llama-chat-serve-[0-9]+"' in trigger["metadata"]["query"]
    assert findings(plan, render(plan)) == []


@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_group_surges_only_into_whole_nodes(nodes: int, replicas: int) -> None:
    plan = replace(make_plan(make_role(tp=8, pp=2, replicas=replicas)), pool=(replace(POOL, nodes=nodes),))
    config = bodies(plan)["leaderworkerset-serve"]["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
    surge = int(nodes - 2 * replicas >= 2)
    assert config == {"maxSurge": surge, "maxUnavailable": 1 - surge}


@pytest.mark.parametrize(("nodes", "small"), list(itertools.product((3, 4, 5), (1, 2, 3))))
def test_a_group_surges_however_small_pods_stand(nodes: int, small: int) -> None:
    """One pod of another role blocks a whole node for a group, wherever it stands."""
    roles = make_role("prefill", tp=2, replicas=small), make_role("decode", tp=16, replicas=1)
    plan = replace(make_plan(*roles), pool=(replace(POOL, nodes=nodes),))
    assert surge_fits(plan, roles[1]) == (nodes - 2 - small >= 2)


def test_what_a_pod_of_a_group_asks_of_its_node() -> None:
    whole, half = (sizing.pod_size(make_role(tp=tp), POOL) for tp in (16, 8))
    assert (whole.cpu, whole.shm_bytes) == (half.cpu, half.shm_bytes) == ("64", 16 * 2**30)
    assert whole.memory_bytes == half.memory_bytes
    one_each = sizing.pod_size(make_role(tp=2), replace(POOL, per_node=1))
    assert one_each.shm_bytes == 0, "a process alone on its node exchanges with nobody there"


def test_the_budget_of_a_start_waits_for_the_last_node() -> None:
    role = make_role(tp=16, replicas=1)
    one = make_plan(make_role(tp=8, replicas=1))
    assert startup_budget_s(make_plan(role), role) == startup_budget_s(one, one.role("serve")) + IMAGE_PULL_S


def test_a_claim_of_one_group_is_shared() -> None:
    plan = make_plan(make_role(tp=16, replicas=1), pool=(replace(POOL, nodes=2),), deploy_cache=CachePlan(size_bytes=2e11))
    assert bodies(plan)["persistentvolumeclaim-models"]["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize("plan", [TWO, MIXED, make_plan(make_role(tp=32, replicas=1)), make_plan(make_role(tp=4, pp=4))])
def test_the_bundle_is_sound(plan: Plan) -> None:
    assert findings(plan, render(plan)) == []


@st.composite
def layouts(draw: st.DrawFn) -> Plan:
    """Replicas that take any number of nodes, on pools that hold them, with whatever a spec may ask of the cluster."""
    per_node = draw(st.sampled_from([1, 2, 4, 8]))
    names = draw(st.sampled_from([("serve",), ("prefill", "decode")]))
    roles, nodes = [], 0
    for name in names:
        over = draw(st.sampled_from([1, 2, 4]))
        pp = draw(st.sampled_from([n for n in (1, 2, 4) if name == "serve" and n <= over] or [1]))
        tp = per_node * over // pp
        dp = draw(st.sampled_from([n for n in (1, 2, 8) if tp % n == 0]))
        role = make_role(name, tp=tp, pp=pp, dp=dp, replicas=draw(st.integers(1, 3)), spares=draw(st.integers(0, 1)))
        roles.append(role)
        nodes += over * role.total_replicas
    pool = replace(POOL, nodes=nodes + draw(st.integers(0, 3)), per_node=per_node, rdma=draw(st.booleans()))
    maximum = {r.role: r.total_replicas for r in roles}
    return make_plan(
        *roles,
        pool=(pool,),
        deploy_autoscaling=draw(st.sampled_from(["none", "hpa", "keda"])),
        deploy_autoscaling_max=maximum,
        deploy_network_policy_from=draw(st.sampled_from([None, (), (GATEWAY,)])),
        deploy_cache=draw(st.sampled_from([CachePlan(claim="c"), CachePlan(size_bytes=2e11), CachePlan(host_path="/m")])),
        deploy_kubernetes_version=draw(st.sampled_from(["1.29", "1.34", "1.37"])),
        deploy_runtime_class=draw(st.sampled_from(["", "nvidia"])),
        deploy_env={"A": "$(LWS_WORKER_INDEX) ${NODE_RANK}"},
        model_served_name="$(LWS_LEADER_ADDRESS):20000",
        traffic_prefix_hit=draw(st.sampled_from([0.0, 0.5])),
    )


@settings(max_examples=15, deadline=None)
@given(layouts())
def test_no_layout_raises_a_false_alarm(plan: Plan) -> None:
    bundle = render(plan)
    assert findings(plan, bundle) == []
    world = 0
    for path, text in bundle.files.items():
        for body in documents(text) if path.startswith("kubernetes/") else ():
            if body["kind"] == "Kustomization":
                continue
            check(body, plan.deploy.kubernetes_version)
            if body["kind"] == "LeaderWorkerSet":
                template, *pods = group(body)
                role = plan.role(body["metadata"]["name"].rpartition("-")[2])
                counts = [int(pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]) for pod in pods]
                assert counts[0] + (template["size"] - 1) * counts[1] == role.tp * role.pp
                world += 1
    assert world == sum(plan.nodes(role) > 1 for role in plan.choice.roles)


def edited(plan: Plan, file: str, old: str, new: str) -> list[str]:
    bundle = render(plan)
    path = f"kubernetes/{file}.yaml"
    assert old in bundle.files[path]
    changed = replace(bundle, files={**bundle.files, path: bundle.files[path].replace(old, new)})
    return [f"{d.code}: {d.message}" for d in findings(plan, changed)]


def test_a_door_that_is_not_there_is_missed() -> None:
    found = edited(TWO, "service-serve", '  name: "llama-chat"\n', '  name: "other"\n')
    assert "bundle-entry: kubernetes/service-serve.yaml: no Service is named 'llama-chat'" in found


def test_what_runs_a_launch_is_of_its_kind() -> None:
    found = edited(TWO, "leaderworkerset-serve", "LeaderWorkerSet", "Deployment")
    assert any(f.startswith("bundle-launch: ") and "one LeaderWorkerSet must" in f for f in found)
    bundle = render(MIXED)
    other = bundle.files["kubernetes/leaderworkerset-prefill.yaml"].replace("llama-chat-prefill", "llama-chat-second", 1)
    files = {**bundle.files, "kubernetes/leaderworkerset-second.yaml": other}
    found = [d.message for d in findings(MIXED, replace(bundle, files=files))]
    assert any("2 objects run prefill" in message for message in found)


def test_the_page_says_how_each_node_is_started() -> None:
    def page(plan: Plan) -> str:
        return plan_markdown(plan, Environment(None), render(plan).files)

    two, mixed, one = page(TWO), page(MIXED), page(make_plan())
    assert "| tp8 pp2 on 2 nodes |" in two
    assert "```sh\nLEADER_ADDRESS=host-of-rank-0 NODE_RANK=0 launch/serve.sh\n" in two
    assert "LEADER_ADDRESS=host-of-rank-0 NODE_RANK=1 launch/serve.sh\n```\n" in two
    assert "NODE_RANK=2" not in two and "one process a script" not in two
    assert "```sh\nlaunch/decode.sh\nlaunch/router.sh\n```" in mixed and "NODE_RANK=1 launch/prefill.sh" in mixed
    assert "kubernetes-sigs/lws" in two and "kubernetes-sigs/lws" in mixed
    assert "nodes" not in one.split("## Why")[0] and "LEADER_ADDRESS" not in one and "lws" not in one
    assert "\n\n\n" not in two + mixed + one


@pytest.mark.parametrize("part", ["leader", "worker"])
def test_a_patch_of_a_group_may_not_lose_a_container(part: str) -> None:
    """Kustomize merges lists by name only where it knows the kind; of a custom resource it takes the patch's."""
    head = "kind: LeaderWorkerSet\nmetadata: {name: llama-chat-serve}\nspec: {leaderWorkerTemplate: {%sTemplate: {spec: %s}}}\n"
    lists = {"{containers: [{name: serve, imagePullPolicy: Always}]}": "loses its image, command, args, resources"}
    for spec, says in (lists | {"{schedulerName: volcano}": "", "{tolerations: [{operator: Exists}]}": ""}).items():
        plan = replace(TWO, deploy=replace(TWO.deploy, patches=(("p.yaml", head % (part, spec)),)))
        found = [d.message for d in findings(plan, render(plan)) if d.code == "bundle-patch"]
        assert [says in message for message in found] == ([True] if says else []), found


def test_an_unknown_shape_is_a_finding_and_no_fault_of_ours() -> None:
    """A template of a user's own may write anything."""
    bundle = render(TWO)
    path = "kubernetes/leaderworkerset-serve.yaml"
    for text in (
        "kind: LeaderWorkerSet", "kind: LeaderWorkerSet\nspec: {leaderWorkerTemplate: []}",
        "kind: LeaderWorkerSet\nspec: {leaderWorkerTemplate: {leaderTemplate: {spec: {containers: [1]}}}}",
        "kind: LeaderWorkerSet\nspec: {leaderWorkerTemplate: {size: x, workerTemplate: 3, leaderTemplate: {metadata: 1}}}",
    ):  # fmt: skip
        broken: Bundle = replace(bundle, files={**bundle.files, path: text})
        assert any(d.where.file == path for d in findings(TWO, broken))
