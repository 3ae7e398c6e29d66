/* Digests that find damage, and no forgery: a change within one word of 64 bits always changes its lane.

   Word i of a piece goes into lane i % DIGEST_LANES. A step is a bijection of the lane for each word, and of the word for each lane:
   words that differ give lanes that differ, and equal words after them keep these apart. */

#include "digested_read.h"
#include "../base/thread_pool.h"

#include <errno.h>
#include <unistd.h>

#define OF_LANES __attribute__((vector_size(64)))
typedef uint64_t Lanes8 OF_LANES;

enum { VECTORS = DIGEST_LANES / 8, ROW = DIGEST_LANES * 8 }; /* bytes that give each lane one word */

/* Lanes in `state` after the words of whole rows. */
CLONES static void digest_rows(const unsigned char *bytes, long rows, uint64_t *state) {
    Lanes8 lane[VECTORS], word[VECTORS];
    memcpy(lane, state, ROW);
    for (long row = 0; row < rows; row++, bytes += ROW) {
        memcpy(word, bytes, ROW);
        for (int i = 0; i < VECTORS; i++) {
            lane[i] ^= word[i];
            lane[i] += (lane[i] << 21) + 0x9e3779b97f4a7c15u;
            lane[i] ^= lane[i] >> 29;
        }
    }
    memcpy(state, lane, ROW);
}

/* lanes: DIGEST_LANES numbers. The last row is filled up with zeros: the size belongs to what is compared. */
INTERNAL void digest_piece(const unsigned char *bytes, long size, uint64_t *lanes) {
    unsigned char last[ROW] = {0};
    for (int i = 0; i < DIGEST_LANES; i++) lanes[i] = i + 1;
    digest_rows(bytes, size / ROW, lanes);
    if (size % ROW) {
        memcpy(last, bytes + size / ROW * ROW, size % ROW);
        digest_rows(last, 1, lanes);
    }
}

typedef struct {
    int file;
    long start;
    unsigned char *bytes;
    long size;
    uint64_t *lanes;
    atomic_int *error;
} DigestJob;

/* Fill `bytes` from a place of the file. Returns 0, errno, or ENODATA where the file ends before. */
static int read_all(int file, long from, unsigned char *bytes, long size) {
    while (size) {
        const ssize_t count = pread(file, bytes, size, from);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return count ? errno : ENODATA;
        from += count, bytes += count, size -= count;
    }
    return 0;
}

static void digest_one(const void *of, long index) {
    const DigestJob *job = of;
    const long first = index * DIGEST_PIECE, size = job->size - first < DIGEST_PIECE ? job->size - first : DIGEST_PIECE;
    const int error = job->file < 0 ? 0 : read_all(job->file, job->start + first, job->bytes + first, size);
    if (error) atomic_store(job->error, error);
    else digest_piece(job->bytes + first, size, job->lanes + index * DIGEST_LANES);
}

/* Digests of all pieces of `bytes`, which are read from byte `start` of a file before, unless its number is negative.
   shared: by all threads; otherwise the calling one works alone. Returns 0, errno, or ENODATA for a file that is too short. */
INTERNAL int digest_pieces(int file, long start, unsigned char *bytes, long size, uint64_t *lanes, int shared) {
    atomic_int error = 0;
    const DigestJob job = {file, start, bytes, size, lanes, &error};
    const long pieces = ceiling(size, DIGEST_PIECE);
    if (shared) share(digest_one, &job, pieces);
    else for (long i = 0; i < pieces; i++) digest_one(&job, i);
    return atomic_load(&error);
}
