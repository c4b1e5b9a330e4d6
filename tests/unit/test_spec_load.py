from __future__ import annotations

import hashlib
import json
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.errors import NotBuiltError, SpecError, UserError, Where
from servegen.spec.load import MAX_BYTES, load, load_all, loads
from servegen.spec.starter import Answers, starter
from servegen.spec.tree import MAX_DEPTH, MAX_NODES, compose, core_scalar, plain

VALID = Path(__file__).parent.parent / "fixtures" / "specs" / "valid"
MINIMAL = (VALID / "minimal.yaml").read_text(encoding="utf-8")
FULL = (VALID / "full.yaml").read_text(encoding="utf-8")


def refused(content: str | bytes) -> SpecError:
    with pytest.raises(SpecError) as caught:
        loads(content, "x.yaml")
    return caught.value


def only(error: UserError) -> tuple[str, str]:
    """(place and code, message) of the one diagnostic."""
    (found,) = error.diagnostics
    return f"{found.where.line}:{found.where.column} {found.code}", found.message


# --- files


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(MINIMAL)
    (loaded,) = load(file)
    assert loaded.file == file.as_posix()
    assert loaded.name == "minimal"
    assert loaded.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_directory_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b.yml", "a.yaml", "c.txt", ".hidden.yaml"):
        (tmp_path / name).write_text(MINIMAL.replace("minimal", f"x-{name.split('.')[0]}"))
    (tmp_path / "patches.yaml").mkdir()
    assert [item.name for item in load(tmp_path)] == ["x-a", "x-b"]


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds no spec"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["absent.yaml", "absent/x.yaml", "nul\0.yaml", "x" * 300])
def test_unreadable_paths(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path / name)
    assert caught.value.diagnostics[0].code == "unreadable"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(MINIMAL)
    file.chmod(0)
    with pytest.raises(SpecError, match="permission denied"):
        load(file)


def test_names_are_unique_over_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MINIMAL)
    (tmp_path / "b.yaml").write_text(MINIMAL)
    with pytest.raises(SpecError) as caught:
        load(tmp_path)
    (found,) = caught.value.diagnostics
    assert (found.code, found.where.file, found.where.line) == ("duplicate-name", (tmp_path / "b.yaml").as_posix(), 4)
    assert f"{(tmp_path / 'a.yaml').as_posix()}:4:9" in found.hint


def test_names_are_unique_over_documents() -> None:
    assert only(refused(f"{MINIMAL}---\n{MINIMAL}"))[0] == "20:9 duplicate-name"


def test_the_good_load_beside_the_bad(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        f"{MINIMAL}---\n{MINIMAL.replace('nodes: 1', 'nodes: 0').replace('minimal', 'second')}"
    )
    (tmp_path / "b.yaml").write_text("a: [")
    (tmp_path / "c.yaml").write_text(MINIMAL.replace("minimal", "third"))
    loaded, errors = load_all([tmp_path, tmp_path / "absent.yaml"])
    assert [item.name for item in loaded] == ["minimal", "third"]
    assert [error.diagnostics[0].code for error in errors] == ["out-of-range", "yaml-syntax", "unreadable"]


def test_not_built_alone_is_an_error_of_its_own() -> None:
    unbuilt = MINIMAL.replace("  traffic:", "  deploy: {gateway: inference-extension}\n  traffic:")
    with pytest.raises(NotBuiltError):
        loads(unbuilt, "x.yaml")
    assert type(refused(unbuilt.replace("nodes: 1", "nodes: 0"))) is SpecError


# --- text


@pytest.mark.parametrize("content", ["", "\n", "# only a comment\n", "---\n---\n", "~\n", "\ufeff"])
def test_nothing(content: str) -> None:
    assert refused(content).diagnostics[0].code == "empty"


@pytest.mark.parametrize("content", ["just text", "- a\n- b\n", "3\n", "true\n"])
def test_no_mapping(content: str) -> None:
    assert only(refused(content)) == ("1:1 wrong-type", "a document must be a mapping (keys with values)")


def test_bom_and_carriage_returns_are_read() -> None:
    windows = "\ufeff" + MINIMAL.replace("\n", "\r\n")
    assert loads(windows, "x.yaml")[0].shown == loads(MINIMAL, "x.yaml")[0].shown
    assert only(refused(windows.replace("nodes: 1", "nodes: 0")))[0] == "14:16 out-of-range"


def test_what_is_not_utf8() -> None:
    assert only(refused(b"apiVersion: servegen/v1alpha1\nkind: \xff\n")) == (
        "2:7 not-utf8",
        "the byte 0xff is not UTF-8",
    )
    for bits in (16, 32):
        assert only(refused(MINIMAL.encode(f"utf-{bits}"))) == ("1:1 not-utf8", f"the file is UTF-{bits}")
    assert only(refused(b"\0\0\xfe\xff" + MINIMAL.encode("utf-32-be")))[1] == "the file is UTF-32"
    assert only(refused("a: \ud800"))[0] == "1:4 not-utf8"


def test_characters_that_yaml_forbids() -> None:
    assert only(refused("a: b\nc: \x07\n")) == ("2:4 bad-text", "the character U+0007 is not allowed in YAML")


def test_a_huge_file() -> None:
    assert only(refused("# " + "x" * MAX_BYTES))[1] == "the file is larger than 1 MiB"


def test_a_long_line() -> None:
    assert only(refused("a: 1\nb: !" + "!" * 70_000))[0] == "2:1 too-large"


def test_a_flood_of_errors_is_cut() -> None:
    flood = ",\n".join(f"k{i}: 1" for i in range(1000))
    assert len(refused(MINIMAL + f"  slo: {{\n{flood}\n  }}\n").diagnostics) == 200


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_deep_nesting(opening: str) -> None:
    found = refused(f"a:\n  {opening * 5000}").diagnostics[0]
    assert (found.code, found.message) == ("too-deep", f"nested deeper than {MAX_DEPTH} levels")
    assert compose(f"a: {'[' * 49}{']' * 49}", "x")


def test_a_billion_laughs() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    start = time.process_time()
    found = refused("\n".join(lines)).diagnostics[0]
    assert (found.code, found.where.line) == ("too-large", 5)
    assert str(MAX_NODES) in found.message
    assert time.process_time() - start < 1


def test_aliases_do_not_add_depth_unseen() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 60)]
    assert refused("\n".join(lines)).diagnostics[0].code == "too-deep"


def test_aliases_stand_where_they_are_used() -> None:
    text = FULL.replace("{mean: 2048, p95: 6000}", "&l {mean: 2048, p95: 9000}").replace("{mean: 512, p95: 1024}", "*l")
    found = refused(text).diagnostics
    assert [(str(d.where), d.code) for d in found] == [("x.yaml:22:31", "out-of-range")] * 2


def test_yaml_versions() -> None:
    assert loads("%YAML 1.2\n---\n" + MINIMAL, "x.yaml")
    assert only(refused("%YAML 1.1\n---\n" + MINIMAL))[1] == "specs are YAML 1.2"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None), ("~", None), ("", None), ("true", True), ("False", False), ("yes", "yes"), ("on", "on"),
        ("12", 12), ("-3", -3), ("+4", 4), ("0o17", 15), ("0x1F", 31), ("017", 17), ("1_000", "1_000"), ("1.34", 1.34),
        ("1e3", 1000.0), (".5", 0.5), ("5.", 5.0), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("=", "="),
        ("-.inf", float("inf")), ("inf", "inf"), ("0o8", "0o8"), ("-0x1", "-0x1"), (".", "."), ("-", "-"),
        ("\u0661", "\u0661"),
    ],
)  # fmt: skip
def test_scalars_by_the_core_schema(text: str, value: object) -> None:
    found = core_scalar(text)
    assert found == value and type(found) is type(value)


@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!|>'\"#%@`,?\n \t\\0x~<.\u202e\x85\ufeff"), max_size=60))
@settings(max_examples=400, deadline=None)
def test_any_text_is_refused_without_a_traceback(text: str) -> None:
    assert refused(text).diagnostics


@given(st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_refused_without_a_traceback(data: bytes) -> None:
    assert refused(data).diagnostics


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["a", "500ms", "\u00e9", "[", "1"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["p95", "mean", "name", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_value_anywhere_is_judged(data: st.DataObject) -> None:
    lines = FULL.splitlines()
    index = data.draw(st.integers(0, len(lines) - 1))
    key = lines[index].partition(":")[0]
    lines[index] = f"{key}: {json.dumps(data.draw(JSON))}"
    try:
        assert len(loads("\n".join(lines), "x.yaml")) == 1
    except UserError as error:
        assert all(d.where.line > 0 and d.message for d in error.diagnostics)
        assert list(error.diagnostics) == sorted(error.diagnostics, key=lambda d: d.where)


# --- where


def test_where() -> None:
    where = loads(FULL, "x.yaml")[0].where
    assert where.at("spec.slo.ttft.p95") == Where("x.yaml", 15, 17)
    assert where.at("spec.slo.ttft") == Where("x.yaml", 15, 11)
    assert where.at("spec.slo") == Where("x.yaml", 14, 3)
    assert where.at("spec.slo.itl.p99") == where.at("spec.slo.itl")
    assert where.at("spec.hardware.pool.1.accelerator") == where.at("spec.hardware.pool[1].accelerator")
    assert where.at("spec.hardware.pool.1.accelerator") == Where("x.yaml", 38, 22)
    assert where.at("spec.hardware.pool.0.nodeSelector.nvidia.com/gpu.product") == Where("x.yaml", 36, 48)
    assert where.key_at("spec.slo.ttft.p99") == Where("x.yaml", 15, 24)
    assert where.at("nowhere.at.all") == Where("x.yaml", 1, 1)


def test_where_in_a_later_document() -> None:
    second = loads(f"{MINIMAL}---\n{MINIMAL.replace('minimal', 'second')}", "x.yaml")[1]
    assert second.where.at("metadata.name") == Where("x.yaml", 20, 9)


def test_plain_values() -> None:
    (document,) = compose("a: [1, 'x', {b: null}]\nc: |\n  text\n", "x")
    value, _ = plain(document.root, "x")
    assert value["a"] == [1, "x", {"b": None}]
    assert [d.code for d in document.diagnostics] == ["bad-text"]


# --- paths that specs name


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "specs" / "own").mkdir(parents=True)
    (tmp_path / "specs" / "own" / "config.json").write_text("{}")
    (tmp_path / "trace.csv").write_text("")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.json").write_text("{}")
    (tmp_path / "specs" / "link.json").symlink_to(tmp_path / "outside" / "secret.json")
    (tmp_path / "specs" / "folder").symlink_to(tmp_path / "outside")
    (tmp_path / "specs" / "inner.json").symlink_to(tmp_path / "specs" / "own" / "config.json")
    file = tmp_path / "specs" / "a.yaml"
    file.write_text(MINIMAL)
    (loaded,) = load(file)
    assert loaded.path("own/config.json").read_text() == "{}"
    assert loaded.path("inner.json").is_file()
    assert loaded.path("../trace.csv").is_file()
    assert loaded.path("folder/../../trace.csv") == tmp_path / "trace.csv"
    key = "spec.model.name"
    for relative, code in [
        ("own/absent.json", "file-missing"),
        ("../absent.csv", "file-missing"),
        ("own", "file-missing"),
        ("link.json", "bad-path"),
        ("folder/secret.json", "bad-path"),
        (str(tmp_path / "trace.csv"), "bad-path"),
    ]:
        with pytest.raises(SpecError) as caught:
            loaded.path(relative, key)
        (found,) = caught.value.diagnostics
        assert (found.code, found.where.line) == (code, 7), relative


def test_paths_from_a_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.yaml").write_text(MINIMAL)
    (tmp_path / "real" / "c.json").write_text("{}")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    assert load(tmp_path / "linked" / "a.yaml")[0].path("c.json").is_file()


# --- the starter


def test_the_starter_loads() -> None:
    text = starter("my-model")
    assert text.startswith("# yaml-language-server: $schema=servegen.schema.json\n")
    spec = loads(text, "x.yaml")[0].spec
    assert (spec.metadata.name, spec.spec.preset, spec.spec.traffic.rate) == ("my-model", "chat", 5.0)


def test_the_starter_with_every_comment_taken_in_loads() -> None:
    text = re.sub(r"^( *)# (?=[a-z0-9]+:|  )", r"\1", starter("x"), flags=re.MULTILINE)
    text = text.replace("namespace:", "priorityClass: high\n    namespace:").removeprefix("yaml-language-server:")
    shown = loads(text, "x.yaml")[0].shown["spec"]
    assert shown["deploy"]["autoscaling"] == "keda"
    assert shown["slo"]["e2e"] == {"p95": "30s"}
    assert shown["constraints"]["spareReplicas"] == 1


def test_the_starter_takes_answers() -> None:
    spec = loads(starter("x", Answers(model="Qwen3-32B", nodes=2, rate="90/min", namespace="1e3")), "x.yaml")[
        0
    ].spec.spec
    assert (spec.model.name, spec.hardware.pool[0].nodes, spec.traffic.rate) == ("Qwen3-32B", 2, 1.5)
    assert spec.deploy.namespace == "1e3"


@pytest.mark.parametrize(
    "answers", [Answers(model="a: b"), Answers(preset="fast"), Answers(nodes=0), Answers(rate="5")]
)
def test_the_starter_refuses_what_would_not_load(answers: Answers) -> None:
    with pytest.raises(SpecError):
        starter("x", answers)


@given(st.text(max_size=20), st.text(max_size=20))
@settings(max_examples=100, deadline=None)
def test_the_starter_writes_exactly_what_was_answered(name: str, model: str) -> None:
    try:
        text = starter(name, Answers(model=model))
    except SpecError:
        return
    spec = loads(text, "x.yaml")[0].spec
    assert (spec.metadata.name, spec.spec.model.name) == (name, model)


# --- speed


def test_loading_is_fast() -> None:
    loads(FULL, "x.yaml")
    start = time.process_time()
    for _ in range(5):
        loads(FULL, "x.yaml")
    assert (time.process_time() - start) / 5 < 0.040
