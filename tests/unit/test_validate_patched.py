"""What platform engineers patch: tables of what is right, and beside each what is nearly the same and is not."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from servegen.errors import Diagnostic
from servegen.plan import CachePlan, Plan
from servegen.render.bundle import render
from servegen.validate.check import findings
from tests.proof.faults import Fault, put
from tests.proof.group_faults import FIRST
from tests.proof.test_planted_faults import planted
from tests.unit.plans import make_plan, make_split_plan
from tests.unit.test_validate_bundle import FULL

SAFE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
NAMES = {"serve": "llama-chat-serve", "keda": "llama-chat-decode", "hpa": "llama-chat-decode"}


@cache
def planned(kind: str) -> Plan:
    if kind in ("keda", "hpa"):
        return make_split_plan(deploy_autoscaling=kind, **FULL)
    return make_plan()


def patched(plan: Plan, *patches: dict[str, Any]) -> list[Diagnostic]:
    """The findings once patches are merged."""
    texts = tuple((f"p{i}.yaml", json.dumps(patch)) for i, patch in enumerate(patches))
    plan = replace(plan, deploy=replace(plan.deploy, patches=texts))
    return findings(plan, render(plan))


def judged(kind: str, of: str, **body: Any) -> list[Diagnostic]:
    """The findings once one patch is merged."""
    return patched(planned(kind), {"kind": of, "metadata": {"name": body.pop("name", NAMES[kind])}, **body})


def served(pod: dict[str, Any] | None = None, **container: Any) -> list[Diagnostic]:
    """A patch of the server and its pod."""
    template = {"spec": {**(pod or {}), "containers": [{"name": "serve", **container}]}}
    return judged("serve", "Deployment", spec={"template": template})


def beside(field: str, **container: Any) -> list[Diagnostic]:
    """A patch that adds a container beside the server."""
    more = {"name": "side", "image": "busybox:1.36", "securityContext": SAFE, **container}
    return judged("serve", "Deployment", spec={"template": {"spec": {field: [more]}}})


def errors(found: list[Diagnostic]) -> list[str]:
    return [d.message for d in found if d.severity == "error"]


def warnings(found: list[Diagnostic]) -> list[str]:
    return [d.message for d in found if d.severity == "warning"]


SECRET = {"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


@pytest.mark.parametrize(
    ("env", "right"),
    [
        ([POD_IP, {"name": "HOST", "value": "$(POD_IP):1"}], True),
        ([{"name": "HOST", "value": "$(POD_IP):1"}, POD_IP], False),
        ([POD_IP, {"name": "HOST", "value": "$(POD_IPP):1"}], False),
        ([{"name": "HOST", "value": "$$(POD_IP):1"}], True),
        ([{"name": "HOST", "value": "$$$(POD_IP):1"}], False),
        ([{"name": "API", "value": "$(KUBERNETES_SERVICE_HOST)"}], True),
        ([SECRET, {"name": "SGLANG_API_KEY", "value": "$(API_KEY)"}], True),
        ([SECRET, {"name": "SGLANG_API_KEY", "value": "$(API_KEY)x"}], False),
        ([{"name": "OPENAI_API_KEY", "value": "EMPTY"}], True),
        ([{"name": "OPENAI_API_KEY", "value": "EMPTINESS"}], False),
    ],
)  # fmt: skip
def test_references_of_the_server(env: list[Any], right: bool) -> None:
    assert (errors(served(env=env)) == []) is right


def test_what_the_plan_has_as_text_may_not_be_expanded() -> None:
    plan = make_plan(deploy_env={"NOTE": "$(X)"}, deploy_args={})
    text = next(text for path, text in render(plan).files.items() if path.endswith("deployment-serve.yaml"))
    assert "$$(X)" in text
    bundle = render(plan)
    files = {path: body.replace("$$(X)", "$(X)") for path, body in bundle.files.items()}
    assert any("would expand '$(X)'" in m for m in errors(findings(plan, replace(bundle, files=files))))


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_words_of_others_are_a_shells(field: str) -> None:
    assert errors(beside(field, args=["sh", "-c", "echo $(date) $(hostname)"], env=[{"name": "A", "value": "$(B)"}])) == []
    assert errors(beside(field, args=["sh", "-c", 7])) != []


@pytest.mark.parametrize(
    ("args", "right"),
    [
        (["--client-secret=$(CS)"], True), (["--client-secret", "$(CS)"], True), (["--tls-key=/certs/tls.key"], True),
        (["--api-key", "--other"], True), (["--api-key"], True), (["--client-secret=abc"], False),
        (["--client-secret", "abc"], False),
        (["--client-secret=$(CS)", "--api-key=abc"], False), (["--api-key=--abc"], False), (["--max-tokens=7"], True),
    ],
)  # fmt: skip
def test_secrets_in_arguments(args: list[str], right: bool) -> None:
    assert (errors(beside("containers", args=args, env=[{"name": "CS", "valueFrom": SECRET["valueFrom"]}])) == []) is right


@pytest.mark.parametrize(
    ("resources", "wrong", "warned"),
    [
        ({"requests": {"cpu": 0.5}}, "", ""), ({"requests": {"cpu": 4}}, "", ""),
        ({"requests": {"cpu": -0.5}}, "no quantity", ""),
        ({"limits": {"vpc.amazonaws.com/efa": "4"}}, "", "does not say that the nodes have it"),
        ({"limits": {"rdma/hca": 4}, "requests": {"rdma/hca": 4}}, "", "does not say that the nodes have it"),
        ({"limits": {"rdma/hca": 4}, "requests": {"rdma/hca": 3}}, "must be equal", "does not say"),
        ({"requests": {"rdma/hca": 3}}, "must be equal", ""),
        ({"limits": {"amd.com/gpu": 4}}, "have no such resource", ""),
        ({"requests": {"nvidia.com/gpu": None}}, "", ""),
        ({"limits": {"nvidia.com/gpu": None}}, "the replica takes", ""),
        ({"limits": {"cpu": 64}, "requests": {"cpu": None}}, "", ""),
        ({"requests": {"cpu": None}}, "cpu is missing", ""),
    ],
)  # fmt: skip
def test_resources(resources: dict[str, Any], wrong: str, warned: str) -> None:
    found = served(resources=resources)
    assert (wrong in " ".join(errors(found))) if wrong else errors(found) == []
    assert (warned in " ".join(warnings(found))) if warned else warnings(found) == []


def test_devices_of_others() -> None:
    assert errors(beside("containers", resources={"limits": {"smarter-devices/fuse": 1}})) == []
    assert errors(beside("containers", resources={"limits": {"nvidia.com/gpu": 1}})) != []


@pytest.mark.parametrize(
    ("command", "severity"),
    [
        (["sleep", "20"], ""), (["/bin/sleep", "20"], ""), (["sh", "-c", "sleep 20"], ""),
        (["bash", "-ec", "touch x; sleep 15s && y"], ""),
        (["sleep", "0"], "error"), (["sh", "-c", "sleep 0"], "error"), ([], "error"), (["/drain.sh"], "warning"),
        (["sh", "-c", "echo nosleep 9"], "warning"), (["sh", "-c", "sleep ${DRAIN_S:-20}"], "warning"),
        (["sh", "-c", 'sleep "20"'], ""), (["sleep", "0.5m"], ""), (["sleep", "0.5"], "error"), (["sleep"], "error"),
    ],
)  # fmt: skip
def test_sleeps_before_the_end(command: list[str], severity: str) -> None:
    hook = {"sleep": None, "exec": {"command": command} if command else None, "httpGet": None if command else {"port": 1}}
    found = served({"terminationGracePeriodSeconds": 3000}, lifecycle={"preStop": hook})
    assert [d.severity for d in found if "no sleep" in d.message] == ([severity] if severity else [])


def offline(*patches: dict[str, Any]) -> list[Diagnostic]:
    """The same of a server that may not ask the hub, and whose claim the bundle makes."""
    plan = make_plan(deploy_cache=CachePlan(size_bytes=4e11), deploy_env={"HF_HUB_OFFLINE": "1"})
    bodies = ({"kind": "Deployment", "metadata": {"name": NAMES["serve"]}, "spec": {"template": {"spec": p}}} for p in patches)
    return patched(plan, *bodies)


def test_what_a_patch_mends_is_no_fault() -> None:
    models = {"name": "models", "mountPath": "/models"}
    fetch = {"name": "fetch", "image": "busybox:1.36", "securityContext": SAFE, "volumeMounts": [models]}
    assert ["is made empty" in m for m in warnings(offline())] == [True]
    assert ["is made empty" in m for m in warnings(offline({"priorityClassName": "p"}))].count(True) == 1
    found = offline({"initContainers": [fetch]})
    assert not any("HF_HUB_OFFLINE" in d.message for d in found), found


def test_who_downloads_nothing_may_have_a_cache_that_takes_nothing() -> None:
    mounts = [{"name": "models", "mountPath": "/models", "readOnly": True}]
    found = offline({"containers": [{"name": "serve", "volumeMounts": mounts}]})
    assert not any("is read-only" in d.message for d in found)
    assert any("is read-only" in m for m in errors(served(volumeMounts=mounts)))


def test_a_long_sleep_counts() -> None:
    hook = {"sleep": None, "exec": {"command": ["sh", "-c", "sleep 50m"]}}
    assert any("take 3" in m for m in errors(served(lifecycle={"preStop": hook})))


def test_a_raw_device_is_used() -> None:
    claim = {"spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "resources": {"requests": {"storage": "1Gi"}}}}
    pod = {"volumes": [{"name": "raw", "ephemeral": {"volumeClaimTemplate": claim}}]}
    assert errors(served(pod, volumeDevices=[{"name": "raw", "devicePath": "/dev/x"}])) == []
    assert "mounted nowhere" in errors(served(pod))[0]
    assert "no volume of the pod" in errors(served(volumeDevices=[{"name": "raw", "devicePath": "/dev/x"}]))[0]


@pytest.mark.parametrize(
    ("probe", "severity"), [("livenessProbe", "warning"), ("readinessProbe", "error"), ("startupProbe", "error")]
)
def test_a_probe_that_is_taken_out(probe: str, severity: str) -> None:
    assert severity in [d.severity for d in served(**{probe: None}) if f"{probe}: is missing" in d.message]


@pytest.mark.parametrize(
    ("share", "right"), [(1, True), ("25%", True), ("abc", False), ("1e400", False), ("1", False), (-1, False), ("0.5%", False)]
)
def test_counts_of_a_rollout(share: Any, right: bool) -> None:
    found = judged("serve", "Deployment", spec={"strategy": {"rollingUpdate": {"maxSurge": share, "maxUnavailable": 1}}})
    assert (errors(found) == []) is right


@pytest.mark.parametrize(("share", "right"), [(1, True), ("50%", True), ("abc", False), ("1", False)])
def test_counts_of_a_budget(share: Any, right: bool) -> None:
    assert (errors(judged("serve", "PodDisruptionBudget", spec={"maxUnavailable": share})) == []) is right


def test_a_group_may_use_what_its_controller_tells() -> None:
    for name, right in (("LWS_WORKER_INDEX", True), ("LWS_WORKER_INDEXES", False)):
        own = {"name": "RANK", "value": f"$({name})"}
        found, _ = planted(Fault("", "group", "leaderworkerset-serve", put(f"{FIRST}.env.+", own), "", "", ""))
        assert (errors(found) == []) is right


def trigger(kind: str, how: str | None = None, **metadata: str) -> dict[str, Any]:
    return {"type": kind, "metadata": metadata} | ({"metricType": how} if how else {})


def asks(query: str) -> dict[str, Any]:
    return trigger("prometheus", serverAddress="http://p:9090", threshold="5", query=query)


DAY = {"timezone": "UTC", "start": "0 8 * * *", "end": "0 20 * * *", "desiredReplicas": "2"}
OURS = 'sum(sglang:num_queue_reqs{namespace="llm", pod=~"%s"})'


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (trigger("cron", **DAY), ""), (trigger("cron", **{**DAY, "end": ""}), "metadata.end: is missing"),
        (trigger("cpu", "Utilization", value="60"), ""),
        (trigger("cpu", "Utilization", value="0"), "must be a positive number"),
        (trigger("memory", "AverageValue", value="60Gi"), ""),
        (trigger("memory", "AverageValue"), "must be a positive number"),
        (trigger("cron", "Utilization", **DAY), "must be AverageValue or Value"),
        (trigger("kafka", bootstrapServers="k:9092", consumerGroup="g", topic="t", lagThreshold="9"), ""),
        (trigger("prometheus", serverAddress="http://p", query="up"), "threshold: must be a positive number in quotes"),
        (asks('job:x:sum{namespace="llm"}'), ""), (asks("job:x:sum"), ""),
        (asks("sum(sglang:num_queue_reqs)"), "without namespace"),
        (asks('sum(vllm:num_requests_waiting{namespace="llm"})'), "asks for series of vllm"),
        (asks("sum(vllm:load:sum)"), ""), (asks(OURS % "llama-chat-decode-.{2,30}"), ""),
        (asks(OURS % "x.*"), "finds nothing of pods"),
        (asks(OURS % "([a-z0-9-]+)+Z"), ""), (asks(OURS % "[[:alnum:]-]+"), ""),
    ],
)  # fmt: skip
def test_triggers(given: dict[str, Any], says: str) -> None:
    found = errors(judged("keda", "ScaledObject", spec={"triggers": [given]}))
    assert (says in " ".join(found)) if says else found == []


@pytest.mark.parametrize(
    ("given", "right"),
    [
        (trigger("cron", **DAY), True), (asks('sum(rate(istio_requests_total{app="llm"}[1m]))'), True),
        (asks(OURS % "llama-chat-decode-.*"), False), (trigger("cpu", "Utilization", value="60"), False),
    ],
)  # fmt: skip
def test_none_may_run_where_somebody_else_sees_the_requests(given: dict[str, Any], right: bool) -> None:
    found = errors(judged("keda", "ScaledObject", spec={"minReplicaCount": 0, "triggers": [given]}))
    assert (found == []) is right


QUEUE = {"metric": {"name": "queue"}}


def metric(kind: str, field: str, how: str, value: Any, **more: Any) -> dict[str, Any]:
    key = how if how == "averageUtilization" else how[0].lower() + how[1:]
    kind_of = "Utilization" if how == "averageUtilization" else how
    return {"type": kind, field: {**more, "target": {"type": kind_of, key: value}}}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (metric("Resource", "resource", "averageUtilization", 70, name="cpu"), ""),
        (metric("Resource", "resource", "AverageValue", "300Gi", name="memory"), ""),
        (metric("ContainerResource", "containerResource", "averageUtilization", 70, name="cpu", container="decode"), ""),
        (metric("External", "external", "Value", 1.5, **QUEUE), ""),
        (metric("External", "external", "AverageValue", 30, **QUEUE), ""),
        (metric("Object", "object", "Value", "2k", **QUEUE, describedObject={"kind": "Ingress", "name": "x"}), ""),
        (metric("Resource", "resource", "Value", 70, name="cpu"), "must be Utilization or AverageValue"),
        (metric("External", "external", "averageUtilization", 70, **QUEUE), "must be Value or AverageValue"),
        (metric("Pods", "pods", "Value", 70, **QUEUE), "must be AverageValue"),
        (metric("External", "external", "Value", "0", **QUEUE), "external.target.value: must be a positive quantity"),
        (metric("Pods", "external", "AverageValue", 3, **QUEUE), "spec.metrics.pods"),
        (metric("External", "external", "Value", 3, metric={"name": "vllm:x"}), "asks for series of vllm"),
    ],
)  # fmt: skip
def test_metrics(given: dict[str, Any], says: str) -> None:
    found = errors(judged("hpa", "HorizontalPodAutoscaler", spec={"metrics": [given]}))
    assert (says in " ".join(found)) if says else found == []


def test_a_patch_of_another_version_is_told_by_the_key_of_the_cluster() -> None:
    (found,) = judged("serve", "Deployment", apiVersion="apps/v1beta2")
    assert found.severity == "error" and found.hint == "spec.deploy.overrides.patches[0], against spec.deploy.kubernetesVersion"


@pytest.mark.parametrize(
    ("name", "value", "severity", "says"),
    [
        ("PYTHONHOME", "/usr/lib/python3", "error", "Python looks for its own library there"),
        ("SGLANG_HEALTH_CHECK_TIMEOUT", "-1", "error", "every probe is answered before the server knows"),
        ("CUDA_LAUNCH_BLOCKING", "1", "warning", "none is launched ahead"),
        ("NCCL_P2P_DISABLE", "1", "warning", "not over their links"),
    ],
)
def test_variables_of_the_spec_are_judged_like_those_of_a_patch(name: str, value: str, severity: str, says: str) -> None:
    found = findings(plan := make_plan(deploy_env={name: value}), render(plan))
    (hit,) = [d for d in found if says in d.message]
    assert hit.severity == severity and hit.hint.startswith(f"spec.deploy.overrides.env.{name}")


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        ({"readinessGates": [{"conditionType": "example.com/x"}]}, "has set its condition"),
        ({"preemptionPolicy": "Never", "priorityClassName": "llm"}, "the class 'llm' says the same"),
    ],
)
def test_a_patch_is_told_what_it_counts_on(pod: dict[str, Any], says: str) -> None:
    found = served(pod)
    assert errors(found) == [] and [says in text for text in warnings(found)] == [True]
