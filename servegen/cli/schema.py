"""``servegen schema``: the JSON Schema of the spec language."""

from __future__ import annotations

from servegen.cli.common import put


def schema() -> None:
    """Print the JSON Schema of the spec language."""
    from servegen.report.json import json_text
    from servegen.spec.schema import json_schema

    put(json_text(json_schema()))
