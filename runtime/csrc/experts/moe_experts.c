/* Mixtures of experts of both element types. */

#include "../base/thread_scratch.h"
#include "../base/thread_pool.h"
#include "../elementwise/norm_rope_elementwise.h"
#include "moe_experts.h"

#include "../base/f32.inc"
#include "moe_experts.inc"
#include "../base/bf16.inc"
#include "moe_experts.inc"
#include "../base/untyped.inc"
