/* Mixtures of experts of both element types. */

#include "../base/scratch.h"
#include "../base/threads.h"
#include "../elementwise/elementwise.h"
#include "experts.h"

#include "../base/f32.inc"
#include "mixture.inc"
#include "../base/bf16.inc"
#include "mixture.inc"
#include "../base/untyped.inc"
