#!/usr/bin/env bash
# Written by servegen for deepseek-v3-h200, plan 7c0598d737718984. Change the spec: an edit here is lost with the next build.
# Starts the decode server of deepseek-v3-h200 on port 30000 of this machine; further flags may be appended.
set -euo pipefail

export SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0

exec python3 -m sglang.launch_server \
  --model-path deepseek-ai/DeepSeek-V3 \
  --served-model-name deepseek-ai/DeepSeek-V3 \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 8 \
  --attn-dp-size 8 \
  --dtype auto \
  --kv-cache-dtype bfloat16 \
  --context-length 52224 \
  --mem-fraction-static 0.899 \
  --max-running-requests 760 \
  --cuda-graph-max-bs-decode 95 \
  --schedule-policy fcfs \
  --disaggregation-mode decode \
  --disaggregation-transfer-backend nixl \
  --enable-metrics \
  "$@"
