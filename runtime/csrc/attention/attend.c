/* Attention of both element types. */

#include "attention.h"
#include "rows.h"
#include "tiles.h"

#include "../base/f32.inc"
#include "attend.inc"
#include "../base/bf16.inc"
#include "attend.inc"
#include "../base/untyped.inc"
