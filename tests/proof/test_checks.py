"""Every check that no schema tool makes, with the planted faults that prove it; what is a warning; the kustomization."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from servegen.errors import Diagnostic
from servegen.manifest import documents
from servegen.validate.check import findings
from tests.proof.faults import CONTAINER, SERVE, put
from tests.proof.test_planted_faults import ALL, compiled

#: What must be found in manifests whatever wrote them -> the planted faults of it, by their names.
CHECKS: dict[str, tuple[str, ...]] = {
    "quantities parse": ("quantity of memory", "quantity of a claim", "quantity of /dev/shm", "monitor interval no duration"),
    "names are RFC 1123 labels of at most 63 characters": (
        "name in capitals", "name of 64 characters", "container name with capitals"),
    "a selector is a subset of the template's labels": (
        "selector beyond the labels", "selector by matchExpressions that excludes"),
    "targets of a Service exist": (
        "service that selects nothing", "service that selects no leader", "service that leads elsewhere"),
    "targets of a PodDisruptionBudget exist": ("budget that selects nothing", "budget whose expression leaves nobody"),
    "targets of a PodMonitor exist": ("monitor that selects nothing", "monitor whose expression leaves nobody"),
    "targets of a NetworkPolicy exist": ("policy that selects nothing",),
    "targets of an HorizontalPodAutoscaler exist": ("autoscaler without a target", "hpa of a group that is not there"),
    "targets of a ScaledObject exist": ("scaler without a target", "scaler of a StatefulSet"),
    "an InferencePool, which is not rendered, is an unknown kind": ("unknown kind",),
    "named ports resolve": ("named port that nothing has", "port of a probe", "port of a monitor"),
    "ports are 1 to 65535": ("port 70000", "port 0", "policy endPort below port"),
    "accelerators requested equal those limited": ("limit that is not the request", "worker whose limit is not its request"),
    "accelerators are tp x pp of the pod": ("fewer accelerators than ranks", "more ranks than accelerators"),
    "size of a LeaderWorkerSet x devices is the world": (
        "group one pod too small", "group one pod too large", "worker with half a node"),
    "volumes and mounts agree": ("mount without a volume", "volume without a mount", "mount path relative"),
    "an image is present and not :latest": ("no image", "image :latest", "image without a tag", "init container :latest"),
    "least <= most <= pool": ("least above most", "more than the pool holds", "more groups than nodes hold"),
    "a budget has one of its two fields": ("budget with both fields", "budget with neither field"),
    "startup covers loading the weights": ("startup shorter than loading", "group startup shorter than loading"),
    "/dev/shm for tp above 1": ("no /dev/shm for tp 8", "/dev/shm of 64 MiB", "worker without /dev/shm"),
    "grace covers the drain and the longest decode": ("grace shorter than the longest decode", "no drain"),
    "no object is there twice": ("the same object twice",),
    "the apiVersion is served by the target": ("apiVersion that is not served", "field of a later Kubernetes"),
    "an unknown kind is an error": ("unknown kind",),
    "probes give an honest answer its time": (
        "probe less patient than the answer", "server that is ended before it is taken out"),
    "metrics are those of the engine": (
        "trigger of a metric that the engine has not", "series with a typo", "metric of a pod with a typo"),
    "a token is only referred to": ("token in plain text", "token of nobody", "init container with secret in env"),
    "scaling down spares what is in flight": ("pods that all go at once", "pods that all go at once by Kubernetes"),
    "rollouts move on a full pool": ("rollout that cannot move", "group rollout that cannot move"),
    "some node can take a pod": (
        "affinity to another GPU", "affinity to two impossible nodes", "node selector with a typo",
        "spread over zones with a typo"),
    "a drain can move every pod": ("budget that blocks every drain", "budget of a share that rounds up to all"),
    "a mount hides neither weights nor image": ("mount over the weights", "mount over the image", "cache that nobody keeps"),
    "a server may write what it must": ("root that nobody writes", "home of root for another"),
    "a router may watch its servers": ("role without watch", "role for pods of no group", "router that finds nobody"),
}  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
def test_every_check_has_planted_faults(check: str) -> None:
    """The faults themselves are planted by tests/proof/test_planted_faults.py."""
    assert set(CHECKS[check]) <= {fault.what for fault in ALL} and CHECKS[check]


def found_in(spec: str, file: str, change: Any) -> list[Diagnostic]:
    result = compiled(spec)
    plan, bundle = result.plan, result.bundle
    assert plan is not None and bundle is not None
    path = f"kubernetes/{file}.yaml"
    (document,) = copy.deepcopy(documents(bundle.files[path]))
    change(document)
    return findings(plan, replace(bundle, files={**bundle.files, path: json.dumps(document)}))


NAMED = {"name": "mine", "key": "a"}
PROJECTED = [{"secret": {"name": "mine"}}]
POD = "spec.template.spec"
OUTSIDE = (
    ("Secret 'mine'", put(f"{CONTAINER}.env.+", {"name": "A", "valueFrom": {"secretKeyRef": NAMED}})),
    ("ConfigMap 'mine'", put(f"{CONTAINER}.env.+", {"name": "A", "valueFrom": {"configMapKeyRef": NAMED}})),
    ("Secret 'mine'", put(f"{CONTAINER}.envFrom", [{"secretRef": {"name": "mine"}}])),
    ("ConfigMap 'mine'", put(f"{CONTAINER}.envFrom", [{"configMapRef": {"name": "mine"}}])),
    ("Secret 'mine'", put(f"{POD}.imagePullSecrets", [{"name": "mine"}])),
    ("ConfigMap 'mine'", lambda d: [put(f"{POD}.volumes.+", {"name": "x", "configMap": {"name": "mine"}})(d),
                                    put(f"{CONTAINER}.volumeMounts.+", {"name": "x", "mountPath": "/x"})(d)]),
    ("Secret 'mine'", lambda d: [put(f"{POD}.volumes.+", {"name": "x", "projected": {"sources": PROJECTED}})(d),
                                 put(f"{CONTAINER}.volumeMounts.+", {"name": "x", "mountPath": "/x"})(d)]),
)  # fmt: skip


@pytest.mark.parametrize(("says", "change"), OUTSIDE, ids=[f"{i} {says}" for i, (says, _) in enumerate(OUTSIDE)])
def test_what_must_be_in_the_cluster_is_a_warning(says: str, change: Any) -> None:
    found = found_in("one", SERVE, change)
    assert [d.severity for d in found] == ["warning"] and found[0].code == "bundle-outside", [str(d) for d in found]
    assert f"the {says} is not in the bundle" in found[0].message


@pytest.mark.parametrize(("field", "value", "says"), [
    ("schedulerName", "volcano", "no pod is placed unless a scheduler 'volcano' runs"),
    ("schedulingGates", [{"name": "example.com/quota"}], "until something in the cluster has lifted 'example.com/quota'"),
])  # fmt: skip
@pytest.mark.parametrize(("spec", "file", "pod"), [
    ("one", SERVE, POD), ("group", "leaderworkerset-serve", "spec.leaderWorkerTemplate.workerTemplate.spec"),
])  # fmt: skip
def test_who_must_be_in_the_cluster_is_a_warning(field: str, value: Any, says: str, spec: str, file: str, pod: str) -> None:
    (found,) = found_in(spec, file, put(f"{pod}.{field}", value))
    assert (found.code, found.severity) == ("bundle-outside", "warning") and f"{pod}.{field}: " in found.message
    assert says in found.message and "written by template" in found.hint


def test_what_may_be_missing_or_is_the_specs_is_none() -> None:
    optional = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "a", "optional": True}}}
    assert found_in("one", SERVE, put(f"{CONTAINER}.env.+", optional)) == []
    own = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "b"}}}
    assert found_in("one", SERVE, put(f"{CONTAINER}.env.+", own)) == []


KUSTOMIZATION = (
    ("commonLabels", {"a": "b"}, "commonLabels changes the objects behind all checks"),
    ("namePrefix", "x-", "namePrefix changes the objects"),
    ("nameSuffix", "-x", "nameSuffix changes the objects"),
    ("images", [{"name": "lmsysorg/sglang", "newTag": "v0.1"}], "deploy.image of the spec says which one"),
    ("replicas", [{"name": "chat-serve", "count": 9}], "the plan counts them"),
    ("patchesStrategicMerge", ["kind: Service\nmetadata: {name: chat}\n"], "deploy.overrides.patches of the spec names them"),
    ("labels", [{"includeSelectors": True, "pairs": {"a": "b"}}], "labels.includeSelectors is true"),
)


@pytest.mark.parametrize(("key", "value", "says"), KUSTOMIZATION, ids=[key for key, _, _ in KUSTOMIZATION])
def test_a_kustomization_changes_nothing_behind_the_checks(key: str, value: Any, says: str) -> None:
    found = found_in("one", "kustomization", put(key, value))
    assert any(d.code == "bundle-kustomization" and d.severity == "error" and says in d.message for d in found), found
