"""Digests of memory and files, by the compiled kernels at many GB/s. They find damage, and no forgery.

`csrc/files/digested_read.c` says how the lanes of a piece are made. A digest is blake2b of the lanes of all pieces.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ...layers import cpu_kernels

DIGEST = 32  # bytes of a digest
PART = 16 * 2**20  # bytes of a file that are in memory at a time


class DamagedEntryError(Exception):
    """An entry of the cache that is not as it was written; the text says where, for people."""


class PieceDigest:
    """A digest of bytes that come in parts, each but the last a multiple of the kernels' DIGEST_PIECE."""

    def __init__(self) -> None:
        self._hash, self._size = hashlib.blake2b(digest_size=DIGEST), 0

    def update(self, part: Tensor, *, file: int = -1, start: int = 0, shared: bool = False) -> None:
        """part: uint8, contiguous; filled before from a place of an open file, unless its number is negative.

        shared: by all threads of the kernels. Raises OSError, also where the file ends before.
        """
        kernels, size = cpu_kernels.kernels, len(part)
        lanes = torch.empty(-(-size // kernels.DIGEST_PIECE), kernels.DIGEST_LANES, dtype=torch.int64)
        if error := kernels.digest(file, start, part.data_ptr(), size, lanes.data_ptr(), shared):
            raise OSError(error, os.strerror(error))
        self._hash.update(lanes.numpy().tobytes())
        self._size += size

    def digest(self) -> bytes:
        whole = self._hash.copy()
        whole.update(self._size.to_bytes(8, "little"))
        return whole.digest()


def digest_of_file(path: Path, going_on: Callable[[], None] = lambda: None) -> str:
    """Of its contents, in hexadecimal; one thread computes it. Raises OSError, and what `going_on` raises."""
    whole, part = PieceDigest(), torch.empty(PART, dtype=torch.uint8)
    with open(path, "rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        for start in range(0, size, PART):
            going_on()
            whole.update(part[: min(PART, size - start)], file=stream.fileno(), start=start)
    return whole.digest().hex()
