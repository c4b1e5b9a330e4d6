"""What an autoscaler asks Prometheus: series that the engine has, of these pods alone, in a query that can be read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

#: What SGLang publishes under ``--enable-metrics``, without suffixes of histograms: all of srt in the wheel sglang 0.5.23
#: (sha256 00b3cd5b), and what came before: sgl-project/sglang, python/sglang/srt/observability/metrics_collector.py at 44cedc2b
#: (the names of 0.5.9) and python/sglang/srt/metrics/collector.py at 93d04878 (before 0.5.5).
SGLANG = frozenset(
    ("backup_bandwidth", "backup_pgs", "backuped_tokens_total", "cache_config_info", "cache_hit_rate", "cached_tokens_total",
     "context_len", "cuda_graph_passes_total", "decode_deferred_kv_release_seconds", "decode_deferred_kv_release_total",
     "decode_sum_seq_lens", "dp_attention_pairs_total", "dp_attention_steps_total", "dp_attention_sync_wait_seconds",
     "dp_attention_token_imbalance_ratio", "dp_attention_tokens_total", "dp_cooperation_forward_execution_seconds_total",
     "dp_cooperation_gpu_execution_seconds_total", "dp_cooperation_realtime_tokens_total", "e2e_request_latency_seconds",
     "encoder_cache_entries", "encoder_cache_evictions_total", "encoder_cache_hit_files_total", "encoder_cache_hit_tokens_total",
     "encoder_cache_size_mb", "encoder_cache_total_files_total", "encoder_cache_total_tokens_total",
     "encoder_dp_pending_requests", "encoder_mm_items_per_batch", "encoder_mm_items_per_request",
     "encoder_model_forward_seconds", "encoder_preprocess_seconds", "encoder_queue_wait_seconds",
     "encoder_request_e2e_latency_seconds", "encoder_requests_received_total", "encoder_requests_total",
     "encoder_transfer_seconds", "engine_load_weights_time", "engine_startup_time", "eplb_balancedness",
     "eplb_gpu_physical_count", "estimated_flops_per_gpu_total", "estimated_read_bytes_per_gpu_total",
     "estimated_write_bytes_per_gpu_total", "evicted_tokens_total", "eviction_duration_seconds",
     "failed_session_recoveries_total", "forward_execution_seconds_total", "full_token_usage", "func_latency_seconds",
     "fwd_occupancy", "gen_throughput", "generation_tokens_histogram", "generation_tokens_total", "get_loads_duration_seconds",
     "gpu_execution_seconds_total", "grammar_compilation_time_seconds", "grammar_ebnf_size", "grammar_schema_count",
     "grammar_tree_traversal_time_avg", "grammar_tree_traversal_time_max", "graph_memory_usage_gb", "hicache_backup_bytes_total",
     "hicache_backup_dropped_tokens_total", "hicache_backup_duration_seconds", "hicache_backup_tokens_total",
     "hicache_dropped_tokens_total", "hicache_host_mamba_total_states", "hicache_host_mamba_used_states",
     "hicache_host_total_tokens", "hicache_host_used_tokens", "hicache_prefetch_aux_alloc_failed_tokens_total",
     "http_requests_active", "http_requests_total", "http_responses_total", "inter_token_latency_seconds", "is_cuda_graph",
     "kv_available_tokens", "kv_cache_memory_usage_gb", "kv_evictable_tokens", "kv_transfer_alloc_ms",
     "kv_transfer_bootstrap_ms", "kv_transfer_latency_ms", "kv_transfer_speed_gb_s", "kv_transfer_total_mb", "kv_used_tokens",
     "load_back_bytes_total", "load_back_duration_seconds", "load_back_tokens_total", "lora_pool_slots_total",
     "lora_pool_slots_used", "lora_pool_utilization", "mamba_available_tokens", "mamba_evictable_tokens", "mamba_usage",
     "mamba_used_tokens", "max_running_requests_under_SLO", "max_total_num_tokens", "max_total_num_tokens_swa",
     "new_token_ratio", "num_aborted_requests_total", "num_bootstrap_failed_reqs_total", "num_decode_deferred_kv_release_reqs",
     "num_decode_host_receive_queue_reqs", "num_decode_host_receive_reqs_total", "num_decode_prealloc_queue_reqs",
     "num_decode_transfer_queue_reqs", "num_grammar_aborted_total", "num_grammar_cache_hit_total", "num_grammar_queue_reqs",
     "num_grammar_timeout_total", "num_grammar_total", "num_pages", "num_paused_reqs", "num_prefill_bootstrap_queue_reqs",
     "num_prefill_inflight_queue_reqs", "num_prefill_prealloc_queue_reqs", "num_prefill_retries_total", "num_queue_reqs",
     "num_requests_total", "num_retracted_input_tokens_total", "num_retracted_output_tokens_total", "num_retracted_reqs",
     "num_retracted_requests_total", "num_retractions", "num_running_reqs", "num_running_reqs_offline_batch",
     "num_so_requests_total", "num_streaming_sessions", "num_transfer_failed_reqs_total", "num_unique_running_routing_keys",
     "num_used_tokens", "page_size", "pending_prealloc_token_usage", "per_stage_req_latency_seconds",
     "prealloc_full_token_usage", "prealloc_swa_token_usage", "prefetch_bandwidth", "prefetch_pgs", "prefetched_tokens_total",
     "prefill_delayer_outcomes_total", "prefill_delayer_wait_forward_passes", "prefill_delayer_wait_seconds",
     "prefill_effective_tokens_total", "process_cpu_seconds_total", "prompt_tokens_histogram", "prompt_tokens_total",
     "queue_time_seconds", "realtime_tokens_total", "request_time_per_output_token_seconds", "routing_key_all_req_count",
     "routing_key_running_req_count", "routing_keys_active", "scheduler_idle_seconds_total",
     "scheduler_process_cpu_seconds_total", "scheduler_stage_seconds_total", "spec_accept_length", "spec_accept_rate",
     "spec_block_accept_length", "spec_cap_length", "spec_num_draft_tokens", "spec_num_steps", "spec_verify_calls_total",
     "startup_available_gpu_memory_gb", "startup_cuda_graph_time_seconds", "startup_latency_breakdown_seconds_max",
     "startup_time_seconds", "storage_prefetch_deferred_tokens_total", "storage_prefetch_hit_tokens_total",
     "storage_prefetch_unfulfilled_tokens_total", "streaming_session_held_tokens", "swa_available_tokens",
     "swa_evictable_tokens", "swa_token_usage", "swa_used_tokens", "time_to_first_token_seconds", "token_usage",
     "uncached_prompt_tokens_histogram", "utilization", "weight_load_duration_seconds", "weight_memory_usage_gb")
)  # fmt: skip
#: How like a known name a misspelt one is: a letter or two off. A longer name may be a rule's of the user.
NEARLY = 0.9
_SERIES = re.compile(r"\bsglang:(\w+)")
_TAIL = re.compile(r"_(bucket|sum|count)$")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
#: A series of an engine, by the prefix that it gives to all of its own, and its labels.
_SELECTED = re.compile(r'(?<![\w:])(sglang|vllm|trtllm|tgi|lmdeploy|megatron):\w+(?![\w:])\s*(\{(?:[^}"]|"(?:[^"\\]|\\.)*")*\}|)')
_CLOSES = {")": "(", "]": "[", "}": "{"}


def misspelt(text: str) -> Iterator[tuple[str, str]]:
    """(series, what was meant) of every name that is nearly one of the engine's; others may be newer ones."""
    for name in _SERIES.findall(text):
        plain = _TAIL.sub("", name)
        if not {name, plain} & SGLANG and (near := difflib.get_close_matches(plain, sorted(SGLANG), 1, NEARLY)):
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
    """Whether some series of an engine is asked for without its namespace: that of every deployment of the cluster.

    What a rule of the user's has recorded (``job:x:sum``) may be of one namespace whatever its labels say.
    """
    return any("namespace" not in match[2] for match in _SELECTED.finditer(query))


def engines(query: str) -> set[str]:
    """The engines whose series a query asks for."""
    return {match[1] for match in _SELECTED.finditer(query)}
