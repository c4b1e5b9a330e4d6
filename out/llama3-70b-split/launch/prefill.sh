#!/usr/bin/env bash
# Written by servegen for llama3-70b-split, plan 6e44820dc4e3e9f1. Change the spec: an edit here is lost with the next build.
# Starts the prefill server of llama3-70b-split on port 30000 of this machine; further flags may be appended.
set -euo pipefail

export SGLANG_DISAGG_STAGING_BUFFER=1
export SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0

exec python3 -m sglang.launch_server \
  --model-path meta-llama/Llama-3.1-70B-Instruct \
  --served-model-name meta-llama/Llama-3.1-70B-Instruct \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 2 \
  --dtype auto \
  --quantization fp8 \
  --kv-cache-dtype bfloat16 \
  --context-length 27648 \
  --mem-fraction-static 0.823 \
  --max-running-requests 64 \
  --chunked-prefill-size 2048 \
  --max-prefill-tokens 2048 \
  --schedule-policy fcfs \
  --disaggregation-mode prefill \
  --disaggregation-transfer-backend nixl \
  --disaggregation-bootstrap-port 8998 \
  --enable-metrics \
  "$@"
