"""Files of the user, read within bounds: regular files only, but for specs, and never more of one than a stated size.

What is refused is an OSError whose ``strerror`` says why, so that whoever reads a file tells it as any other file that cannot
be read. A pipe would block for ever where nobody writes, and a device has no end.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import select
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

#: Of a file that is read whole.
MOST_BYTES = 2**28
#: Of a trace, which is read line by line; also what a compressed one may hold.
MOST_TRACE_BYTES = 2**31
#: Seconds to wait for whoever writes a pipe.
PATIENCE_S = 8


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """The regular file, open for reading."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe must not wait for a writer
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from error
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    why = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "it is no regular file"
    raise OSError(errno.EINVAL, why, os.fspath(path))


def piped(path: str | os.PathLike[str]) -> BinaryIO:
    """The file, open for reading; also a pipe to which somebody writes, and goes on to write, within :data:`PATIENCE_S`."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if stat.S_ISFIFO(os.fstat(handle).st_mode):
            _await(handle)  # a pipe that nobody has opened yet reads as one at its end
            os.set_blocking(handle, True)
            return io.BufferedReader(_Pipe(handle))
        os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


class _Pipe(io.FileIO):
    def readinto(self, buffer: Any) -> int | None:
        _await(self.fileno())
        return super().readinto(buffer)


def _await(handle: int) -> None:
    if not select.select([handle], [], [], PATIENCE_S)[0]:
        raise OSError(errno.ETIMEDOUT, f"it is a pipe, and nothing came through it in {PATIENCE_S} s")


def read(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """All of a file that holds at most ``most`` bytes."""
    with opened(path) as stream:
        return bounded(stream, os.fspath(path), most)


def bounded(stream: BinaryIO, name: str, most: int = MOST_BYTES) -> bytes:
    """All of a stream that holds at most ``most`` bytes and is called ``name``."""
    data = stream.read(most + 1)
    if len(data) > most:
        raise too_large(name, most)
    return data


def holds(path: str | os.PathLike[str], data: bytes) -> bool:
    """Whether the regular file holds just these bytes; one of another size is not read."""
    with opened(path) as stream:
        return os.fstat(stream.fileno()).st_size == len(data) and stream.read(len(data) + 1) == data


def sha256(path: str | os.PathLike[str]) -> str:
    """The hash of a regular file of any size, in hex digits."""
    digest = hashlib.sha256()
    with opened(path) as stream:
        while part := stream.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def no_folder(path: Path) -> str:
    """Why there can be no folder at ``path``: it, or one on the way to it, is something else; "" where nothing is."""
    for place in (path, *path.parents):
        if os.path.lexists(place) and not os.path.isdir(place):
            known = "a file" if os.path.isfile(place) else "no folder"
            what = known if os.path.exists(place) else "a link that leads nowhere"
            return f"{'this' if place == path else place} is {what}"
    return ""


def too_large(name: str, most: int) -> OSError:
    """The error that ``name`` holds more than ``most`` bytes."""
    return OSError(errno.EFBIG, f"it is larger than {most // 2**20} MiB", name)


def figure(text: str) -> float:
    """A number as tables and programs write it. ValueError for what else Python reads: ``1_000``, digits of other scripts."""
    if not text.isascii() or "_" in text:
        raise ValueError(f"{text!r} is no number")
    return float(text)


def twice(names: Iterable[str]) -> str:
    """The first of the names that stands there a second time; "" if none does."""
    seen: set[str] = set()
    for name in names:
        if name and name in seen:
            return name
        seen.add(name)
    return ""


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """What JSON makes of an object (its ``object_pairs_hook``). ValueError where a key stands twice: the last would win."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"the key {twice(key for key, _ in pairs)!r} stands twice in one object")
    return found


def place(data: bytes, offset: int) -> tuple[int, int]:
    """Line and column of a byte, both from 1."""
    begin = data.rfind(b"\n", 0, offset) + 1
    return data.count(b"\n", 0, begin) + 1, offset - begin + 1
