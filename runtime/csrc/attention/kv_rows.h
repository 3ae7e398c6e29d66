/* What the kernels of attention share: rows of keys and values as they are stored, for both element types. */
#ifndef SGL_ATTENTION_KV_ROWS_H
#define SGL_ATTENTION_KV_ROWS_H

#include "../base/avx512.h"
#include "../base/thread_scratch.h"
#include "attention.h"
#include "dequantize_e4m3.h"

#include "../base/f32.inc"
#include "kv_rows.inc"
#include "../base/bf16.inc"
#include "kv_rows.inc"
#include "../base/untyped.inc"

#endif
