/* Attention of both element types. */

#include "attention.h"
#include "kv_rows.h"
#include "attention_tiles.h"

#include "../base/f32.inc"
#include "attention.inc"
#include "../base/bf16.inc"
#include "attention.inc"
#include "../base/untyped.inc"
