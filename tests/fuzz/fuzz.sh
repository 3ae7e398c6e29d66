#!/usr/bin/env bash
# Fuzz the grammars for a time, the C core under AddressSanitizer; needs `pip install atheris`.
#   tests/fuzz/fuzz.sh [SECONDS] [FOLDER OF THE CORPUS]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3} seconds=${1:-600} corpus=${2:-build/fuzz}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
mkdir -p "$site/sgl" "$corpus"
touch "$site/sgl/__init__.py"
cp -r grammars "$site/sgl/"
rm -f "$site"/sgl/grammars/_core*.so
include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
# linked without a runtime of its own: atheris brings one that is libFuzzer as well
runtime=$("$python" -c 'import atheris; print(atheris.path())')/asan_with_fuzzer.so
cc -c -fPIC -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined "-I$include" grammars/core/grammar_core_unity.c -o "$site/core.o"
cc -shared "$site/core.o" -o "$site/sgl/grammars/_core.so"
LD_PRELOAD="$runtime" ASAN_OPTIONS=detect_leaks=0 PYTHONSAFEPATH=1 PYTHONPATH="$site" "$python" \
    tests/fuzz/fuzz_grammars.py -max_total_time="$seconds" -timeout=60 -rss_limit_mb=4096 -max_len=400 -len_control=0 \
    -artifact_prefix="$corpus-" "$corpus"
