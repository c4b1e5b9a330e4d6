"""What pods ask for that is in no bundle: Secrets and ConfigMaps, which somebody else must have put into the namespace, a
scheduler of somebody's own, whoever lifts the gates that keep pods from being scheduled or ready, and what fills a claim.

A build cannot see the cluster, so that this is a warning; what the spec names is the spec's word, and is not told again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from servegen.validate.objects import Manifest, Scene, dig, mapping, sequence
from servegen.validate.syntax import shown

_KEY = "deploy.overrides.patches"
_CACHE = "deploy.modelCache"
#: Conditions that the controllers of load balancers set, who also write the gates (AWS, Google).
_BALANCERS = ("target-health.", "cloud.google.com/load-balancer-neg-ready")
_SCHEDULER = "default-scheduler"


def check_outside(scene: Scene) -> None:
    """Every pod: its references to what neither the spec names nor the kustomization makes, and who is to place it."""
    deploy = scene.plan.deploy
    known = {("Secret", name) for name in deploy.image_pull_secrets}
    if deploy.hf_token_secret is not None:
        known.add(("Secret", deploy.hf_token_secret[0]))
    for kind in ("Secret", "ConfigMap"):
        generators = sequence(scene.kustomization.get(f"{kind[0].lower()}{kind[1:]}Generator"))
        known |= {(kind, str(mapping(made).get("name"))) for made in generators}
    for m in scene.pods:
        for path, kind, ref in _references(m):
            name = ref.get("name") or ref.get("secretName")
            if isinstance(name, str) and (kind, name) not in known and ref.get("optional") is not True:
                problem = f"the {kind} {name!r} is not in the bundle: no pod starts until it is in namespace {m.namespace}"
                scene.add("outside", m, path, problem, _KEY, "warning")
        _check_scheduling(scene, m)
    for m in scene.of_kind("PersistentVolumeClaim"):
        _check_claim(scene, m)


def _check_scheduling(scene: Scene, m: Manifest) -> None:
    """Pods that wait for ever where nobody of the cluster does what they count on."""
    scheduler = m.pod.get("schedulerName")
    if isinstance(scheduler, str) and scheduler not in ("", _SCHEDULER):
        problem = f"no pod is placed unless a scheduler {shown(scheduler)} runs in the cluster; its own is {_SCHEDULER}"
        scene.add("outside", m, f"{m.pod_path}.schedulerName", problem, _KEY, "warning")
    gates = [str(mapping(gate).get("name")) for gate in sequence(m.pod.get("schedulingGates"))]
    if gates:
        problem = f"no pod is scheduled until something in the cluster has lifted {', '.join(map(shown, gates))} from it"
        scene.add("outside", m, f"{m.pod_path}.schedulingGates", problem, _KEY, "warning")
    for i, gate in enumerate(map(mapping, sequence(m.pod.get("readinessGates")))):
        condition = str(gate.get("conditionType"))
        if not condition.startswith(_BALANCERS):
            problem = f"no pod is ready until something in the cluster has set its condition {shown(condition)}"
            scene.add("outside", m, f"{m.pod_path}.readinessGates[{i}]", problem, _KEY, "warning")
    for i, claim in enumerate(map(mapping, sequence(m.pod.get("resourceClaims")))):
        for field, kind in (("resourceClaimTemplateName", "ResourceClaimTemplate"), ("resourceClaimName", "ResourceClaim")):
            name = claim.get(field) or dig(claim, f"source.{field}")
            if name:
                problem = f"the {kind} {shown(name)} is not in the bundle: no pod starts until it is in namespace {m.namespace}"
                scene.add("outside", m, f"{m.pod_path}.resourceClaims[{i}].{field}", problem, _KEY, "warning")


def _check_claim(scene: Scene, m: Manifest) -> None:
    """A claim that waits for a volume of somebody's, or is filled from something that is not here."""
    volume = m.get("spec.volumeName")
    if volume:
        problem = f"the PersistentVolume {shown(volume)} is not in the bundle: claim and pods wait until it is there"
        scene.add("outside", m, "spec.volumeName", problem, _CACHE, "warning")
    if m.get("spec.selector"):
        problem = "the claim waits, and the pods with it, until there is a PersistentVolume of these labels"
        scene.add("outside", m, "spec.selector", problem, _CACHE, "warning")
    there = [c.name for c in scene.of_kind("PersistentVolumeClaim") if c.name != m.name]
    for field in ("dataSource", "dataSourceRef"):
        source = mapping(m.get(f"spec.{field}"))
        kind, name = str(source.get("kind")), source.get("name")
        if source and not (kind == "PersistentVolumeClaim" and name in there):
            problem = f"the {kind} {shown(name)} is not in the bundle: the claim waits, and the pods with it, until it is there"
            scene.add("outside", m, f"spec.{field}", problem, _CACHE, "warning")


def _references(m: Manifest) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(path, kind, reference) of everything that the kubelet reads before it starts a pod."""
    for field in ("containers", "initContainers"):
        for i, container in enumerate(mapping(c) for c in sequence(m.pod.get(field))):
            here = f"{m.pod_path}.{field}[{i}]"
            for entry in sequence(container.get("env")):
                for key, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
                    yield f"{here}.env", kind, mapping(dig(entry, f"valueFrom.{key}"))
            for entry in sequence(container.get("envFrom")):
                for key, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
                    yield f"{here}.envFrom", kind, mapping(mapping(entry).get(key))
    for volume in sequence(m.pod.get("volumes")):
        for key, kind in (("secret", "Secret"), ("configMap", "ConfigMap")):
            yield f"{m.pod_path}.volumes", kind, mapping(mapping(volume).get(key))
        for source in sequence(dig(volume, "projected.sources")):
            for key, kind in (("secret", "Secret"), ("configMap", "ConfigMap")):
                yield f"{m.pod_path}.volumes", kind, mapping(mapping(source).get(key))
    for secret in sequence(m.pod.get("imagePullSecrets")):
        yield f"{m.pod_path}.imagePullSecrets", "Secret", mapping(secret)
