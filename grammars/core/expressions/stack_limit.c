/* What walks down an expression stops with an error before the stack of its thread, which may be a small one, is full. */

#if defined(__GLIBC__) || defined(__APPLE__)
#include <pthread.h>
#endif
#ifdef _MSC_VER
#define EACH_THREAD __declspec(thread)
#else
#define EACH_THREAD _Thread_local
#endif

enum { KEPT_ROOM = 1 << 16, UNTOLD_ROOM = 1 << 17 }; /* bytes: at most, for what is called on the way; of a stack whose size is not told */

/* Where the room begins that is kept at the end of this thread's stack. Other C libraries, as musl, tell no more of the
 * first thread's stack than what is in use now. */
static uintptr_t end_of_room(uintptr_t here) {
    uintptr_t end = here > UNTOLD_ROOM ? here - UNTOLD_ROOM : KEPT_ROOM;
#ifdef __APPLE__
    end = (uintptr_t)pthread_get_stackaddr_np(pthread_self()) - pthread_get_stacksize_np(pthread_self()) + KEPT_ROOM;
#elif defined(__GLIBC__)
    pthread_attr_t attributes;
    void *base;
    size_t size;
    if (!pthread_getattr_np(pthread_self(), &attributes)) {
        if (!pthread_attr_getstack(&attributes, &base, &size)) end = (uintptr_t)base + (size / 2 < KEPT_ROOM ? size / 2 : KEPT_ROOM);
        pthread_attr_destroy(&attributes);
    }
#endif
    return end;
}

/* 0, or -1 with an exception. On another stack than the thread's own it finds nothing amiss. */
static int check_room(void) {
    static EACH_THREAD uintptr_t end;
    volatile char mark = 0;
    const uintptr_t here = (uintptr_t)&mark;
    if (!end) end = end_of_room(here);
    if (here >= end || end - here > KEPT_ROOM) return 0;
    PyErr_SetString(PyExc_RecursionError, "the expression is nested too deeply for the stack of this thread");
    return -1;
}
