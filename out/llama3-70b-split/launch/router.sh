#!/usr/bin/env bash
# Written by servegen for llama3-70b-split, plan 6e44820dc4e3e9f1. Change the spec: an edit here is lost with the next build.
# Starts the router of llama3-70b-split on port 8000 of this machine. It is told the addresses of the servers:
#   PREFILL_URLS='http://host-a:30000 http://host-b:30000' DECODE_URLS='http://host-c:30000' ./router.sh
# BOOTSTRAP_PORT is the port of the prefill servers' KV handshake (default 8998). Further flags may be appended.
set -euo pipefail

if [[ -z "${PREFILL_URLS:-}" || -z "${DECODE_URLS:-}" ]]; then
  echo "usage: PREFILL_URLS='http://host:port ...' DECODE_URLS='http://host:port ...' $0 [flags]" >&2
  exit 1
fi

read -r -a prefill <<< "${PREFILL_URLS}"
read -r -a decode <<< "${DECODE_URLS}"
endpoints=()
for url in "${prefill[@]}"; do
  endpoints+=(--prefill "${url}" "${BOOTSTRAP_PORT:-8998}")
done
for url in "${decode[@]}"; do
  endpoints+=(--decode "${url}")
done

exec python3 -m sglang_router.launch_router \
  --pd-disaggregation \
  --host 0.0.0.0 \
  --port 8000 \
  --prefill-policy power_of_two \
  --decode-policy round_robin \
  --worker-startup-timeout-secs 1570 \
  --prometheus-port 29000 \
  "${endpoints[@]}" \
  "$@"
