/* What works for long with the GIL lets others have it again and again, if they wait for it. */

enum { BREATH = 64 };

static void breathe(void) {
    static unsigned taken; /* changed with the GIL alone */
    if (++taken % BREATH) return;
    PyThreadState *thread = PyEval_SaveThread();
    PyEval_RestoreThread(thread);
}
