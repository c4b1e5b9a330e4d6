"""Checks of where a pod goes and under what terms: nodes, tolerations, classes, pull secrets, the model's token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servegen.validate.objects import Manifest, Scene, admits, dig, mapping, sequence
from servegen.validate.syntax import image_problem, quantity, shown


def check_placement(scene: Scene) -> None:
    """Every pod against the pool and the terms that the spec states."""
    for m in scene.pods:
        _check_scheduling(scene, m)
        if scene.launch(m) is not None:
            _check_terms(scene, m)
        if scene.role(m) is not None:
            _check_pool(scene, m)


def _check_scheduling(scene: Scene, m: Manifest) -> None:
    """What the API server refuses, and what goes past the scheduler."""
    key = "deploy.overrides.patches"
    if m.pod.get("restartPolicy") not in (None, "Always"):
        problem = f"is {shown(m.pod['restartPolicy'])}, a pod of a {m.kind} restarts Always"
        scene.add("schema", m, f"{m.pod_path}.restartPolicy", problem, key)
    if m.pod.get("dnsPolicy") == "None" and not sequence(dig(m.pod, "dnsConfig.nameservers")):
        scene.add("schema", m, f"{m.pod_path}.dnsPolicy", "None needs dnsConfig.nameservers", key)
    preempts, named = m.pod.get("preemptionPolicy"), m.pod.get("priorityClassName")
    if named and preempts:
        problem = f"is {shown(preempts)}: pods are refused unless the class {shown(named)} says the same; leave it out"
        scene.add("placement", m, f"{m.pod_path}.preemptionPolicy", problem, "deploy.priorityClass", "warning")
    elif preempts == "Never":
        problem = "is 'Never', and every pod is refused: without a class it is PreemptLowerPriority; deploy.priorityClass may"
        problem += " name one that preempts nobody"
        scene.add("placement", m, f"{m.pod_path}.preemptionPolicy", problem, "deploy.priorityClass")
    if m.pod.get("nodeName"):
        scene.add("placement", m, f"{m.pod_path}.nodeName", "puts every pod on one node, past the scheduler", key)
    for toleration in (mapping(t) for t in sequence(m.pod.get("tolerations"))):
        if toleration.get("operator") == "Exists" and toleration.get("value"):
            problem = f"{toleration.get('key')}: Exists takes no value"
            scene.add("placement", m, f"{m.pod_path}.tolerations", problem, "hardware.pool[].tolerations")
    for spread in (mapping(s) for s in sequence(m.pod.get("topologySpreadConstraints"))):
        if not mapping(spread.get("labelSelector")):
            problem = "has no labelSelector: it counts no pods, and spreads none"
            scene.add("selector", m, f"{m.pod_path}.topologySpreadConstraints", problem, "metadata.name")
        elif not admits(spread["labelSelector"], m.pod_labels):
            problem = "selects none of the pods that it should spread"
            scene.add("selector", m, f"{m.pod_path}.topologySpreadConstraints", problem, "metadata.name")


def _check_terms(scene: Scene, m: Manifest) -> None:
    deploy = scene.plan.deploy
    stated = {"priorityClassName": (deploy.priority_class, "deploy.priorityClass")}
    if scene.role(m) is not None:
        stated["runtimeClassName"] = (deploy.runtime_class, "deploy.runtimeClass")
    for field, (wanted, key) in stated.items():
        if wanted and m.pod.get(field) != wanted:
            problem = f"is {shown(m.pod.get(field))}, the spec says {shown(wanted)}"
            scene.add("placement", m, f"{m.pod_path}.{field}", problem, key)
    if not deploy.priority_class and str(m.pod.get("priorityClassName", "")).startswith("system-"):
        problem = f"{m.pod['priorityClassName']} is for what a node cannot do without"
        scene.add("security", m, f"{m.pod_path}.priorityClassName", problem, "deploy.priorityClass")
    account = next((a for a in scene.of_kind("ServiceAccount") if a.name == m.pod.get("serviceAccountName")), None)
    secrets = [*sequence(m.pod.get("imagePullSecrets")), *sequence(account.get("imagePullSecrets") if account else None)]
    for name in sorted(set(deploy.image_pull_secrets) - {str(mapping(s).get("name")) for s in secrets}):
        scene.add("reference", m, f"{m.pod_path}.imagePullSecrets", f"leaves out {shown(name)}", "deploy.imagePullSecrets")
    image = m.server.get("image") if m.containers else deploy.image
    if image != deploy.image and not image_problem(image):
        problem = f"is {shown(image)}, the plan's is {shown(deploy.image)}"
        scene.add("image", m, f"{m.server_path}.image", problem, "deploy.image")


def _check_pool(scene: Scene, m: Manifest) -> None:
    role = scene.role(m)
    assert role is not None  # the caller asked
    pool = scene.plan.pool[role.pool]
    selector = mapping(m.pod.get("nodeSelector"))
    for name, value in pool.node_selector.items():
        if selector.get(name) != value:
            problem = f"{name} is {shown(selector.get(name))}, the nodes that were planned for have {shown(value)}"
            scene.add("placement", m, f"{m.pod_path}.nodeSelector", problem, "hardware.pool[].nodeSelector")
    tolerations = sequence(m.pod.get("tolerations"))
    for toleration in pool.tolerations:
        if not any(_tolerates(mapping(have), mapping(toleration)) for have in tolerations):
            problem = f"leaves out {_text(toleration)}: the pods may never be scheduled"
            scene.add("placement", m, f"{m.pod_path}.tolerations", problem, "hardware.pool[].tolerations")
    cpus = quantity(mapping(dig(m.server, "resources.requests")).get("cpu")) if m.containers else None
    if cpus is not None and pool.node_cpus and cpus > pool.node_cpus:
        problem = f"cpu is more than the {pool.node_cpus} of a node"
        scene.add("resources", m, f"{m.server_path}.resources.requests", problem, "hardware.pool[].cpu")
    _check_token(scene, m)


def _check_token(scene: Scene, m: Manifest) -> None:
    """The token that the spec names must come from the Secret and key that it names."""
    wanted = scene.plan.deploy.hf_token_secret
    if wanted is None or not m.containers:
        return
    env = {str(mapping(e).get("name")): mapping(e) for e in sequence(m.server.get("env"))}
    ref = mapping(dig(env.get("HF_TOKEN", {}), "valueFrom.secretKeyRef"))
    if (ref.get("name"), ref.get("key")) != tuple(wanted):
        found = f"{shown(ref.get('name'))}, {shown(ref.get('key'))}"
        problem = f"HF_TOKEN comes from {found}; the spec says {wanted[0]!r}, {wanted[1]!r}"
        scene.add("reference", m, f"{m.server_path}.env", problem, "deploy.hfTokenSecret")


def _tolerates(have: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a toleration covers what another does: no key is every key, no effect every effect, Exists every value."""
    if have.get("effect") and have.get("effect") != wanted.get("effect"):
        return False
    if have.get("tolerationSeconds") is not None and have.get("tolerationSeconds") != wanted.get("tolerationSeconds"):
        return False
    exists = have.get("operator") == "Exists"
    if exists and not have.get("key"):
        return True
    return have.get("key") == wanted.get("key") and (
        exists or (wanted.get("operator") != "Exists" and (have.get("value") or "") == (wanted.get("value") or ""))
    )


def _text(toleration: Any) -> str:
    return ", ".join(f"{k}={v}" for k, v in sorted(mapping(toleration).items()))
