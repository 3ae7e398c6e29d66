/* Masks: a depth-first walk of the token trie, and slices for plain string text. */

/* How many characters of plain string text may come: 0 where slices do not apply exactly. */
API int32_t core_plain_room(Core *c, int32_t state) {
    int32_t longest = c->vocabulary.longest, best = 0, loop = 0;
    Thread text = {0, 0, 0}, *threads = &AT(c->threads, Thread, STATE(state).offset);
    for (int32_t i = 0; i < STATE(state).length; i++) {
        const Node *n = &NODE(threads[i].node);
        if (!n->c) continue;
        int32_t most = n->c == 2 ? NODE(n->loop).c : -1;
        int32_t room = most < 0 || most - threads[i].count > longest ? longest : most - threads[i].count;
        if (room > best) {
            best = room;
            text = threads[i];
            loop = n->loop;
        }
    }
    for (int32_t i = 0; best < longest && i < STATE(state).length; i++) {
        const Node *n = &NODE(threads[i].node);
        const Class *set = &AT(c->classes, Class, n->a);
        if (n->loop == loop && threads[i].count == text.count && threads[i].frame == text.frame) continue;
        for (int w = 0; w < CLASS_WORDS; w++)
            if (set->word[w] & PLAIN.word[w]) return 0;
    }
    return best;
}

static int walk(Core *c, int32_t state, const Trie *trie, uint32_t *out) {
    int32_t *path = c->path;
    path[0] = state;
    for (int32_t i = 0; i < trie->size;) {
        int32_t from = path[trie->depth[i] - 1];
        const int32_t *row = STATE(from).row;
        int32_t target = row ? row[trie->byte[i]] : UNKNOWN;
        if (target == UNKNOWN) target = core_step(c, from, trie->byte[i]);
        if (target == DEAD) {
            i = trie->skip[i];
            continue;
        }
        if (target < 0) return target;
        path[trie->depth[i]] = target;
        for (int32_t k = trie->first[i]; k < trie->first[i + 1]; k++) out[trie->ids[k] >> 5] |= 1u << (trie->ids[k] & 31);
        i++;
    }
    return 0;
}

/* Set the bits of the tokens that keep the text viable, in a zeroed row. */
API int32_t core_mask(Core *c, int32_t state, uint32_t *out) {
    state = core_canonical(c, state);
    if (state < 0) return state;
    int32_t room = core_plain_room(c, state), words = c->vocabulary.words;
    if (room > 0) memcpy(out, c->vocabulary.slices + (size_t)room * words, words * sizeof *out);
    return walk(c, state, room > 0 ? &c->vocabulary.rest : &c->vocabulary.all, out);
}
