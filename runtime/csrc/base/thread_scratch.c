/* Memory of threads: see thread_scratch.h. */

#include <pthread.h>

#include "thread_scratch.h"

static pthread_key_t row_key, mixture_key, adapter_key; /* each frees a thread's memory when the thread ends */

INTERNAL void create_scratch_keys(void) {
    pthread_key_create(&row_key, free);
    pthread_key_create(&mixture_key, free);
    pthread_key_create(&adapter_key, free);
}

/* Memory of this thread for the quantized rows of one product. */
INTERNAL void *row_scratch(size_t bytes) {
    static _Thread_local void *space;
    static _Thread_local size_t size;
    if (bytes > size) {
        free(space);
        space = malloc(size = bytes + bytes / 2);
        if (!space) abort(); /* a step cannot go on, and a wrong number must not come out */
        pthread_setspecific(row_key, space);
    }
    return space;
}

/* The same from where a line of the cache begins. */
INTERNAL void *aligned_scratch(size_t bytes) { return (void *)(((uintptr_t)row_scratch(bytes + 64) + 63) & ~(uintptr_t)63); }

INTERNAL void *mixture_scratch(size_t bytes) {
    static _Thread_local void *space;
    static _Thread_local size_t size;
    if (bytes > size) {
        free(space);
        space = malloc(size = bytes);
        if (!space) abort(); /* as above */
        pthread_setspecific(mixture_key, space);
    }
    return space;
}

/* Memory of this thread for A x of one product. */
INTERNAL float *adapter_scratch(size_t bytes) {
    static _Thread_local void *space;
    static _Thread_local size_t size;
    if (bytes > size) {
        free(space);
        space = malloc(size = bytes + bytes / 2);
        if (!space) abort(); /* as above */
        pthread_setspecific(adapter_key, space);
    }
    return space;
}
