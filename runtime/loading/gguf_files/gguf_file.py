"""What a GGUF file says it holds: keys with values, then tensors with their places; checked before memory is taken for
it.
"""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from sgl.grammars.tokens.packed_arrays import LENGTH, PackedArray, PackedNumbers, PackedTexts, find_texts

from ...errors import CheckpointError
from ...models.spec.json_fields import shown
from ...quantization.readers.gguf_block_kinds import BLOCKS, REFUSED, unsupported
from ..tensor_files.safetensors_header import ITEM_SIZES, StoredTensor, damaged_file_error
from .kept_headers import kept_header

MAGIC, VERSIONS = b"GGUF", (2, 3)
MOST_HEADER, MOST_STRING, MOST_NAME = 2**26, 2**24, 2**16  # bytes: of all before the tensors, of one value, of one name
MOST_ITEMS, MOST_KEYS, MOST_TENSORS = (
    3 * 2**19,
    2**16,
    2**16,
)  # MOST_ITEMS: values of all arrays together; MOST_TENSORS: of all parts
MOST_DIMENSIONS = 4
PIECE = 2**20  # bytes read at a time
ALIGNMENT = "general.alignment"
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")

_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_KINDS = {0: "F32", 1: "F16", 28: "F64", 30: "BF16"} | {block.id: name for name, block in BLOCKS.items()}
_LEAST_KEY, _LEAST_TENSOR = 13, 32  # bytes that an entry takes at least


class GGUFFile(NamedTuple):
    """metadata: numbers, bools, texts and arrays of them, see `PackedArray`.  tensors: in the order of their bytes;
    shapes are [out, in].
    """

    file: Path
    metadata: dict[str, Any]
    tensors: list[StoredTensor]


def read_gguf(file: Path) -> GGUFFile:
    """The header of one file of version 2 or 3.

    A tensor's `dtype` is F32, F16, BF16, F64 or a key of `BLOCKS`. Raises CheckpointError for what is damaged or cut
    short, for kinds of weights that are not supported, and for parts that have no place in a model. Do not
    change it: others may have the same, see `headers_read_once`.
    """
    return kept_header(file, _read_file)


def _read_file(file: Path) -> GGUFFile:
    try:
        if not file.is_file():
            raise ValueError("it is not a regular file")
        with open(file, "rb") as stream:
            return _read(file, _GGUFHeader(stream, file.stat().st_size))
    except (OSError, ValueError, struct.error) as error:
        if isinstance(error, CheckpointError):
            raise
        if not file.exists():
            raise CheckpointError(f"{file} is missing; give the path of a GGUF file") from error
        raise damaged_file_error(file, str(error)) from error


def read_parts(file: Path) -> list[GGUFFile]:
    """All parts of a model, the first one with its metadata; one, where the file is not split.

    file: any part `NAME-0000K-of-0000N.gguf`. Raises CheckpointError as `read_gguf` does, and where parts are missing
    or do not belong together.
    """
    files = _part_files(file)
    parts: list[GGUFFile] = []
    for name in files:
        parts.append(read_gguf(name))
        if (held := sum(len(each.tensors) for each in parts)) > MOST_TENSORS:
            raise CheckpointError(
                f"{file}: its parts hold {held:,} tensors and more, at most {MOST_TENSORS:,} are read"
            )
    for number, part in enumerate(parts):
        _check_part(part, number, len(parts))
    tensors = [stored.name for part in parts for stored in part.tensors]
    if len(set(tensors)) < len(tensors):
        twice = min(name for name, count in Counter(tensors).items() if count > 1)
        raise CheckpointError(f"{file}: tensor {shown(twice)} is in two of its {len(parts)} parts; fetch them again")
    count = parts[0].metadata.get("split.tensors.count")
    if count not in (None, len(tensors)):
        raise CheckpointError(
            f"{file}: split.tensors.count={shown(count)}, but its {len(parts)} parts hold {len(tensors)} tensors; "
            "fetch them again"
        )
    return parts


def _part_files(file: Path) -> list[Path]:
    found = PART.fullmatch(file.name)
    if found is None:
        return [file]
    name, count = found[1], int(found[3])
    names = [f"{name}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    there = set(os.listdir(file.parent)) if file.parent.is_dir() else set()
    missing = [part for part in names if part not in there]
    if missing or file.name not in names:
        some = ", ".join(missing[:4] or [file.name])
        raise CheckpointError(
            f"{file} is a part of a model of {count} files, of which {len(missing)} are not next to it: {some}"
            f"{' ...' if len(missing) > 4 else ''}; complete the download"
        )
    return [file.parent / part for part in names]


def _check_part(part: GGUFFile, number: int, count: int) -> None:
    said, of = part.metadata.get("split.no", number), part.metadata.get("split.count", count)
    if (said, of) != (number, count) and not (count == 1 and of == 0):
        raise CheckpointError(
            f"{part.file}: split.no={shown(said)}, split.count={shown(of)}, by its name it is part {number} (from 0) "
            f"of {count}; give the files their own names back: NAME-00001-of-0000N.gguf"
        )


class _GGUFHeader:
    """The begin of a file, read piece by piece as it is asked for; never beyond the file's end, nor beyond
    MOST_HEADER."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream, self.size = stream, size
        self._data, self._at, self._before = b"", 0, 0
        self.items = 0

    @property
    def position(self) -> int:
        return self._before + self._at

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            self._fill(count)
            end = count
        data = self._data[self._at : end]
        self._at = end
        return data

    def _fill(self, count: int) -> None:
        limit = min(self.size, MOST_HEADER)
        if count > limit - self.position:
            raise ValueError(f"{count:,} bytes are wanted at byte {self.position:,}; the header may reach to {limit:,}")
        left = self._data[self._at :]
        self._before += self._at
        self._data, self._at = left + self._stream.read(max(count - len(left), PIECE)), 0
        if len(self._data) < count:
            raise ValueError(f"the file ended at byte {self._before + len(self._data):,}")

    def require(self, count: int, least: int, most: int, what: str) -> int:
        """A count of things of at least so many bytes each."""
        room = min(most, (min(self.size, MOST_HEADER) - self.position) // least)
        if count > room:
            raise ValueError(f"{count:,} {what} at byte {self.position:,}; there is room for {max(0, room):,}")
        return count

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def text(self, most: int = MOST_STRING) -> str:
        length = self.u64()
        if length > most:
            raise ValueError(f"a text of {length:,} bytes at byte {self.position:,}; at most {most:,} are read")
        return self.take(length).decode()

    def texts(self, count: int) -> PackedTexts:
        """So many, each after its length."""
        blocks: list[bytes] = []
        places: list[np.ndarray] = [np.zeros(0, np.int32)]
        size, left = 0, count
        while left:
            block, found = self._whole_texts(left)
            if not len(found):  # it is cut by the end of what was read, or wrong
                text = self.text().encode()
                block, found = len(text).to_bytes(LENGTH, "little") + text, np.array([LENGTH], np.int32)
            blocks.append(block)
            places.append(found + np.int32(size))
            size, left = size + len(block), left - len(found)
        return PackedTexts(b"".join(blocks), np.concatenate(places))

    def _whole_texts(self, most: int) -> tuple[bytes, np.ndarray]:
        """Those that follow in what was read, and where in their bytes they begin."""
        data = self._data[self._at : self._at + PIECE]
        found = find_texts(data, 0, most)
        last = int(found[-1]) if len(found) else 0
        stop = last + int.from_bytes(data[last - LENGTH : last], "little") if last else 0
        self._at += stop
        return data[:stop], found


def _read(file: Path, header: _GGUFHeader) -> GGUFFile:
    if header.take(4) != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = header.u32()
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        why = (
            "its numbers are written with the high byte first"
            if swapped
            else f"supported are {VERSIONS[0]} and {VERSIONS[1]}"
        )
        raise CheckpointError(f"{file} is GGUF of version {version:,}: {why}; convert the model again")
    tensors = header.require(header.u64(), _LEAST_TENSOR, MOST_TENSORS, "tensors")
    keys = header.require(header.u64(), _LEAST_KEY, MOST_KEYS, "keys")
    metadata = _once(lambda: _key(header), keys, "key")
    described = _once(lambda: _tensor(header, file), tensors, "tensor")
    return GGUFFile(file, metadata, _placed(described, _begin(header, metadata), header.size))


def _once(read: Callable[[], tuple[str, Any]], count: int, what: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(count):
        name, value = read()
        if name in found:
            raise ValueError(f"{what} {shown(name)} is there twice")
        found[name] = value
    return found


def _key(header: _GGUFHeader) -> tuple[str, Any]:
    name = header.text(MOST_NAME)
    try:
        return name, _value(header, header.u32())
    except ValueError as error:
        raise ValueError(f"key {shown(name)}: {error}") from error


def _value(header: _GGUFHeader, kind: int) -> Any:
    if kind == _STRING:
        return header.text()
    if kind == _ARRAY:
        return _array(header)
    if kind not in _NUMBERS:
        raise ValueError(f"there is no type {kind:,}")
    number = np.frombuffer(header.take(int(_NUMBERS[kind][2])), _NUMBERS[kind])
    return (_bools(number) if kind == _BOOL else number)[0].item()


def _array(header: _GGUFHeader) -> PackedArray:
    kind, count = header.u32(), header.u64()
    if kind not in _NUMBERS and kind != _STRING:
        raise ValueError(f"arrays of type {kind:,} are not read")
    header.require(
        count, 8 if kind == _STRING else int(_NUMBERS[kind][2]), MOST_ITEMS - header.items, "values of an array"
    )
    header.items += count
    if kind == _STRING:
        return header.texts(count)
    numbers = np.frombuffer(header.take(count * int(_NUMBERS[kind][2])), _NUMBERS[kind])
    return PackedNumbers(_bools(numbers) if kind == _BOOL else numbers)


def _bools(numbers: np.ndarray) -> np.ndarray:
    if (largest := numbers.max(initial=0)) > 1:
        raise ValueError(f"a bool is {largest}")
    return numbers.astype(bool)


def _tensor(header: _GGUFHeader, file: Path) -> tuple[str, tuple[str, list[int], int]]:
    """Kind, shape [out, in] and offset by name."""
    name, dimensions = header.text(MOST_NAME), header.u32()
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise ValueError(f"tensor {shown(name)} has {dimensions:,} dimensions")
    sizes = [header.u64() for _ in range(dimensions)]
    kind, offset = header.u32(), header.u64()
    if kind in REFUSED:
        raise CheckpointError(f"{file}: tensor {shown(name)}: {unsupported(REFUSED[kind])}")
    if kind not in _KINDS:
        raise CheckpointError(f"{file}: tensor {shown(name)}: {unsupported(f'number {kind:,}')}")
    if not all(0 < size < 2**63 for size in sizes):
        raise ValueError(f"tensor {shown(name)} has sizes {shown(sizes)}")
    return name, (_KINDS[kind], sizes[::-1], offset)


def _begin(header: _GGUFHeader, metadata: dict[str, Any]) -> tuple[int, int]:
    """Where the tensors begin, and what their offsets are multiples of."""
    alignment = metadata.get(ALIGNMENT, 32)
    if type(alignment) is not int or not 1 <= alignment <= 2**20 or alignment & (alignment - 1):
        raise ValueError(f"{ALIGNMENT}={shown(alignment)} is not a power of two up to {2**20:,}")
    return _aligned(header.position, alignment), alignment


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _placed(described: dict[str, tuple[str, list[int], int]], begin: tuple[int, int], size: int) -> list[StoredTensor]:
    """The tensors fill the file, each at the next aligned byte after the one before."""
    tensors = sorted(_stored(described, begin[0]), key=lambda tensor: tensor.start)
    place, alignment = begin
    for tensor in tensors:
        if tensor.start != place:
            raise ValueError(f"tensor {shown(tensor.name)} begins at byte {tensor.start:,}, not at {place:,}")
        if tensor.stop > size:
            raise ValueError(f"tensor {shown(tensor.name)} ends at byte {tensor.stop:,}")
        place = _aligned(tensor.stop, alignment)
    return tensors


def _stored(described: dict[str, tuple[str, list[int], int]], begin: int) -> Iterator[StoredTensor]:
    for name, (kind, shape, offset) in described.items():
        elements, size = (BLOCKS[kind].elements, BLOCKS[kind].bytes) if kind in BLOCKS else (1, ITEM_SIZES[kind])
        if shape[-1] % elements:
            raise ValueError(
                f"tensor {shown(name)} of kind {kind} has rows of {shape[-1]:,} numbers, no multiple of {elements}"
            )
        yield StoredTensor(name, kind, shape, begin + offset, begin + offset + prod(shape) // elements * size)
