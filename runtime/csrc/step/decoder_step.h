/* Layers of a decoder in one call. */
#ifndef SGL_STEP_DECODER_STEP_H
#define SGL_STEP_DECODER_STEP_H

#include "decoder_step_structs.h"

INTERNAL void run_step_f32(const Model *model, const Step *step);
INTERNAL void run_step_bf16(const Model *model, const Step *step);

#endif
