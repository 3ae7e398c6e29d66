/* The whole extension as one translation unit, which is what the build compiles: see README.md.

   The order means nothing to the result; each file includes the headers of what it uses. */

#define SGL_ALL
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/thread_pool.c"
#include "base/thread_scratch.c"
#include "files/digested_read.c"
#include "attention/dequantize_e4m3.c"
#include "gemm/dense_gemm_avx512.c"
#include "gemm/dense_gemm_amx.c"
#include "gemm/dense_gemm_avx2.c"
#include "quantized/int8_gemm.c"
#include "quantized/quantize_activations_avx512.c"
#include "quantized/quantize_activations.c"
#include "quantized/int4_gemm_avx2.c"
#include "quantized/int4_gemm_vnni.c"
#include "quantized/int4_gemm.c"
#include "quantized/float8_bf16_gemm.c"
#include "quantized/small_float_gemm.c"
#include "quantized/stored_codes.c"
#include "quantized/pack_weights.c"
#include "gemm/gemm.c"
#include "gemm/grouped_gemm.c"
#include "attention/attention_tiles.c"
#include "experts/moe_routing.c"
#include "recurrent/recurrent_scans.c"
#include "adapters/lora_packed_bf16.c"
#include "sampling/suffix_lookup.c"
#include "sampling/token_sampling.c"
#include "elementwise/norm_rope_elementwise.c"
#include "attention/attention.c"
#include "attention/latent_attention.c"
#include "attention/attention_topk_select.c"
#include "experts/moe_experts.c"
#include "recurrent/recurrent_mixers.c"
#include "adapters/lora_products.c"
#include "step/decoder_step.c"
#include "python/python_buffer_functions.c"
#include "python/cpu_kernels_module.c"
