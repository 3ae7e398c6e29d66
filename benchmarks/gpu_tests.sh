#!/usr/bin/env bash
# The tests that need, or gain from, a CUDA device, on a machine where sgl cannot be installed (no network): the
# floors are laid out under a package folder as the wheel does it, the C parts are built in place.
#   benchmarks/gpu_tests.sh [FOLDER FOR LOGS]
# What such a machine lacks (pydantic, jsonschema) may lie as wheels in build/wheels, fetched before with
#   pip download --only-binary=:all: --python-version 3.12 --platform manylinux2014_x86_64 -d build/wheels pydantic jsonschema
set -euo pipefail
cd "$(dirname "$0")/.."
site=$(mktemp -d) logs=${1:-$site}
cp -r sgl "$site/sgl" && cp -r lang runtime grammars "$site/sgl/"
[ ! -d build/wheels ] || python3 -m pip install -q --no-index --find-links build/wheels --target "$site" pydantic jsonschema
compile() { cc -shared -fPIC -O3 -fopenmp-simd -fno-math-errno -fno-trapping-math -pthread $(python3-config --includes 2>/dev/null) "$1" -o "$2" || true; }
compile grammars/core.c "$site/sgl/grammars/_core.so"
compile runtime/layers/cpu.c "$site/sgl/runtime/layers/_cpu.so"
export PYTHONSAFEPATH=1 PYTHONPATH="$site:$PWD/tests/cpu:$PWD/tests/unit:$PWD" HF_HUB_OFFLINE=1
python3 -c 'import sys, torch, transformers; print(sys.version.split()[0], "torch", torch.__version__, "transformers", transformers.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA")'
# test_compat_programs.py starts Python with paths of its own
python3 -m pytest -q -p no:cacheprovider --timeout 200 --ignore tests/cpu/test_compat_programs.py tests/gpu tests/cpu 2>&1 | tee "$logs/gpu_tests.log" | tail -40
