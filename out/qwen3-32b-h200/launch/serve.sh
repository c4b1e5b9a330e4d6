#!/usr/bin/env bash
# Written by servegen for qwen3-32b-h200, plan f1ba28804da6982e. Change the spec: an edit here is lost with the next build.
# Starts the serve server of qwen3-32b-h200 on port 30000 of this machine; further flags may be appended.
set -euo pipefail

export SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0

exec python3 -m sglang.launch_server \
  --model-path Qwen/Qwen3-32B-FP8 \
  --served-model-name Qwen/Qwen3-32B \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 1 \
  --dtype auto \
  --kv-cache-dtype bfloat16 \
  --context-length 15360 \
  --mem-fraction-static 0.928 \
  --max-running-requests 75 \
  --chunked-prefill-size 4096 \
  --max-prefill-tokens 4096 \
  --cuda-graph-max-bs-decode 75 \
  --schedule-policy fcfs \
  --enable-metrics \
  "$@"
