# Sourced by the gpu_*.sh scripts, from the repository's root: lays sgl out where it cannot be installed (no network).
# The floors go under a package folder as the wheel does it. Sets `site`, PYTHONPATH.
# What such a machine lacks may lie in build/gpu_bundle.tar.xz, which pack_gpu.sh makes: packages, flashinfer's kernels and the C parts; it is
# unpacked once and found again. Or as wheels in build/wheels, fetched before with
#   pip download --only-binary=:all: --python-version 3.12 --platform manylinux2014_x86_64 -d build/wheels pydantic jsonschema
# (flashinfer_python and apache_tvm_ffi with --no-deps), and flashinfer's kernels, built before for this machine's
# GPU, in build/flashinfer_aot.tgz (NAME/NAME.so of its cached_ops folder). All are optional.
# SGL_LAID=1: who calls has laid it out, and others may be reading it.
if [ -n "${SGL_LAID:-}" ]; then
  site=/tmp/sgl_site
  return 0
fi
if [ -f build/gpu_bundle.tar.xz ]; then
  site=/tmp/sgl_site
  [ -f "$site/.whole" ] || { mkdir -p "$site" && tar xJf build/gpu_bundle.tar.xz -C "$site" && touch "$site/.whole"; }
else
  site=$(mktemp -d)
fi
rm -rf "$site/sgl"
cp -r sgl "$site/sgl" && cp -r lang runtime grammars common "$site/sgl/"
find "$site/sgl" -name '*.so' -delete # of another Python
add() { python3 -m pip install -q --disable-pip-version-check --no-index --no-deps --no-compile --upgrade --target "$site" "$@" 2>/dev/null; }
if compgen -G "build/wheels/*.whl" >/dev/null && ! add build/wheels/*.whl; then
  for wheel in build/wheels/*.whl; do add "$wheel" || echo "not for this Python: $wheel" >&2; done
fi
if [ -f build/flashinfer_aot.tgz ] && [ -d "$site/flashinfer" ]; then
  mkdir -p "$site/flashinfer/data/aot" && tar xzf build/flashinfer_aot.tgz -C "$site/flashinfer/data/aot"
fi
compile() { # NAME SOURCE FOLDER: taken from the bundle, or built in place
  cp "$site/$1.so" "$3/$1.so" 2>/dev/null || cc -shared -fPIC -O3 -fopenmp-simd -fno-math-errno -fno-trapping-math -pthread $(python3-config --includes 2>/dev/null) "$2" -o "$3/$1.so" || true
}
compile _core grammars/core/grammar_core_unity.c "$site/sgl/grammars"
compile _cpu runtime/csrc/cpu_kernels_unity.c "$site/sgl/runtime/layers"
python3 -m compileall -q "$site/sgl" # as pip does
export PYTHONSAFEPATH=1 PYTHONPATH="$site:$PWD/tests/cpu:$PWD/tests/unit:$PWD:$PWD/benchmarks" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-/tmp/triton}"
