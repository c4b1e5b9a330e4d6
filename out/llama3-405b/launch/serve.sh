#!/usr/bin/env bash
# Written by servegen for llama3-405b, plan 329a61dd0137a94d. Change the spec: an edit here is lost with the next build.
# Starts the serve server of llama3-405b on port 30000 of this machine; further flags may be appended.
set -euo pipefail

export SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0

exec python3 -m sglang.launch_server \
  --model-path meta-llama/Llama-3.1-405B-Instruct-FP8 \
  --served-model-name meta-llama/Llama-3.1-405B-Instruct \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 8 \
  --dtype auto \
  --kv-cache-dtype bfloat16 \
  --context-length 8192 \
  --mem-fraction-static 0.873 \
  --max-running-requests 42 \
  --chunked-prefill-size 1024 \
  --max-prefill-tokens 1024 \
  --cuda-graph-max-bs-decode 42 \
  --schedule-policy fcfs \
  --enable-metrics \
  "$@"
