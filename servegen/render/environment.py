"""The one Jinja environment: strict, sandboxed, with filters that make any text safe where it stands."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound, TemplateSyntaxError

from servegen.errors import Diagnostic, RenderError, Where
from servegen.manifest import escape_variables
from servegen.render.own import ENDING, check_folder
from servegen.render.sandbox import Sandbox, check_text

#: Legal in a JSON string but not, unescaped, in every YAML reader: C1 controls with NEL, line and paragraph separators,
#: the byte order mark, the two non-characters (YAML 1.2 section 5.1 "nb-json" against YAML 1.1 "c-printable").
_ESCAPED = {c: f"\\u{c:04x}" for c in (*range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)}
#: YAML 1.2 section 7.4.2: an implicit key is at most 1024 characters.
_LONGEST_KEY = 1000
#: How shipped templates take macros from the files beside them.
_IMPORT = re.compile(r'{% from "([^"]+)" import ([\w, ]+?) %}')


def yaml_value(value: Any) -> str:
    """``value`` as one line of flow YAML that YAML 1.1, YAML 1.2 and JSON read alike; strings are always double-quoted.

    Raises ValueError for what no reader would give back: NUL, lone surrogates, NaN, infinity, non-string keys.
    """
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)}: {yaml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(yaml_value(v) for v in value) + "]"
    raise ValueError(f"{type(value).__name__} has no YAML form")


def _string(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"{text!r} holds a NUL character")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError(f"{text!r} holds half of a surrogate pair")
    return json.dumps(text, ensure_ascii=False).translate(_ESCAPED)


def _key(key: Any) -> str:
    if not isinstance(key, str) or len(key) > _LONGEST_KEY:
        raise ValueError(f"{str(key)[:40]!r} cannot be a key: a string of at most {_LONGEST_KEY} characters is needed")
    return _string(key)


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} has no YAML form")
    if value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    text = repr(value)
    mantissa, e, exponent = text.partition("e")
    # YAML 1.1 reads "1e-05" as a string: its floats need a point.
    return text if "." in mantissa or not e else f"{mantissa}.0e{exponent}"


def shell_word(value: Any) -> str:
    """``value`` as one word of a POSIX shell. Raises ValueError on NUL, which no argument can hold."""
    text = str(value)
    if "\0" in text:
        raise ValueError(f"{text!r} holds a NUL character")
    return shlex.quote(text)


def templates_root() -> Path:
    """The shipped templates: the folder in the installed package, else the one beside the package in a checkout.

    Raises RenderError if neither is there.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "templates", package.parent / "templates"):
        if (folder / "kubernetes").is_dir():
            return folder
    raise RenderError(
        Diagnostic(
            "render-templates",
            "the shipped templates are missing",
            hint="reinstall servegen, or run it from a whole checkout",
        )
    )


#: What a template raises that asks for what is not there, or for more than there is.
_FAULTS = (
    TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


class Environment:
    """Renders templates by name; a user's folder is searched before the shipped one."""

    def __init__(self, user: Path | None = None) -> None:
        root = templates_root()
        if user is not None and not os.path.isdir(user):  # unlike Path.is_dir no error for a name that is too long
            raise RenderError(
                Diagnostic(
                    "render-templates", f"no folder {str(user)!r}", hint="--templates takes a folder of Jinja templates"
                )
            )
        if user is not None and (wrong := check_folder(user, _names(root))):
            raise RenderError(wrong)
        self._user, self._root = user, root
        self._folders = [root] if user is None else [user, root]
        # A user's templates are foreign code: the sandbox keeps them from Python's internals and from the plan.
        self._jinja = Sandbox(
            loader=FileSystemLoader([str(f) for f in self._folders]),
            undefined=StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            cache_size=-1,
        )
        self._jinja.add_filters(yaml=yaml_value, sh=shell_word, literal=escape_variables)

    @property
    def jinja(self) -> Sandbox:
        """The environment itself, for renderers that add filters of their own."""
        return self._jinja

    def has(self, name: str) -> bool:
        """Whether there is a template of that name."""
        return any((f / name).is_file() for f in self._folders)

    def is_users(self, name: str) -> bool:
        """Whether the user's folder has a part in rendering ``name``: the template itself or a macro file beside it."""
        if self._user is None:
            return False
        folder = Path(name).parent
        return (self._user / name).is_file() or any((self._user / folder).glob("_*.j2"))

    def origin(self, name: str) -> str:
        """What to call the template that is taken for ``name``: the user's own file by its path, a shipped one by its name."""
        return str(self._user / name) if self._user is not None and (self._user / name).is_file() else name

    def written_by(self, name: str) -> str:
        """What wrote a file of template ``name``: :meth:`origin`, and the user's macro files beside it that may have a part."""
        own = self.origin(name)
        macros = sorted((self._user / Path(name).parent).glob("_*.j2")) if self._user is not None and own == name else []
        return f"{own} with {', '.join(map(str, macros))}" if macros else own

    def place(self, name: str) -> str:
        """The file in which ``name`` is to be mended; of a shipped template that a user's macros change, theirs."""
        own = self.origin(name)
        if own != name or self._user is None:
            return own if own != name else f"templates/{name}"
        macros = sorted((self._user / Path(name).parent).glob("_*.j2"))
        return str(macros[0]) if macros else f"templates/{name}"

    def source(self, name: str) -> str:
        """The text of the file that is taken for template ``name``."""
        return next((f / name).read_text(encoding="utf-8") for f in self._folders if (f / name).is_file())

    def render(self, name: str, context: Mapping[str, Any]) -> str:
        """The text of template ``name``. Raises RenderError that names the template and its line."""
        try:
            self._jinja.begin()
            text = self._jinja.get_template(name).render(**context)
            if self.is_users(name):
                check_text(text)
            return text
        except TemplateSyntaxError as error:
            where = self._shown(error.filename) if error.filename else self.place(error.name or name)
            raise _failure(error.name or name, Where(where, error.lineno, 1), error.message or "syntax error") from error
        except TemplateNotFound as error:
            missing = error.name or name
            raise _failure(name, self._where(name, error), f"there is no template {missing!r}") from error
        # A template is foreign code too: whatever goes wrong in it is the template's fault, not a bug of ours.
        except _FAULTS as error:
            said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error) or type(error).__name__
            raise _failure(name, self._where(name, error), said) from error

    def _where(self, name: str, error: BaseException) -> Where:
        """The innermost line of a template that was running when ``error`` was raised; the file alone if unknown."""
        found, trace, innermost = Where(self.place(name), 1, 1), error.__traceback__, ""
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if any(Path(file).is_relative_to(folder) for folder in self._folders) and file.endswith(ENDING):
                found = Where(self._shown(file), trace.tb_lineno, 1)
                innermost = file
            trace = trace.tb_next
        own = self._macro_behind(innermost, found.line) if innermost else None
        return found if own is None else Where(own, 1, 1)

    def _macro_behind(self, file: str, line: int) -> str | None:
        """The user's macro file that a line of a shipped template calls, where the fault came to light; None if there is none."""
        path = Path(file)
        if self._user is None or path.is_relative_to(self._user) or not path.is_relative_to(self._root):
            return None
        text = path.read_text(encoding="utf-8")
        called = text.split("\n")[line - 1 : line]
        for name, words in _IMPORT.findall(text):
            used = any(re.search(rf"\b{re.escape(word)}\(", t) for t in called for word in re.findall(r"\w+", words))
            if used and (self._user / name).is_file():
                return str(self._user / name)
        return None

    def _shown(self, file: str) -> str:
        """A template's file as a user knows it: their own as it is, a shipped one from ``templates/`` on."""
        path = Path(file)
        own = self._user is not None and path.is_relative_to(self._user)
        return file if own or not path.is_relative_to(self._root) else f"templates/{path.relative_to(self._root).as_posix()}"


@lru_cache(maxsize=8)
def environment(user: Path | None = None) -> Environment:
    """The environment of a user's folder, shared so that templates are compiled once for all plans of a run."""
    return Environment(user)


@lru_cache(maxsize=8)
def _names(root: Path) -> frozenset[str]:
    """The names of the shipped templates."""
    return frozenset(path.relative_to(root).as_posix() for path in root.rglob(f"*{ENDING}"))


def _failure(name: str, where: Where, message: str) -> RenderError:
    return RenderError(Diagnostic("render-template", f"template {name}: {message}", where))
