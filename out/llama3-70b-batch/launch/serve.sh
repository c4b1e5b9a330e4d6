#!/usr/bin/env bash
# Written by servegen for llama3-70b-batch, plan 71b52e41792d81a9. Change the spec: an edit here is lost with the next build.
# Starts the serve server of llama3-70b-batch on port 30000 of this machine; further flags may be appended.
set -euo pipefail

export SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0

exec python3 -m sglang.launch_server \
  --model-path meta-llama/Llama-3.1-70B-Instruct \
  --served-model-name meta-llama/Llama-3.1-70B-Instruct \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 2 \
  --dtype auto \
  --quantization fp8 \
  --kv-cache-dtype fp8_e4m3 \
  --context-length 11264 \
  --mem-fraction-static 0.873 \
  --max-running-requests 171 \
  --chunked-prefill-size 1024 \
  --max-prefill-tokens 1024 \
  --enable-mixed-chunk \
  --cuda-graph-max-bs-decode 171 \
  --schedule-policy fcfs \
  --enable-metrics \
  "$@"
