"""What an autoscaler asks Prometheus: series that the engine has, of these pods alone, in a query that can be read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

#: What SGLang publishes under ``--enable-metrics`` (sglang 0.5, srt/metrics/collector.py), without suffixes of histograms.
SGLANG = frozenset(
    ("num_queue_reqs", "num_running_reqs", "num_used_tokens", "token_usage", "swa_token_usage", "num_grammar_queue_reqs",
     "num_retracted_reqs", "num_paused_reqs", "gen_throughput", "cache_hit_rate", "spec_accept_length", "utilization",
     "num_prefill_prealloc_queue_reqs", "num_prefill_inflight_queue_reqs", "num_decode_prealloc_queue_reqs",
     "num_decode_transfer_queue_reqs", "kv_transfer_speed_gb_s", "kv_transfer_latency_ms", "prompt_tokens_total",
     "generation_tokens_total", "cached_tokens_total", "num_requests_total", "num_aborted_requests_total",
     "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds", "cache_config_info",
     "queue_time_seconds", "time_per_output_token_seconds", "engine_startup_time")
)  # fmt: skip
_SERIES = re.compile(r"\bsglang:(\w+)")
_TAIL = re.compile(r"_(bucket|sum|count)$")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_CLOSES = {")": "(", "]": "[", "}": "{"}


def misspelt(text: str) -> Iterator[tuple[str, str]]:
    """(series, what was meant) of every name that is nearly one of the engine's; others may be newer ones."""
    for name in _SERIES.findall(text):
        plain = _TAIL.sub("", name)
        if plain not in SGLANG and (near := difflib.get_close_matches(plain, sorted(SGLANG), 1, 0.8)):
            yield f"sglang:{name}", f"sglang:{near[0]}"


def unread(query: str) -> str:
    """Why Prometheus cannot read a query, "" if brackets and quotes are in order."""
    rest = _QUOTED.sub("", query)
    if '"' in rest:
        return "a quote has no end"
    opened: list[str] = []
    for letter in rest:
        if letter in _CLOSES.values():
            opened.append(letter)
        elif letter in _CLOSES and (not opened or opened.pop() != _CLOSES[letter]):
            return f"{letter} closes nothing"
    return f"{opened[-1]} has no end" if opened else ""


def everywhere(query: str) -> bool:
    """Whether some series of the query is asked for without its namespace: that of every deployment of the cluster."""
    return any("namespace" not in match[2] for match in re.finditer(r"\b(\w+:\w+)\s*(\{[^}]*\}|)", query))
