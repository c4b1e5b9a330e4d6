"""The layout of a bundle, and the proof that no value of a spec breaks out of its place."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.bundle import Bundle
from servegen.errors import RenderError, UserError
from servegen.manifest import documents, unescape_variables
from servegen.render.bundle import render
from servegen.render.environment import templates_root
from servegen.render.intent import prove
from servegen.render.views import KustomizationView
from tests.unit.plans import POOL, make_plan, make_role, make_split_plan

HOSTILE = [
    'a"b',
    "a'b",
    "a\nb",
    "a\r\nkind: Secret",
    "\n---\nkind: Secret\n",
    "{{ plan }}",
    "{% for x in y %}",
    "$(HOME)",
    "$$(HOME)",
    "$$",
    "`id`",
    "!!python/object/apply:os.system ['id']",
    "a: b",
    "# x",
    " #x",
    "- x",
    "-",
    "--",
    "yes",
    "no",
    "null",
    "~",
    "1e3",
    "0x10",
    "0o17",
    "1.0",
    "\u2028",
    "\u2029",
    "\x85",
    "\ufeff",
    "\U0001f600",
    "\xe9\u0301",
    "&a",
    "*a",
    "|",
    ">",
    "%YAML 1.1",
    "@",
    "\\",
    "\\u0041",
    "\t",
    "",
    " ",
    "x" * 5000,
]
PATCH = "kind: Service\nmetadata: {name: x}"
TEXT = st.sampled_from(HOSTILE) | st.text(max_size=20)


def container(bundle: Bundle) -> dict[str, object]:
    (body,) = documents(bundle.files["kubernetes/deployment-serve.yaml"])
    found: dict[str, object] = body["spec"]["template"]["spec"]["containers"][0]
    return found


@settings(max_examples=60)
@given(TEXT)
def test_an_environment_value_arrives_or_is_refused(value: str) -> None:
    try:
        bundle = render(make_plan(deploy_env={"HOSTILE": value}, deploy_monitoring=False))
    except (RenderError, UserError):
        assert "\0" in value or any("\ud800" <= c <= "\udfff" for c in value)
        return
    env = {e["name"]: unescape_variables(e.get("value", "")) for e in container(bundle)["env"]}  # type: ignore[attr-defined]
    assert env["HOSTILE"] == value
    assert [d["kind"] for d in documents(bundle.files["kubernetes/deployment-serve.yaml"])] == ["Deployment"]


@settings(max_examples=60)
@given(TEXT)
def test_an_argument_arrives_or_is_refused(value: str) -> None:
    try:
        bundle = render(make_plan(deploy_args={"served-model-name": value}, deploy_monitoring=False))
    except (RenderError, UserError):
        return
    args = [unescape_variables(a) for a in container(bundle)["args"]]  # type: ignore[attr-defined]
    assert args[args.index("--served-model-name") + 1] == value


@pytest.mark.parametrize("value", [v for v in HOSTILE if v])
def test_other_places_hold_hostile_text_as_text(value: str) -> None:
    pool = replace(POOL, node_selector={"zone": value}, tolerations=({"key": value, "operator": "Exists"},))
    bundle = render(
        make_plan(pool=(pool,), deploy_image=value, deploy_priority_class=value, deploy_hf_token_secret=(value, value))
    )
    (body,) = documents(bundle.files["kubernetes/deployment-serve.yaml"])
    spec = body["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"zone": value}
    assert spec["tolerations"][0]["key"] == spec["priorityClassName"] == spec["containers"][0]["image"] == value


def test_the_layout_is_stable_and_sorted() -> None:
    plan = make_split_plan()
    first, second = render(plan), render(plan)
    assert first == second
    assert list(first.files) == sorted(first.files)
    assert first.executable == {"launch/prefill.sh", "launch/decode.sh", "launch/router.sh"}
    assert set(first.templates) == set(first.files)
    assert all((templates_root() / name).is_file() for name in first.templates.values())
    assert all(text.endswith("\n") and not text.endswith("\n\n") for text in first.files.values())


def test_the_kustomization_lists_what_there_is() -> None:
    bundle = render(make_split_plan(deploy_patches=(("p/b.yaml", PATCH), ("a.yaml", PATCH + "\n"))))
    (body,) = documents(bundle.files["kubernetes/kustomization.yaml"])
    target = {"kind": "Service", "name": "x"}
    there = {p.removeprefix("kubernetes/") for p in bundle.files if p.startswith("kubernetes/")}
    assert body["resources"] == sorted(f for f in there if "/" not in f and f != "kustomization.yaml")
    assert body["patches"] == [{"path": p, "target": target} for p in ("patches/b.yaml", "patches/a.yaml")], (
        "the spec's order is kept"
    )
    assert bundle.files["kubernetes/patches/b.yaml"] == PATCH + "\n"
    assert body["namespace"] == "llm"
    assert body["labels"][0]["includeSelectors"] is False


@pytest.mark.parametrize("names", [("a/p.yaml", "b/p.yaml"), ("..",), ("",), ("a b.yaml",)])
def test_patches_need_names_of_their_own(names: tuple[str, ...]) -> None:
    with pytest.raises(RenderError, match=r"two patches|no usable file name"):
        render(make_plan(deploy_patches=tuple((name, PATCH) for name in names)))


@pytest.mark.parametrize(
    "text", ["", "a: [", "- {op: remove, path: /spec}", "kind: Service", "a", f"{PATCH}\n---\n{PATCH}"]
)
def test_a_patch_names_one_object(text: str) -> None:
    with pytest.raises(RenderError, match=r"patches/p.yaml"):
        render(make_plan(deploy_patches=(("p.yaml", text),)))


def test_an_engine_without_templates_yields_no_files() -> None:
    assert render(make_plan(choice_engine="vllm", choice_engine_version="0.32.0")).files == {}


def users_template(tmp_path: Path, name: str, old: str, new: str) -> Path:
    text = (templates_root() / "kubernetes" / name).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "kubernetes").mkdir()
    (tmp_path / "kubernetes" / name).write_text(text.replace(old, new), encoding="utf-8")
    return tmp_path


def test_a_users_template_may_add(tmp_path: Path) -> None:
    folder = users_template(
        tmp_path, "service.yaml.j2", '  type: "ClusterIP"', '  type: "ClusterIP"\n  sessionAffinity: "ClientIP"'
    )
    (body,) = documents(render(make_plan(), folder).files["kubernetes/service-serve.yaml"])
    assert body["spec"]["sessionAffinity"] == "ClientIP"


@pytest.mark.parametrize(
    ("name", "old", "new", "field"),
    [
        ("_pod.j2", "{{ word | literal | yaml }}", "{{ word | yaml }}", "args: is not literal"),
        ("_pod.j2", "{{ word | literal | yaml }}", "{{ word | upper | yaml }}", "command: is"),
        ("_pod.j2", "value: {{ variable.value | literal | yaml }}", "value: {{ variable.value }}", "env"),
        ("_pod.j2", "image: {{ p.image | yaml }}", 'image: "other:1"', "image: is"),
        (
            "_pod.j2",
            "terminationGracePeriodSeconds: {{ p.grace_s }}",
            "terminationGracePeriodSeconds: 1",
            "terminationGracePeriodSeconds: is 1",
        ),
        ("deployment.yaml.j2", "  replicas: {{ o.replicas }}", "  replicas: '{{ o.replicas }}'", 'replicas: is "2"'),
        ("deployment.yaml.j2", "spec:\n{% if o.replicas", "---\nspec:\n{% if o.replicas", "documents"),
        ("deployment.yaml.j2", "strategy:", "strategy: [", "is no YAML"),
    ],
)
def test_a_users_template_may_not_change_what_was_planned(
    tmp_path: Path, name: str, old: str, new: str, field: str
) -> None:
    folder = users_template(tmp_path, name, old, new)
    plan = make_plan(deploy_args={"served-model-name": "$(HOME)"}, deploy_env={"N": "1"})
    with pytest.raises(RenderError, match=field) as caught:
        render(plan, folder)
    assert "kubernetes/deployment.yaml.j2" in str(caught.value)


def test_a_shipped_template_may_not_even_add() -> None:
    view = KustomizationView("n", ("a.yaml",), {"k": "v"})
    good = "namespace: n\nlabels: [{includeSelectors: false, pairs: {k: v}}]\nresources: [a.yaml]\n"
    prove("k", good, view, "t", extendable=False)
    more = good.replace("[a.yaml]", "[a.yaml, b.yaml]")
    prove("k", more, view, "t", extendable=True)
    with pytest.raises(RenderError, match="resources: is"):
        prove("k", more, view, "t", extendable=False)
    with pytest.raises(RenderError, match="resources: is missing"):
        prove("k", good.replace("resources", "other"), view, "t", extendable=True)


def test_rendering_leaves_the_plan_alone() -> None:
    plan = make_split_plan(deploy_env={"A": "b"})
    before = copy.deepcopy(plan)
    render(plan)
    assert plan == before


def test_roles_on_pools_of_their_own_ask_for_those_nodes() -> None:
    other = replace(
        POOL, accelerator="l40s-48gb", resource="example.com/gpu", node_selector={"kind": "l40s"}, per_node=4
    )
    plan = make_plan(make_role("prefill", tp=4, pool=1), make_role("decode", tp=8), pool=(POOL, other))
    (body,) = documents(render(plan).files["kubernetes/deployment-prefill.yaml"])
    spec = body["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"kind": "l40s"}
    assert spec["containers"][0]["resources"]["limits"]["example.com/gpu"] == "4"
