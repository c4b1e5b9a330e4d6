#!/usr/bin/env bash
# Written by servegen for llama3-70b-chat, plan 8fcb7e7bf12ca7a5. Change the spec: an edit here is lost with the next build.
# Starts the serve server of llama3-70b-chat on port 30000 of this machine; further flags may be appended.
set -euo pipefail

export SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0

exec python3 -m sglang.launch_server \
  --model-path meta-llama/Llama-3.1-70B-Instruct \
  --served-model-name meta-llama/Llama-3.1-70B-Instruct \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 4 \
  --dtype auto \
  --quantization fp8 \
  --kv-cache-dtype bfloat16 \
  --context-length 13312 \
  --mem-fraction-static 0.873 \
  --max-running-requests 63 \
  --chunked-prefill-size 2048 \
  --max-prefill-tokens 2048 \
  --cuda-graph-max-bs-decode 63 \
  --schedule-policy fcfs \
  --enable-metrics \
  "$@"
