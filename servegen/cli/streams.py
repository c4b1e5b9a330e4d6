"""The standard streams of the process: what cannot be read or written is an error of the machine, told in one line."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


class OutputError(OSError):
    """Standard output cannot be written."""


class _Output(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from error


class _Messages(io.FileIO):
    """Standard error: a message that cannot be written is lost, and changes neither what is done nor the exit code."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError:
            return len(data)


class _Closed(io.FileIO):
    """A stream that whoever started the process has closed."""

    def _fail(self, *_: Any) -> Any:
        kind = OutputError if self.mode == "wb" else OSError
        raise kind(errno.EBADF, os.strerror(errno.EBADF))

    readinto = readall = write = _fail


def prepare() -> None:
    """Replace the process's own standard streams by such as say what is wrong with them, with the same bytes in every locale."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # a file that is opened later must not become a standard stream
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed(os.devnull)))
    sys.stdout = _text(sys.stdout, _Output, _Closed(os.devnull, "w"))
    sys.stderr = _text(sys.stderr, _Messages, _Messages(os.devnull, "w"))


def _text(stream: Any, kind: type[io.FileIO], without: io.FileIO) -> Any:
    if stream is not None and type(stream) is not io.TextIOWrapper:
        return stream  # somebody else's, who knows what becomes of it
    raw = without if stream is None else kind(stream.fileno(), "w", closefd=False)
    lines = stream is not None and stream.line_buffering
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=lines)
