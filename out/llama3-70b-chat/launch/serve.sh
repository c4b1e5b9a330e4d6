#!/usr/bin/env bash
# Written by servegen for llama3-70b-chat, plan b07c10758440aea7. Change the spec: an edit here is lost with the next build.
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
  --mem-fraction-static 0.834 \
  --max-running-requests 64 \
  --chunked-prefill-size 8192 \
  --max-prefill-tokens 8192 \
  --cuda-graph-max-bs-decode 64 \
  --schedule-policy fcfs \
  --enable-metrics \
  "$@"
