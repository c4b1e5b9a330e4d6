"""Nothing is lost: whatever ends a build, ``out/`` holds a whole tree, and what a user put there stays."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof.harness import ROOT, clean_environment, command, process, spec, tree, write_spec

KILLS = 50
CHANGES = {
    "old": {"traffic__rate": "5/s", "deploy__monitoring": True},
    "new": {"traffic__rate": "20/s", "deploy__autoscaling": "hpa", "deploy__namespace": "llm"},
}


@pytest.fixture
def two_specs(tmp_path: Path) -> dict[str, Path]:
    """Two versions of one spec, whose trees differ in most files."""
    return {name: write_spec(tmp_path / f"{name}.yaml", spec(**changes)) for name, changes in CHANGES.items()}


def built(two_specs: dict[str, Path], folder: Path) -> dict[str, dict[str, tuple[bytes, bool]]]:
    """The tree that each version gives, built alone."""
    for name, path in two_specs.items():
        assert command("build", path, "-o", folder / name).code == 0
    return {name: tree(folder / name / "chat") for name in two_specs}


def which(trees: dict[str, dict[str, tuple[bytes, bool]]], found: dict[str, tuple[bytes, bool]]) -> str:
    """The name of the tree that was found, "" if it is none of them."""
    return next((name for name, files in trees.items() if files == found), "")


def test_a_kill_at_any_point_leaves_the_old_tree_or_the_new_one(
    two_specs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees = built(two_specs, tmp_path / "alone")
    assert trees["old"] != trees["new"]
    mine = {"notes.txt": (b"mine", False), "kubernetes/own.yaml": (b"own: 1\n", False)}
    out = tmp_path / "out"
    assert command("build", two_specs["old"], "-o", out).code == 0
    for path, (text, _) in mine.items():
        (out / "chat" / path).write_bytes(text)
    arguments = [*map(str, two_specs.values()), str(out), str(KILLS), "11"]
    seen: Counter[str] = Counter()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.proof.killer", *arguments],
        cwd=ROOT,
        env=clean_environment(PYTHONPATH=f"{clean_environment()['PYTHONPATH']}:{ROOT}"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as killer:
        assert killer.stdin is not None and killer.stdout is not None
        state = "old"
        for _ in range(KILLS):
            killer.stdin.write(f"{state}\n")
            killer.stdin.flush()
            kill = json.loads(killer.stdout.readline())
            found = tree(out / "chat")
            assert {path: found.pop(path, None) for path in mine} == mine, kill
            state = which(trees, found)
            assert state, (kill, sorted(found))
            seen["killed"] += kill["killed"]
            seen["left a staging folder"] += bool(kill["left"])
            seen["had changed the tree"] += state == Path(kill["spec"]).stem
        assert killer.wait() == 0
    assert command("build", two_specs["new"], "-o", out).code == 0
    assert tree(out / "chat") == trees["new"] | mine
    assert [p.name for p in out.iterdir()] == ["chat"], "the next build clears what killed ones left"
    assert seen["killed"] >= KILLS / 4 and seen["left a staging folder"] >= 3, seen
    with capsys.disabled():
        print(
            f"\n{KILLS} builds, {seen['killed']} killed before their end, {seen['left a staging folder']} while writing, "
            f"{seen['had changed the tree']} when the new tree was there: "
            f"each left the old tree or the new one, whole, with the user's files in it"
        )


def test_kills_of_real_processes(two_specs: dict[str, Path], tmp_path: Path) -> None:
    trees = built(two_specs, tmp_path / "alone")
    out = tmp_path / "out"
    assert command("build", two_specs["old"], "-o", out).code == 0
    rng = random.Random(3)
    early = 0
    for number in range(6):
        path = two_specs[("new", "old")[number % 2]]
        child = subprocess.Popen(
            [sys.executable, "-m", "servegen", "build", str(path), "-o", str(out)],
            env=clean_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        began = time.perf_counter()
        while not list(out.glob(".*.new")) and child.poll() is None and time.perf_counter() - began < 60:
            time.sleep(0.0005)
        time.sleep(rng.uniform(0, 0.02))
        child.send_signal(signal.SIGKILL)
        early += child.wait() == -signal.SIGKILL
        assert which(trees, tree(out / "chat")), number
    assert early, "every build was over before it was killed"


def test_builds_at_once_do_not_mix(two_specs: dict[str, Path], tmp_path: Path) -> None:
    trees = built(two_specs, tmp_path / "alone")
    out = tmp_path / "out"
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "servegen", "build", str(two_specs[name]), "-o", str(out)],
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name in ("old", "new", "old")
    ]
    watched = []
    while any(child.poll() is None for child in children):
        if (out / "chat" / "files.lock").exists():
            with contextlib.suppress(OSError):  # swapped away while it is being read
                watched.append((out / "chat" / "files.lock").read_bytes())
        time.sleep(0.005)
    for child in children:
        assert child.communicate()[1] == b"" and child.returncode == 0
    assert which(trees, tree(out / "chat"))
    assert watched and set(watched) <= {files["files.lock"][0] for files in trees.values()}
    assert [p.name for p in out.iterdir()] == ["chat"]


def test_a_build_waits_for_the_one_before_it(
    two_specs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = built(two_specs, tmp_path / "alone")
    out = tmp_path / "out"
    assert command("build", two_specs["old"], "-o", out).code == 0
    held = os.open(out, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # as a build does that is writing
    monkeypatch.setattr("servegen.emit.LOCK_TRIES", 3)
    try:
        ran = command("build", two_specs["new"], "-o", out)
        assert (ran.code, ran.out) == (1, "") and "error[locked]: another build has been writing here" in ran.err
        assert which(trees, tree(out / "chat")) == "old" and [p.name for p in out.iterdir()] == ["chat"]
    finally:
        os.close(held)
    assert command("build", two_specs["new"], "-o", out).code == 0
    assert which(trees, tree(out / "chat")) == "new"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 384 KiB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = shutil.which("mount") and os.geteuid() == 0
    options = ["-t", "tmpfs", "-o", "size=384k"]
    if not mounted or subprocess.run(["mount", *options, "none", str(place)], capture_output=True).returncode:
        pytest.skip("only root may mount a small file system, and only where the kernel lets it")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_says_so_and_changes_nothing(two_specs: dict[str, Path], small_disk: Path) -> None:
    out = small_disk / "out"
    assert command("build", two_specs["old"], "-o", out).code == 0
    (out / "chat" / "mine.txt").write_text("mine")
    with contextlib.suppress(OSError), open(small_disk / "ballast", "wb", buffering=0) as ballast:
        while True:
            ballast.write(b"x" * 4096)
    before = tree(out)
    ran = command("build", two_specs["new"], "-o", out)
    assert (ran.code, ran.out) == (1, "")
    assert "No space left on device" in ran.err and "the disk is full; nothing was changed" in ran.err
    assert tree(out) == before
    (small_disk / "ballast").unlink()
    assert command("build", two_specs["new"], "-o", out).code == 0
    assert (out / "chat" / "mine.txt").read_text() == "mine"


def test_a_disk_that_fills_up_on_the_way_says_so_without_root(two_specs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command("build", two_specs["old"], "-o", out).code == 0
    before = tree(out)
    code = (
        "import resource, signal, sys; from servegen.cli import main;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); sys.exit(main())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "build", str(two_specs["new"]), "-o", str(out)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1 and "error[io]" in ran.stderr and "File too large" in ran.stderr, ran
    assert tree(out) == before
    assert [p.name for p in out.iterdir()] == ["chat"]


def test_an_interrupt_leaves_the_old_tree(two_specs: dict[str, Path], tmp_path: Path) -> None:
    trees = built(two_specs, tmp_path / "alone")
    out = tmp_path / "out"
    assert command("build", two_specs["old"], "-o", out).code == 0
    codes = []
    for wait_s in (0.2, 0.3, 0.6, 0.9):
        child = subprocess.Popen(
            [sys.executable, "-m", "servegen", "build", str(two_specs["new"]), "-o", str(out)],
            env=clean_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell ignores it for what runs behind it
        )
        time.sleep(wait_s)
        child.send_signal(signal.SIGINT)
        said = child.communicate()[1].decode()
        assert "servegen/" not in said or child.returncode != 130, said
        assert which(trees, tree(out / "chat"))
        codes.append(child.returncode)
    assert any(codes), "every build was over before the interrupt"


def test_a_file_of_the_user_is_never_deleted(two_specs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command("build", two_specs["old"], "-o", out).code == 0
    own = {
        "top.txt": "1",
        "kubernetes/extra.yaml": "2",
        "notes/a/b.md": "3",
        "launch/run.sh": "4",
        ".hidden/x": "5",
        "name with space": "6",
    }
    for path, text in own.items():
        (out / "chat" / path).parent.mkdir(parents=True, exist_ok=True)
        (out / "chat" / path).write_text(text)
    (out / "beside.txt").write_text("7")
    (out / "another").mkdir()
    for name in ("new", "old", "new"):
        assert command("build", two_specs[name], "-o", out).code == 0
        assert {path: (out / "chat" / path).read_text() for path in own} == own
    assert (out / "beside.txt").read_text() == "7" and (out / "another").is_dir()


def test_a_file_of_the_user_is_never_overwritten(two_specs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command("build", two_specs["old"], "-o", out).code == 0
    # The new version adds this file; here the user has one of that name already.
    mine = out / "chat" / "kubernetes" / "horizontalpodautoscaler-serve.yaml"
    mine.write_text("mine: true\n")
    before = tree(out)
    ran = command("build", two_specs["new"], "-o", out)
    assert ran.code == 1 and "foreign-file" in ran.err and mine.name in ran.err
    assert tree(out) == before


def test_a_spec_that_turns_bad_leaves_its_tree(tmp_path: Path) -> None:
    good = write_spec(tmp_path / "s.yaml", spec())
    out = tmp_path / "out"
    assert command("build", good, "-o", out).code == 0
    before = tree(out)
    for changes, code in (
        ({"traffic__rate": "1"}, 1),
        ({"slo__ttft": "1us"}, 3),
        ({"deploy__overrides": {"args": {"nonsense": 1}}}, 1),
    ):
        assert command("build", write_spec(tmp_path / "s.yaml", spec(**changes)), "-o", out).code == code
        assert tree(out) == before


def test_what_a_build_prints_is_what_it_did(two_specs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = process("build", two_specs["old"], "-o", out)
    assert (first.code, first.err) == (0, "") and "created" in first.out
    before = tree(out)
    assert process("build", two_specs["new"], "-o", out, "--check").code == 2
    assert tree(out) == before
    assert command("build", two_specs["old"], "-o", out).out == "chat: unchanged\n"
    assert tree(out) == before
