"""What rendering yields and emitting writes: text files by their path inside ``out/<name>/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from servegen.record import record


@record
class Bundle:
    """``files`` maps a POSIX path relative to ``out/<name>/`` to its whole text; ``executable`` names those to mark +x.

    ``templates`` maps a path to the template that it came from, so that a finding can name it.
    """

    name: str
    files: Mapping[str, str]
    executable: frozenset[str] = frozenset()
    templates: Mapping[str, str] = field(default_factory=dict)
