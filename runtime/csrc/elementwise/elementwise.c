/* Norms, activations, rotations and sums of both element types. */

#include "../base/activation.h"
#include "../base/e4m3.h"
#include "elementwise.h"

#include "../base/f32.inc"
#include "elementwise.inc"
#include "../base/bf16.inc"
#include "elementwise.inc"
#include "../base/untyped.inc"
