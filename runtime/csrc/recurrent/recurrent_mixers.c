/* Convolutions, gates and whole mixers of both element types: see recurrent_layers.h. */

#include "../base/thread_scratch.h"
#include "../base/thread_pool.h"
#include "recurrent_layers.h"

#include "../base/f32.inc"
#include "causal_convolution.inc"
#include "recurrent_mixers.inc"
#include "../base/bf16.inc"
#include "causal_convolution.inc"
#include "recurrent_mixers.inc"
#include "../base/untyped.inc"
