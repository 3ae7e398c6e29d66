#!/usr/bin/env bash
# The tests that need, or gain from, a CUDA device, on a machine where sgl cannot be installed (see lay_out.sh).
#   benchmarks/gpu_tests.sh [FOLDER FOR LOGS [WHAT PYTEST SHALL RUN, e.g. tests/gpu -k sampler ...]]
set -euo pipefail
cd "$(dirname "$0")/.."
source benchmarks/lay_out.sh
logs=${1:-$site}
what=("${@:2}")
[ ${#what[@]} -gt 0 ] || what=(tests/gpu tests/cpu)
python3 -c 'import sys, torch, transformers; print(sys.version.split()[0], "torch", torch.__version__, "transformers", transformers.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA")'
# test_compat_programs.py starts Python with paths of its own
python3 -m pytest -q -p no:cacheprovider --timeout 200 --ignore tests/cpu/test_compat_programs.py "${what[@]}" 2>&1 | tee "$logs/gpu_tests.log" | tail -40
