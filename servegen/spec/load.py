"""Files of specs to :class:`LoadedSpec`: every error of every document at once, each at its line; never a traceback.

A document of kind Fleet is not for these functions: :mod:`servegen.spec.fleet` reads files that may hold both.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from servegen import inputs
from servegen.errors import Diagnostic, NotBuiltError, SpecError, UserError, Where
from servegen.record import record
from servegen.secrecy import secret_value
from servegen.spec.base import Section
from servegen.spec.explain import explain, sort_key
from servegen.spec.not_yet import not_yet
from servegen.spec.presets import apply_preset
from servegen.spec.schema import ServingSpec
from servegen.spec.tree import Document, WhereMap, compose, plain

MAX_BYTES = 2**20
MAX_LINE = 2**16  # characters; a YAML reader may take quadratic time over one token, and no token outlasts its line
MAX_ERRORS = 200  # of one document: more are no help, and each is searched for what was meant
ENDINGS = (".yaml", ".yml")
FLEET = "Fleet"


class Named(Protocol):
    """A document that was loaded."""

    @property
    def name(self) -> str: ...
    @property
    def where(self) -> WhereMap: ...


L = TypeVar("L", bound=Named)
S = TypeVar("S", bound=Section)
#: What reads one document: the document, its content and places, its file, the SHA-256 of that file.
Reader = Callable[[Document, dict[str, Any], WhereMap, str, str], L]


@record
class LoadedSpec:
    """A spec and where it came from.

    ``file`` is its path as given, ``sha256`` of that whole file, ``shown`` the document with every default and preset
    applied, values as a person writes them; null stands for what is found out later (price, weights, image ...).
    """

    spec: ServingSpec
    file: str
    sha256: str
    where: WhereMap
    shown: dict[str, Any]

    @property
    def name(self) -> str:
        return self.spec.metadata.name

    def path(self, relative: str, key: str = "") -> Path:
        """The file that the spec means by ``relative``, seen from the spec's folder; ``key`` is where errors point to.

        ``..`` goes up the folders as they are written. SpecError if the file is not there, or if a symbolic link leads
        out of the folder that was meant.
        """
        return below(self.file, relative, self.where.at(key) if key else Where(self.file))


def below(file: str, relative: str, where: Where) -> Path:
    """What :meth:`LoadedSpec.path` says, of the document in ``file``; errors point to ``where``."""
    folder = Path(file).parent
    written = os.path.normpath(os.path.join(os.path.realpath(folder), relative))
    ups = [part for part in Path(os.path.normpath(relative)).parts if part == ".."]
    roof = os.path.normpath(os.path.join(os.path.realpath(folder), *ups))
    real = os.path.realpath(written)
    if os.path.isabs(relative) or os.path.commonpath([roof, real]) != roof:
        hint = "put the file, not a link to it, where the spec says"
        raise SpecError(Diagnostic("bad-path", f"{relative} leads out of the spec's folder", where, hint))
    if not os.path.isfile(real):
        hint = "paths are relative to the spec file"
        raise SpecError(Diagnostic("file-missing", f"there is no file {(folder / relative).as_posix()}", where, hint))
    return Path(written)


def load(path: str | os.PathLike[str]) -> list[LoadedSpec]:
    """The specs of a file, or of every ``*.yaml`` and ``*.yml`` of a directory in the order of their names.

    SpecError with every error of every document; NotBuiltError if all that is wrong is that features are not built.
    """
    return _all_or_error(*load_all([path]))


def loads(text: str | bytes, filename: str) -> list[LoadedSpec]:
    """As :func:`load`, of the content of a file that is called ``filename``."""
    return _all_or_error(*_unique(*_read_text(text, filename, read_spec)))


def load_all(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[LoadedSpec], list[UserError]]:
    """What could be loaded of ``paths``, and an error for each document (or file) that could not."""
    return gather(paths, read_spec)


def gather(paths: Iterable[str | os.PathLike[str]], reader: Reader[L]) -> tuple[list[L], list[UserError]]:
    """As :func:`load_all`, each document read by ``reader``."""
    loaded: list[L] = []
    errors: list[UserError] = []
    for path in paths:
        try:
            files = _files(Path(path))
        except SpecError as error:
            errors.append(error)
            continue
        for file in files:
            try:
                specs, wrong = _read_text(_content(file), file.as_posix(), reader)
            except SpecError as error:
                errors.append(error)
                continue
            loaded += specs
            errors += wrong
    return _unique(loaded, errors)


def restated(loaded: LoadedSpec, document: dict[str, Any]) -> LoadedSpec:
    """``loaded`` with ``document``, in the form of its ``shown``, in its place. SpecError if the language refuses that.

    No preset is applied: a shown spec states all that its preset filled.
    """
    found: list[Diagnostic] = []
    spec = validated(ServingSpec, document, loaded.where, found)
    if spec is None:
        raise SpecError(found or [Diagnostic("wrong-type", "the document is no spec", loaded.where.at(""))])
    return LoadedSpec(spec, loaded.file, loaded.sha256, loaded.where, spec.model_dump(by_alias=True, mode="json"))


def gather_text(text: str | bytes, filename: str, reader: Reader[L]) -> tuple[list[L], list[UserError]]:
    """As :func:`gather`, of the content of a file that is called ``filename``."""
    return _unique(*_read_text(text, filename, reader))


def _all_or_error(loaded: list[LoadedSpec], errors: list[UserError]) -> list[LoadedSpec]:
    if not errors:
        return loaded
    found = [diagnostic for error in errors for diagnostic in error.diagnostics]
    raise NotBuiltError(found) if all(isinstance(error, NotBuiltError) for error in errors) else SpecError(found)


def _unique(loaded: list[L], errors: list[UserError]) -> tuple[list[L], list[UserError]]:
    first: dict[str, L] = {}
    for item in loaded:
        other = first.setdefault(item.name, item)
        if other is not item:
            message = f"metadata.name: another spec is called {item.name}, too"
            hint = f"names are unique; the other one is at {other.where.at('metadata.name')}"
            errors.append(SpecError(Diagnostic("duplicate-name", message, item.where.at("metadata.name"), hint)))
    return list(first.values()), errors


def _files(path: Path) -> list[Path]:
    try:
        if not path.is_dir():
            return [path]
        inside = sorted(path.iterdir(), key=lambda file: file.name)
    except OSError as error:
        raise _unreadable(path, error) from error
    files = [file for file in inside if file.suffix in ENDINGS and file.name[0] != "." and not file.is_dir()]
    if not files:
        hint = "specs are files that end in .yaml or .yml"
        raise SpecError(Diagnostic("empty", "the directory holds no spec", Where(path.as_posix()), hint))
    return files


def _content(file: Path) -> bytes:
    try:
        with inputs.piped(file) as stream:
            return stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error


def _unreadable(path: Path, error: Exception) -> SpecError:
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    return SpecError(Diagnostic("unreadable", f"cannot read it: {reason}", Where(path.as_posix())))


def _read_text(content: str | bytes, file: str, reader: Reader[L]) -> tuple[list[L], list[UserError]]:
    """The documents of one file. SpecError where the file as a whole cannot be read."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    documents = compose(_decode(data, file), file)
    if not documents:
        hint = "`servegen init` writes a spec to start from"
        raise SpecError(Diagnostic("empty", "the file holds no spec", Where(file, 1, 1), hint))
    digest = hashlib.sha256(data).hexdigest()
    loaded: list[L] = []
    errors: list[UserError] = []
    for document in documents:
        try:
            loaded.append(_read_document(document, file, digest, reader))
        except UserError as error:
            errors.append(error)
    return loaded, errors


def _decode(data: bytes, file: str) -> str:
    if len(data) > MAX_BYTES:
        hint = "keep traces and architectures in files of their own"
        message = f"the file is larger than {MAX_BYTES // 2**20} MiB"
        raise SpecError(Diagnostic("too-large", message, Where(file, 1, 1), hint))
    if data.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        wide = data.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff"))
        raise SpecError(Diagnostic("not-utf8", f"the file is UTF-{32 if wide else 16}", Where(file, 1, 1), "save it as UTF-8"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        where = Where(file, before.count(b"\n") + 1, column)
        message = f"the byte 0x{data[error.start]:02x} is not UTF-8"
        raise SpecError(Diagnostic("not-utf8", message, where, "save the file as UTF-8")) from error
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_LINE:
            message = f"the line has more than {MAX_LINE} characters"
            raise SpecError(Diagnostic("too-large", message, Where(file, number, 1), "break it into several"))
    return text


def _read_document(document: Document, file: str, digest: str, reader: Reader[L]) -> L:
    raw, where = plain(document.root, file)
    if not isinstance(raw, dict):
        hint = "a spec starts with apiVersion, kind, metadata and spec"
        found = Diagnostic("wrong-type", "a document must be a mapping (keys with values)", where.at(""), hint)
        raise SpecError([*document.diagnostics, found])
    return reader(document, raw, where, file, digest)


def read_spec(document: Document, raw: dict[str, Any], where: WhereMap, file: str, digest: str) -> LoadedSpec:
    """The reader of one spec. SpecError for a fleet and for whatever the language does not allow; NotBuiltError."""
    found = list(document.diagnostics)
    if raw.get("kind") == FLEET:
        hint = "a fleet is for validate, plan and build; name one of its members"
        message = "kind: this is a fleet, where one spec is asked for"
        raise SpecError([*found, Diagnostic("fleet", message, where.at("kind"), hint)])
    unbuilt = not_yet(raw, where)
    spec = validated(
        ServingSpec, {**raw, "spec": apply_preset(raw["spec"])} if "spec" in raw else raw, where, found
    )
    if spec is not None and not unbuilt and not found:
        return LoadedSpec(spec, file, digest, where, spec.model_dump(by_alias=True, mode="json"))
    if not found:
        raise NotBuiltError(sorted(unbuilt, key=sort_key))
    raise SpecError(sorted([*found, *unbuilt], key=sort_key))


def validated(model: type[S], raw: dict[str, Any], where: WhereMap, found: list[Diagnostic]) -> S | None:
    """The document, or None with what is wrong added to ``found``; a place that stands in ``found`` is not blamed twice."""
    ours = str(raw.get("apiVersion")).startswith("servegen/")
    try:
        checked = model.model_validate(raw)
        found += _secrets(raw, where)
        return checked
    except ValidationError as error:
        blamed = {diagnostic.where for diagnostic in found}
        raised = error.errors(include_url=False)
        head = [e for e in raised if e["loc"] in (("apiVersion",), ("kind",))]
        # The other keys of some other program's document are not ours to judge.
        foreign = head and not ours
        errors = explain(head if foreign else raised[:MAX_ERRORS], where, model)
        found += [diagnostic for diagnostic in errors if diagnostic.where not in blamed]
        told = {diagnostic.where for diagnostic in found}
        found += [secret for secret in _secrets(raw, where) if secret.where not in told] if ours else []
        return None


def _secrets(raw: dict[str, Any], where: WhereMap) -> list[Diagnostic]:
    """Texts that are secrets by their form, wherever they stand: specs are committed, and what is built of them is, too."""
    hint = "put the value into a Kubernetes secret; for Hugging Face, name it in deploy.hfTokenSecret"
    found: list[Diagnostic] = []

    def look(node: Any, path: str) -> None:
        texts: list[tuple[str, Any]] = []
        if isinstance(node, dict):
            texts = [(f"{path}.{name}" if path else name, value) for name, value in node.items()]
            found.extend(
                Diagnostic("secret-value", f"{path}: a key holds {what}, and specs are committed", where.key_at(inner), hint)
                for (inner, _), name in zip(texts, node, strict=True)
                if (what := secret_value(name))
            )
        elif isinstance(node, list):
            texts = [(f"{path}.{index}", value) for index, value in enumerate(node)]
        elif isinstance(node, str) and (what := secret_value(node)):
            found.append(Diagnostic("secret-value", f"{path} holds {what}, and specs are committed", where.key_at(path), hint))
        for inner, value in texts:
            look(value, inner)

    look(raw, "")
    return found
