"""What a safetensors file says it holds: eight bytes of length, a JSON object, then the tensors end to end."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import CheckpointError

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Stored(NamedTuple):
    """A tensor in a file. dtype: the file's name for it; start, stop: its bytes, counted from the file's begin."""

    name: str
    dtype: str
    shape: list[int]
    start: int
    stop: int


def read_header(file: Path) -> list[Stored]:
    """The tensors of a file in the order of their bytes. Raises CheckpointError for what is damaged or cut short."""
    size = file.stat().st_size
    try:
        with open(file, "rb") as stream:
            length = int.from_bytes(_exactly(stream, 8), "little")
            if length > size - 8:
                raise ValueError(f"a header of {length:,} bytes does not fit")
            entries = json.loads(_exactly(stream, length))
        tensors = sorted(
            (_stored(name, entry, 8 + length) for name, entry in entries.items() if name != "__metadata__"),
            key=lambda tensor: (tensor.start, tensor.stop),
        )
        _check(tensors, 8 + length, size)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(file, f"{type(error).__name__}: {error}") from error
    return tensors


def damaged(file: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{file} ({file.stat().st_size:,} bytes) is damaged or cut short ({why}); fetch the file again"
    )


def _exactly(stream: Any, count: int) -> bytes:
    data: bytes = stream.read(count)
    if len(data) < count:
        raise ValueError(f"{count:,} bytes of header expected, {len(data):,} are there")
    return data


def _stored(name: str, entry: dict[str, Any], begin: int) -> Stored:
    start, stop = entry["data_offsets"]
    return Stored(name, entry["dtype"], list(entry["shape"]), begin + start, begin + stop)


def _check(tensors: list[Stored], begin: int, size: int) -> None:
    """The tensors fill the file without holes, each with the bytes that its shape needs."""
    for tensor in tensors:
        known = FLOATS.get(tensor.dtype)
        if known is not None and tensor.stop - tensor.start != math.prod(tensor.shape) * known.itemsize:
            raise ValueError(f"tensor {tensor.name!r} has {tensor.stop - tensor.start:,} bytes for {tensor.shape}")
        if tensor.start != begin or tensor.stop < begin:
            raise ValueError(f"tensor {tensor.name!r} begins at byte {tensor.start:,}, not at {begin:,}")
        begin = tensor.stop
    if begin != size:
        raise ValueError(f"the tensors end at byte {begin:,}")
