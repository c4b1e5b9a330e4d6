"""SHA-256 of what an answer depends on."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from servegen import inputs
from servegen.codec import dumps
from servegen.errors import Diagnostic, SpecError, Where
from servegen.spec.load import LoadedSpec


def digests(loaded: LoadedSpec, facts: dict[str, Any]) -> dict[str, str]:
    """SHA-256 of everything that the answer depends on, by name; no path in it."""

    def digest(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    body = loaded.spec.spec
    out = {
        "spec": digest(json.dumps(loaded.shown, sort_keys=True, ensure_ascii=False).encode()),
        "facts": digest(dumps(facts, indent=None).encode()),
    }
    named = {
        "model.config": body.model.config,
        "model.speculative.draftConfig": body.model.speculative.draft_config if body.model.speculative else None,
        "traffic.trace": body.traffic.trace,
        "deploy.calibration": body.deploy.calibration,
    }
    for key, relative in named.items():
        if relative is not None:
            out[key] = digest(_read(loaded.path(relative, f"spec.{key}"), loaded.where.at(f"spec.{key}")))
    for i, relative in enumerate((body.deploy.overrides.patches or ()) if body.deploy.overrides else ()):
        key = f"deploy.overrides.patches.{i}"
        out[key] = digest(_read(loaded.path(relative, f"spec.{key}"), loaded.where.at(f"spec.{key}")))
    return out


def _read(path: Any, where: Where) -> bytes:
    try:
        return inputs.read(path, inputs.MOST_TRACE_BYTES)
    except OSError as error:
        raise SpecError(
            Diagnostic("unreadable", f"cannot read {path}: {error.strerror}", where, "check its permissions")
        ) from error
