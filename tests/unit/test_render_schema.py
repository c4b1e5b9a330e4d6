"""Rendered objects against the schemas of every supported Kubernetes and of the custom resources."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from servegen.manifest import documents
from servegen.plan import CachePlan, Plan
from servegen.render.bundle import render
from tests.unit.plans import make_plan, make_role, make_split_plan

VERSIONS = [f"1.{minor}" for minor in range(29, 38)]
CRDS = Path(__file__).parents[1] / "fixtures" / "crds"
CUSTOM = {
    "LeaderWorkerSet": "leaderworkersets_v1.json",
    "PodMonitor": "podmonitors_v1.json",
    "ScaledObject": "scaledobjects_v1alpha1.json",
}
ALL_ON: dict[str, Any] = {
    "deploy_monitoring": True,
    "deploy_network_policy_from": (
        {"namespaceSelector": {"matchLabels": {"role": "gateway"}}},
        {"ipBlock": {"cidr": "10.0.0.0/8"}},
    ),
    "deploy_cache": CachePlan(size_bytes=2e11, storage_class="fast"),
    "deploy_image_pull_secrets": ("regcred",),
    "deploy_priority_class": "serving",
    "deploy_runtime_class": "nvidia",
    "deploy_autoscaling_max": {"serve": 3, "prefill": 3, "decode": 4},
    "deploy_env": {"NCCL_DEBUG": "WARN", "EMPTY": ""},
}
PLANS: dict[str, Plan] = {
    "aggregated": make_plan(),
    "one accelerator": make_plan(
        make_role(tp=1, replicas=3), deploy_cache=CachePlan(host_path="/data"), deploy_hf_token_secret=None
    ),
    "megatron": make_plan(make_role(tp=4), choice_engine="megatron", choice_engine_version="0.19.2"),
    "two nodes, keda, all on": make_plan(make_role(tp=8, pp=2, replicas=1), deploy_autoscaling="keda", **ALL_ON),
    "split, two nodes and one, hpa, all on": make_plan(
        make_role("prefill", tp=16, replicas=1), make_role("decode", tp=8, replicas=1), deploy_autoscaling="hpa", **ALL_ON
    ),
    "split, hpa, all on": make_split_plan(deploy_autoscaling="hpa", **ALL_ON),
    "uneven split, keda, all on": make_plan(
        make_role("prefill", tp=2), make_role("decode", tp=8), deploy_autoscaling="keda", **ALL_ON
    ),
}


def objects(plan: Plan, version: str) -> list[Any]:
    bundle = render(replace(plan, deploy=replace(plan.deploy, kubernetes_version=version)))
    manifests = [d for path, text in bundle.files.items() if path.endswith(".yaml") for d in documents(text)]
    return [m for m in manifests if m["kind"] != "Kustomization"]


def closed(schema: Any) -> Any:
    """The schema with unknown fields forbidden wherever fields are listed: what a server prunes is a typo here."""
    if isinstance(schema, dict):
        schema = {k: closed(v) for k, v in schema.items()}
        if (
            "properties" in schema
            and "additionalProperties" not in schema
            and "x-kubernetes-preserve-unknown-fields" not in schema
        ):
            schema["additionalProperties"] = False
    elif isinstance(schema, list):
        schema = [closed(v) for v in schema]
    return schema


@cache
def custom(kind: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(
        closed(json.loads((CRDS / CUSTOM[kind]).read_text(encoding="utf-8"))["openAPIV3Schema"])
    )


def check(body: Any, version: str) -> None:
    if body["kind"] in CUSTOM:
        custom(body["kind"]).validate(body)
    else:
        kubernetes_validate.validate(body, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PLANS)
def test_every_object_fits_the_schema(name: str, version: str) -> None:
    for body in objects(PLANS[name], version):
        check(body, version)


def test_all_kinds_were_seen() -> None:
    kinds = {body["kind"] for plan in PLANS.values() for body in objects(plan, "1.34")}
    assert kinds == {
        "Deployment",
        "LeaderWorkerSet",
        "Service",
        "ServiceAccount",
        "PersistentVolumeClaim",
        "Role",
        "RoleBinding",
        "PodDisruptionBudget",
        "NetworkPolicy",
        "HorizontalPodAutoscaler",
        "PodMonitor",
        "ScaledObject",
    }


@pytest.mark.parametrize(
    "kind", ["Deployment", "HorizontalPodAutoscaler", "PodMonitor", "ScaledObject", "NetworkPolicy"]
)
def test_a_field_with_a_typo_would_be_found(kind: str) -> None:
    plan = PLANS["uneven split, keda, all on" if kind == "ScaledObject" else "split, hpa, all on"]
    body = copy.deepcopy(next(b for b in objects(plan, "1.34") if b["kind"] == kind))
    check(body, "1.34")
    body["spec"]["replcas"] = 1
    with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
        check(body, "1.34")


@pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl brings the kustomize that clusters are applied with"
)
def test_kustomize_builds_what_was_rendered_and_applies_the_patch(tmp_path: Path) -> None:
    patch = "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: llama-chat-decode}\nspec: {minReadySeconds: 7}\n"
    bundle = render(make_split_plan(deploy_autoscaling="keda", deploy_patches=(("p.yaml", patch),), **ALL_ON))
    for path, text in bundle.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    run = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path / "kubernetes")], capture_output=True, text=True, check=True
    )
    built = {(d["kind"], d["metadata"]["name"]): d for d in documents(run.stdout)}
    meant = {}
    for path, text in bundle.files.items():
        if path.endswith(".yaml") and "patches/" not in path and not path.endswith("kustomization.yaml"):
            (body,) = copy.deepcopy(documents(text))
            meant[body["kind"], body["metadata"]["name"]] = body
    meant["Deployment", "llama-chat-decode"]["spec"]["minReadySeconds"] = 7
    assert built == meant
