/* Layers of a decoder in one call, of both element types. */

#include "../adapters/adapters.h"
#include "../attention/attention.h"
#include "../base/threads.h"
#include "structs.h"
#include "step.h"

#include "../base/f32.inc"
#include "step.inc"
#include "../base/bf16.inc"
#include "step.inc"
#include "../base/untyped.inc"
