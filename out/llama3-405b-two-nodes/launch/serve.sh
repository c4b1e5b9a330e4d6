#!/usr/bin/env bash
# Written by servegen for llama3-405b-two-nodes, plan 6a6e7032cb6a459d. Change the spec: an edit here is lost with the next build.
# Starts one process of a serve server of llama3-405b-two-nodes that takes 2 nodes. Run it on each of them; rank 0 answers on port 30000:
#   LEADER_ADDRESS='the host or address of rank 0' NODE_RANK='0 to 1' ./serve.sh
# The processes meet at port 20000 of rank 0, and must reach each other on every port. Further flags may be appended, the same on each.
set -euo pipefail

if [[ -z "${LEADER_ADDRESS:-}" || -z "${NODE_RANK:-}" ]]; then
  echo "usage: LEADER_ADDRESS=host NODE_RANK=0..1 $0 [flags]" >&2
  exit 1
fi
if [[ ! "${NODE_RANK}" =~ ^(0|[1-9][0-9]{0,3})$ ]] || ((NODE_RANK >= 2)); then
  echo "$0: NODE_RANK is '${NODE_RANK}', the replica has ranks 0 to 1" >&2
  exit 1
fi

export SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0

exec python3 -m sglang.launch_server \
  --model-path meta-llama/Llama-3.1-405B-Instruct \
  --served-model-name meta-llama/Llama-3.1-405B-Instruct \
  --host 0.0.0.0 \
  --port 30000 \
  --tp-size 16 \
  --nnodes 2 \
  --dist-timeout 8130 \
  --dtype bfloat16 \
  --kv-cache-dtype bfloat16 \
  --context-length 8192 \
  --mem-fraction-static 0.873 \
  --max-running-requests 40 \
  --chunked-prefill-size 2048 \
  --max-prefill-tokens 2048 \
  --cuda-graph-max-bs-decode 40 \
  --schedule-policy fcfs \
  --enable-metrics \
  --dist-init-addr "${LEADER_ADDRESS}:20000" \
  --node-rank "${NODE_RANK}" \
  "$@"
