"""Planted faults: each is found, and the finding names the object, the field, the spec key (with its line) and the template.

The bundles are those of real specs, so that a fault stands where a template of a user's own could put it;
``tests/unit/test_validate_bundle.py`` plants more, in bundles made by hand.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from servegen.bundle import Bundle
from servegen.compile import Result, compile_spec
from servegen.engines.launch import Arg
from servegen.errors import Diagnostic
from servegen.manifest import documents
from servegen.spec.load import loads
from servegen.validate.check import findings
from servegen.validate.scripts import check_values
from tests.proof.accepted_faults import ACCEPTED, ALLOWED, DOUBTED
from tests.proof.faults import FAULTS, SPECS, Fault
from tests.proof.further_faults import FURTHER
from tests.proof.group_faults import GROUP_FAULTS
from tests.proof.harness import ROOT, command, spec, tree, write_spec
from tests.proof.node_faults import NODE_FAULTS, nodes, wants
from tests.proof.rule_faults import RULE_FAULTS
from tests.proof.service_faults import SERVICE_FAULTS

KINDS = {
    "deployment": "Deployment",
    "leaderworkerset": "LeaderWorkerSet",
    "service": "Service",
    "poddisruptionbudget": "PodDisruptionBudget",
    "podmonitor": "PodMonitor",
    "scaledobject": "ScaledObject",
    "horizontalpodautoscaler": "HorizontalPodAutoscaler",
    "persistentvolumeclaim": "PersistentVolumeClaim",
    "networkpolicy": "NetworkPolicy",
    "role": "Role",
    "rolebinding": "RoleBinding",
}
ALL = (*FAULTS, *FURTHER, *GROUP_FAULTS, *NODE_FAULTS, *RULE_FAULTS, *SERVICE_FAULTS, *ACCEPTED)


@cache
def compiled(name: str) -> Result:
    """One of the specs, rendered; on Kubernetes 1.33, so that younger fields are known to be too young."""
    document = copy.deepcopy(SPECS[name])
    document["spec"]["deploy"]["kubernetesVersion"] = "1.33"
    (loaded,) = loads(json.dumps(document), "s.yaml")
    return compile_spec(loaded, "render")


def planted(fault: Fault) -> tuple[list[Diagnostic], Result]:
    """What is found in the bundle with one fault in it."""
    result = compiled(fault.spec)
    plan, bundle = result.plan, result.bundle
    assert plan is not None and bundle is not None
    path = f"kubernetes/{fault.file}.yaml"
    (document,) = copy.deepcopy(documents(bundle.files[path]))
    if fault.code == "duplicate":
        text = json.dumps(document) + "\n---\n" + json.dumps(document)
    else:
        fault.change(document)
        text = json.dumps(document)
    return findings(plan, replace(bundle, files={**bundle.files, path: text})), result


@pytest.mark.parametrize("name", SPECS)
def test_the_bundles_are_sound_before(name: str) -> None:
    result = compiled(name)
    assert result.plan is not None and result.bundle is not None
    assert findings(result.plan, result.bundle) == []


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.what)
def test_a_planted_fault_is_found_and_named(fault: Fault) -> None:
    found, result = planted(fault)
    hits = [d for d in found if d.code == f"bundle-{fault.code}" and d.severity == "error" and fault.says in d.message]
    assert hits, [str(d) for d in found]
    # A fault may be seen from more than one object: one finding must name the file that it was planted in, or its target.
    named = [d for d in hits if fault.field in d.message and fault.key in re.sub(r"pool\[\d\]", "pool[]", d.hint)]
    assert named, [str(d) for d in hits]
    hit = named[0]
    template = (result.bundle or Bundle("", {})).templates[hit.where.file]
    assert f"written by template {template}" in hit.hint and (ROOT / "templates" / template).is_file()
    kind = KINDS[hit.where.file.removeprefix("kubernetes/").partition("-")[0]]
    assert re.match(rf"{kind if fault.code != 'kind' else 'LeaderWorkerSets'}/\S+: ", hit.message)


@pytest.mark.parametrize("fault", DOUBTED, ids=lambda fault: fault.what)
def test_what_may_be_meant_is_told_and_stops_no_build(fault: Fault) -> None:
    found, result = planted(fault)
    assert [str(d) for d in found if d.severity == "error"] == []
    (hit,) = found
    assert hit.code == f"bundle-{fault.code}" and fault.says in hit.message and fault.field in hit.message
    template = (result.bundle or Bundle("", {})).templates[hit.where.file]
    assert fault.key in hit.hint and f"written by template {template}" in hit.hint


@pytest.mark.parametrize(("what", "name", "file", "change"), ALLOWED, ids=[a[0] for a in ALLOWED])
def test_what_is_nearly_a_fault_and_right_is_let_be(what: str, name: str, file: str, change: Callable[[Any], object]) -> None:
    found, _ = planted(Fault(what, name, file, change, "", "", ""))
    assert [str(d) for d in found] == []


def test_there_are_enough_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert len({fault.what for fault in ALL}) == len(ALL) >= 40
    with capsys.disabled():
        print(f"\n{len(ALL)} planted faults, {len({f.code for f in ALL})} kinds of findings")


NOWHERE = nodes([wants("zone", "In", "a"), wants("zone", "DoesNotExist")])
TEMPLATES = (
    ("kustomization.yaml.j2", "resources:", "resourcs: []\nresources:", "did you mean resources?"),
    ("kustomization.yaml.j2", "resources:", "crds: [x.yaml]\nresources:", "crds names 'x.yaml', which is not there"),
    ("deployment.yaml.j2", "  revisionHistoryLimit: 5", "  revisionHistoryLimt: 5", "revisionHistoryLimt"),
    ("_pod.j2", "failureThreshold: {{ probe.failures }}", "failureThreshold: 1", "render-differs"),
    ("_pod.j2", "enableServiceLinks: false", "hostNetwork: true", "opens the node to the pod"),
    ("_pod.j2", "enableServiceLinks: false", f"affinity: {json.dumps(NOWHERE)}", "no node can ever meet it"),
    ("_pod.j2", "allowPrivilegeEscalation: false", "readOnlyRootFilesystem: true\n            allowPrivilegeEscalation: false",
     "no volume takes temporary files"),
    ("service.yaml.j2", 'type: "ClusterIP"', 'type: "ClusterIPs"', "ClusterIPs"),
    ("service.yaml.j2", "  ports:", "  port:", "ports"),
    ("poddisruptionbudget.yaml.j2", "{{ o.max_unavailable }}", "0", "maxUnavailable"),
    ("kustomization.yaml.j2", "resources:", "resource:", "resources: is missing"),
)


@pytest.mark.parametrize(("template", "old", "new", "says"), TEMPLATES, ids=[f"{t[0]}: {t[2].strip()}" for t in TEMPLATES])
def test_a_fault_in_a_template_of_ones_own_stops_the_build(tmp_path: Path, template: str, old: str, new: str, says: str) -> None:
    own = tmp_path / "templates" / "kubernetes"
    own.mkdir(parents=True)
    text = (ROOT / "templates" / "kubernetes" / template).read_text(encoding="utf-8")
    assert old in text
    (own / template).write_text(text.replace(old, new), encoding="utf-8")
    file = write_spec(tmp_path / "s.yaml", spec(deploy__monitoring=True))
    out = tmp_path / "out"
    ran = command("build", file, "-o", out, "--templates", tmp_path / "templates")
    # A pod's macros are part of every template that runs pods; the finding names the one that wrote the file.
    named = template.replace("_pod.j2", "deployment.yaml.j2")
    assert ran.code == 1 and says in ran.err and named in ran.err
    # No key of the spec governs what only a template or a patch can say, and this spec has no patch.
    wrote = rf"hint: template \S*{re.escape(named)}( with \S*{re.escape(template)})? wrote it"
    known = re.search(r"s\.yaml:\d+:\d+", ran.err) or re.search(wrote, ran.err)
    assert known, "the spec key's line"
    assert re.search(r"error\[[\w-]+\]: ([A-Z]\w+/\S+|kubernetes/kustomization\.yaml): ", ran.err), "the object"
    assert "overrides.patches" not in ran.err
    assert not out.exists()
    assert command("build", file, "-o", out).code == 0
    shutil.rmtree(tmp_path / "templates")
    assert command("build", file, "-o", out, "--check").code == 0 and tree(out)


LAUNCHES = (
    ('  "$@"', "  $@", "script-quotes", "$@ must be in double quotes", "spec.constraints.engines"),
    ('  "$@"', "  --log-level warning", "script-form", "must end with", "spec.constraints.engines"),
    ("set -euo pipefail", "set -eu", "script-form", "set -euo pipefail is missing", "spec.constraints.engines"),
    ("exec ", "exec '", "script-syntax", "a shell cannot read it", "spec.constraints.engines"),
    ("exec ", "exit 0\nexec ", "script-flow", "exit keeps the server from being started", "spec.constraints.engines"),
    ("exec ", "export LD_PRELOAD=/x.so\nexec ", "script-env", "LD_PRELOAD is exported", "spec.deploy.overrides.env"),
    ("{{ arg.words() | map('sh') | join(' ') }}", "{{ arg.flag }} 'x'", "script-words", "planned: ", "spec.constraints.engines"),
    ("{% endfor %}\n{% if launch.group %}", "{% endfor %}\n  --tp-size 3 \\\n{% if launch.group %}", "flag-repeated",
     "--tp-size is given twice", "spec.constraints.tp"),
)  # fmt: skip


@pytest.mark.parametrize(("old", "new", "code", "says", "key"), LAUNCHES, ids=[f"{c}: {s}" for _, _, c, s, _ in LAUNCHES])
def test_a_fault_in_a_script_names_the_object_the_key_and_the_template(
    tmp_path: Path, old: str, new: str, code: str, says: str, key: str
) -> None:
    own = tmp_path / "templates" / "sglang" / "launch.sh.j2"
    own.parent.mkdir(parents=True)
    text = (ROOT / "templates" / "sglang" / "launch.sh.j2").read_text(encoding="utf-8")
    assert old in text
    own.write_text(text.replace(old, new), encoding="utf-8")
    file = write_spec(tmp_path / "s.yaml", spec(deploy__overrides={"args": {"log-level": "info"}}))
    ran = command("build", file, "-o", tmp_path / "out", "--templates", tmp_path / "templates")
    assert ran.code == 1
    hit = re.search(rf"error\[{code}\]: Deployment/chat-serve: launch/serve\.sh: .*{re.escape(says)}.*\n(.*)", ran.err)
    assert hit, ran.err
    assert re.search(rf"hint: {re.escape(key)} \(\S*s\.yaml:\d+:\d+\); written by template {re.escape(str(own))}", hit[1]), hit[1]


SCRIPTS = (
    ({"mem-fraction-static": 1.2}, "--mem-fraction-static 1.2: it must be above 0 and below 1"),
    ({"mem-fraction-static": 0.05}, "--mem-fraction-static 0.05: the weights alone take 0."),
    ({"max-total-tokens": 10}, "--max-total-tokens 10: a request of the traffic takes"),
    ({"page-size": 48}, "a multiple of --page-size"),
    ({"ep-size": 3}, "a divisor of --tp-size"),
    ({"context-length": 999_999}, "at most the model's"),
    ({"tp-size": 2}, "the server starts 2 ranks"),
    ({"port": 0}, "1 to 65535"),
    ({"disaggregation-mode": "decode"}, "--disaggregation-mode decode: the plan makes this server one that has null there"),
    ({"context-length": 100}, "--context-length 100: a request of the traffic takes"),
    ({"ssl-certfile": "/a", "ssl-keyfile": "/b"}, "--ssl-certfile: probes, Services and routers speak plain HTTP"),
    ({"json-model-override-args": "{bad"}, "--json-model-override-args: it is no JSON"),
    ({"host": "127.0.0.1"}, "--host 127.0.0.1: it must be 0.0.0.0 or ::"),
    ({"nnodes": 2}, "a replica of this plan takes 1 node"),
    ({"base-gpu-id": 4}, "--base-gpu-id 4: it must be 0"),
    ({"data-parallel-size": 3}, "3 copies of the model take 3 accelerators, the pod has 1"),
    ({"dp-size": 3}, "3 copies of the model take 3 accelerators, the pod has 1"),
    ({"max-running-requests": 0}, "it must be at least 1"),
    ({"chunked-prefill-size": 0}, "it must be -1 or a multiple"),
    ({"page-size": 0}, "--page-size 0: it must be at least 1"),
    ({"mem-fraction-static": "nan"}, "--mem-fraction-static nan: it must be above 0"),
    ({"kv-cache-dtype": "fp16"}, "--kv-cache-dtype does not take 'fp16'"),
    ({"enable-metrics": "false"}, "--enable-metrics takes no value"),
    ({"schedule-pol": "lpm"}, "--schedule-pol is an abbreviation"),
    ({"schedule-polcy": "lpm"}, "did you mean --schedule-policy"),
    ({"schedule-policy": "fastest"}, "schedule-policy"),
    ({"max-running-requests": "many"}, "max-running-requests"),
    ({"api-key": "sk-123"}, "shows a secret"),
)


@pytest.mark.parametrize(("args", "says"), SCRIPTS, ids=[f"--{next(iter(a))} {next(iter(a.values()))}" for a, _ in SCRIPTS])
def test_a_flag_that_the_engine_would_fail_on_stops_the_build(tmp_path: Path, args: dict[str, object], says: str) -> None:
    file = write_spec(tmp_path / "s.yaml", spec(deploy__overrides={"args": args}, constraints__tp=[1]))
    ran = command("build", file, "-o", tmp_path / "out")
    assert ran.code == 1 and says in ran.err, ran
    assert re.search(r"s\.yaml:\d+:\d+", ran.err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"])
def test_a_server_may_not_hide_its_accelerators_from_itself(tmp_path: Path, name: str) -> None:
    file = write_spec(tmp_path / "s.yaml", spec(deploy__overrides={"env": {name: "0"}}))
    ran = command("build", file, "-o", tmp_path / "out")
    assert ran.code == 1 and f"{name} hides accelerators" in ran.err and "spec.deploy.overrides.env" in ran.err, ran
    assert not (tmp_path / "out").exists()


def test_ranks_that_heads_and_experts_cannot_share() -> None:
    plan = compiled("one").plan
    assert plan is not None
    model = replace(plan.model, hf_config={"num_experts": 6})
    flags = (("--tp-size", "8"), ("--ep-size", "4"), ("--num-attention-heads", "64"), ("--num-query-groups", "48"))
    found = {d.message for d in check_values([Arg(flag, (value,)) for flag, value in flags], replace(plan, model=model))}
    assert found == {
        "--ep-size 4: it must be a divisor of the model's 6 experts",
        "--num-query-groups 48: it must be a divisor of --num-attention-heads",
    }
