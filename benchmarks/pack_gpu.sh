#!/usr/bin/env bash
# What a GPU machine without a network lacks, in one file: build/gpu_bundle.tar.xz, which lay_out.sh unpacks there. Run it where there is one.
#   benchmarks/pack_gpu.sh INCLUDE [FLASHINFER_AOT]
# INCLUDE: headers of Python 3.12, that machine's, for which the C parts are compiled.  FLASHINFER_AOT: a .tgz of flashinfer's kernels (see lay_out.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
include=$1
folder=$(mktemp -d) wheels=$(mktemp -d)
fetch() {
  python3 -m pip download -q --disable-pip-version-check --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d "$wheels" "$@"
}
fetch --no-deps flashinfer-python==0.6.8 apache-tvm-ffi
fetch pydantic jsonschema lark
for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$folder"; done
rm -rf "$folder/flashinfer/cute_dsl" "$folder/flashinfer/gdn_kernels/blackwell"
if [ -n "${2:-}" ]; then mkdir -p "$folder/flashinfer/data/aot" && tar xzf "$2" -C "$folder/flashinfer/data/aot"; fi
cc -shared -fPIC -O3 -pthread -I"$include" grammars/core/grammar_core_unity.c -o "$folder/_core.so"
cc -shared -fPIC -O3 -fopenmp-simd -fno-math-errno -fno-trapping-math -pthread -I"$include" runtime/csrc/cpu_kernels_unity.c -o "$folder/_cpu.so"
mkdir -p build
tar cf - -C "$folder" . | xz -T0 -6 >build/gpu_bundle.tar.xz
rm -r "$folder" "$wheels"
ls -l build/gpu_bundle.tar.xz
