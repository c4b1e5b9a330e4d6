"""A user's folder of templates, looked through before anything is rendered: what is in it must be what it looks like.

A template that cannot be read, or whose name is that of no template, would be passed over, and the shipped one taken.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from servegen import inputs
from servegen.errors import Diagnostic, Where

ENDING = ".j2"
#: A template is a page of text; a folder of more files than this is another folder than was meant.
_MOST_BYTES = 2**20
_MOST_FILES = 2000
_HINT = "a folder for --templates holds templates by the names of the shipped ones, such as kubernetes/service.yaml.j2"


def check_folder(folder: Path, shipped: frozenset[str]) -> list[Diagnostic]:
    """What in a user's ``folder`` would be passed over in silence. ``shipped`` are the names that a template can have."""
    found: list[Diagnostic] = []
    texts: dict[str, str] = {}
    for number, (name, problem) in enumerate(_entries(folder)):
        if number >= _MOST_FILES:
            return [_bad(folder, "", f"holds more than {_MOST_FILES} files")]
        if problem:
            found.append(_bad(folder, name, problem))
            continue
        if not name.endswith(ENDING):
            if f"{name}{ENDING}" in shipped:
                found.append(_bad(folder, name, f"overrides nothing without the ending {ENDING}"))
            continue
        try:
            texts[name] = inputs.read(folder / name, _MOST_BYTES).decode("utf-8")
        except OSError as error:
            found.append(_bad(folder, name, f"cannot be read: {error.strerror or error}"))
        except UnicodeDecodeError as error:
            found.append(_bad(folder, name, f"is no UTF-8 text, from byte {error.start} on"))
    strangers = [name for name in texts if name not in shipped and not _used(name, texts)]
    return found + [_bad(folder, name, _nothing(name, shipped)) for name in strangers]


def _entries(folder: Path) -> Iterator[tuple[str, str]]:
    """(path inside the folder, what is wrong with it at first sight) of everything that is not hidden, in order."""
    seen: set[str] = set()
    failed: list[OSError] = []
    for where, folders, files in os.walk(folder, followlinks=True, onerror=failed.append):
        real = os.path.realpath(where)
        if real in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in [*folders, *sorted(files)]:
            path = os.path.join(where, name)
            inside = Path(path).relative_to(folder).as_posix()
            if name.startswith("."):
                continue
            if not os.path.exists(path):
                yield inside, "is a link that leads nowhere"
            elif os.path.isdir(path):
                if name.endswith(ENDING):
                    yield inside, "is a folder, and by its name a template"
            elif not os.path.isfile(path):
                yield inside, "is no regular file"
            else:
                yield inside, ""
    for error in failed:
        yield Path(os.path.relpath(os.fsdecode(error.filename), folder)).as_posix(), f"cannot be read: {error.strerror}"


def _used(name: str, texts: Mapping[str, str]) -> bool:
    """Whether another of the user's templates names this one, to include or import it."""
    said = re.compile(rf"['\"][^'\"]*{re.escape(Path(name).name)}['\"]")
    return any(said.search(text) for other, text in texts.items() if other != name)


def _nothing(name: str, shipped: frozenset[str]) -> str:
    near = difflib.get_close_matches(name, sorted(shipped), 1)
    near = near or [s for s in sorted(shipped) if s.rpartition("/")[2] == name.rpartition("/")[2]][:1]
    return "overrides no template, and no other includes it" + (f"; did you mean {near[0]}?" if near else "")


def _bad(folder: Path, name: str, problem: str) -> Diagnostic:
    return Diagnostic("render-templates", f"{name or folder} {problem}", Where(str(folder / name)), _HINT)
