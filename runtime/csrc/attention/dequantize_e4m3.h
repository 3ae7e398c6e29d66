/* Rows of keys or values that are kept as e4m3, back to the model's type. Every instruction set returns the same bits. */
#ifndef SGL_ATTENTION_DEQUANTIZE_E4M3_H
#define SGL_ATTENTION_DEQUANTIZE_E4M3_H

#include "../base/cpu_kernels_common.h"
#include "../base/e4m3.h"

/* Rows of keys or values to `room` [count, dim]: those that begin at `from` + slots[j] * token. */
typedef struct {
    const uint8_t *from;
    const int32_t *slots;
    long token, count, dim;
    void *room;
} Restore;

INTERNAL void restore_f32(const Restore *job);
INTERNAL void restore_bf16(const Restore *job);

INTERNAL_DATA int e4m3_isa;
INTERNAL int best_e4m3_isa(void); /* the best one that this CPU has */
INTERNAL void fill_e4m3(void);

#endif
