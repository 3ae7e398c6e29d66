/* Convolutions, gates and whole mixers of both element types: see recurrent.h. */

#include "../base/scratch.h"
#include "../base/threads.h"
#include "recurrent.h"

#include "../base/f32.inc"
#include "convolution.inc"
#include "mixers.inc"
#include "../base/bf16.inc"
#include "convolution.inc"
#include "mixers.inc"
#include "../base/untyped.inc"
