/* See stack_limit.h. */

#include "stack_limit.h"

#if defined(__GLIBC__) || defined(__APPLE__)
#include <pthread.h>
#endif
#ifdef _MSC_VER
#define THREAD_LOCAL __declspec(thread)
#else
#define THREAD_LOCAL _Thread_local
#endif
enum { KEPT_STACK = 1 << 16, ASSUMED_STACK = 1 << 17 }; /* bytes: at most, for what is called on the way; of a stack whose size is unknown */

/* Where the part begins that is kept free at the end of this thread's stack. Other C libraries, as musl, report no more of the
 * first thread's stack than what is in use now. */
static uintptr_t stack_limit(uintptr_t here) {
    uintptr_t end = here > ASSUMED_STACK ? here - ASSUMED_STACK : KEPT_STACK;
#ifdef __APPLE__
    end = (uintptr_t)pthread_get_stackaddr_np(pthread_self()) - pthread_get_stacksize_np(pthread_self()) + KEPT_STACK;
#elif defined(__GLIBC__)
    pthread_attr_t attributes;
    void *base;
    size_t size;
    if (!pthread_getattr_np(pthread_self(), &attributes)) {
        if (!pthread_attr_getstack(&attributes, &base, &size)) end = (uintptr_t)base + (size / 2 < KEPT_STACK ? size / 2 : KEPT_STACK);
        pthread_attr_destroy(&attributes);
    }
#endif
    return end;
}

/* 0, or -1 with an exception. On a stack that is not the thread's, it reports no error. */
INTERNAL int check_stack(void) {
    static THREAD_LOCAL uintptr_t end;
    volatile char mark = 0;
    const uintptr_t here = (uintptr_t)&mark;
    if (!end) end = stack_limit(here);
    if (here >= end || end - here > KEPT_STACK) return 0;
    PyErr_SetString(PyExc_RecursionError, "the expression is nested too deeply for the stack of this thread");
    return -1;
}
