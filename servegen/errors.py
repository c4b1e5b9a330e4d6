"""What the user is told, kept apart from bugs.

The tree (the exit code of the command line in brackets; anything outside the tree is a bug of ours):

    ServegenError
    ├── UserError            [1]  one or more diagnostics about something the user can mend
    │   ├── SpecError             the spec does not say what the language allows
    │   ├── CatalogError          a model, accelerator or engine that the catalogue cannot resolve or model
    │   ├── NotBuiltError         the language has the key, this version does not have the feature
    │   ├── RenderError           a template failed, or rendered something other than what was meant
    │   ├── BundleError           a rendered bundle broke a check
    │   └── EmitError             the output folder could not be read or written
    ├── StaleError           [2]  the output does not match its inputs
    └── InfeasibleError      [3]  no configuration meets the spec; carries the bound, the best value and the smallest fix
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from servegen.record import record

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, order=True)
class Where:
    """A place in a file. ``line`` and ``column`` count from 1; 0 means unknown."""

    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.file:
            return ""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@record
class Diagnostic:
    """One finding: a stable ``code``, what is wrong (``message``), where, and what would be right (``hint``)."""

    code: str
    message: str
    where: Where = field(default_factory=Where)
    hint: str = ""
    severity: Severity = "error"

    def __str__(self) -> str:
        place = f"{self.where}: " if str(self.where) else ""
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{place}{self.severity}[{self.code}]: {self.message}{hint}"

    def at(self, where: Where) -> Diagnostic:
        """The same finding at another place."""
        return replace(self, where=where)


class ServegenError(Exception):
    """Root of everything that is told to a user instead of raising a traceback."""

    exit_code = 1


class UserError(ServegenError):
    """Carries the diagnostics that explain it, the most important first."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = (
            (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        )
        super().__init__("\n".join(str(d) for d in self.diagnostics))


class SpecError(UserError):
    """The spec does not say what the language allows."""


class CatalogError(UserError):
    """A model, accelerator or engine that the catalogue cannot resolve or model."""


class NotBuiltError(UserError):
    """The language has the key, but this version does not have the feature."""


class RenderError(UserError):
    """A template failed, or rendered something other than what was meant."""


class BundleError(UserError):
    """A rendered bundle broke a check."""


class EmitError(UserError):
    """The output folder could not be read or written."""


class StaleError(UserError):
    """The output does not match its inputs."""

    exit_code = 2


@record
class Fix:
    """One change that makes an infeasible spec feasible; it was verified by solving again.

    ``key`` is the spec key to change, ``old`` and ``new`` its values as a person would write them, ``relative``
    the size of the change (0.1 = ten percent) by which fixes are ranked.
    """

    key: str
    old: str
    new: str
    relative: float
    text: str


class InfeasibleError(ServegenError):
    """No configuration meets the spec.

    ``bound`` is the id of the bound that binds (``ttft.p95``, ``memory``, ``pool`` ...), ``best`` the best value that
    can be had, ``fixes`` the smallest changes that were verified to make it feasible, smallest first, ``rejected`` how
    many candidates fell for which reason.
    """

    exit_code = 3

    def __init__(
        self,
        name: str,
        bound: str,
        message: str,
        best: str,
        fixes: tuple[Fix, ...],
        rejected: dict[str, int],
        searched: int,
    ) -> None:
        self.name, self.bound, self.message, self.best = name, bound, message, best
        self.fixes, self.rejected, self.searched = fixes, rejected, searched
        lines = [f"{name}: infeasible: {message}", f"  binding bound: {bound}", f"  best attainable: {best}"]
        lines += [f"  smallest fix: {f.text}" for f in fixes[:1]] + [f"  or: {f.text}" for f in fixes[1:]]
        super().__init__("\n".join(lines))
