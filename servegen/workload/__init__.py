"""Request lengths and arrivals.

- `lengths`: `Lengths`, a distribution of token counts, and `held_tokens`, the context of a running request
- `shapes`: the quantile curves under `Lengths`
- `reuse`: `Reuse`, what prefix caches of any size find of a trace's prompts
- `traffic`: `Workload`, what a service is asked to carry, and the one that a trace shows, `of_trace`
- `trace`: `trace_requests`, the reader of published trace formats
"""

from __future__ import annotations

from servegen.workload.lengths import NODE_EDGES, Lengths, held_tokens
from servegen.workload.reuse import FOLLOWED, Found, Reuse
from servegen.workload.trace import HASH_BLOCK_TOKENS, TraceRequests, trace_requests
from servegen.workload.traffic import Workload, arrival_burstiness, of_trace, prefix_hit_share

__all__ = [
    "FOLLOWED",
    "HASH_BLOCK_TOKENS",
    "NODE_EDGES",
    "Found",
    "Lengths",
    "Reuse",
    "TraceRequests",
    "Workload",
    "arrival_burstiness",
    "held_tokens",
    "of_trace",
    "prefix_hit_share",
    "trace_requests",
]
