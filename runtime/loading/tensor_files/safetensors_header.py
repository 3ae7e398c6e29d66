"""What a safetensors file says it holds: eight bytes of length, a JSON object, then the tensors end to end."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from ...errors import CheckpointError
from ...models.spec.json_fields import shown
from ..model_files.bounded_json import parse_object

MOST_HEADER = 100_000_000  # bytes; the format allows no more
MOST_TENSORS = 100_000
MOST_VALUES = 8 * MOST_TENSORS  # of JSON: a tensor of two dimensions is described by so many
MOST_DIMENSIONS = 16
METADATA = "__metadata__"
FLOATS = ("F64", "F32", "F16", "BF16")
ITEM_SIZES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I8": 1,
    "U8": 1,
    "I16": 2,
    "U16": 2,
    "I32": 4,
    "U32": 4,
    "I64": 8,
    "U64": 8,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
}  # bytes of a number


class StoredTensor(NamedTuple):
    """A tensor in a file. dtype: the file's name for it; start, stop: its bytes, counted from the file's begin."""

    name: str
    dtype: str
    shape: list[int]
    start: int
    stop: int


class SafetensorsHeader(NamedTuple):
    """tensors: in the order of their bytes.  metadata: the file's; some writers describe a weight's tensors there."""

    tensors: list[StoredTensor]
    metadata: dict[str, Any]


def read_header(file: Path) -> SafetensorsHeader:
    """Raises CheckpointError for what is damaged or cut short."""
    with open(file, "rb") as stream:
        return header_of(str(file), file.stat().st_size, stream.read)


def header_of(name: str, size: int, read: Callable[[int], bytes]) -> SafetensorsHeader:
    """The same of a file in any place.

    read: returns the next bytes, as many as it is asked for, fewer at the end.
    """
    try:
        length, entries = _entries(size, read)
        if len(entries) > MOST_TENSORS + 1:
            raise ValueError(f"it names {len(entries):,} tensors, at most {MOST_TENSORS:,} are read")
        tensors = sorted(
            (_stored(name, entry, 8 + length) for name, entry in entries.items() if name != METADATA),
            key=lambda tensor: (tensor.start, tensor.stop),
        )
        _check(tensors, 8 + length, size)
    except CheckpointError:
        raise
    except ValueError as error:
        raise damaged_file(name, size, str(error)) from error
    return SafetensorsHeader(tensors, _metadata(entries))


def metadata_tensors(file: Path) -> dict[str, Any]:
    """The metadata of a file. Raises CheckpointError for a header that is damaged."""
    try:
        with open(file, "rb") as stream:
            return _metadata(_entries(file.stat().st_size, stream.read)[1])
    except ValueError as error:
        raise damaged_file_error(file, str(error)) from error


def _metadata(entries: dict[str, Any]) -> dict[str, Any]:
    said = entries.get(METADATA)
    return said if isinstance(said, dict) else {}


def damaged_file_error(file: Path, why: str) -> CheckpointError:
    return damaged_file(str(file), file.stat().st_size, why)


def damaged_file(name: str, size: int, why: str) -> CheckpointError:
    return CheckpointError(f"{name} ({size:,} bytes) is damaged or cut short ({why}); fetch the file again")


def _entries(size: int, read: Callable[[int], bytes]) -> tuple[int, dict[str, Any]]:
    """The bytes of the object, and what it holds. Raises ValueError where there is none."""
    length = int.from_bytes(_exactly(read, 8), "little")
    if length > min(size - 8, MOST_HEADER):
        raise ValueError(f"a header of {length:,} bytes does not fit; at most {min(size - 8, MOST_HEADER):,} are read")
    return length, parse_object(_exactly(read, length), MOST_VALUES)


def _exactly(read: Callable[[int], bytes], count: int) -> bytes:
    data = read(count)
    if len(data) < count:
        raise ValueError(f"{count:,} bytes of header expected, {len(data):,} are there")
    return data


def _stored(name: str, entry: Any, begin: int) -> StoredTensor:
    if not isinstance(entry, dict):
        raise ValueError(f"tensor {shown(name)} is described by {shown(entry)}, not by an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not _are_sizes(shape) or len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"tensor {shown(name)} has dtype {shown(dtype)} and shape {shown(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {shown(name)} has data_offsets {shown(offsets)}")
    return StoredTensor(name, dtype, shape, begin + offsets[0], begin + offsets[1])


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _check(tensors: list[StoredTensor], begin: int, size: int) -> None:
    """The tensors fill the file without holes, each with the bytes that its shape needs."""
    for tensor in tensors:
        item = ITEM_SIZES.get(tensor.dtype)
        if item is not None and tensor.stop - tensor.start != math.prod(tensor.shape) * item:
            raise ValueError(
                f"tensor {shown(tensor.name)} has {tensor.stop - tensor.start:,} bytes for {tensor.dtype} "
                f"{tensor.shape}"
            )
        if tensor.start != begin or tensor.stop < begin:
            raise ValueError(f"tensor {shown(tensor.name)} begins at byte {tensor.start:,}, not at {begin:,}")
        begin = tensor.stop
    if begin != size:
        raise ValueError(f"the tensors end at byte {begin:,}")
