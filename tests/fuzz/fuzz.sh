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
cc -shared -fPIC -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined "-I$include" grammars/core.c -o "$site/sgl/grammars/_core.so"
export LD_PRELOAD="$(cc -print-file-name=libasan.so) $(cc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0
PYTHONSAFEPATH=1 PYTHONPATH="$site" "$python" tests/fuzz/fuzz_grammars.py -max_total_time="$seconds" -timeout=60 -rss_limit_mb=4096 -max_len=400 "$corpus"
