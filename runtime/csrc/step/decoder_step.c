/* Layers of a decoder in one call, of both element types. */

#include "../adapters/lora_products.h"
#include "../attention/attention.h"
#include "../base/thread_pool.h"
#include "decoder_step_structs.h"
#include "decoder_step.h"

#include "../base/f32.inc"
#include "decoder_step.inc"
#include "../base/bf16.inc"
#include "decoder_step.inc"
#include "../base/untyped.inc"
