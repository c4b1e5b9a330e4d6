"""Text that means something to YAML, a shell, Jinja, the kubelet or a terminal: it comes out as text, or is refused."""

from __future__ import annotations

import bisect
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from servegen.manifest import documents as parsed
from servegen.manifest import unescape_variables
from tests.proof.harness import Ran, command, spec, tree, write_spec

#: Printable, so that YAML and the language let it in: what remains must be quoted by whoever writes it out.
PRINTABLE = (
    "'", '"', "''", '"""', "\\", "\\n", "\\\\", "`id`", "$(id)", "$$(id)", "$$$$(HOME)", "$HOME", "${HOME}", "${x:-`id`}",
    "$", "$$", "{{ 7 * 7 }}", "{% raw %}", "{# x", "#}", "%s %d %", "!!python/name:os.system", "!x", "*a", "&a", "<<",
    "- a", "a: b", ": ", "#x", " # x", "|", ">", "? x", "@a", "null", "~", "true", "yes", "0x10", "1e3", "1_000", ".inf",
    "---", "...", "[", "]", "{", "}", ",", "; rm -rf /", "&& true", "| cat", "> /dev/null", "a b", " a", "a ", "é", "日本語",
    "😀", "x" * 500, "--port", "-", "=", "a=b", "", "!", "!!", "^", "~root", "*", "?", "(", ")", "<(id)", "\u00e9", "EOF",
    "\\x41", "$'\\n'", "'\"'\"'", "%{x}", "<%= x %>", "</script>",
)  # fmt: skip
#: Invisible: refused wherever they stand.
INVISIBLE = (
    "\n", "\r", "\t", "\x00", "\x07", "\x1b[31m", "\x7f", "\x85", "\u2028", "\u2029", "\u200b", "\u200f", "\u202e",
    "\u2066", "\ufeff",
)  # fmt: skip

#: Every key that takes text: (path below spec, what is put around the hostile text).
NAMES: tuple[tuple[str, Any], ...] = (
    ("model__name", "{}"),
    ("model__checkpoints", {"bf16": "{}"}),
    ("hardware__pool__0__accelerator", "{}"),
    ("hardware__pool__0__resource", "{}"),
    ("hardware__pool__0__nodeSelector", {"zone": "{}"}),
    ("hardware__pool__0__nodeSelector", {"{}": "a"}),
    ("hardware__pool__0__tolerations", [{"key": "{}", "operator": "Exists"}]),
    ("hardware__pool__0__fabric", {"bandwidth": "1GB/s", "resource": "{}"}),
    ("deploy__namespace", "{}"),
    ("deploy__image", "{}"),
    ("deploy__imagePullSecrets", ["{}"]),
    ("deploy__engineVersion", "{}"),
    ("deploy__modelCache", {"claim": "{}"}),
    ("deploy__modelCache", {"hostPath": "/{}"}),
    ("deploy__modelCache", {"size": "1TB", "storageClass": "{}"}),
    ("deploy__hfTokenSecret", {"name": "{}"}),
    ("deploy__hfTokenSecret", {"name": "hf", "key": "{}"}),
    ("deploy__priorityClass", "{}"),
    ("deploy__runtimeClass", "{}"),
    ("deploy__networkPolicy", {"from": [{"podSelector": {"matchLabels": {"a": "{}"}}}]}),
    ("deploy__networkPolicy", {"from": [{"ipBlock": {"cidr": "{}"}}]}),
    ("deploy__overrides", {"env": {"{}": "x"}}),
    ("deploy__overrides", {"args": {"{}": 1}}),
)


def filled(shape: Any, text: str) -> Any:
    if isinstance(shape, str):
        return shape.replace("{}", text)
    if isinstance(shape, list):
        return [filled(item, text) for item in shape]
    if not isinstance(shape, dict):
        return shape
    return {filled(key, text): filled(value, text) for key, value in shape.items()}


def build(document: Any, folder: Path) -> Ran:
    return command("build", write_spec(folder / "s.yaml", document), "-o", folder / "out")


@pytest.mark.parametrize(("key", "shape"), NAMES, ids=[f"{k} {json.dumps(s)}" for k, s in NAMES])
def test_a_name_is_itself_or_is_refused(key: str, shape: Any, tmp_path: Path) -> None:
    """Names have grammars: nothing that needs quoting is in any of them, and the refusal stands at its line."""
    texts = (*PRINTABLE, *INVISIBLE)
    documents = [json.dumps(spec(name=f"t{i}", **{key: filled(shape, text)}), indent=1) for i, text in enumerate(texts)]
    starts = list(itertools.accumulate((text.count("\n") + 2 for text in documents), initial=1))
    (tmp_path / "s.yaml").write_text("\n---\n".join(documents))
    ran = command("validate", tmp_path / "s.yaml", "--format", "json")
    entries = json.loads(ran.out)
    taken = {int(entry["name"][1:]) for entry in entries if entry["valid"]}
    found = [d for entry in entries for d in entry["diagnostics"]]
    refused = {bisect.bisect_right(starts, d["line"]) - 1 for d in found}
    assert taken | refused == set(range(len(texts))) and not taken & refused
    assert len(refused) >= len(texts) / 2
    assert all(re.fullmatch(r"[\w./@+ :%-]*", texts[i], re.ASCII) for i in taken), [texts[i] for i in taken]
    for i in sorted(taken)[:1]:
        ran = build(spec(**{key: filled(shape, texts[i])}), tmp_path)
        # A flag has the right letters, and no engine has it.
        unknown = key == "deploy__overrides" and "args" in shape
        assert ran.code == int(unknown) and bool(re.search(r"s\.yaml:\d+:\d+", ran.err)) == unknown, (texts[i], ran)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


@pytest.mark.parametrize("text", INVISIBLE, ids=repr)
def test_invisible_text_is_refused_anywhere(text: str, tmp_path: Path) -> None:
    for document in (
        spec(deploy__overrides={"env": {"A": f"a{text}b"}}),
        spec(deploy__overrides={"args": {"schedule-policy": f"a{text}b"}}),
        spec(name=f"a{text}b"),
        spec(**{f"model__na{text}me": "x"}),
    ):
        ran = build(document, tmp_path)
        assert ran.code == 1 and re.search(r"s\.yaml:\d+:\d+: error", ran.err), ran
        assert all(line.isprintable() for line in ran.err.split("\n"))
        assert not (tmp_path / "out").exists()


def test_environment_and_flags_come_out_as_they_went_in(tmp_path: Path) -> None:
    """Through YAML, Jinja and the kubelet's expansion on one way, through bash on the other."""
    env = {f"V{i}": text for i, text in enumerate(PRINTABLE)}
    served = 'it\'s a "name" with $(id) `id` {{ x }} $HOME \\ and é'
    ran = build(spec(deploy__overrides={"env": env, "args": {"served-model-name": served}}), tmp_path)
    assert ran.code == 0, ran
    files = tree(tmp_path / "out" / "chat")
    (deployment,) = parsed(files["kubernetes/deployment-serve.yaml"][0].decode())
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    # The kubelet halves `$$` and would replace `$(NAME)`; what it makes of the value is what was stated.
    got = {e["name"]: unescape_variables(e["value"]) for e in container["env"] if "value" in e}
    assert {name: got[name] for name in env} == env
    words = [unescape_variables(word) for word in container["args"]]
    assert words[words.index("--served-model-name") + 1] == served

    script = tmp_path / "out" / "chat" / "launch" / "serve.sh"
    stand_in = tmp_path / "bin" / "python3"
    stand_in.parent.mkdir()
    stand_in.write_text('#!/bin/sh\nenv -0 > "$RECORD.env"\nprintf "%s\\0" "$@" > "$RECORD.args"\n')
    stand_in.chmod(0o755)
    record = tmp_path / "record"
    subprocess.run([script], env={"PATH": f"{stand_in.parent}:/usr/bin:/bin", "RECORD": str(record)}, check=True)
    seen = dict(line.partition("=")[::2] for line in Path(f"{record}.env").read_text(encoding="utf-8").split("\0") if line)
    assert {name: seen.get(name) for name in env} == env
    words = Path(f"{record}.args").read_text(encoding="utf-8").split("\0")
    assert words[words.index("--served-model-name") + 1] == served
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "out", "record.args", "record.env", "s.yaml"], "nothing was run"


def test_the_page_for_reviewers_shows_text_as_text(tmp_path: Path) -> None:
    """Everything that the spec states stands in a code span, which nothing in it can end."""
    values = ("| [x](javascript:1) <img src=x> {{ 7 * 7 }}", "`<img src=x>`", "``` <img src=x>", "a | b")
    ran = build(spec(deploy__overrides={"env": {f"V{i}": value for i, value in enumerate(values)}}), tmp_path)
    assert ran.code == 0
    page = (tmp_path / "out" / "chat" / "PLAN.md").read_text(encoding="utf-8")
    outside = re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", page)
    assert "<img" not in outside and "javascript" not in outside and all(f"V{i}" in page for i in range(len(values)))


# --- YAML


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &a [*a]\n", "yaml-alias"),
        ("a: *b\n", "yaml-alias"),
        ("<<: {a: 1}\n", "yaml-merge"),
        ("a:\n\t- b\n", "yaml-syntax"),
        ("a: !!python/object/apply:os.system [id]\n", "yaml-tag"),
        ("a: !!binary aGk=\n", "yaml-tag"),
        ("a: .nan\n", "out-of-range"),
        ("a: -.inf\n", "out-of-range"),
        ("a: " + "9" * 400 + "\n", "out-of-range"),
        ("a: 1\na: 2\n", "duplicate-key"),
        ("? [a, b]\n: c\n", "wrong-type"),
        ("1: a\n", "wrong-type"),
        ("a: " + "[" * 2000 + "\n", "too-deep"),
        ("{" * 60 + "\n", "too-deep"),
        ("%YAML 1.1\n---\na: 1\n", "yaml-version"),
        ("a: 'x\n", "yaml-syntax"),
        ("a: |\n  x\n", "bad-text"),
        ("- a\n", "wrong-type"),
        ("text\n", "wrong-type"),
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("a: " + "x" * 70_000 + "\n", "too-large"),
        ("a: 1\n" * 300_000, "too-large"),
        ("\x00", "bad-text"),
    ],
)
def test_yaml_that_is_out_of_bounds(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_bytes(text.encode())
    ran = command("build", file, "-o", tmp_path / "out", patience_s=10)
    assert ran.code == 1 and f"error[{says}]" in ran.err, ran.err[:500]
    assert re.search(r"s\.yaml:[1-9]\d*:[1-9]\d*: error", ran.err), ran.err[:500]
    assert not (tmp_path / "out").exists()


def test_a_billion_laughs_end_quickly(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    file = tmp_path / "s.yaml"
    file.write_text("\n".join(lines))
    ran = command("build", file, patience_s=5)
    assert ran.code == 1 and "too-large" in ran.err


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp1252", "shift_jis"])
def test_other_encodings_are_refused_at_their_place(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_bytes(("# é\n" + json.dumps(spec())).replace("é", "é" if encoding != "shift_jis" else "日").encode(encoding))
    ran = command("build", file, "-o", tmp_path / "out")
    assert ran.code == 1 and re.search(r"s\.yaml:1:\d+: error\[(not-utf8|bad-text)\]", ran.err), ran


def test_what_editors_of_other_systems_write_is_read(tmp_path: Path) -> None:
    text = json.dumps(spec(), indent=2)
    plain = write_spec(tmp_path / "plain.yaml", spec())
    expected = command("plan", plain, "-o", "json").out
    for data in (b"\xef\xbb\xbf" + text.encode(), text.replace("\n", "\r\n").encode(), text.replace("\n", "\r").encode()):
        (tmp_path / "other.yaml").write_bytes(data)
        assert command("plan", tmp_path / "other.yaml", "-o", "json").out == expected


def test_anchors_and_documents_are_yaml(tmp_path: Path) -> None:
    text = json.dumps(spec(name="one")).replace('"isl": 1024', '"isl": &l 1024').replace('"osl": 128', '"osl": *l')
    (tmp_path / "s.yaml").write_text(f"{text}\n---\n{json.dumps(spec(name='two', traffic__rate='1'))}\n---\n")
    ran = command("build", tmp_path / "s.yaml", "-o", tmp_path / "out")
    assert ran.code == 1 and "one: created" in ran.out and re.search(r"s\.yaml:3:\d+: error\[wrong-unit\]", ran.err), ran
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["one"], "the good one is built, the bad one is not"
