"""Presets: each fills keys only where the spec is silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: By preset, the keys it fills, relative to ``spec``.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "chat": {"slo.ttft.p95": "500ms", "slo.itl.p95": "50ms", "objective": "cost", "traffic.burstiness": 1.5},
    "api": {"slo.ttft.p95": "1s", "slo.itl.p95": "30ms", "objective": "cost"},
    "batch": {"objective": "throughput", "constraints.utilization": 1.0},
    "long-context": {"slo.ttft.p95": "10s", "slo.itl.p95": "50ms", "constraints.kvCache": ["bf16", "fp8"]},
    "edge": {"objective": "latency", "traffic.concurrency": 1},
}
#: Sibling keys that speak for a key: where one of them is stated, the spec is not silent about it.
SPEAKS_FOR: Mapping[str, tuple[str, ...]] = {
    "traffic.burstiness": ("concurrency", "users", "trace"),
    "traffic.concurrency": ("rate", "users", "trace", "burstiness"),
}


def apply_preset(body: Any) -> Any:
    """``body`` (the mapping under ``spec``) with its preset's keys added; itself unless it names a preset."""
    name = body.get("preset") if isinstance(body, dict) else None
    for key, value in PRESETS.get(name, {}).items() if isinstance(name, str) else ():
        if not (key.startswith("traffic.") and body.get("traffic") is None):  # a required section stays missing
            body = _fill(body, key.split("."), value, SPEAKS_FOR.get(key, ()))
    return body


def _fill(node: Any, path: list[str], value: Any, rivals: tuple[str, ...]) -> Any:
    """A copy of ``node`` with ``value`` at ``path``, unless something stands there or where a mapping would have to."""
    if node is None:
        node = {}
    if not isinstance(node, dict):
        return node
    head, *rest = path
    if rest:
        return {**node, head: _fill(node.get(head), rest, value, rivals)}
    spoken = any(node.get(key) is not None for key in (head, *rivals))
    return node if spoken else {**node, head: value}
