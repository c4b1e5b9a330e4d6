"""Patches and templates as nobody means them: each is told at its line, and the other specs of the run are built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servegen.manifest import documents
from tests.proof.harness import Ran, command, process, spec, tree, write_spec

HEAD = "kind: Deployment\nmetadata: {name: chat-serve}\n"
DIGITS = "9" * 5000


def of(fields: str) -> str:
    return f"{HEAD}spec: {{template: {{spec: {{containers: [{{name: serve, {fields}}}]}}}}}}\n"


def build(tmp_path: Path, patch: str, *more: str) -> Ran:
    """A spec with the patch, and one without."""
    (tmp_path / "p.yaml").write_text(patch, encoding="utf-8")
    write_spec(tmp_path / "a.yaml", spec(deploy={"overrides": {"patches": ["p.yaml"]}}))
    write_spec(tmp_path / "b.yaml", spec(name="other"))
    return command("build", tmp_path / "a.yaml", tmp_path / "b.yaml", "-o", tmp_path / "out", *more)


SLEEP = "lifecycle: {{§preStop: {{sleep: null, exec: {{command: [sleep, '{}']}}}}}}"
#: A patch with a mark where the fault stands, and what is said.
HOSTILE = (
    (f"{HEAD}spec: {{§1: 2}}\n", "a key must be text, not 1"),
    (f"{HEAD}spec: {{§true: 2}}\n", "a key must be text, not true"),
    (f"{HEAD}spec: {{§[a]: 2}}\n", "a key must be text"),
    (f"{HEAD}spec: §&a {{template: *a}}\n", "it contains itself"),
    (f"{HEAD}spec: §&a [[*a]]\n", "it contains itself"),
    (of(f"{SLEEP.format('²')}"), "no sleep"),
    (of(f"{SLEEP.format(DIGITS)}"), "no sleep"),
    (f"{HEAD}spec: {{strategy: {{rollingUpdate: {{§maxSurge: '²%'}}}}}}\n", "no number of pods"),
    (f"{HEAD}spec: {{strategy: {{rollingUpdate: {{§maxSurge: '{DIGITS}%'}}}}}}\n", "no number of pods"),
    (f"{HEAD}spec: {{strategy: {{rollingUpdate: {{§maxSurge: '5'}}}}}}\n", "no number of pods"),
    ("kind: PodDisruptionBudget\nmetadata: {name: chat-serve}\nspec: {§maxUnavailable: '²%'}\n", "is no share"),
    (of(f"resources: {{limits: {{§memory: '{DIGITS}'}}}}"), "is no quantity"),
    (of(f"resources: {{limits: {{memory: §{DIGITS}}}}}"), "too large a number"),
    (of(f"resources: {{limits: {{memory: §0x{'f' * 300}}}}}"), "too large a number"),
    (f"{HEAD}spec: {{replicas: §1e999}}\n", "no number that JSON has"),
    (f"{HEAD}spec: {{replicas: §.nan}}\n", "no number that JSON has"),
    (f"{HEAD}spec: §!!set {{a, b, c}}\n", "the tag !!set"),
    (f"{HEAD}spec: §!!omap [a: b]\n", "the tag !!omap"),
    (f"{HEAD}spec: {{a: §!!binary aGk=}}\n", "the tag !!binary"),
    (f"{HEAD}spec: {{a: §!mine x}}\n", "the tag !mine"),
    (f"{HEAD}spec: {{a: §!!timestamp 2020-01-01}}\n", "is a date"),
    (f"{HEAD}spec: {{template: {{spec: {{nodeSelector: {{a: §2020-01-01}}}}}}}}\n", "2020-01-01 is a date"),
    (f"§%YAML 1.1\n---\n{HEAD}", "%YAML is a directive"),
    (f"# first\n§%TAG ! x:\n---\n{HEAD}", "%TAG is a directive"),
    (f'{HEAD}spec: {{a: §"\\ud800"}}\n', "half of a surrogate pair"),
    (f"{HEAD}spec: {'[' * 120}{']' * 120}\n§", "nested too deeply"),
    ("§hello\n", "it has no kind that is a text"),
)  # fmt: skip


@pytest.mark.parametrize(("marked", "says"), HOSTILE, ids=[f"{says} {len(marked)}" for marked, says in HOSTILE])
def test_it_is_told_at_its_line_and_the_other_spec_is_built(marked: str, says: str, tmp_path: Path) -> None:
    before = marked.partition("§")[0].split("\n")
    ran = build(tmp_path, marked.replace("§", ""))
    place = rf"{len(before)}:{len(before[-1]) + 1}" if "nested" not in says else r"\d+:\d+"
    found = [line for line in ran.err.splitlines() if says in line]
    assert ran.code == 1 and any(re.match(rf"\S*p\.yaml:{place}: error\[", line) for line in found), ran
    assert not re.search(r"datetime|OrderedDict|CommentedSet|int string conversion|Traceback", ran.err)
    assert (tmp_path / "out" / "other" / "files.lock").exists() and not (tmp_path / "out" / "chat").exists()
    assert len([line for line in found if "error[" in line]) == 1, found


def test_aliases_of_aliases_end_quickly(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    ran = build(tmp_path, HEAD + "\n".join(lines) + "\n")
    assert ran.code == 1 and "aliases counted in full" in ran.err and (tmp_path / "out" / "other").exists(), ran


def test_plain_yaml_is_read_as_before() -> None:
    text = "a: &x {b: !!str 5, 'c': \"2020-01-01\"}\nd: {<<: *x, on: 1.5e3}\n--- # two\n- 100%\n- |\n  %x\n"
    assert documents(text) == (
        {"a": {"b": "5", "c": "2020-01-01"}, "d": {"b": "5", "c": "2020-01-01", "on": 1500.0}}, ["100%", "%x\n"],
    )  # fmt: skip


@pytest.mark.parametrize("command_", ["validate", "plan"])
def test_what_is_no_patch_is_found_without_a_build(command_: str, tmp_path: Path) -> None:
    build(tmp_path, "kind: [\n")
    ran = command(command_, tmp_path / "a.yaml")
    assert ran.code == 1 and re.search(r"p\.yaml:2:1: error\[render-patch\]", ran.err), ran


def test_a_wrong_version_is_told_once(tmp_path: Path) -> None:
    ran = build(tmp_path, f"apiVersion: apps/v1beta1\n{HEAD}")
    assert ran.err.count("error[") == 1 and "p.yaml:1:1: error" in ran.err, ran


def test_what_breaks_another_object_is_told_where_the_patch_changes(tmp_path: Path) -> None:
    ran = build(tmp_path, f"{HEAD}spec:\n  template:\n    metadata:\n      labels: {{app.kubernetes.io/instance: x}}\n")
    assert re.search(r"p\.yaml:6:\d+: error\[.*with the patch, Service/chat: spec\.selector", ran.err), ran
    assert "p.yaml:1:1" not in ran.err


@pytest.mark.parametrize("key", ["nodeSelector", "tolerations"])
def test_a_secret_anywhere_in_a_spec_is_told_once_at_its_line(key: str, tmp_path: Path) -> None:
    token = "hf_" + "a" * 34
    value = {"tok": token} if key == "nodeSelector" else [{"key": "a", "operator": "Equal", "value": token}]
    file = write_spec(tmp_path / "s.yaml", spec(**{f"hardware__pool__0__{key}": value}))
    line = next(i for i, text in enumerate(file.read_text().splitlines(), 1) if token in text)
    for word in ("validate", "build"):
        ran = command(word, file, *(("-o", tmp_path / "out") if word == "build" else ()))
        assert ran.code == 1 and ran.err.count("error[") == 1 and token not in ran.err, ran
        assert re.search(rf"s\.yaml:{line}:\d+: error\[secret-value\]: .* holds a Hugging Face token", ran.err), ran


# --- Templates

SERVICE = (Path(__file__).resolve().parents[2] / "templates" / "kubernetes" / "service.yaml.j2").read_text(encoding="utf-8")
MANY = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
UNFIT = (
    ("{{ range(1, 9999) | random }}", "No filter named 'random'"),
    ("{{ lipsum() }}", "'lipsum' is undefined"),
    ("{{ cycler(1) }}", "has no form as text: jinja2.utils.Cycler object"),
    ("{{ [1] | map('upper') }}", "has no form as text: generator object"),
    (MANY, "take more than 100,000 steps"),
    ("{% for c in 'x' * 9000 %}{% for d in 'x' * 9000 recursive %}{% endfor %}{% endfor %}", "take more than 100,000 steps"),
    ("{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}", "take more than 100,000 steps"),
    ("{% for i in range(90000) %}{{ 'x' * 100000 }}{% endfor %}", "a text of more than"),
)


@pytest.mark.parametrize(("text", "says"), UNFIT, ids=[says for _, says in UNFIT])
def test_a_template_ends_and_says_the_same_every_time(text: str, says: str, tmp_path: Path) -> None:
    own = tmp_path / "own" / "kubernetes"
    own.mkdir(parents=True)
    (own / "service.yaml.j2").write_text(f"# {text}\n{SERVICE}", encoding="utf-8")
    ran = command("build", write_spec(tmp_path / "s.yaml", spec()), "-o", tmp_path / "out", "--templates", tmp_path / "own")
    assert ran.code == 1 and says in ran.err and re.search(r"service\.yaml\.j2:1:1: error", ran.err), ran


def test_a_rendered_tree_is_that_of_any_hash_seed(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(f"{HEAD}spec: {{template: {{metadata: {{labels: {{c: a, b: a, a: a}}}}}}}}\n")
    file = write_spec(tmp_path / "s.yaml", spec(deploy={"overrides": {"patches": ["p.yaml"]}}))
    for seed in ("1", "2"):
        assert process("build", file, "-o", tmp_path / seed, PYTHONHASHSEED=seed).code == 0
    assert tree(tmp_path / "1") == tree(tmp_path / "2")
