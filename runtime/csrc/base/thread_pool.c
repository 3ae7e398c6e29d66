/* The team of threads: see thread_pool.h. */

#include "thread_pool.h"

INTERNAL Team team = {.busy = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER, .threads = 1};

static void take_pieces(void) {
    for (long i; (i = atomic_fetch_add(&team.next, 1)) < team.pieces;) team.run(team.job, i);
}

static void wait_for_news(long seen) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load(&team.number) != seen) return;
        PAUSE();
    }
    pthread_mutex_lock(&team.lock);
    atomic_fetch_add(&team.asleep, 1);
    while (atomic_load(&team.number) == seen) pthread_cond_wait(&team.news, &team.lock);
    atomic_fetch_sub(&team.asleep, 1);
    pthread_mutex_unlock(&team.lock);
}

static void *help(void *id) {
    for (long seen = 0;;) {
        wait_for_news(seen);
        seen = atomic_load(&team.number);
        atomic_fetch_add(&team.working, 1); /* before looking at `open`: the caller closes, then counts */
        if (atomic_load(&team.open) && (intptr_t)id < team.threads) take_pieces();
        atomic_fetch_sub(&team.working, 1);
    }
    return NULL;
}

static void start_helpers(void) {
    for (; team.helpers + 1 < team.threads; team.helpers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, (void *)(intptr_t)(team.helpers + 1))) return;
        pthread_detach(thread);
    }
}

/* The child of a fork has no helpers, and whatever its parent's were doing is not going on in it. */
INTERNAL void forget_helpers(void) {
    team.helpers = 0;
    atomic_store(&team.open, 0); /* a job of the parent's may be under way: the child's helpers must not take its pieces */
    atomic_store(&team.working, 0);
    atomic_store(&team.asleep, 0);
    pthread_mutex_init(&team.busy, NULL);
    pthread_mutex_init(&team.lock, NULL);
    pthread_cond_init(&team.news, NULL);
}

/* Run every piece, here and in the helpers; alone when it is one piece or another thread has the team. */
INTERNAL void share(Piece run, const void *job, long pieces) {
    if (pieces < 2 || team.threads < 2 || pthread_mutex_trylock(&team.busy)) {
        for (long i = 0; i < pieces; i++) run(job, i);
        return;
    }
    start_helpers();
    team.run = run, team.job = job, team.pieces = pieces;
    atomic_store(&team.next, 0);
    atomic_store(&team.open, 1);
    atomic_fetch_add(&team.number, 1);
    if (atomic_load(&team.asleep)) {
        pthread_mutex_lock(&team.lock);
        pthread_cond_broadcast(&team.news);
        pthread_mutex_unlock(&team.lock);
    }
    take_pieces();
    atomic_store(&team.open, 0);
    for (int spin = 1; atomic_load(&team.working); spin++) spin % 1000 ? PAUSE() : (void)sched_yield();
    pthread_mutex_unlock(&team.busy);
}
