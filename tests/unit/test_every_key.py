"""Every key of the language changes something: a walk over the whole schema, key by key.

What decides is in ``test_solve_keys``; here is what only the cluster sees, and the list is closed: a key that is added to the
language and to neither fails.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from servegen.compile import compile_spec
from servegen.errors import UserError
from servegen.spec.base import Section
from servegen.spec.load import loads
from servegen.spec.schema import ServingSpec
from tests.solver.specs import LLAMA_8B, spec_text
from tests.unit.test_solve_keys import DECIDES, RECORDED

Spec = dict[str, str]
BASE: Spec = {
    "model": LLAMA_8B,
    "traffic": "{rate: 6/s, isl: 1000, osl: 200}",
    "slo": "{itl: 80ms}",
    "constraints": "{topology: aggregated}",
}
TOLERATIONS = "[{accelerator: h100, nodes: 1, perNode: 8, tolerations: [{%s}]}]"
TOLERATION = "key: a, operator: Equal, value: b, effect: NoExecute, tolerationSeconds: 9"
PEER = "{networkPolicy: {from: [{%s}]}}"
EXPRESSION = "namespaceSelector: {matchExpressions: [{key: %s, operator: %s, values: %s}]}"
#: A model of experts, for whose shapes there is something to choose.
EXPERTS: Spec = {**BASE, "model": "Qwen/Qwen3-30B-A3B"}
DEEP: Spec = {**BASE, "constraints": "{topology: aggregated, engines: [vllm], tp: [8]}"}


def deploy(one: str, other: str = "") -> tuple[Spec, Spec]:
    return {**BASE, "deploy": f"{{{other}}}"}, {**BASE, "deploy": f"{{{one}}}"}


def placed(one: str, other: str = "") -> tuple[Spec, Spec]:
    def entry(more: str) -> Spec:
        return {**BASE, "pool": f"[{{accelerator: h100, nodes: 1, perNode: 8{', ' + more if more else ''}}}]"}

    return entry(other), entry(one)


def tolerated(one: str, other: str = TOLERATION) -> tuple[Spec, Spec]:
    return {**BASE, "pool": TOLERATIONS % other}, {**BASE, "pool": TOLERATIONS % one}


def peer(one: str, other: str) -> tuple[Spec, Spec]:
    return {**BASE, "deploy": PEER % other}, {**BASE, "deploy": PEER % one}


SPLIT_RDMA = "[{accelerator: h100, nodes: 2, perNode: 8, fabric: {bandwidth: 400Gbps%s}}]"
SPLIT: Spec = {**BASE, "constraints": "{topology: disaggregated}"}
KEDA = "autoscaling: keda"

#: By key: two specs that differ in it. Their manifests or scripts must differ.
RENDERED: dict[str, tuple[Spec, Spec]] = {
    "traffic.trough": (
        {**BASE, "deploy": f"{{{KEDA}}}", "traffic": "{rate: 90/s, isl: 1000, osl: 200}"},
        {**BASE, "deploy": f"{{{KEDA}}}", "traffic": "{rate: 90/s, trough: 2/s, isl: 1000, osl: 200}"},
    ),
    "model.trustRemoteCode": (BASE, {**BASE, "more_model": ", trustRemoteCode: true"}),
    "constraints.ep": ({**EXPERTS, "constraints": "{tp: [2], ep: [1]}"}, {**EXPERTS, "constraints": "{tp: [2], ep: [2]}"}),
    "constraints.dp": ({**EXPERTS, "constraints": "{tp: [2], dp: [1]}"}, {**EXPERTS, "constraints": "{tp: [2], dp: [2]}"}),
    "hardware.pool.cpu": placed("cpu: 16"),
    "hardware.pool.memory": placed("memory: 200GiB"),
    "hardware.pool.resource": placed("resource: example.com/gpu"),
    "hardware.pool.nodeSelector": placed("nodeSelector: {disk: ssd}"),
    "hardware.pool.storage.bandwidth": placed("storage: {bandwidth: 100MB/s}"),
    "hardware.pool.tolerations.key": tolerated(TOLERATION.replace("key: a", "key: c")),
    "hardware.pool.tolerations.operator": tolerated("key: a, operator: Exists", "key: a, operator: Equal, value: b"),
    "hardware.pool.tolerations.value": tolerated(TOLERATION.replace("value: b", "value: c")),
    "hardware.pool.tolerations.effect": tolerated("key: a, operator: Exists, effect: NoSchedule", "key: a, operator: Exists"),
    "hardware.pool.tolerations.tolerationSeconds": tolerated(TOLERATION.replace("Seconds: 9", "Seconds: 99")),
    "hardware.pool.fabric.rdma": ({**SPLIT, "pool": SPLIT_RDMA % ", rdma: true"}, {**SPLIT, "pool": SPLIT_RDMA % ""}),
    "hardware.pool.fabric.resource": (
        {**SPLIT, "pool": SPLIT_RDMA % ", rdma: true, resource: rdma/a"},
        {**SPLIT, "pool": SPLIT_RDMA % ", rdma: true, resource: rdma/b"},
    ),
    "deploy.image": deploy("image: registry/image:2"),
    "deploy.imagePullSecrets": deploy("imagePullSecrets: [regcred]"),
    "deploy.namespace": deploy("namespace: elsewhere"),
    "deploy.kubernetesVersion": deploy('kubernetesVersion: "1.29"', 'kubernetesVersion: "1.34"'),
    "deploy.modelCache.claim": deploy("modelCache: {claim: weights}"),
    "deploy.modelCache.hostPath": deploy("modelCache: {hostPath: /models}"),
    "deploy.modelCache.size": deploy("modelCache: {size: 200GiB}", "modelCache: {size: 100GiB}"),
    "deploy.modelCache.storageClass": deploy("modelCache: {size: 100GiB, storageClass: fast}", "modelCache: {size: 100GiB}"),
    "deploy.hfTokenSecret.name": deploy("hfTokenSecret: {name: token}"),
    "deploy.hfTokenSecret.key": deploy("hfTokenSecret: {name: token, key: OTHER}", "hfTokenSecret: {name: token}"),
    "deploy.autoscaling": deploy(KEDA),
    "deploy.monitoring": deploy("monitoring: true"),
    "deploy.networkPolicy.from.podSelector.matchLabels": peer("podSelector: {matchLabels: {a: b}}", "podSelector: {}"),
    "deploy.networkPolicy.from.namespaceSelector.matchLabels": peer(
        "namespaceSelector: {matchLabels: {a: b}}", "namespaceSelector: {}"
    ),
    "deploy.networkPolicy.from.ipBlock.cidr": peer("ipBlock: {cidr: 10.0.0.0/8}", "ipBlock: {cidr: 10.1.0.0/16}"),
    "deploy.networkPolicy.from.ipBlock.except": peer(
        "ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}", "ipBlock: {cidr: 10.0.0.0/8}"
    ),
    "deploy.priorityClass": deploy("priorityClass: urgent"),
    "deploy.runtimeClass": deploy("runtimeClass: nvidia"),
    "deploy.overrides.args": deploy("overrides: {args: {random-seed: 7}}"),
    "deploy.overrides.env": deploy("overrides: {env: {A: b}}"),
}
for _selector in ("podSelector", "namespaceSelector"):
    _where = f"deploy.networkPolicy.from.{_selector}.matchExpressions"
    _one = EXPRESSION.replace("namespaceSelector", _selector)
    RENDERED |= {
        f"{_where}.key": peer(_one % ("a", "In", "[x]"), _one % ("b", "In", "[x]")),
        f"{_where}.operator": peer(_one % ("a", "In", "[x]"), _one % ("a", "NotIn", "[x]")),
        f"{_where}.values": peer(_one % ("a", "In", "[x]"), _one % ("a", "In", "[y]")),
    }

#: Keys that need more than two lines of spec: where they are tested, or why they may hold one value only.
ELSEWHERE = {
    "metadata.name": "names every object; two specs of other names (below)",
    "preset": "fills other keys (below)",
    "model.config": "tests/unit/test_hf_configs.py reads the same facts from a file",
    "model.architecture": "tests/unit/test_hf_configs.py reads the same facts inline",
    "model.speculative.draftConfig": "a file beside the spec; tests/unit/test_solve_drafting.py",
    "traffic.trace": "test_solve_keys.py: test_a_trace_decides",
    "constraints.pp": "pipelines over nodes are sized; tests/unit/test_parallel.py",
    "deploy.engineVersion": "there is one contract of each engine that renders; an unknown version is refused (below)",
    "deploy.multiNode": "leaderworkerset or nothing until there are role-based groups (spec/not_yet.py)",
    "deploy.gateway": "none or nothing until gateways are rendered (spec/not_yet.py)",
    "deploy.calibration": "tests/unit/test_calibrate_command.py plans with constants of a file",
    "deploy.overrides.patches": "a file beside the spec; tests/unit/test_render_bundle.py",
}


def keys(section: type[Any], path: str = "") -> Iterator[str]:
    """The dotted keys of a section that hold a value, lists passed over."""
    for name, field in section.model_fields.items():
        if name == "fixed":
            continue  # the scalar that stands for the section
        plain = name.rstrip("_")
        key = path + (field.alias or re.sub(r"_(\w)", lambda m: m[1].upper(), plain))
        inner = list(_sections(field.annotation))
        for one in inner:
            yield from keys(one, f"{key}.")
        if not inner or any("fixed" in one.model_fields for one in inner):
            yield key


def _sections(annotation: Any) -> Iterator[type[Any]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _sections(inner)


def bundle(stated: Spec) -> dict[str, str]:
    """Manifests and scripts of a spec, without the plan's hash, which changes with every letter of the spec."""
    result = compile_spec(loads(spec_text(**stated), "asked.yaml")[0], until="render")
    assert result.bundle is not None and result.plan is not None
    files = {p: text for p, text in result.bundle.files.items() if p.startswith(("kubernetes/", "launch/"))}
    return {p: text.replace(result.plan.content_hash, "") for p, text in files.items()}


@pytest.mark.parametrize("key", RENDERED)
def test_the_key_changes_what_is_deployed(key: str) -> None:
    one, other = RENDERED[key]
    assert bundle(one) != bundle(other)


def test_the_name_names_every_object() -> None:
    text = spec_text(**BASE)
    one, other = (
        compile_spec(loads(t, "asked.yaml")[0], until="render").bundle for t in (text, text.replace("name: asked", "name: other"))
    )
    assert one is not None and other is not None
    assert '"asked' in one.files["kubernetes/deployment-serve.yaml"]
    assert '"asked' not in other.files["kubernetes/deployment-serve.yaml"]


@pytest.mark.parametrize("preset", ["chat", "api", "batch", "long-context", "edge"])
def test_a_preset_fills_what_is_silent(preset: str) -> None:
    silent = spec_text(model=LLAMA_8B, traffic="{isl: 1000, osl: 200}").replace("  slo: {}\n  ", "  ")
    silent = silent.replace("  objective: cost\n", "").replace("  constraints: {}\n", "")
    assert loads(silent.replace("spec:\n", f"spec:\n  preset: {preset}\n"), "a.yaml")[0].shown != loads(silent, "a.yaml")[0].shown


def test_an_engine_version_without_a_contract_is_refused() -> None:
    with pytest.raises(UserError, match=r"0\.0\.1"):
        bundle({**BASE, "deploy": '{engineVersion: "0.0.1"}'})


def test_no_key_is_forgotten() -> None:
    def full(key: str) -> str:
        return f"hardware.{key}" if key.startswith("pool.") else key

    decided = {full(k) for k in DECIDES} | {full(f"pool.{k}") for k in RECORDED}
    shown = decided | set(RENDERED) | set(ELSEWHERE)
    language = {k.removeprefix("spec.") for k in keys(ServingSpec)} - {"apiVersion", "kind"}
    assert language - shown == set(), "keys of which no test shows that they change anything"
    sections = {"hardware.pool.fabric", "hardware.pool.tolerations", "model.speculative"}
    assert shown - language - sections == set(), "keys that the language does not have"
    assert not set(ELSEWHERE) & set(RENDERED)


def test_what_stands_elsewhere_is_there() -> None:
    root = Path(__file__).parents[2]
    for reason in ELSEWHERE.values():
        for name in re.findall(r"tests/unit/\w+\.py", reason):
            assert (root / name).is_file()
