/* States that no token can tell apart are one: counts are moved to the least of their kind. */

static int32_t canonical_count(Core *c, int32_t loop, int32_t count) {
    if (loop < 0) return count;
    int64_t least = NODE(loop).b, most = NODE(loop).c, reach = c->vocabulary.reach;
    if (most >= 0 && most - count <= reach) return count;
    if (count >= least) return most < 0 || most - least > reach ? (int32_t)least : count;
    return least - count > reach && (most < 0 || most > reach) ? 0 : count;
}

static int32_t canonical_frame(Core *c, int32_t frame) {
    if (!frame) return 0;
    int32_t known = AT(c->canonical_frames, int32_t, frame);
    if (known != UNKNOWN) return known;
    Thread t = FRAME(frame);
    int32_t parent = canonical_frame(c, t.frame);
    if (parent < 0) return parent;
    int32_t made = push_frame(c, t.node, canonical_count(c, NODE(t.node).loop, t.count), parent);
    if (made >= 0) AT(c->canonical_frames, int32_t, frame) = made;
    return made;
}

static int32_t unique(Thread *t, int32_t count) {
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i++)
        if (!kept || !same(&t[i], &t[kept - 1])) t[kept++] = t[i];
    return kept;
}

API int32_t core_canonical(Core *c, int32_t state) {
    if (STATE(state).canonical != UNKNOWN) return STATE(state).canonical;
    begin_closure(c);
    for (int32_t i = 0; i < STATE(state).length; i++) {
        Thread t = AT(c->threads, Thread, STATE(state).offset + i);
        t.count = canonical_count(c, NODE(t.node).loop, t.count);
        t.frame = canonical_frame(c, t.frame);
        if (t.frame < 0 || append(&c->kept, &t, 1, sizeof t)) return NO_MEMORY;
    }
    Thread *threads = c->kept.data;
    if (c->kept.size > 1) qsort(threads, c->kept.size, sizeof *threads, compare);
    int32_t made = intern(c, threads, unique(threads, c->kept.size), STATE(state).final);
    if (made >= 0) STATE(state).canonical = made;
    return made;
}
