#!/usr/bin/env bash
# The tests that need, or gain from, a CUDA device, on a machine where sgl cannot be installed (see lay_out.sh).
#   [WORKERS=14] [SECONDS_AT_MOST=500] benchmarks/gpu_tests.sh [FOLDER FOR LOGS [WHAT PYTEST SHALL RUN, e.g. tests/gpu -k sampler ...]]
# Each outcome, and why a test failed, is in gpu_tests.outcomes at once: a run that is cut off loses nothing. Two scripts, each with a card of its own
# (CUDA_VISIBLE_DEVICES) and a folder of its own, may run beside each other; test_memory_cuda.py wants a card for itself, without workers.
set -euo pipefail
cd "$(dirname "$0")/.."
source benchmarks/lay_out.sh
export OMP_NUM_THREADS=1
logs=${1:-$site}
what=("${@:2}")
[ ${#what[@]} -gt 0 ] || what=(tests/gpu tests/cpu)
beside=()
[ "${WORKERS:-0}" = 0 ] || beside=(-n "$WORKERS" --dist worksteal)
python3 -c 'import sys, torch, transformers; print(sys.version.split()[0], "torch", torch.__version__, "transformers", transformers.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA")'
# test_compat_programs.py starts Python with paths of its own
rm -f "$logs/gpu_tests.outcomes"
ended=0
OUTCOMES="$logs/gpu_tests.outcomes" timeout -s INT -k 5 "${SECONDS_AT_MOST:-3600}" python3 -m pytest -q -p no:cacheprovider -p outcomes -W ignore --timeout 200 --tb short \
  --ignore tests/cpu/test_compat_programs.py "${beside[@]}" "${what[@]}" >"$logs/gpu_tests.log" 2>&1 || ended=$?
if [ -f "$logs/gpu_tests.outcomes" ]; then
  grep -oE '^(passed|failed|skipped) ' "$logs/gpu_tests.outcomes" | sort | uniq -c
  grep -E '^failed ' "$logs/gpu_tests.outcomes" || true
fi
[ "$ended" = 0 ] || tail -20 "$logs/gpu_tests.log"
exit "$ended"
