#!/usr/bin/env bash
# Written by servegen for llama3-8b-l40s, plan 18051f6448655401. Change the spec: an edit here is lost with the next build.
# Starts the serve server of llama3-8b-l40s on port 30000 of this machine; further flags may be appended.
set -euo pipefail

export SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0

exec python3 -m sglang.launch_server \
  --model-path meta-llama/Llama-3.1-8B-Instruct \
  --served-model-name meta-llama/Llama-3.1-8B-Instruct \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 1 \
  --dtype auto \
  --quantization fp8 \
  --kv-cache-dtype bfloat16 \
  --context-length 9216 \
  --mem-fraction-static 0.713 \
  --max-running-requests 40 \
  --chunked-prefill-size 8192 \
  --max-prefill-tokens 8192 \
  --enable-mixed-chunk \
  --cuda-graph-max-bs-decode 40 \
  --schedule-policy lpm \
  --enable-metrics \
  "$@"
