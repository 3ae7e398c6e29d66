/* Digests of memory, and of files while they are read, by pieces that the threads share. */
#ifndef SGL_FILES_DIGESTED_READ_H
#define SGL_FILES_DIGESTED_READ_H

#include "../base/cpu_kernels_common.h"

enum { DIGEST_LANES = 32, DIGEST_PIECE = 1 << 20 }; /* numbers of 64 bits in a digest; bytes that it is of, fewer at the end */

INTERNAL void digest_piece(const unsigned char *bytes, long size, uint64_t *lanes);
INTERNAL int digest_pieces(int file, long start, unsigned char *bytes, long size, uint64_t *lanes, int shared);

#endif
