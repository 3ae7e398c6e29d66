#!/usr/bin/env bash
# The benchmark of one GPU on a machine where sgl cannot be installed (see lay_out.sh).
#   GIT_COMMIT=$(git rev-parse --short HEAD) benchmarks/gpu_bench.sh [OPTIONS OF gpu_llama8b.py]
#   benchmarks/gpu_bench.sh demo [OPTIONS OF gpu_demo.py]
#   benchmarks/gpu_bench.sh serve [OPTIONS OF gpu_serve.py]     (build/wheels: fastapi, starlette, uvicorn, prometheus_client ...)
#   benchmarks/gpu_bench.sh few [OPTIONS OF gpu_few_bits.py]
#   benchmarks/gpu_bench.sh experts [OPTIONS OF gpu_experts.py]
#   benchmarks/gpu_bench.sh adapters [OPTIONS OF gpu_adapters.py]
#   benchmarks/gpu_bench.sh kernels [CASES AND OPTIONS OF gpu_kernels.py]
set -euo pipefail
cd "$(dirname "$0")/.."
source benchmarks/lay_out.sh
script=gpu_llama8b.py
case "${1:-}" in
  demo) script=gpu_demo.py; shift ;;
  serve) script=gpu_serve.py; shift ;;
  few) script=gpu_few_bits.py; shift ;;
  experts) script=gpu_experts.py; shift ;;
  adapters) script=gpu_adapters.py; shift ;;
  kernels) script=gpu_kernels.py; shift ;;
esac
exec python3 -u "benchmarks/$script" "$@"
