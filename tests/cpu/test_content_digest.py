"""Digests of memory and files by the compiled kernels: what their definition says, computed word by word."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from sgl.runtime.layers import cpu_kernels
from sgl.runtime.loading.packed_cache.content_digest import DIGEST, PieceDigest, digest_of_file

pytestmark = pytest.mark.skipif(not cpu_kernels.kernels, reason="needs the compiled kernels")
MASK = 2**64 - 1


def lanes_of(piece: bytes) -> list[int]:
    """What csrc/files/digested_read.c computes, word by word."""
    lanes = [lane + 1 for lane in range(cpu_kernels.kernels.DIGEST_LANES)]
    words = np.frombuffer(piece + bytes(-len(piece) % (8 * len(lanes))), np.uint64).tolist()
    for place, word in enumerate(words):
        lane = lanes[place % len(lanes)] ^ word
        lane = (lane + (lane << 21) + 0x9E3779B97F4A7C15) & MASK
        lanes[place % len(lanes)] = lane ^ lane >> 29
    return lanes


def digest_by_definition(contents: bytes) -> bytes:
    step = cpu_kernels.kernels.DIGEST_PIECE
    lanes = [lanes_of(contents[start : start + step]) for start in range(0, len(contents), step)]
    text = np.array(lanes, np.uint64).tobytes() + len(contents).to_bytes(8, "little")
    return hashlib.blake2b(text, digest_size=DIGEST).digest()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 255, 256, 257, 4096, 2**20 - 1, 2**20, 2**20 + 9, 3 * 2**20 + 1000])
def test_a_digest_is_what_its_definition_says(size: int, tmp_path: Path) -> None:
    contents = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    expected, part = digest_by_definition(contents.tobytes()), torch.from_numpy(contents)
    file = tmp_path / "file"
    file.write_bytes(b"before" + contents.tobytes())
    read = torch.empty(size, dtype=torch.uint8)
    with open(file, "rb") as stream:
        for shared in (False, True):
            ours, theirs = PieceDigest(), PieceDigest()
            ours.update(part, shared=shared)
            theirs.update(read, file=stream.fileno(), start=6, shared=shared)
            assert ours.digest() == theirs.digest() == expected and torch.equal(read, part)
        with pytest.raises(OSError) as found:
            PieceDigest().update(torch.empty(size + 1, dtype=torch.uint8), file=stream.fileno(), start=6)
        assert found.value.errno == errno.ENODATA
    file.write_bytes(contents.tobytes())
    assert digest_of_file(file) == expected.hex()


def test_each_changed_bit_of_a_row_and_its_neighbours_is_another_digest() -> None:
    part = torch.zeros(3 * 256 + 8, dtype=torch.uint8)

    def digest() -> bytes:
        found = PieceDigest()
        found.update(part)
        return found.digest()

    found = {digest()}
    for place in range(len(part)):
        for bit in (1, 2, 128):
            part[place] = bit
            found.add(digest())
        part[place] = 0
    assert len(found) == 1 + 3 * len(part)
