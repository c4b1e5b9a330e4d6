"""Trees on a real file system: what is written, kept, refused, and what a kill leaves behind."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from servegen import emit
from servegen.bundle import Bundle
from servegen.emit import Change
from servegen.errors import EmitError

FIRST = Bundle(
    "chat",
    {"kubernetes/a.yaml": "a: 1\n", "launch/run.sh": "#!/bin/sh\n", "plan.lock.json": "{}\n", "PLAN.md": "# one\n"},
    frozenset({"launch/run.sh"}),
)
SECOND = Bundle("chat", {"kubernetes/b.yaml": "b: 2\n", "plan.lock.json": '{"v": 2}\n', "PLAN.md": "# two\n"})


def tree(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def clean(root: Path) -> bool:
    """Nothing of the machinery is left beside the trees."""
    return not [p.name for p in root.iterdir() if p.name.startswith(".")]


def test_write_creates_the_whole_tree(tmp_path: Path) -> None:
    changes = emit.write(tmp_path / "out", FIRST)
    assert changes == [Change(p, "created") for p in sorted([*FIRST.files, "files.lock"])]
    assert tree(tmp_path / "out/chat") == {**FIRST.files, "files.lock": emit.manifest(FIRST.files)}
    assert clean(tmp_path / "out")
    assert os.access(tmp_path / "out/chat/launch/run.sh", os.X_OK)
    assert not (tmp_path / "out/chat/PLAN.md").stat().st_mode & stat.S_IXUSR


def test_manifest_is_what_sha256sum_checks(tmp_path: Path) -> None:
    emit.write(tmp_path, FIRST)
    command = ["sha256sum", "--check", "--strict", "files.lock"]
    done = subprocess.run(command, cwd=tmp_path / "chat", capture_output=True)
    assert done.returncode == 0, done.stderr


def test_an_unchanged_tree_is_not_touched(tmp_path: Path) -> None:
    emit.write(tmp_path, FIRST)
    before = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (tmp_path / "chat").rglob("*")}
    assert emit.write(tmp_path, FIRST) == []
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (tmp_path / "chat").rglob("*")} == before
    assert emit.check(tmp_path, FIRST) == []
    assert emit.diff(tmp_path, FIRST) == ""


def test_rewrite_removes_what_is_ours_and_keeps_what_is_not(tmp_path: Path) -> None:
    emit.write(tmp_path, FIRST)
    chat = tmp_path / "chat"
    (chat / "kubernetes/mine.yaml").write_text("mine\n")
    (chat / "notes/deep").mkdir(parents=True)
    (chat / "notes/deep/todo.txt").write_text("todo\n")
    (chat / "notes").chmod(0o700)
    (chat / "empty").mkdir()
    (chat / "link").symlink_to("notes/deep/todo.txt")
    (chat / "dangling").symlink_to("/nowhere/at/all")
    inode = (chat / "kubernetes/mine.yaml").stat().st_ino
    changes = emit.write(tmp_path, SECOND)
    assert changes == [
        Change("PLAN.md", "updated"),
        Change("files.lock", "updated"),
        Change("kubernetes/a.yaml", "removed"),
        Change("kubernetes/b.yaml", "created"),
        Change("launch/run.sh", "removed"),
        Change("plan.lock.json", "updated"),
    ]
    kept = {"kubernetes/mine.yaml": "mine\n", "notes/deep/todo.txt": "todo\n", "link": "todo\n"}
    assert tree(chat) == {**SECOND.files, **kept, "files.lock": emit.manifest(SECOND.files)}
    assert (chat / "kubernetes/mine.yaml").stat().st_ino == inode
    assert stat.S_IMODE((chat / "notes").stat().st_mode) == 0o700
    assert (chat / "empty").is_dir() and not (chat / "launch").exists()
    assert os.readlink(chat / "dangling") == "/nowhere/at/all"
    assert clean(tmp_path)


def test_a_generated_file_edited_by_hand_is_stale_and_rebuilt(tmp_path: Path) -> None:
    emit.write(tmp_path, FIRST)
    (tmp_path / "chat/PLAN.md").write_text("edited\n")
    assert emit.check(tmp_path, FIRST) == [Change("PLAN.md", "different")]
    assert emit.write(tmp_path, FIRST) == [Change("PLAN.md", "updated")]
    assert (tmp_path / "chat/PLAN.md").read_text() == "# one\n"


def test_an_edited_file_that_the_new_build_lacks_becomes_the_users(tmp_path: Path) -> None:
    emit.write(tmp_path, FIRST)
    (tmp_path / "chat/launch/run.sh").write_text("precious\n")
    changes = emit.write(tmp_path, SECOND)
    assert "launch/run.sh" not in {c.path for c in changes}
    assert (tmp_path / "chat/launch/run.sh").read_text() == "precious\n"
    assert emit.check(tmp_path, SECOND) == []


def test_a_foreign_file_in_the_way_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat/PLAN.md").write_text("my own notes\n")
    with pytest.raises(EmitError) as caught:
        emit.write(tmp_path, FIRST)
    assert caught.value.diagnostics[0].code == "foreign-file"
    assert caught.value.diagnostics[0].where.file == str(tmp_path / "chat/PLAN.md")
    assert tree(tmp_path / "chat") == {"PLAN.md": "my own notes\n"}
    assert clean(tmp_path)


def test_an_equal_file_without_a_manifest_is_adopted(tmp_path: Path) -> None:
    emit.write(tmp_path, FIRST)
    (tmp_path / "chat/files.lock").unlink()
    assert emit.write(tmp_path, FIRST) == [Change("files.lock", "created")]


def test_a_manifest_with_merge_conflict_marks_still_says_what_is_ours(tmp_path: Path) -> None:
    emit.write(tmp_path, FIRST)
    ours = emit.manifest(FIRST.files)
    theirs = emit.manifest({**FIRST.files, "PLAN.md": "# theirs\n"})
    (tmp_path / "chat/files.lock").write_text(f"<<<<<<< HEAD\n{ours}=======\n{theirs}>>>>>>> branch\n")
    (tmp_path / "chat/PLAN.md").write_text("# theirs\n")
    emit.write(tmp_path, SECOND)
    assert tree(tmp_path / "chat") == {**SECOND.files, "files.lock": emit.manifest(SECOND.files)}


@pytest.mark.parametrize("place", ["chat", "chat/kubernetes", "chat/PLAN.md"])
def test_links_in_the_way_are_refused(tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "out"
    (root / place).parent.mkdir(parents=True)
    (root / place).symlink_to(outside if place != "chat/PLAN.md" else outside / "file")
    with pytest.raises(EmitError) as caught:
        emit.write(root, FIRST)
    assert caught.value.diagnostics[0].code == "foreign-file"
    assert list(outside.iterdir()) == []
    assert emit.check(root, FIRST)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a//b", "", "a\\b", "a/\x00", "files.lock", "./a"])
def test_paths_that_leave_the_folder_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(EmitError) as caught:
        emit.write(tmp_path / "out", Bundle("chat", {path: "x"}))
    assert caught.value.diagnostics[0].code == "bad-path"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden"])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(EmitError):
        emit.write(tmp_path, Bundle(name, {"a": "x"}))


def test_a_path_that_is_both_file_and_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmitError):
        emit.write(tmp_path, Bundle("chat", {"a": "x", "a/b": "y"}))


def test_a_file_becomes_a_folder_and_back(tmp_path: Path) -> None:
    flat, deep = Bundle("chat", {"a": "x"}), Bundle("chat", {"a/b": "y"})
    emit.write(tmp_path, flat)
    emit.write(tmp_path, deep)
    assert tree(tmp_path / "chat")["a/b"] == "y"
    emit.write(tmp_path, flat)
    assert tree(tmp_path / "chat")["a"] == "x"
    emit.write(tmp_path, deep)
    (tmp_path / "chat/a/mine").write_text("mine")
    with pytest.raises(EmitError):
        emit.write(tmp_path, flat)
    assert (tmp_path / "chat/a/mine").read_text() == "mine"


def test_a_tampered_manifest_cannot_reach_outside(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    root = tmp_path / "out"
    emit.write(root, FIRST)
    with (root / "chat/files.lock").open("a") as lock:
        lock.write(f"{'0' * 64}  ../../secret\n")
    assert "secret" not in emit.diff(root, FIRST).replace("../../secret", "")
    emit.write(root, FIRST)
    assert secret.read_text() == "secret"


def test_check_names_missing_extra_and_different(tmp_path: Path) -> None:
    assert {c.kind for c in emit.check(tmp_path / "none", FIRST)} == {"missing"}
    assert not (tmp_path / "none").exists()
    emit.write(tmp_path, FIRST)
    (tmp_path / "chat/foreign.txt").write_text("not ours")
    (tmp_path / "chat/PLAN.md").unlink()
    (tmp_path / "chat/launch/run.sh").chmod(0o644)
    assert emit.check(tmp_path, FIRST) == [Change("PLAN.md", "missing"), Change("launch/run.sh", "different")]
    assert Change("kubernetes/a.yaml", "extra") in emit.check(tmp_path, SECOND)


def test_diff_is_a_unified_diff(tmp_path: Path) -> None:
    emit.write(tmp_path, FIRST)
    text = emit.diff(tmp_path, SECOND)
    assert "--- a/chat/PLAN.md\n+++ b/chat/PLAN.md\n@@ -1 +1 @@\n-# one\n+# two\n" in text
    assert "--- /dev/null\n+++ b/chat/kubernetes/b.yaml\n@@ -0,0 +1 @@\n+b: 2\n" in text
    assert "--- a/chat/kubernetes/a.yaml\n+++ /dev/null\n@@ -1 +0,0 @@\n-a: 1\n" in text
    assert text == emit.diff(tmp_path, SECOND)
    (tmp_path / "chat/launch/run.sh").chmod(0o644)
    assert "old mode 100644 chat/launch/run.sh\nnew mode 100755 chat/launch/run.sh\n" in emit.diff(tmp_path, FIRST)


def test_the_diff_of_a_former_build_applies(tmp_path: Path) -> None:
    emit.write(tmp_path, FIRST)
    files = {**FIRST.files, "PLAN.md": "# one\nwithout end", "new.yaml": "x: 1\n\x0cy: 2\n"}
    change = Bundle("chat", files, FIRST.executable)
    patch = emit.diff(tmp_path, change)
    done = subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr
    assert emit.check(tmp_path, change) == []


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emit.write(tmp_path, FIRST)
    before = tree(tmp_path / "chat")
    calls = 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EmitError) as caught:
        emit.write(tmp_path, SECOND)
    assert caught.value.diagnostics[0].code == "io"
    assert "disk is full" in caught.value.diagnostics[0].hint
    assert tree(tmp_path / "chat") == before
    assert clean(tmp_path)


def test_a_file_where_the_root_must_be_is_an_emit_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(EmitError) as caught:
        emit.write(tmp_path / "out", FIRST)
    assert str(tmp_path / "out") in caught.value.diagnostics[0].where.file


def test_without_renameat2_the_folder_is_swapped_in_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "_exchange", lambda one, other: False)
    emit.write(tmp_path, FIRST)
    (tmp_path / "chat/mine").write_text("mine")
    emit.write(tmp_path, SECOND)
    assert tree(tmp_path / "chat") == {**SECOND.files, "mine": "mine", "files.lock": emit.manifest(SECOND.files)}
    assert clean(tmp_path)


def test_a_kill_between_the_two_steps_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emit.write(tmp_path, FIRST)
    (tmp_path / "chat/mine").write_text("mine")
    (tmp_path / "chat").rename(tmp_path / ".chat.old")
    assert emit.write(tmp_path, FIRST) == []
    assert (tmp_path / "chat/mine").read_text() == "mine"
    assert clean(tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
from servegen import emit
from servegen.bundle import Bundle
step, stop = 0, int(sys.argv[2])
def trace(event, args):
    global step
    if event in ("open", "os.rename", "os.mkdir", "os.link", "shutil.rmtree", "os.remove", "os.rmdir", "ctypes.dlsym"):
        step += 1
        if step == stop:
            os.kill(os.getpid(), signal.SIGKILL)
bundle = Bundle("chat", {f"file{i}": f"new {i}" for i in range(4)})
sys.addaudithook(trace)
emit.write(Path(sys.argv[1]), bundle)
sys.exit(0)
"""


def test_a_kill_at_any_step_leaves_the_old_or_the_new_tree(tmp_path: Path) -> None:
    old = Bundle("chat", {**{f"file{i}": f"old {i}" for i in range(4)}, "gone": "gone"})
    new = Bundle("chat", {f"file{i}": f"new {i}" for i in range(4)})
    trees = {
        name: {**bundle.files, "mine": "mine", "files.lock": emit.manifest(bundle.files)}
        for name, bundle in (("old", old), ("new", new))
    }
    package = Path(emit.__file__).parents[1]
    seen = set()
    for step in range(1, 200, 3):
        root = tmp_path / str(step)
        emit.write(root, old)
        (root / "chat/mine").write_text("mine")
        done = subprocess.run([sys.executable, "-c", KILLED, str(root), str(step)], cwd=package, check=False)
        found = tree(root / "chat")
        state = next((name for name, files in trees.items() if files == found), None)
        assert state, (step, found)
        seen.add((state, done.returncode))
        emit.write(root, new)
        assert tree(root / "chat") == trees["new"] and clean(root), step
        if done.returncode == 0:
            break
    assert seen == {("old", -signal.SIGKILL), ("new", -signal.SIGKILL), ("new", 0)}


def test_two_builds_at_once_do_not_mix(tmp_path: Path) -> None:
    errors: list[Any] = []

    def build(version: int) -> None:
        try:
            for _ in range(5):
                emit.write(tmp_path, Bundle("chat", {f"f{i}": str(version) for i in range(5)}))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=build, args=(v,)) for v in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    files = tree(tmp_path / "chat")
    assert len({files[f"f{i}"] for i in range(5)}) == 1


def test_a_held_lock_is_given_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "LOCK_TRIES", 2)
    with emit._locked(tmp_path), pytest.raises(EmitError) as caught:
        emit.write(tmp_path, FIRST)
    assert caught.value.diagnostics[0].code == "locked"


def test_read_plan_lock(tmp_path: Path) -> None:
    with pytest.raises(EmitError) as caught:
        emit.read_plan_lock(tmp_path, "chat")
    assert caught.value.diagnostics[0].code == "no-lock"
    emit.write(tmp_path, FIRST)
    assert emit.read_plan_lock(tmp_path, "chat") == "{}\n"
