/* Norms, activations, rotations and sums of both element types. */

#include "../base/vector_math.h"
#include "../base/e4m3.h"
#include "norm_rope_elementwise.h"

#include "../base/f32.inc"
#include "norm_rope_elementwise.inc"
#include "../base/bf16.inc"
#include "norm_rope_elementwise.inc"
#include "../base/untyped.inc"
