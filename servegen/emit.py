"""Writing a bundle into ``out/<name>/``: all of it or nothing, and never over a file that is not ours.

Which files are ours stands in ``out/<name>/files.lock``, in the format of ``sha256sum``: a file that a former build
wrote and this one does not is removed, every other file in the folder belongs to the user and is kept.

A new tree is staged beside the old one and the two are swapped, so that whoever reads or kills us at any moment finds
the whole old tree or the whole new one. What a killed build left behind is cleared by the next one.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import errno
import fcntl
import hashlib
import os
import re
import select
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from servegen import inputs
from servegen.bundle import Bundle
from servegen.errors import Diagnostic, EmitError, Where

MANIFEST = "files.lock"
PLAN_LOCK = "plan.lock.json"
LOCK_TRIES, LOCK_PAUSE_S = 1200, 0.05

Kind = Literal["created", "updated", "removed", "missing", "extra", "different"]

_MOST_SHOWN = 2**26  # of a file in a diff
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


@dataclass(frozen=True, order=True)
class Change:
    """One file, by its path inside ``out/<name>/``, and what was done to it or is wrong with it."""

    path: str
    kind: Kind


def write(root: Path, bundle: Bundle) -> list[Change]:
    """Make ``root/<bundle.name>/`` hold ``bundle``; returns what changed, by path, ``[]`` if nothing had to.

    Raises EmitError if a file of the user stands in the way or the disk refuses; the old tree is then untouched.
    """
    wanted = _wanted(bundle)
    target = root / bundle.name
    _refuse_file(root)
    with _told(target):
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root):
            _recover(root, bundle.name)
            changes = _compare(target, wanted, bundle.executable)
            if changes:
                _refuse_foreign(target, wanted)
                _replace(root, bundle.name, wanted, bundle.executable)
    done: dict[Kind, Kind] = {"missing": "created", "extra": "removed", "different": "updated"}
    kept = {c.path for c in changes if c.kind == "extra" and os.path.lexists(target / c.path)}  # edited by hand
    return [Change(change.path, done[change.kind]) for change in changes if change.path not in kept]


def check(root: Path, bundle: Bundle) -> list[Change]:
    """What is stale in ``root/<bundle.name>/``, by path: missing, extra (a former build's) or different.

    Writes nothing and passes over files that are the user's own.
    """
    target = root / bundle.name
    _refuse_file(root)
    with _told(target):
        return _compare(target, _wanted(bundle), bundle.executable)


def diff(root: Path, bundle: Bundle) -> str:
    """The unified diff from the folder to the bundle, by path, ``""`` if there is none. Writes nothing."""
    wanted = _wanted(bundle)
    target = root / bundle.name
    _refuse_file(root)
    parts: list[str] = []
    with _told(target):
        for change in _compare(target, wanted, bundle.executable):
            path = f"{bundle.name}/{change.path}"
            if (target / change.path).is_symlink() or (target / change.path).is_dir():
                parts.append(f"{path} is no regular file\n")
                continue
            old = "" if change.kind == "missing" else _text(target / change.path)
            new = wanted.get(change.path, "")
            if change.kind == "different" and old == new:
                mode = ("644", "755") if change.path in bundle.executable else ("755", "644")
                parts += [f"old mode 100{mode[0]} {path}\n", f"new mode 100{mode[1]} {path}\n"]
                continue
            source = "/dev/null" if change.kind == "missing" else f"a/{path}"
            sink = "/dev/null" if change.kind == "extra" else f"b/{path}"
            for line in difflib.unified_diff(_lines(old), _lines(new), source, sink):
                parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)


def read_plan_lock(root: Path, name: str, file: str = PLAN_LOCK) -> str:
    """The text of ``root/<name>/plan.lock.json``. Raises EmitError if it is not there or cannot be read."""
    path = root / name / file
    _refuse_file(root)
    with _told(path):
        if path.is_file():
            return inputs.read(path).decode("utf-8", "backslashreplace")
    message = "there is no locked plan to render"
    raise EmitError(Diagnostic("no-lock", message, Where(str(path)), "build once without --locked"))


def manifest(files: Mapping[str, str]) -> str:
    """The text of ``files.lock`` for ``files``: one ``sha256  path`` a line, by path."""
    return "".join(f"{hashlib.sha256(files[path].encode()).hexdigest()}  {path}\n" for path in sorted(files))


def _refuse_file(root: Path) -> None:
    """EmitError where the output folder, or a folder on the way to it, is something else."""
    if why := inputs.no_folder(root):
        message, hint = f"the output must be a folder, and {why}", "name another folder with -o"
        raise EmitError(Diagnostic("no-folder", message, Where(str(root)), hint))


def _wanted(bundle: Bundle) -> dict[str, str]:
    """Every file to write, the manifest included. Raises EmitError for a path that leaves the folder or clashes."""
    if not _NAME.fullmatch(bundle.name):
        raise EmitError(Diagnostic("bad-path", f"{bundle.name!r} cannot name an output folder"))
    for path in bundle.files:
        parts = path.split("/")
        if path == MANIFEST or not all(parts) or {".", ".."} & set(parts) or re.search(r"[\\\x00-\x1f]", path):
            raise EmitError(Diagnostic("bad-path", f"{path!r} cannot be written inside {bundle.name}/"))
        for parent in list(PurePosixPath(path).parents)[:-1]:
            if str(parent) in bundle.files:
                raise EmitError(Diagnostic("bad-path", f"{str(parent)!r} would be both a file and a folder"))
    return {**bundle.files, MANIFEST: manifest(bundle.files)}


def _owned(target: Path) -> dict[str, set[str]]:
    """The paths that a former build wrote, with their hashes. Other lines (merge conflict marks) are passed over."""
    path = target / MANIFEST
    if path.is_symlink() or not path.is_file():
        return {}
    data = inputs.read(path)
    found: dict[str, set[str]] = {MANIFEST: {hashlib.sha256(data).hexdigest()}}
    for line in data.decode("utf-8", "backslashreplace").splitlines():
        match = _LINE.fullmatch(line)
        if match and all(part not in ("", ".", "..") for part in match[2].split("/")):
            found.setdefault(match[2], set()).add(match[1])
    return found


def _as_written(target: Path, path: str, owned: Mapping[str, set[str]]) -> bool:
    """Whether the file is what a former build wrote there, untouched."""
    file = target / path
    return path in owned and file.is_file() and not file.is_symlink() and inputs.sha256(file) in owned[path]


def _compare(target: Path, wanted: Mapping[str, str], executable: frozenset[str]) -> list[Change]:
    changes: list[Change] = []
    for path, text in wanted.items():
        file = target / path
        if not os.path.lexists(file):
            changes.append(Change(path, "missing"))
        elif (
            _through_link(target, path)
            or not file.is_file()
            or not inputs.holds(file, text.encode())
            or bool(file.stat().st_mode & stat.S_IXUSR) != (path in executable)
        ):
            changes.append(Change(path, "different"))
    for path in _owned(target).keys() - wanted.keys():
        if os.path.lexists(target / path):
            changes.append(Change(path, "extra"))
    return sorted(changes)


def _refuse_foreign(target: Path, wanted: Mapping[str, str]) -> None:
    """Raise EmitError for whatever stands where we must write and is not ours, links first: they lead elsewhere."""
    owned = _owned(target)
    found: list[Diagnostic] = []

    def refuse(path: Path, message: str) -> None:
        found.append(Diagnostic("foreign-file", message, Where(str(path)), "move it away, then build again"))

    if target.is_symlink():
        refuse(target, "the output folder is a symbolic link, which servegen does not follow")
    elif target.exists() and not target.is_dir():
        refuse(target, "a file stands where the output folder must be")
    else:
        for path, text in sorted(wanted.items()):
            parents = [str(p) for p in reversed(PurePosixPath(path).parents)][1:]
            block = next((p for p in parents if (target / p).is_symlink() or (target / p).is_file()), None)
            file = target / path
            if block is not None:
                if not _as_written(target, block, owned):
                    refuse(target / block, "a file or link of yours stands where a folder must be")
            elif file.is_symlink():
                refuse(file, "a symbolic link stands where servegen must write")
            elif file.is_dir():
                if not all(_as_written(target, f"{path}/{name}", owned) for name in _files(file)):
                    refuse(file, "a folder with files of yours stands where servegen must write a file")
            elif file.exists() and path not in owned and not inputs.holds(file, text.encode()):
                refuse(file, f"servegen did not write this file (it is not in {MANIFEST}) and will not overwrite it")
    if found:
        raise EmitError(dict.fromkeys(found))


def _replace(root: Path, name: str, wanted: Mapping[str, str], executable: frozenset[str]) -> None:
    """Stage the new tree and swap it in. The manifest is written first, the plan's lock last."""
    target, staging = root / name, root / f".{name}.new"
    try:
        staging.mkdir()
        order = sorted(wanted, key=lambda path: (path != MANIFEST, path == PLAN_LOCK, path))
        for path in order:
            _write_file(staging / path, wanted[path], executable=path in executable)
        if target.exists():
            _carry(target, staging, wanted)
        for folder in [staging, *(p for p in staging.rglob("*") if p.is_dir() and not p.is_symlink())]:
            _sync(folder)
        if not target.exists():
            os.rename(staging, target)
        else:
            _swap(root, name)
        _sync(root)
    except BaseException:
        # Before the swap this drops the new tree, after it the old one, whose foreign files it takes over first.
        with contextlib.suppress(OSError):
            _recover(root, name)
        raise
    _recover(root, name)


def _swap(root: Path, name: str) -> None:
    target, staging, old = root / name, root / f".{name}.new", root / f".{name}.old"
    if _exchange(staging, target):
        return
    # Without an atomic exchange the folder is away for a moment; a kill in between is mended by _recover.
    os.rename(target, old)
    try:
        os.rename(staging, target)
    except OSError:
        os.rename(old, target)
        raise


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step (Linux 3.15 and newer); False where the system cannot."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    result = call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE))
    if result == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _recover(root: Path, name: str) -> None:
    """Clear what a finished or killed build left: put an old tree back if it is the only one, else drop it."""
    target, old, staging = root / name, root / f".{name}.old", root / f".{name}.new"
    if old.is_dir() and not os.path.lexists(target):
        os.rename(old, target)
    for left in (old, staging):
        if not left.is_dir() or left.is_symlink():
            continue
        owned = _owned(left)
        if owned and target.is_dir():  # a tree without a manifest was killed before anything of the user entered it
            live = _owned(target)
            for path in _files(left):
                if path not in owned and path not in live and not _same(left / path, target / path):
                    (target / path).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(left / path, target / path)
        shutil.rmtree(left)


def _carry(source: Path, sink: Path, wanted: Mapping[str, str]) -> None:
    """Bring the user's files, folders and links into the new tree.

    As hard links, so that an open editor loses nothing. What a former build wrote and somebody edited since counts as
    the user's, unless this build writes it anew.
    """
    owned = _owned(source)
    for folder, names, files in os.walk(source, topdown=False):
        inside = Path(folder).relative_to(source)
        links = [name for name in names if (source / inside / name).is_symlink()]
        if not names and not files and inside.as_posix() not in wanted:
            (sink / inside).mkdir(parents=True, exist_ok=True)
        for name in [*files, *links]:
            path = inside / name
            if path.as_posix() in wanted or _as_written(source, path.as_posix(), owned):
                continue
            (sink / path.parent).mkdir(parents=True, exist_ok=True)
            try:
                os.link(source / path, sink / path, follow_symlinks=False)
            except OSError:
                shutil.copy2(source / path, sink / path, follow_symlinks=False)
        if (sink / inside).is_dir():
            shutil.copymode(source / inside, sink / inside)


def _write_file(path: Path, text: str, *, executable: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as stream:
        stream.write(text.encode())
        stream.flush()
        if executable:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            os.fchmod(stream.fileno(), mode | (mode & 0o444) >> 2)  # x for whoever may read, as the umask allows
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold ``root`` against another build. The lock sits on the folder itself, so that a killed build leaves none."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for attempt in range(LOCK_TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == LOCK_TRIES - 1:
                    message = "another build has been writing here for too long"
                    raise EmitError(Diagnostic("locked", message, Where(str(root)))) from None
                select.select((), (), (), LOCK_PAUSE_S)
            except OSError:
                break  # a file system without locks (some network mounts): build without one
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into an EmitError that names the path."""
    try:
        yield
    except OSError as error:
        where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else str(path)
        message = f"cannot read or write here: {error.strerror or error}"
        raise EmitError(Diagnostic("io", message, Where(where), _IO_HINTS.get(error.errno or 0, ""))) from error


_IO_HINTS = {
    errno.ENOSPC: "the disk is full; nothing was changed",
    errno.EDQUOT: "the disk quota is used up; nothing was changed",
    errno.EROFS: "the file system is read-only; nothing was changed",
    errno.EACCES: "check who may write in that folder; nothing was changed",
}


def _files(folder: Path) -> list[str]:
    """Every file and link under ``folder`` by its relative path, in order; linked folders count as links."""
    found: list[str] = []
    for where, names, files in os.walk(folder):
        links = [name for name in names if (Path(where) / name).is_symlink()]
        found += [(Path(where) / name).relative_to(folder).as_posix() for name in [*files, *links]]
    return sorted(found)


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and os.readlink(one) == os.readlink(other)
    return other.exists() and one.samefile(other)


def _text(path: Path) -> str:
    """The file's text; bytes that are no UTF-8 are shown, not refused."""
    return inputs.read(path, _MOST_SHOWN).decode("utf-8", "backslashreplace") if path.is_file() else ""


def _through_link(target: Path, path: str) -> bool:
    """Whether the file, or a folder on the way to it, is a symbolic link."""
    places = [target, target / path, *(target / parent for parent in PurePosixPath(path).parents)]
    return any(place.is_symlink() for place in places)


def _lines(text: str) -> list[str]:
    """Lines with their ends; only a newline ends one, whatever else Unicode calls a line break."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
