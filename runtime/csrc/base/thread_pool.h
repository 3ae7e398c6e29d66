/* A team of threads that shares the pieces of one job at a time.

   The caller works too and only ever waits for pieces that a helper has begun, so a helper that gets no core
   (a busy machine, or a forked child that has no helpers) costs nothing. A barrier for all, as OpenMP has,
   makes two threads a hundred times slower than one when something else holds a core. */
#ifndef SGL_BASE_THREAD_POOL_H
#define SGL_BASE_THREAD_POOL_H

#include "cpu_kernels_common.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { MOST_THREADS = 256, SPINS = 4000 }; /* about 50 us of waiting for the next job before going to sleep */

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() ((void)0)
#endif

typedef void (*Piece)(const void *job, long index);

typedef struct {
    pthread_mutex_t busy, lock;
    pthread_cond_t news;
    int threads, helpers; /* wanted, the caller included; started */
    Piece run;
    const void *job;
    long pieces;
    atomic_long next, number;        /* piece to take; job number, which tells a helper that there is news */
    atomic_int open, working, asleep; /* may helpers enter; how many are inside; how many must be woken */
} Team;

INTERNAL_DATA Team team;

INTERNAL void forget_helpers(void);
INTERNAL void share(Piece run, const void *job, long pieces);

#endif
