"""Places and files that are not what a spec says they are: a clear error, and nothing outside is touched or shown."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.proof.harness import Ran, clean_environment, command, process, spec, tree, working_in, write_spec


def build(document: Any, folder: Path) -> Ran:
    return command("build", write_spec(folder / "s.yaml", document), "-o", folder / "out")


# --- Paths


PATHS = ("/etc/passwd", "../outside.json", "a/../../outside.json", "link.json", "folder/outside.json", "~/x.json", "file:///etc/passwd",
         "C:\\x.json", "missing.json", ".", "", "a\\b.json", "nul\x00.json", "x" * 5000 + ".json")  # fmt: skip
KEYS = (
    ("model", lambda path: {"config": path, "checkpoints": {"bf16": "a/b"}}),
    ("traffic__trace", lambda path: path.replace(".json", ".jsonl")),
    ("deploy__overrides", lambda path: {"patches": [path.replace(".json", ".yaml")]}),
)


@pytest.mark.parametrize(("key", "value"), KEYS, ids=[k for k, _ in KEYS])
def test_paths_do_not_lead_astray(key: str, value: Any, tmp_path: Path) -> None:
    home = tmp_path / "specs"
    (home / "a").mkdir(parents=True)
    (home / "folder").symlink_to(tmp_path)
    for ending in ("json", "jsonl", "yaml"):
        (tmp_path / f"outside.{ending}").write_text('{"secret": "s3cr3t"}\n')
        (home / f"link.{ending}").symlink_to(tmp_path / f"outside.{ending}")
    for path in PATHS:
        changes = {key: value(path)} | (
            {"traffic__rate": None, "traffic__isl": None, "traffic__osl": None} if "trace" in key else {}
        )
        ran = command("build", write_spec(home / "s.yaml", spec(**changes)), "-o", tmp_path / "out")
        # `..` may be written: it is the user's own folder; what it names still has to be what the key wants.
        place = r"s\.yaml:\d+:\d+: error\[|outside\.\w+:\d+(:\d+)?: error\[|s\.yaml:\d+:\d+\) names this file"
        assert ran.code == 1 and re.search(place, ran.err), (path, ran)
        assert "s3cr3t" not in ran.err + ran.out and "Traceback" not in ran.err
        assert not (tmp_path / "out").exists()


def test_an_output_folder_through_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "chat").symlink_to(tmp_path / "elsewhere")
    ran = build(spec(), tmp_path)
    assert ran.code == 1 and "symbolic link" in ran.err and list((tmp_path / "elsewhere").iterdir()) == []


def test_a_spec_through_a_link_or_from_a_device(tmp_path: Path) -> None:
    write_spec(tmp_path / "real.yaml", spec())
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "dangling.yaml").symlink_to("nothing.yaml")
    assert command("validate", tmp_path / "link.yaml").code == 0
    for name in ("loop.yaml", "dangling.yaml", "nothing.yaml"):
        ran = command("validate", tmp_path / name)
        assert ran.code == 1 and name in ran.err and "error[" in ran.err
    assert command("validate", "/dev/null").code == 1
    ran = command("validate", "/dev/zero", patience_s=5)
    assert ran.code == 1 and "too-large" in ran.err


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[Path]:
    """A folder that even root cannot write to: bound read-only, where this user may."""
    place = tmp_path / "sealed"
    place.mkdir()
    if os.geteuid():
        place.chmod(0o555)
        yield place
        place.chmod(0o755)
        return
    bound = shutil.which("mount") and not subprocess.run(
        ["sh", "-c", f"mount --bind '{place}' '{place}' && mount -o remount,ro,bind '{place}'"], capture_output=True
    ).returncode  # fmt: skip
    if not bound:
        subprocess.run(["umount", "-l", str(place)], capture_output=True)
        pytest.skip("root writes anywhere, and the kernel lets it bind nothing read-only here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_place_that_cannot_be_written_is_named(sealed: Path, tmp_path: Path) -> None:
    file = write_spec(tmp_path / "s.yaml", spec())
    for out in (sealed, sealed / "out", sealed / "a" / "b"):
        ran = command("build", file, "-o", out)
        assert ran.code == 1 and "error[io]" in ran.err and str(sealed) in ran.err, ran
        assert re.search("Read-only file system|Permission denied", ran.err)
    with working_in(sealed):
        ran = command("init", "--yes")
        assert ran.code == 1 and "error[" in ran.err, ran


def test_a_place_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = write_spec(tmp_path / "s.yaml", spec())
    for path in (tmp_path / "s.yaml" / "below", tmp_path / "no" / "such.yaml", tmp_path / ("x" * 300)):
        ran = command("build", path, "-o", tmp_path / "out")
        assert ran.code == 1 and "error[" in ran.err and str(path)[:60] in ran.err
    for out in (file, file / "below", Path("/proc/nope"), Path("/dev/null")):
        ran = command("build", file, "-o", out)
        assert ran.code == 1 and "error[" in ran.err, (out, ran)
    assert json.loads(file.read_text()) == spec()


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="takes root, to become nobody")
def test_a_spec_without_permission_is_named(tmp_path: Path) -> None:
    place = Path("/var/tmp") / f"servegen-proof-{os.getpid()}"
    place.mkdir(mode=0o755)
    try:
        file = write_spec(place / "s.yaml", spec())
        file.chmod(0)
        nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        ran = process("validate", file, prefix=nobody)
        if "No module named" in ran.err or "can't open" in ran.err or ran.code == 127 or "Permission denied: '/" in ran.err:
            pytest.skip("nobody may not run this Python")
        assert ran.code == 1 and "ermission denied" in ran.err and str(file) in ran.err and "Traceback" not in ran.err, ran
    finally:
        shutil.rmtree(place)


LOCKS: tuple[tuple[Any, str], ...] = (
    ("[" * 100_000, "nested too deeply"),
    ("1e999", "holds no object"),
    ("{", "double quotes"),
    (lambda plan: plan["choice"].update(roles=[]), "aggregated serving has the roles serve"),
    (lambda plan: plan["choice"]["roles"][0].update(tp="x"), "choice.roles[0].tp: \"x\" is no whole number"),
    (lambda plan: plan["choice"]["roles"][0].update(tp=-4), "choice.roles[0].tp: -4 is below 0"),
    (lambda plan: plan["choice"]["roles"][0].update(tp=0), "at least 1 each"),
    (lambda plan: plan["choice"]["roles"][0].update(pool=7), "no entry of the pool"),
    (lambda plan: plan["missing"][0].update(role="x"), "a role that the plan does not have"),
    (lambda plan: plan["choice"].update(devices=99), "devices is not the sum"),
    (lambda plan: plan["traffic"].update(isl_mean=float("nan")), "NaN is no number"),
    (lambda plan: plan["choice"].update(engine="nope"), "another name or engine"),
    (lambda plan: plan.update(name="../evil"), "another name or engine"),
    (lambda plan: plan.update(more=1), "no field 'more'"),
)


@pytest.mark.parametrize(("change", "says"), LOCKS, ids=[says for _, says in LOCKS])
def test_a_plan_that_somebody_edited_is_refused_or_stale(change: Any, says: str, tmp_path: Path) -> None:
    assert build(spec(), tmp_path).code == 0
    lock = tmp_path / "out" / "chat" / "plan.lock.json"
    plan = json.loads(lock.read_text())
    if not isinstance(change, str):
        change(plan)
    lock.write_text(change if isinstance(change, str) else json.dumps(plan))
    before = tree(tmp_path)
    ran = command("build", tmp_path / "s.yaml", "-o", tmp_path / "out", "--locked")
    assert (ran.code, ran.out) == (2 if "another" in says else 1, "") and says in ran.err, ran
    assert tree(tmp_path) == before


def test_a_template_that_includes_itself_is_told(tmp_path: Path) -> None:
    own = tmp_path / "own" / "kubernetes"
    own.mkdir(parents=True)
    (own / "service.yaml.j2").write_text("{% include 'kubernetes/service.yaml.j2' %}")
    ran = command("build", write_spec(tmp_path / "s.yaml", spec()), "-o", tmp_path / "out", "--templates", tmp_path / "own")
    assert ran.code == 1 and "service.yaml.j2" in ran.err and "more than 250 templates" in ran.err
    assert not (tmp_path / "out").exists()


def test_specs_of_a_folder_are_found_as_json_too(tmp_path: Path) -> None:
    write_spec(tmp_path / "json.yaml", spec())
    (tmp_path / "values.yaml").write_text("apiVersion: v1\nkind: Pod\n")
    ran = command("validate", tmp_path)
    assert ran.code == 0 and "chat: ok" in ran.out and "values.yaml has no apiVersion" in ran.err, ran


# --- Files that a spec names


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"{}", b'{"model_type": "llama"}', b'{"model_type": 1}', b"\xff\xfe", b"[" * 100_000,
        b'{"a": NaN}',
        b'{"architectures": ["LlamaForCausalLM"], "hidden_size": "x", "num_hidden_layers": -1}',
        b'{"architectures": [7], "hidden_size": 1e999, "num_hidden_layers": 1e400}',
        b'{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 1000000000}',
    ],
)  # fmt: skip
def test_a_config_that_is_none(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(data)
    ran = build(spec(model={"config": "config.json", "checkpoints": {"bf16": "a/b"}}), tmp_path)
    assert ran.code == 1 and re.search(r"s\.yaml:\d+:\d+: error", ran.err), ran
    assert not (tmp_path / "out").exists()


HEAD = b"arrival_s,input_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "trace-empty"), (b"\n", "trace-empty"), (HEAD, "trace-empty"), (b"{}\n", "trace-format"),
        (b"a,b\n1,2\n", "trace-format"), (HEAD + b"1,2\n", "trace-line"), (HEAD + b"nan,1,1\n", "trace-line"),
        (HEAD + b"0,-1,1\n", "trace-line"), (b"\xff\xff", "trace-file"), (HEAD + b"0,1e30,1\n", "trace-line"),
        (HEAD + b"0,1,1\n", "trace-empty"), (b'"' * 200_000, "trace-empty"), (gzip.compress(b"x", mtime=0)[:-4], "trace-file"),
        (b'{"timestamp": ' + b"[" * 100_000, "trace-line"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.csv.gz"])
def test_a_trace_that_is_none(data: bytes, says: str, name: str, tmp_path: Path) -> None:
    """The fault stands at the trace's own line, and who named the file is told, too."""
    (tmp_path / name).write_bytes(data)
    ran = build(spec(traffic={"trace": name}), tmp_path)
    code = says if not name.endswith("gz") or not data else "trace-file"  # not compressed at all
    assert ran.code == 1 and re.search(rf"{re.escape(name)}(:\d+)*: error\[{code}\]", ran.err), ran
    assert re.search(r"spec\.traffic\.trace \(\S*s\.yaml:\d+:\d+\) names this file", ran.err), ran
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "data", [b"", b"[", b"a", b"- a", b"kind: Deployment", b"kind: 7\nmetadata: 8", b"\xff", b"a: *b", b"a: !!x y"]
)
def test_a_patch_that_is_none(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_bytes(data)
    ran = build(spec(deploy__overrides={"patches": ["p.yaml"]}), tmp_path)
    assert ran.code == 1 and re.search(r"s\.yaml:\d+:\d+", ran.err), ran
    assert not (tmp_path / "out").exists()


def test_a_patch_with_a_typo_is_found(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("kind: Deployment\nmetadata: {name: chat-serve}\nspec: {minReadySecond: 7}\n")
    ran = build(spec(deploy__overrides={"patches": ["p.yaml"]}), tmp_path)
    assert ran.code == 1 and "did you mean minReadySeconds?" in ran.err


# --- Files and figures of the command line

SERVING = "id,silicon_ttft_ms,silicon_tpot_ms,model_path,system,backend\n1,1,1,m,h100_sxm,vllm\n"
SGLANG = (
    '{"backend": "sglang", "completed": 5, "mean_ttft_ms": 1, "mean_tpot_ms": 1, "max_concurrency": 4, "random_input_len": 9,'
    ' "random_output_len": 9, "dataset_name": "random", "model_id_": "x", "tp": 1, "model": "llama-3.1-8b",'
    ' "accelerator": "h100-sxm-80gb"}'
)
RESULTS = (
    "[" * 100_000, SGLANG + "\n" + "[" * 100_000, SERVING, '{"a": ' + "9" * 5000 + "}",
    SGLANG.replace('"completed": 5', '"completed": -5'), SGLANG.replace('"completed": 5', '"completed": 1' + "0" * 400),
    SGLANG.replace('"max_concurrency": 4', '"max_concurrency": 1e18'), SGLANG.replace('"tp": 1', '"tp": -3'),
    SGLANG.replace('"random_input_len": 9', '"random_input_len": NaN'), SGLANG.replace('len": 9', 'len": 1e300'),
    "Metric,Value\nRequest Count,inf\n", "a,b\n" + "x" * 200_000 + ",1\n",
)  # fmt: skip


@pytest.mark.parametrize("text", RESULTS, ids=[t[-24:].strip() for t in RESULTS])
def test_results_that_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "results.txt").write_text(text)
    ran = command("calibrate", tmp_path / "results.txt", "--score")
    assert ran.code == 1 and "results.txt" in ran.err and "bug in servegen" not in ran.err, ran


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_file_that_is_no_regular_one(kind: str, tmp_path: Path) -> None:
    place = {"pipe": tmp_path / "pipe.json", "device": Path("/dev/zero"), "folder": tmp_path}[kind]
    if kind == "pipe":
        os.mkfifo(place)
    llama = ("estimate", "--model", "llama-3.1-8b", "--accelerator", "h100-sxm-80gb", "--calibration", place)
    for line in (("calibrate", place, "--score"), ("estimate", "--from", place), llama):
        ran = command(*line, patience_s=10)
        assert ran.code == 1 and str(place) in ran.err and re.search("regular file|is a directory", ran.err, re.I), ran


@pytest.mark.parametrize("rows", ["0,1,1\n1e15,1,1\n", "-1e308,1,1\n1e308,1,1\n"])
def test_a_trace_of_a_thousand_years(rows: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(HEAD + rows.encode())
    ran = build(spec(traffic={"trace": "t.csv"}), tmp_path)
    assert ran.code == 1 and re.search(r"t\.csv:3:1: error\[trace-line\].*years", ran.err), ran


def test_figures_beyond_all_bounds_are_usage_errors(tmp_path: Path) -> None:
    file = write_spec(tmp_path / "s.yaml", spec())
    for line, flag in ((("simulate", file, "--requests", 10**12), "--requests"), (("estimate", "--batch", 10**30), "--batch")):
        ran = command(*line)
        assert ran.code == 1 and flag in ran.err and "bug in servegen" not in ran.err, ran
    table = tmp_path / "t.csv"
    head = "id,engine,model,accelerator,isl,osl,concurrency,mode,prefill_workers,chunk\n"
    table.write_text(
        head + "a,vllm,llama-3.1-8b,h100-sxm-80gb,9,9,1,disaggregated,1e18,\nb,vllm,llama-3.1-8b,h100-sxm-80gb,9,9,1,,,1e308\n"
    )
    ran = command("estimate", "--from", table)
    assert ran.code == 0 and ran.out.count("is more than") == 2, ran


def test_places_with_names_too_long_are_told(tmp_path: Path) -> None:
    file, long = write_spec(tmp_path / "s.yaml", spec()), tmp_path / ("x" * 300)
    ran = command("build", file, "-o", long)
    assert ran.code == 1 and "error[io]" in ran.err and "x" * 300 in ran.err, ran
    for place in (long, tmp_path / "missing"):
        ran = command("build", file, "-o", tmp_path / "out", "--templates", place)
        assert ran.code == 1 and "--templates" in ran.err and "s.yaml" not in ran.err, ran


def test_a_template_that_wants_all_memory_is_told(tmp_path: Path) -> None:
    own = tmp_path / "own" / "kubernetes"
    own.mkdir(parents=True)
    (own / "service.yaml.j2").write_text("{{ 'x' * 10 ** 10 }}")
    ran = command("build", write_spec(tmp_path / "s.yaml", spec()), "-o", tmp_path / "out", "--templates", tmp_path / "own")
    assert ran.code == 1 and "service.yaml.j2:1" in ran.err, ran


def test_a_patch_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("[" * 50_000)
    ran = build(spec(deploy__overrides={"patches": ["p.yaml"]}), tmp_path)
    assert ran.code == 1 and "p.yaml" in ran.err and "bug in servegen" not in ran.err, ran


@pytest.mark.parametrize("change", [{"spec": []}, {"spec": 7}, {"spec": {"slo": "x"}}, {"spec": {"traffic": "x"}}], ids=str)
def test_a_lock_whose_spec_is_another_type(change: Any, tmp_path: Path) -> None:
    assert build(spec(), tmp_path).code == 0
    lock = tmp_path / "out" / "chat" / "plan.lock.json"
    plan = json.loads(lock.read_text())
    plan["spec"] = change
    lock.write_text(json.dumps(plan))
    ran = command("simulate", lock, "--requests", 10)
    assert ran.code == 1 and str(lock) in ran.err and "error[bad-lock]" in ran.err, ran


EDITS: tuple[tuple[tuple[str | int, ...], Any, str], ...] = (
    (("cases", 0, "end"), "x", "cases[0].end: 'x' is not one of low, best, high"),
    (("choice", "topology"), "x", "choice.topology: 'x' is not one of"),
    (("choice", "roles", 0, "role"), "x", "choice.roles[0].role: 'x' is not one of"),
    (("choice", "roles", 0, "checkpoint_bytes"), None, "choice.roles[0].checkpoint_bytes: null is no number"),
    (("choice", "roles"), "x", 'choice.roles: "x" is no array'),
    (("choice",), None, "choice: null is no object"),
    (("traffic", "isl_mean"), None, "traffic.isl_mean: null is no number"),
    (("traffic", "osl_mean"), None, "traffic.osl_mean: null is no number"),
    (("traffic", "longest_output"), 1.5, "traffic.longest_output: 1.5 is no whole number"),
    (("deploy", "cache", "size_bytes"), None, "deploy.cache.size_bytes: null is no number"),
    (("deploy", "autoscaling"), "x", "deploy.autoscaling: 'x' is not one of none, hpa, keda"),
    (("deploy", "env"), [], "deploy.env: [] is no object"),
    (("pool", 0, "node_memory_bytes"), None, "pool[0].node_memory_bytes: null is no number"),
    (("pool", 0, "price_per_hour"), -1, "pool[0].price_per_hour: -1 is below 0"),
    (("prediction", "ttft", "p95"), None, ""),
    (("prediction", "ttft"), None, "prediction.ttft: null is no object"),
)


@pytest.mark.parametrize(("path", "value", "says"), EDITS, ids=[f"{'.'.join(map(str, p))} {v}" for p, v, _ in EDITS])
def test_a_lock_that_was_edited(path: tuple[Any, ...], value: Any, says: str, tmp_path: Path) -> None:
    assert build(spec(), tmp_path).code == 0
    lock = tmp_path / "out" / "chat" / "plan.lock.json"
    plan = node = json.loads(lock.read_text())
    for key in path[:-1]:
        node = node[key]
    assert path[-1] in node or isinstance(node, list)
    node[path[-1]] = value
    lock.write_text(json.dumps(plan))
    ran = command("build", tmp_path / "s.yaml", "-o", tmp_path / "out", "--locked")
    assert "bug in servegen" not in ran.err, ran
    assert not says or (ran.code == 1 and "error[bad-lock]" in ran.err and str(lock) in ran.err and says in ran.err), ran


def test_a_key_that_stands_twice_in_a_lock(tmp_path: Path) -> None:
    assert build(spec(), tmp_path).code == 0
    lock = tmp_path / "out" / "chat" / "plan.lock.json"
    lock.write_text(lock.read_text().replace('"devices":', '"devices": 1, "devices":', 1))
    ran = command("build", tmp_path / "s.yaml", "-o", tmp_path / "out", "--locked")
    assert ran.code == 1 and "the key 'devices' stands twice in one object" in ran.err, ran


@pytest.mark.parametrize("name", ["UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO"])
def test_a_variable_that_bash_lets_nobody_set(name: str, tmp_path: Path) -> None:
    ran = build(spec(deploy__overrides={"env": {name: "1"}}), tmp_path)
    assert ran.code == 1 and re.search(r"s\.yaml:\d+:\d+: error\[", ran.err) and "bash" in ran.err, ran


def test_a_spec_may_come_through_a_pipe(tmp_path: Path) -> None:
    """As bash's <(...) gives one."""
    file = write_spec(tmp_path / "s.yaml", spec())
    ran = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m servegen validate <(cat {file})"],
        capture_output=True, text=True, env=clean_environment(), timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran


def test_a_pipe_into_which_nobody_writes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for line in (("validate", tmp_path / "pipe"), ("build", tmp_path / "pipe", "-o", tmp_path / "out")):
        ran = command(*line, patience_s=20)
        assert ran.code == 1 and "it is a pipe, and nothing came through it" in ran.err, ran
    assert not (tmp_path / "out").exists()


def test_a_pipe_whose_writer_falls_silent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["bash", "-c", f"exec > {tmp_path / 'pipe'}; echo 'kind: x'; exec sleep 30"]) as writer:
        ran = command("validate", tmp_path / "pipe", patience_s=20)
        writer.kill()
    assert ran.code == 1 and "it is a pipe, and nothing came through it" in ran.err and "pipe: error" in ran.err, ran


@pytest.mark.parametrize("folder", ["/proc/models", "/sys", "//dev/./x", "/./proc/x"])
def test_a_cache_in_a_folder_of_the_kernel(folder: str, tmp_path: Path) -> None:
    ran = command("validate", write_spec(tmp_path / "s.yaml", spec(deploy__modelCache={"hostPath": folder})))
    told = re.search(r"s\.yaml:\d+:\d+: error\[bad-path\].*hostPath: /(proc|sys|dev) is the kernel's", ran.err)
    assert ran.code == 1 and told, ran


def test_an_output_folder_without_a_name(tmp_path: Path) -> None:
    """What an unset variable leaves is not the folder where one is."""
    ran = command("build", write_spec(tmp_path / "s.yaml", spec()), "-o", "")
    assert ran.code == 1 and "it is empty" in ran.err, ran


@pytest.mark.parametrize("place", ["file", "file/below", "dangling", "pipe", "loop"])
@pytest.mark.parametrize("flags", [(), ("--check",), ("--diff",), ("--locked",)], ids=["build", "check", "diff", "locked"])
def test_an_output_folder_that_is_none_is_told_so(place: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    ran = command("build", write_spec(tmp_path / "s.yaml", spec()), "-o", tmp_path / place, *flags, patience_s=10)
    assert ran.code == 1 and "error[no-folder]: the output must be a folder, and " in ran.err and "-o" in ran.err, ran
    assert (tmp_path / "file").read_text() == "mine" and "File exists" not in ran.err


def test_what_stands_in_the_output_is_read_within_bounds(tmp_path: Path) -> None:
    """A file of the size of a disk, or a pipe, in the place of one of ours: compared without being read, or never opened."""
    file = write_spec(tmp_path / "s.yaml", spec())
    assert command("build", file, "-o", tmp_path / "out").code == 0
    page = tmp_path / "out" / "chat" / "PLAN.md"
    os.truncate(page, 2**40)
    assert command("build", file, "-o", tmp_path / "out", "--check", patience_s=10).code == 2
    ran = command("build", file, "-o", tmp_path / "out", "--diff", patience_s=10)
    assert ran.code == 1 and "larger than" in ran.err and "PLAN.md" in ran.err, ran
    page.unlink()
    os.mkfifo(page)
    assert command("build", file, "-o", tmp_path / "out", "--check", patience_s=10).code == 2
    page.unlink()
    os.truncate(tmp_path / "out" / "chat" / "files.lock", 2**40)
    ran = command("build", file, "-o", tmp_path / "out", patience_s=10)
    assert ran.code == 1 and "larger than" in ran.err and "files.lock" in ran.err, ran
    assert (tmp_path / "out" / "chat" / "files.lock").stat().st_size == 2**40
