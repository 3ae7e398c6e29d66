/* Memory that each thread keeps for its next call; it grows, and is freed when the thread ends. */
#ifndef SGL_BASE_THREAD_SCRATCH_H
#define SGL_BASE_THREAD_SCRATCH_H

#include "cpu_kernels_common.h"

INTERNAL void create_scratch_keys(void); /* once, when the module is made */

INTERNAL void *row_scratch(size_t bytes);   /* the rows of one product, or of one attention call */
INTERNAL void *aligned_scratch(size_t bytes);  /* the same from where a line of the cache begins */
INTERNAL void *mixture_scratch(size_t bytes);  /* one mixture of experts, or one recurrent mixer */
INTERNAL float *adapter_scratch(size_t bytes);   /* A x of the adapters of one product */

INLINE void *cut(char **space, size_t bytes) { /* a part of it that begins a line of the cache */
    char *from = *space;
    *space += (bytes + 63) & ~(size_t)63;
    return from;
}

#endif
