/* What is made of a vocabulary once: tries of texts, and texts split where they leave a family of characters. */

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"

typedef struct { uint64_t key; const uint8_t *text; int32_t length, id; } TokenText; /* `key`: the first bytes, as a number */

static TokenText token_text(const uint8_t *text, int32_t length, int32_t id) {
    TokenText found = {0, text, length, id};
    for (int32_t i = 0; i < 8; i++) found.key = found.key << 8 | (i < length ? text[i] : 0);
    return found;
}

static int by_bytes(const void *a, const void *b) {
    const TokenText *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    int found = memcmp(x->text, y->text, x->length < y->length ? x->length : y->length);
    if (found) return found;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The texts data[starts[i] : starts[i + 1]] in the order of their bytes, then of their ids; `longest` of them. */
static TokenText *sorted_texts(const uint8_t *data, const int64_t *starts, const int32_t *ids, int32_t count, int32_t *longest) {
    TokenText *texts = malloc(sizeof *texts * (count + 1));
    if (!texts) return NULL;
    for (int32_t i = *longest = 0; i < count; i++) {
        texts[i] = token_text(data + starts[i], (int32_t)(starts[i + 1] - starts[i]), ids[i]);
        if (texts[i].length > *longest) *longest = texts[i].length;
    }
    qsort(texts, count, sizeof *texts, by_bytes);
    return texts;
}

static int32_t common_prefix(const TokenText *a, const TokenText *b) {
    int32_t most = a->length < b->length ? a->length : b->length, i = 0;
    while (i < most && a->text[i] == b->text[i]) i++;
    return i;
}

/* The trie of these texts, of which none is empty. nodes: room for a node a byte, and one more; sorted: for the ids in
 * the order of the trie. Returns the number of nodes, or NO_MEMORY. */
API int64_t token_trie(const uint8_t *data, const int64_t *starts, const int32_t *ids, int32_t count, TrieNode *nodes,
                       int32_t *sorted) {
    int32_t longest, open = 0, size = 0;
    TokenText *texts = sorted_texts(data, starts, ids, count, &longest);
    int32_t *path = texts ? malloc(sizeof *path * (longest + 1)) : NULL; /* the nodes of the last text */
    for (int32_t i = 0; path && i <= count; i++) {
        int32_t shared = i && i < count ? common_prefix(texts + i - 1, texts + i) : 0;
        while (open > shared) nodes[path[--open]].skip = size;
        if (i == count) break;
        for (sorted[i] = texts[i].id; open < texts[i].length; path[open++] = size++)
            nodes[size] = (TrieNode){0, i, (uint16_t)(open + 1), texts[i].text[open]};
    }
    nodes[size] = (TrieNode){0, count, 0, 0};
    int64_t result = path ? size : NO_MEMORY;
    free(path);
    free(texts);
    return result;
}

/* Bytes of the character at the beginning of a text, of those spelled; 0: there is none. */
static int32_t character(const uint8_t *text, int64_t length, const uint8_t *spellings, int32_t spelled) {
    for (const uint8_t *s = spellings; s < spellings + SPELLING * spelled; s += SPELLING) {
        int32_t i = 0;
        while (i < s[0] && i < length && s[1 + 2 * i] <= text[i] && text[i] <= s[2 + 2 * i]) i++;
        if (i == s[0]) return i;
    }
    return 0;
}

/* lengths: characters of the texts that are made of at most `most` spelled ones, -1 of the others. Of these, `exits`
 * gets the number of such characters they begin with, as a byte, and the rest of the text. Returns how many there are. */
API int32_t family_split(const uint8_t *data, const int64_t *starts, const int32_t *ids, int32_t count,
                         const uint8_t *spellings, int32_t spelled, int32_t most, int32_t *lengths, uint8_t *exits,
                         int64_t *exit_starts, int32_t *exit_ids) {
    int32_t found = 0;
    int64_t end = exit_starts[0] = 0;
    for (int32_t i = 0; i < count; i++) {
        int64_t at = starts[i];
        int32_t chars = 0, bytes;
        for (; chars < most && (bytes = character(data + at, starts[i + 1] - at, spellings, spelled)); at += bytes) chars++;
        lengths[i] = at == starts[i + 1] ? chars : -1;
        if (lengths[i] >= 0) continue;
        exits[end] = (uint8_t)chars;
        memcpy(exits + end + 1, data + at, starts[i + 1] - at);
        exit_ids[found++] = ids[i];
        exit_starts[found] = end += 1 + starts[i + 1] - at;
    }
    return found;
}
