"""Planted faults: each check finds the one that it is for, and good bundles pass every check."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegen.bundle import Bundle
from servegen.errors import BundleError
from servegen.manifest import documents
from servegen.plan import CachePlan, Plan
from servegen.render.bundle import render
from servegen.validate.check import findings, validate
from tests.unit.plans import POOL, make_plan, make_role, make_split_plan

GATEWAY = {"namespaceSelector": {"matchLabels": {"role": "gateway"}}}
FULL: dict[str, Any] = {
    "deploy_autoscaling_min": {"serve": 1, "prefill": 1, "decode": 1},
    "deploy_autoscaling_max": {"serve": 3, "prefill": 3, "decode": 4},
    "deploy_autoscaling_queue": {"serve": 3.0, "prefill": 4.0, "decode": 2.5},
    "deploy_network_policy_from": (GATEWAY,),
    "deploy_cache": CachePlan(size_bytes=2e11),
}
AGGREGATED = make_plan(deploy_patches=(("p.yaml", "kind: Deployment\nmetadata: {name: llama-chat-serve}\n"),))
KEDA, HPA = make_split_plan(deploy_autoscaling="keda", **FULL), make_split_plan(deploy_autoscaling="hpa", **FULL)
GOOD = [
    AGGREGATED,
    KEDA,
    HPA,
    make_plan(make_role("prefill", tp=2), make_role("decode", tp=8), **FULL),
    make_plan(make_role(tp=1, replicas=1), deploy_kubernetes_version="1.29", deploy_cache=CachePlan()),
    make_plan(make_role(tp=4, spares=1), choice_engine="megatron", choice_engine_version="0.19.2"),
    make_plan(make_role(tp=8, replicas=4), traffic_longest_output=200_000),
    make_plan(deploy_image="registry:5000/a/b@sha256:" + "0" * 64, deploy_env={"MAX_TOKENS": "$(X) $$"}),
    make_plan(choice_engine="vllm", choice_engine_version="0.32.0"),
]


@pytest.mark.parametrize("plan", GOOD)
def test_a_good_bundle_passes(plan: Plan) -> None:
    bundle = render(plan)
    assert findings(plan, bundle) == []
    assert validate(plan, bundle) == []


def edit(path: str, old: str, new: str) -> Callable[[Bundle], Bundle]:
    def change(bundle: Bundle) -> Bundle:
        name = f"kubernetes/{path}.yaml"
        assert old in bundle.files[name], (old, bundle.files[name])
        return replace(bundle, files={**bundle.files, name: bundle.files[name].replace(old, new)})

    return change


def drop(path: str) -> Callable[[Bundle], Bundle]:
    def change(bundle: Bundle) -> Bundle:
        return replace(bundle, files={p: t for p, t in bundle.files.items() if p != f"kubernetes/{path}.yaml"})

    return change


def add(path: str, text: str) -> Callable[[Bundle], Bundle]:
    return lambda bundle: replace(bundle, files={**bundle.files, f"kubernetes/{path}.yaml": text})


SERVE, DECODE, ROUTER = "deployment-serve", "deployment-decode", "deployment-router"
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: llm}\n"
CASES: list[tuple[str, Plan, Callable[[Bundle], Bundle], str, str]] = [
    ("quantity of memory", AGGREGATED, edit(SERVE, '"memory": "384Gi"', '"memory": "384GiB"'), "quantity", "384GiB"),
    ("quantity of shm", AGGREGATED, edit(SERVE, 'sizeLimit: "16Gi"', 'sizeLimit: "16GB"'), "quantity", "16GB"),
    (
        "quantity of a claim",
        KEDA,
        edit("persistentvolumeclaim-models", 'storage: "187Gi"', 'storage: "187 Gi"'),
        "quantity",
        "storage",
    ),
    (
        "quantity of a metric",
        HPA,
        edit("horizontalpodautoscaler-decode", "2500m", "2.5 reqs"),
        "quantity",
        "averageValue",
    ),
    (
        "name in capitals",
        AGGREGATED,
        edit("poddisruptionbudget-serve", 'name: "llama-chat-serve"', 'name: "Llama"'),
        "name",
        "RFC 1123",
    ),
    (
        "name too long",
        AGGREGATED,
        edit("poddisruptionbudget-serve", 'name: "llama-chat-serve"', f'name: "{"x" * 64}"'),
        "name",
        "63",
    ),
    (
        "service with a digit",
        AGGREGATED,
        edit("service-serve", 'name: "llama-chat"', 'name: "3llama"'),
        "name",
        "digit",
    ),
    ("another namespace", AGGREGATED, edit(SERVE, 'namespace: "llm"', 'namespace: "other"'), "namespace", "'other'"),
    (
        "illegal label value",
        AGGREGATED,
        edit("service-serve", '"app.kubernetes.io/version": "0.5.23"', '"app.kubernetes.io/version": "a b"'),
        "label",
        "a b",
    ),
    (
        "label that is no string",
        AGGREGATED,
        edit("service-serve", '"app.kubernetes.io/version": "0.5.23"', '"v": 1'),
        "label",
        "1",
    ),
    (
        "hash in the pod",
        AGGREGATED,
        edit(SERVE, "    spec:\n", '      annotations: {"servegen.dev/plan-hash": "x"}\n    spec:\n'),
        "hash",
        "restarts",
    ),
    (
        "selector not in labels",
        AGGREGATED,
        edit(
            SERVE,
            '      "app.kubernetes.io/component": "serve"\n  strategy',
            '      "app.kubernetes.io/component": "other"\n  strategy',
        ),
        "selector",
        "subset",
    ),
    (
        "service selects nothing",
        AGGREGATED,
        edit(
            "service-serve",
            '    "app.kubernetes.io/component": "serve"\n  ports',
            '    "app.kubernetes.io/component": "x"\n  ports',
        ),
        "reference",
        "selects no pods",
    ),
    (
        "budget selects nothing",
        AGGREGATED,
        edit(
            "poddisruptionbudget-serve",
            '      "app.kubernetes.io/component": "serve"',
            '      "app.kubernetes.io/component": "x"',
        ),
        "reference",
        "selects no pods",
    ),
    (
        "monitor selects nothing",
        AGGREGATED,
        edit(
            "podmonitor-serve",
            '      "app.kubernetes.io/component": "serve"',
            '      "app.kubernetes.io/component": "x"',
        ),
        "reference",
        "selects no pods",
    ),
    (
        "policy selects nothing",
        KEDA,
        edit(
            "networkpolicy-decode",
            '      "app.kubernetes.io/component": "decode"',
            '      "app.kubernetes.io/component": "x"',
        ),
        "reference",
        "selects no pods",
    ),
    (
        "policy open to all",
        KEDA,
        edit(
            "networkpolicy-router",
            '"from": [{"namespaceSelector": {"matchLabels": {"role": "gateway"}}}]',
            '"from": []',
        ),
        "network",
        "everybody",
    ),
    (
        "scaler without target",
        KEDA,
        edit("scaledobject-decode", '    name: "llama-chat-decode"', '    name: "llama-chat"'),
        "reference",
        "no Deployment",
    ),
    (
        "hpa without target",
        HPA,
        edit("horizontalpodautoscaler-decode", '    name: "llama-chat-decode"', '    name: "x"'),
        "reference",
        "no Deployment",
    ),
    (
        "two scalers",
        KEDA,
        edit("scaledobject-decode", '    name: "llama-chat-decode"', '    name: "llama-chat-prefill"'),
        "scaling",
        "two autoscalers",
    ),
    (
        "min above max",
        KEDA,
        edit("scaledobject-decode", "minReplicaCount: 1", "minReplicaCount: 9"),
        "scaling",
        "min <= max",
    ),
    (
        "max above the pool",
        HPA,
        edit("horizontalpodautoscaler-decode", "maxReplicas: 4", "maxReplicas: 9"),
        "scaling",
        "pool holds 8",
    ),
    (
        "threshold of zero",
        KEDA,
        edit("scaledobject-decode", '"threshold": "2.5"', '"threshold": "0"'),
        "scaling",
        "positive",
    ),
    (
        "replicas beside a scaler",
        KEDA,
        edit(DECODE, "  revisionHistoryLimit", "  replicas: 3\n  revisionHistoryLimit"),
        "replicas",
        "autoscaler",
    ),
    ("replicas not planned", AGGREGATED, edit(SERVE, "replicas: 2", "replicas: 5"), "replicas", "the plan has 2"),
    (
        "target port unknown",
        AGGREGATED,
        edit("service-serve", '"targetPort": "http"', '"targetPort": "web"'),
        "port",
        "'web'",
    ),
    ("port too large", AGGREGATED, edit("service-serve", '"port": 30000', '"port": 70000'), "port", "70000"),
    (
        "container port zero",
        AGGREGATED,
        edit(SERVE, '"containerPort": 30000', '"containerPort": 0'),
        "port",
        "1 to 65535",
    ),
    (
        "port name too long",
        AGGREGATED,
        edit(SERVE, '"name": "http"', '"name": "http-port-of-the-server"'),
        "port",
        "port name",
    ),
    (
        "probe port unknown",
        AGGREGATED,
        edit(SERVE, 'port: "http"\n            periodSeconds', 'port: "web"\n            periodSeconds'),
        "port",
        "'web'",
    ),
    (
        "monitor port unknown",
        KEDA,
        edit("podmonitor-router", 'port: "metrics"', 'port: "http-metrics"'),
        "port",
        "http-metrics",
    ),
    (
        "a probe is missing",
        AGGREGATED,
        edit(SERVE, "livenessProbe:", "deadProbe:"),
        "liveness",
        "livenessProbe: is missing",
    ),
    (
        "requests differ from limits",
        AGGREGATED,
        edit(
            SERVE,
            '            limits:\n              "memory": "384Gi"\n              "nvidia.com/gpu": "8"',
            '            limits:\n              "memory": "384Gi"\n              "nvidia.com/gpu": "4"',
        ),
        "resources",
        "must be equal",
    ),
    (
        "too few accelerators",
        AGGREGATED,
        edit(SERVE, '"nvidia.com/gpu": "8"', '"nvidia.com/gpu": "4"'),
        "devices",
        "tp x pp = 8",
    ),
    (
        "no accelerators",
        AGGREGATED,
        edit(SERVE, '"nvidia.com/gpu": "8"', '"amd.com/gpu": "8"'),
        "devices",
        "tp x pp = 8",
    ),
    (
        "more memory than a node",
        AGGREGATED,
        edit(SERVE, '"memory": "384Gi"', '"memory": "2Ti"'),
        "resources",
        "more than a node",
    ),
    (
        "request above limit",
        AGGREGATED,
        edit(
            SERVE,
            '            limits:\n              "memory": "384Gi"',
            '            limits:\n              "memory": "9Gi"',
        ),
        "resources",
        "above the limit",
    ),
    (
        "mount without volume",
        AGGREGATED,
        edit(SERVE, '- name: "shm"\n              mountPath', '- name: "shmem"\n              mountPath'),
        "volume",
        "'shmem'",
    ),
    (
        "volume without mount",
        AGGREGATED,
        edit(SERVE, "      volumes:\n", '      volumes:\n        - name: "extra"\n          emptyDir: {}\n'),
        "volume",
        "mounted nowhere",
    ),
    (
        "claim that is not there",
        KEDA,
        edit(DECODE, 'claimName: "llama-chat-models"', 'claimName: "models"'),
        "claimname",
        "claim 'models'",
    ),
    ("claim too small", KEDA, edit("persistentvolumeclaim-models", '"187Gi"', '"100Gi"'), "claim", "141 GB"),
    ("no image", AGGREGATED, edit(SERVE, 'image: "lmsysorg/sglang:v0.5.23"', 'image: ""'), "image", "no image"),
    ("latest", AGGREGATED, edit(SERVE, "sglang:v0.5.23", "sglang:latest"), "image", "tomorrow"),
    ("no tag", AGGREGATED, edit(SERVE, "sglang:v0.5.23", "sglang"), "image", "no tag"),
    (
        "budget with both",
        AGGREGATED,
        edit("poddisruptionbudget-serve", "  maxUnavailable: 1", "  maxUnavailable: 1\n  minAvailable: 1"),
        "budget",
        "exactly one",
    ),
    (
        "budget with neither",
        AGGREGATED,
        edit("poddisruptionbudget-serve", "  maxUnavailable: 1", ""),
        "budget",
        "exactly one",
    ),
    (
        "budget that forbids drains",
        AGGREGATED,
        edit("poddisruptionbudget-serve", "maxUnavailable: 1", "maxUnavailable: 0"),
        "budget",
        "evicted",
    ),
    (
        "startup too short",
        AGGREGATED,
        edit(SERVE, "failureThreshold: 23", "failureThreshold: 6"),
        "startup",
        "reading the weights",
    ),
    (
        "deadline below startup",
        AGGREGATED,
        edit(SERVE, "progressDeadlineSeconds: 1250", "progressDeadlineSeconds: 100"),
        "rollout",
        "230 s to start",
    ),
    ("no shm", AGGREGATED, edit(SERVE, 'medium: "Memory"', 'medium: ""'), "shm", "tp 8"),
    ("shm as large as memory", AGGREGATED, edit(SERVE, 'sizeLimit: "16Gi"', 'sizeLimit: "384Gi"'), "shm", "as large"),
    (
        "grace too short",
        AGGREGATED,
        edit(SERVE, "terminationGracePeriodSeconds: 120", "terminationGracePeriodSeconds: 90"),
        "grace",
        "97 s",
    ),
    ("no drain", AGGREGATED, edit(SERVE, "preStop:", "postStart:"), "grace", "no sleep"),
    (
        "surge on a full pool",
        make_plan(make_role(replicas=4)),
        edit(SERVE, "maxSurge: 0\n      maxUnavailable: 1", "maxSurge: 1\n      maxUnavailable: 0"),
        "rollout",
        "wait for ever",
    ),
    (
        "rollout that cannot move",
        AGGREGATED,
        edit(SERVE, "maxSurge: 1", "maxSurge: 0"),
        "rollout",
        "no rollout can move",
    ),
    (
        "a kind of another group",
        AGGREGATED,
        edit("podmonitor-serve", 'kind: "PodMonitor"', 'kind: "Service"'),
        "api-version",
        "Service is v1",
    ),
    (
        "an object again",
        AGGREGATED,
        lambda b: add("again", b.files["kubernetes/service-serve.yaml"])(b),
        "duplicate",
        "same object",
    ),
    (
        "a removed version",
        AGGREGATED,
        edit("poddisruptionbudget-serve", "policy/v1", "policy/v1beta1"),
        "api-version",
        "policy/v1beta1",
    ),
    ("an unknown kind", AGGREGATED, add("secret", SECRET), "kind", "Secret"),
    ("an unlisted file", AGGREGATED, drop("service-serve"), "kustomization", "service-serve.yaml"),
    ("no kustomization", AGGREGATED, drop("kustomization"), "kustomization", "missing"),
    ("no door", AGGREGATED, edit("service-serve", 'name: "llama-chat"', 'name: "door"'), "entry", "no Service"),
    (
        "the door leads astray",
        KEDA,
        edit(
            "service-router",
            '    "app.kubernetes.io/component": "router"\n  ports',
            '    "app.kubernetes.io/component": "decode"\n  ports',
        ),
        "entry",
        "decode",
    ),
    ("a launch without pods", KEDA, drop(DECODE), "launch", "decode"),
    ("no account", AGGREGATED, drop("serviceaccount-server"), "account", "ServiceAccount"),
    ("no role", KEDA, drop("role-router"), "reference", "no Role"),
    (
        "binding for a stranger",
        KEDA,
        edit(
            "rolebinding-router",
            '  - kind: "ServiceAccount"\n    name: "llama-chat-router"',
            '  - kind: "ServiceAccount"\n    name: "default"',
        ),
        "account",
        "'default'",
    ),
    (
        "router without token",
        KEDA,
        edit(ROUTER, "automountServiceAccountToken: true", "automountServiceAccountToken: false"),
        "discovery",
        "Kubernetes API",
    ),
    (
        "router that finds nobody",
        KEDA,
        edit(
            DECODE,
            '        "app.kubernetes.io/instance": "llama-chat"',
            '        "app.kubernetes.io/instance": "other"',
        ),
        "discovery",
        "--decode-selector",
    ),
    ("variable twice", AGGREGATED, edit(SERVE, 'name: "HF_TOKEN"', 'name: "HF_HUB_CACHE"'), "env", "set twice"),
    ("variable with a space", AGGREGATED, edit(SERVE, 'name: "HF_HUB_CACHE"', 'name: "HF HUB"'), "env", "cannot name"),
    (
        "token in plain text",
        AGGREGATED,
        edit(
            SERVE,
            'name: "HF_HUB_CACHE"\n              value: "/models"',
            'name: "HF_TOKEN2_API_KEY"\n              value: "hf_x"',
        ),
        "secret",
        "plain text",
    ),
    ("argument that expands", AGGREGATED, edit(SERVE, '- "0.0.0.0"', '- "$(HOST)"'), "word", "expand"),
    ("argument that is a number", AGGREGATED, edit(SERVE, '- "30000"', "- 30000"), "word", "no string"),
    (
        "privileged",
        AGGREGATED,
        edit(SERVE, "allowPrivilegeEscalation: false", "privileged: true"),
        "security",
        "unprivileged",
    ),
    ("capabilities kept", AGGREGATED, edit(SERVE, 'drop: ["ALL"]', "drop: []"), "security", "[ALL]"),
    (
        "host network",
        AGGREGATED,
        edit(SERVE, "      enableServiceLinks", "      hostNetwork: true\n      enableServiceLinks"),
        "security",
        "hostNetwork",
    ),
    ("unreadable", AGGREGATED, edit(SERVE, "spec:", "spec: ["), "yaml", "line"),
    ("not an object", AGGREGATED, add("list", "- a\n"), "yaml", "list"),
    ("patch of nothing", AGGREGATED, edit("patches/p", "llama-chat-serve", "serve"), "patch", "Deployment/serve"),
    ("patch that is a list", AGGREGATED, add("patches/p", "- {op: remove, path: /spec}\n"), "patch", "strategic merge"),
]


@pytest.mark.parametrize(("name", "plan", "fault", "code", "text"), CASES, ids=[c[0] for c in CASES])
def test_a_planted_fault_is_found(
    name: str, plan: Plan, fault: Callable[[Bundle], Bundle], code: str, text: str
) -> None:
    bundle = fault(render(plan))
    with pytest.raises(BundleError) as caught:
        validate(plan, bundle)
    hits = [d for d in caught.value.diagnostics if d.code == f"bundle-{code}" and text in d.message]
    assert hits, str(caught.value)
    assert hits[0].where.file in hits[0].message or "/" in hits[0].message
    assert hits[0].hint, "a finding names the spec key, or the template, that leads to it"


def test_a_finding_names_object_field_key_and_template() -> None:
    bundle = edit(SERVE, "sglang:v0.5.23", "sglang:latest")(render(AGGREGATED))
    (found,) = findings(AGGREGATED, bundle)
    assert str(found) == (
        "kubernetes/deployment-serve.yaml:63:11: error[bundle-image]: Deployment/llama-chat-serve: "
        "spec.template.spec.containers[0].image: 'lmsysorg/sglang:latest' means another build tomorrow\n"
        "  hint: spec.deploy.image; written by template kubernetes/deployment.yaml.j2"
    )


def test_all_findings_come_at_once() -> None:
    bundle = edit(SERVE, "sglang:v0.5.23", "sglang:latest")(drop("serviceaccount-server")(render(AGGREGATED)))
    assert {d.code for d in findings(AGGREGATED, bundle)} == {
        "bundle-account",
        "bundle-image",
        "bundle-kustomization",
    }


@pytest.mark.parametrize(("plan", "code"), [
    (make_plan(deploy_kubernetes_version="1.20"), "bundle-api-version"),
    (make_plan(deploy_image="lmsysorg/sglang"), "bundle-image"),
    (make_plan(deploy_env={"OPENAI_API_KEY": "sk-1"}), "bundle-secret"),
    (make_plan(deploy_args={"api-key": "sk-1"}), "bundle-secret"),
    (make_plan(deploy_cache=CachePlan(size_bytes=1e9)), "bundle-claim"),
    (make_plan(deploy_patches=(("p.yaml", "kind: Deployment\nmetadata: {name: other}\n"),)), "bundle-patch"),
    (make_plan(pool=(replace(POOL, node_selector={"zone": "a b"}),)), "bundle-label"),
    (make_plan(deploy_namespace="Not A Name"), "bundle-namespace"),
    (replace(make_plan(), name="70b-chat"), "bundle-name"),
])  # fmt: skip
def test_a_spec_that_renders_but_cannot_run_is_refused(plan: Plan, code: str) -> None:
    assert {d.code for d in findings(plan, render(plan))} == {code}


def test_scripts_are_checked_too() -> None:
    bundle = render(AGGREGATED)
    script = bundle.files["launch/serve.sh"].replace("--tp-size 8", "--tp 8")
    broken = replace(bundle, files={**bundle.files, "launch/serve.sh": script}, executable=frozenset())
    codes = {d.code for d in findings(AGGREGATED, broken)}
    assert "bundle-script" in codes
    assert codes - {"bundle-script"}, "the launch's flags are compared with the plan"
    gone = replace(bundle, files={p: t for p, t in bundle.files.items() if p != "launch/serve.sh"})
    assert {d.code for d in findings(AGGREGATED, gone)} == {"bundle-script"}


@pytest.mark.parametrize(
    "text", ["[]", "a", "kind: Deployment", "kind: Service\nspec: 1\nmetadata: []", "kind: [a]\nspec: {ports: [1]}", ""]
)
def test_any_yaml_is_judged_without_a_crash(text: str) -> None:
    bundle = render(AGGREGATED)
    for path in bundle.files:
        if path.endswith(".yaml"):
            findings(AGGREGATED, replace(bundle, files={**bundle.files, path: text}))


def nodes(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from nodes(value, (*path, key))


@given(st.data())
def test_any_shape_is_judged_without_a_crash(data: st.DataObject) -> None:
    bundle = render(KEDA)
    path = data.draw(st.sampled_from([p for p in bundle.files if p.endswith(".yaml") and "kustom" not in p]))
    (body,) = copy.deepcopy(documents(bundle.files[path]))
    *steps, last = data.draw(st.sampled_from(list(nodes(body))))
    inner = body
    for step in steps:
        inner = inner[step]
    inner[last] = data.draw(st.sampled_from([None, 1, "x", [], {}, [1], {"a": 1}, True, 1.5, [None], [[]], "$(A)"]))
    findings(KEDA, replace(bundle, files={**bundle.files, path: json.dumps(body)}))


def test_a_bundle_is_checked_in_less_time_than_it_takes_to_read_it() -> None:
    bundle = render(KEDA)
    texts = [text for path, text in bundle.files.items() if path.startswith("kubernetes/")]
    validate(KEDA, bundle)
    seconds = []
    for work in (lambda: [documents(text) for text in texts], lambda: validate(KEDA, bundle)):
        times = []
        for _ in range(5):
            documents.cache_clear()
            start = time.process_time()
            work()
            times.append(time.process_time() - start)
        seconds.append(min(times))
    read, whole = seconds
    assert whole < 2.0 * read


def test_validation_needs_no_schema_library() -> None:
    heavy = "{'jsonschema', 'kubernetes_validate', 'yaml', 'jinja2'}"
    code = f"import sys, servegen.validate.check; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
