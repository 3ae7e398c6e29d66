/* The whole extension as one translation unit, which is what the build compiles: see README.md.

   The order means nothing to the result; each file includes the headers of what it uses. */

#define SGL_ALL
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/threads.c"
#include "base/scratch.c"
#include "attention/restore_e4m3.c"
#include "gemm/dense_avx512.c"
#include "gemm/dense_amx.c"
#include "gemm/dense_avx2.c"
#include "quantized/int8.c"
#include "quantized/quantize_activations_avx512.c"
#include "quantized/quantize_activations.c"
#include "quantized/int4_avx2.c"
#include "quantized/int4_vnni.c"
#include "quantized/int4.c"
#include "quantized/float8_bf16.c"
#include "quantized/floats.c"
#include "gemm/product.c"
#include "gemm/grouped.c"
#include "attention/tiles.c"
#include "experts/routing.c"
#include "recurrent/scans.c"
#include "adapters/packed.c"
#include "sampling/places.c"
#include "sampling/sample.c"
#include "elementwise/elementwise.c"
#include "attention/attend.c"
#include "attention/latent.c"
#include "attention/topk_select.c"
#include "experts/mixture.c"
#include "recurrent/mixers.c"
#include "adapters/adapters.c"
#include "step/step.c"
#include "python/buffers.c"
#include "python/module.c"
