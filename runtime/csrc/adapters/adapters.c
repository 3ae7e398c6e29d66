/* What adapters add to products, of both element types: see adapters.h. */

#include "../base/scratch.h"
#include "../base/threads.h"
#include "adapters.h"

#include "../base/f32.inc"
#include "adapters.inc"
#include "../base/bf16.inc"
#include "adapters.inc"
#include "../base/untyped.inc"
