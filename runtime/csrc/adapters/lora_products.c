/* What adapters add to products, of both element types: see lora_products.h. */

#include "../base/thread_scratch.h"
#include "../base/thread_pool.h"
#include "lora_products.h"

#include "../base/f32.inc"
#include "lora_products.inc"
#include "../base/bf16.inc"
#include "lora_products.inc"
#include "../base/untyped.inc"
