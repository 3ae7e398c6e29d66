"""An entry of the cache as a file.

    page 0              EntryHeader: what is where, and digests of all that follows
    page 1 on           the manifest, JSON
    `blocks`            weights of compiled products, in the order in which a step reads them, each from a cache line on
    `rest`              all other tensors, the same

The two parts begin at a multiple of ALIGNMENT, for pages and for pieces of digests. `rest` is mapped, and processes
share its pages. `blocks` is read into huge pages: a step that reads mapped ones takes 5 to 8 % longer.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...layers import cpu_kernels
from ..tensor_files.memory_source import NAMES
from ..tensor_files.torch_dtypes import DTYPES
from .content_digest import DIGEST, DamagedEntryError, PieceDigest

MAGIC = b"sglpack\n"
VERSION = 1  # of this format
PAGE = 4096
LINE = 64  # bytes of a line of the cache of the CPU
ALIGNMENT = 2**20
MOST_MANIFEST = 2**28  # bytes
STAGED = 4 * 2**20  # bytes that are written at a time, a multiple of ALIGNMENT
HEADER = struct.Struct(f"<8sQ{DIGEST}s6Q{DIGEST}s{DIGEST}s{DIGEST}s")
Damaged = DamagedEntryError


class EntryHeader(NamedTuple):
    """Places and sizes in bytes; digests of the manifest and of both parts."""

    key: bytes
    manifest: int
    blocks_at: int
    blocks: int
    rest_at: int
    rest: int
    size: int
    manifest_digest: bytes
    blocks_digest: bytes
    rest_digest: bytes

    def packed(self) -> bytes:
        """A page."""
        words = HEADER.pack(MAGIC, VERSION, *self)
        return (words + _hashed(words)).ljust(PAGE, b"\0")

    @classmethod
    def of(cls, page: bytes) -> EntryHeader:
        """Raises DamagedEntryError."""
        size = HEADER.size
        if len(page) < PAGE or page[:8] != MAGIC:
            raise Damaged("it is no such file")
        if int.from_bytes(page[8:16], "little") != VERSION:
            raise Damaged("it has another format")
        if page[size:] != _hashed(page[:size]).ljust(PAGE - size, b"\0"):
            raise Damaged("its header")
        return cls(*HEADER.unpack(page[:size])[2:])


class PlacedTensors(NamedTuple):
    """Tensors by name in the order of their places, and where each begins in its part."""

    tensors: dict[str, Tensor]
    starts: dict[str, int]
    size: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> PlacedTensors:
        starts, at = {}, 0
        for name, tensor in tensors.items():
            starts[name] = at
            at += -(-tensor.nbytes // LINE) * LINE
        return cls(dict(tensors), starts, at)

    @property
    def described(self) -> dict[str, Any]:
        return {
            name: [NAMES[tensor.dtype], list(tensor.shape), self.starts[name]] for name, tensor in self.tensors.items()
        }


class EntryContents(NamedTuple):
    """What is stored. summary: anything that is JSON.  blocks, rest: tensors of the two parts."""

    summary: dict[str, Any]
    blocks: PlacedTensors
    rest: PlacedTensors

    @property
    def bytes(self) -> int:
        return self.blocks.size + self.rest.size + 3 * ALIGNMENT


class CachedEntry(NamedTuple):
    """summary: as it was stored.  tensors: of both parts, by name; what is written into them stays in this process."""

    summary: dict[str, Any]
    tensors: dict[str, Tensor]
    bytes: int


def write_entry(
    stream: BinaryIO, key: str, contents: EntryContents, going_on: Callable[[], None] = lambda: None
) -> None:
    """going_on: called between pieces; what it raises ends the writing."""
    described = {"blocks": contents.blocks.described, "rest": contents.rest.described, "summary": contents.summary}
    manifest = json.dumps(described).encode()
    blocks_at = _aligned(PAGE + len(manifest))
    rest_at = _aligned(blocks_at + contents.blocks.size)
    digests = []
    for start, part in ((blocks_at, contents.blocks), (rest_at, contents.rest)):
        stream.seek(start)
        digests.append(_write_part(stream, part, going_on))
    header = EntryHeader(
        bytes.fromhex(key).ljust(DIGEST, b"\0"),
        len(manifest),
        blocks_at,
        contents.blocks.size,
        rest_at,
        contents.rest.size,
        rest_at + contents.rest.size,
        _hashed(manifest),
        *digests,
    )
    stream.seek(0)
    _write_all(stream, memoryview(header.packed() + manifest))


def read_entry(path: Path, key: str, reading: Callable[[], None] = lambda: None) -> CachedEntry:
    """reading: called just before most of the weights are read, without the GIL.

    Raises DamagedEntryError for what is not as it was written, FileNotFoundError, and OSError.
    """
    with open(path, "rb", buffering=0) as stream:
        header = EntryHeader.of(os.pread(stream.fileno(), PAGE, 0))
        if header.key != bytes.fromhex(key).ljust(DIGEST, b"\0"):
            raise Damaged("it is of another model")
        if os.fstat(stream.fileno()).st_size != header.size or header.manifest > MOST_MANIFEST:
            raise Damaged("its size")
        text = os.pread(stream.fileno(), header.manifest, PAGE)
        if _hashed(text) != header.manifest_digest:
            raise Damaged("its manifest")
        parts = _parts(stream, header, reading)
    manifest = json.loads(text)
    found = {
        name: tensor for part in ("blocks", "rest") for name, tensor in _views(parts[part], manifest[part]).items()
    }
    return CachedEntry(manifest["summary"], found, header.size)


def _parts(stream: BinaryIO, header: EntryHeader, reading: Callable[[], None]) -> dict[str, Tensor]:
    """uint8, verified."""
    blocks_digest, rest_digest = PieceDigest(), PieceDigest()
    blocks, rest = cpu_kernels.huge_page_bytes(header.blocks), _mapped(stream, header)
    rest_digest.update(rest, shared=True)
    reading()
    blocks_digest.update(blocks, file=stream.fileno(), start=header.blocks_at, shared=True)
    if blocks_digest.digest() != header.blocks_digest or rest_digest.digest() != header.rest_digest:
        raise Damaged("its weights")
    return {"blocks": blocks, "rest": rest}


def _mapped(stream: BinaryIO, header: EntryHeader) -> Tensor:
    """The file's pages, which processes share as long as they do not write into them."""
    if not header.rest:
        return torch.empty(0, dtype=torch.uint8)
    pages = mmap.mmap(stream.fileno(), header.rest, access=mmap.ACCESS_COPY, offset=header.rest_at)
    return torch.frombuffer(pages, dtype=torch.uint8)


def _views(part: Tensor, described: dict[str, Any]) -> dict[str, Tensor]:
    found = {}
    for name, (dtype, shape, start) in described.items():
        count = DTYPES[dtype].itemsize
        for size in shape:
            count *= size
        found[name] = part[start : start + count].view(DTYPES[dtype]).view(shape)
    return found


def _write_part(stream: BinaryIO, part: PlacedTensors, going_on: Callable[[], None]) -> bytes:
    """From the stream's place on, through a buffer. Returns the digest.

    numpy copies here: torch would take all threads for it.
    """
    staged, filled, digest = np.zeros(STAGED, np.uint8), 0, PieceDigest()
    for tensor in part.tensors.values():
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
        for piece in (flat, np.zeros(-len(flat) % LINE, np.uint8)):
            left = piece
            while len(left):
                count = min(len(left), STAGED - filled)
                staged[filled : filled + count] = left[:count]
                left, filled = left[count:], filled + count
                if filled == STAGED:
                    _write_staged(stream, staged, digest)
                    going_on()
                    filled = 0
    _write_staged(stream, staged[:filled], digest)
    return digest.digest()


def _write_staged(stream: BinaryIO, staged: np.ndarray, digest: PieceDigest) -> None:
    digest.update(torch.from_numpy(staged))
    _write_all(stream, staged.data)


def _write_all(stream: BinaryIO, view: memoryview) -> None:
    while len(view):
        view = view[stream.write(view) or 0 :]


def _aligned(at: int) -> int:
    return -(-at // ALIGNMENT) * ALIGNMENT


def _hashed(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=DIGEST).digest()
