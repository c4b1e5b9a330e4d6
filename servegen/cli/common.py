"""What the commands share: reading specs, choosing the format, printing, the worst exit code of several specs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from servegen import inputs
from servegen.errors import Diagnostic, InfeasibleError, ServegenError, SpecError, UserError, Where
from servegen.record import record

if TYPE_CHECKING:
    from servegen.plan import Plan
    from servegen.report.blocks import Block
    from servegen.spec.fleet import LoadedFleet
    from servegen.spec.load import LoadedSpec

STDIN = "-"
#: Processes beyond which no more are started for one fleet: each takes 150 to 200 MB.
MOST_PROCESSES = 4
#: Block style, and flow style or JSON, which indents its keys or has them all on one line.
_IS_SPEC = re.compile(r"""(?:^["']?|^\s*\{[^}]*?["']?)apiVersion["']?\s*:\s*["']?servegen\b""", re.MULTILINE)


@record
class Source:
    """One spec or fleet, or the reason why there is none. ``file`` is as the user gave it."""

    file: str
    loaded: LoadedSpec | LoadedFleet | None
    error: UserError | None = None

    @property
    def name(self) -> str:
        return self.loaded.name if self.loaded is not None else ""

    def need(self) -> LoadedSpec | LoadedFleet:
        """The spec or fleet. Raises the error that stands in its place."""
        if self.loaded is None:
            raise self.error or ValueError(f"{self.file} holds neither a spec nor an error")
        return self.loaded


def solving(loaded: Any) -> AbstractContextManager[None]:
    """A note while a fleet is solved, or a spec whose trace may bring hashes: every room for its prefix caches takes a search."""
    from servegen.report.progress import noted
    from servegen.spec.load import LoadedSpec

    if not isinstance(loaded, LoadedSpec):
        return noted(f"{loaded.name}: solving for {len(loaded.members)} members")
    if loaded.spec.spec.traffic.trace is None:
        return nullcontext()
    return noted(f"{loaded.name}: sizing for {loaded.spec.spec.traffic.trace}")


def processes() -> int:
    """How many may work side by side: as many as this process has cores, within what a small machine has memory for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def read_specs(paths: Sequence[str]) -> list[Source]:
    """Every spec of the files and folders, in order, each file once; what cannot be read is a Source with an error.

    A folder stands for the ``*.yaml`` and ``*.yml`` files in it that hold specs; others are named on stderr.
    """
    sources: list[Source] = []
    for path in paths:
        try:
            files = [path] if path == STDIN else _files(path)
        except UserError as error:
            sources.append(Source(path, None, error))
            continue
        for file in files:
            if not any(_same(file, source.file) for source in sources):
                sources += _load(file)
    names: dict[str, str] = {}
    for index, source in enumerate(sources):
        if source.loaded is None:
            continue
        if source.name in names:
            message = f"the name {source.name!r} is taken by another spec, in {names[source.name]}"
            where = source.loaded.where.at("metadata.name")
            hint = "the name is that of the output folder and of every object: give each spec its own"
            sources[index] = Source(source.file, None, SpecError(Diagnostic("duplicate-name", message, where, hint)))
        names.setdefault(source.name, source.file)
    return sources


def folder(path: str) -> Path:
    """A folder that is named: what an unset variable of the shell leaves is not."""
    if not path:
        raise typer.BadParameter("it is empty; . is the folder where you are")
    return Path(path)


def _head(file: str) -> str:
    """As much of a file as a spec may have."""
    from servegen.spec.load import MAX_BYTES

    with inputs.piped(file) as stream:
        return stream.read(MAX_BYTES).decode("utf-8", "replace")


def _files(path: str) -> list[str]:
    if not os.path.exists(path):
        raise SpecError(Diagnostic("no-file", "there is no such file or folder", Where(path)))
    if not os.path.isdir(path):
        return [path]
    found: list[str] = []
    for name in sorted(os.listdir(path)):
        file = os.path.join(path, name)
        if name.startswith(".") or not name.endswith((".yaml", ".yml")) or not os.path.isfile(file):
            continue
        if not os.access(file, os.R_OK) or _IS_SPEC.search(_head(file)):
            found.append(file)  # reading it says what is wrong with one that cannot be read
        else:
            say(f"note: {file} has no apiVersion of servegen and is passed over")
    if not found:
        hint = "servegen init writes one"
        raise SpecError(Diagnostic("no-spec", "there is no spec in this folder", Where(path), hint))
    return found


def _load(file: str) -> list[Source]:
    if file == STDIN:
        from servegen.spec.fleet import loads_either
        from servegen.spec.load import MAX_BYTES

        try:
            specs, errors = loads_either(sys.stdin.buffer.read(MAX_BYTES + 1), "<stdin>")
        except OSError as error:
            why = f"cannot read standard input: {error.strerror or error}"
            return [Source(file, None, SpecError(Diagnostic("unreadable", why, Where("<stdin>"))))]
        except UserError as error:
            return [Source(file, None, error)]
    else:
        from servegen.compile import load

        specs, errors = load(Path(file))
    return [Source(file, spec) for spec in specs] + [Source(file, None, error) for error in errors]


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def lock_of(path: str, name: str) -> str:
    """``path``, or, where it is a folder of outputs, the file of the plan of that name in it."""
    return os.path.join(path, name, "plan.lock.json") if os.path.isdir(path) else path


def read_lock(path: str) -> Plan:
    """The plan of a ``plan.lock.json``. Raises SpecError where it cannot be read, UserError where it is none."""
    from servegen.inputs import read as read_bytes
    from servegen.plan import read

    try:
        text = read_bytes(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise SpecError(Diagnostic("unreadable", f"cannot read it: {reason}", Where(path))) from error
    try:
        return read(text)
    except ValueError as error:
        message = f"this is no plan that servegen can read: {error}"
        raise UserError(Diagnostic("bad-lock", message, Where(path), "servegen build writes plan.lock.json")) from error


def check_templates(templates: Path | None) -> None:
    """A usage error where there is no such folder, and a UserError where something in it would be passed over."""
    if templates is None:
        return
    if not os.path.isdir(templates):  # unlike Path.is_dir no error for a name that is too long
        raise typer.BadParameter(f"there is no folder {str(templates)!r}", param_hint="'--templates'")
    from servegen.render.environment import Environment

    Environment(templates)


def one_of(flag: str, value: str, allowed: Sequence[str]) -> str:
    """``value`` if it is one of the allowed words; a usage error else."""
    if value not in allowed:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}", param_hint=f"'{flag}'")
    return value


def format_of(value: str, allowed: Sequence[str]) -> str:
    """``value`` if the command can print it; a usage error else."""
    return one_of("--format", value, allowed)


def put(text: str) -> None:
    """Data, to stdout."""
    sys.stdout.write(text)


def say(line: str) -> None:
    """Everything else, to stderr."""
    from servegen.report.figures import visible

    print(visible(line), file=sys.stderr)


def say_all(diagnostics: Sequence[Diagnostic]) -> None:
    """Diagnostics as a compiler writes them, to stderr."""
    from servegen.report.diagnostics import text

    sys.stderr.write(text(diagnostics))


def tell(error: ServegenError) -> None:
    """What went wrong with one spec, to stderr."""
    if isinstance(error, UserError):
        say_all(error.diagnostics)
    elif isinstance(error, InfeasibleError):
        from servegen.report.text import infeasible_blocks, plain

        sys.stderr.write(plain(infeasible_blocks(error)))


def show(blocks: Sequence[Block]) -> None:
    """A report to stdout: with rich on a terminal, plain and aligned anywhere else."""
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from servegen.report.terminal import show as show_rich

        show_rich(blocks, sys.stdout)
    else:
        from servegen.report.text import plain

        put(plain(blocks))


def put_data(entries: Sequence[Any], one: bool, format: str) -> None:
    """Entries as JSON or YAML: the entry itself where one was asked for, else an array of them."""
    from servegen.report.json import json_text, yaml_text

    if one and not entries:
        return
    value = entries[0] if one else list(entries)
    put(json_text(value) if format == "json" else yaml_text(value))


def put_findings(findings: Sequence[Any], format: str) -> None:
    """Diagnostics of several specs as json, github or sarif."""
    from servegen import __version__
    from servegen.report import diagnostics

    if format == "github":
        put(diagnostics.github(findings))
    elif format == "sarif":
        put_data([diagnostics.sarif(findings, __version__)], True, "json")
    else:
        put_data(diagnostics.as_json(findings), len(findings) == 1, "json")


def diagnostics_of(error: ServegenError, file: str) -> tuple[Diagnostic, ...]:
    """An error as diagnostics at the spec's file, for the formats that know nothing else."""
    if isinstance(error, UserError):
        return error.diagnostics
    if isinstance(error, InfeasibleError):
        message = f"{error.name}: {error.message}; binding bound: {error.bound}; best attainable: {error.best}"
        return (Diagnostic("infeasible", message, Where(file), error.fixes[0].text if error.fixes else ""),)
    return (Diagnostic("error", str(error), Where(file)),)


def worst(codes: Iterable[int]) -> int:
    """The exit code of several specs: an error before infeasible before stale before success."""
    found = set(codes)
    return next((code for code in (1, 3, 2) if code in found), 0)
