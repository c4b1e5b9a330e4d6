#!/usr/bin/env bash
# Written by servegen for llama3-8b-speculative, plan 4fd98375f3c4bbbd. Change the spec: an edit here is lost with the next build.
# Starts the serve server of llama3-8b-speculative on port 30000 of this machine; further flags may be appended.
set -euo pipefail

export SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0

exec python3 -m sglang.launch_server \
  --model-path meta-llama/Llama-3.1-8B-Instruct \
  --served-model-name meta-llama/Llama-3.1-8B-Instruct \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 2 \
  --dtype auto \
  --quantization fp8 \
  --kv-cache-dtype bfloat16 \
  --context-length 15360 \
  --mem-fraction-static 0.625 \
  --max-running-requests 363 \
  --chunked-prefill-size 16384 \
  --max-prefill-tokens 16384 \
  --cuda-graph-max-bs-decode 363 \
  --schedule-policy fcfs \
  --speculative-algorithm EAGLE3 \
  --speculative-draft-model-path yuhuili/EAGLE3-LLaMA3.1-Instruct-8B \
  --speculative-draft-model-quantization unquant \
  --speculative-num-steps 5 \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 6 \
  --enable-metrics \
  "$@"
