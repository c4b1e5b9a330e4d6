#!/usr/bin/env bash
# Written by servegen for qwen3-235b-h200, plan 3dbb2788e46c2929. Change the spec: an edit here is lost with the next build.
# Starts the serve server of qwen3-235b-h200 on port 30000 of this machine; further flags may be appended.
set -euo pipefail

export SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0

exec python3 -m sglang.launch_server \
  --model-path Qwen/Qwen3-235B-A22B-FP8 \
  --served-model-name Qwen/Qwen3-235B-A22B \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 2 \
  --dtype auto \
  --kv-cache-dtype bfloat16 \
  --context-length 19456 \
  --mem-fraction-static 0.907 \
  --max-running-requests 54 \
  --chunked-prefill-size 8192 \
  --max-prefill-tokens 8192 \
  --cuda-graph-max-bs-decode 54 \
  --schedule-policy fcfs \
  --enable-metrics \
  "$@"
