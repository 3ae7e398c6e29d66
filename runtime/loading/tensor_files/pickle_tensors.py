"""Tensors of pickled files (.bin, .pt), read without running any code that they bring."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointError, brief
from ...models.spec.json_fields import shown
from .pickle_cost import MOST_STEPS, require_few_steps
from .tensor_source import MemoryWeightSource

MOST_PICKLE = 16 * 2**20  # bytes of what describes the tensors
BEFORE_TENSORS = 5  # pickles of a file that torch wrote before 1.6
LINE = 300
CALLED = re.compile(r"GLOBAL (\S{1,200})")


def pickle_source(file: Path) -> MemoryWeightSource:
    """The tensors of a .bin or .pt file, read from it as they are asked for, unless torch wrote it before 1.6.

    Raises CheckpointError for all else: objects that are no tensors, tensors that are stored
        outside of the file, damage.
    """
    try:
        found = _unpickled(file)
    except (Exception, RecursionError) as error:  # the unpickler raises many types
        why = _why(error)
        raise CheckpointError(
            f"{file} cannot be read as pickled tensors alone ({why}); convert it to safetensors where it comes from"
        ) from error
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{file} holds {type(found).__name__}, not tensors by name")
    return MemoryWeightSource(
        str(file), {_name(file, name): _plain(file, name, tensor) for name, tensor in found.items()}
    )


def _why(error: BaseException) -> str:
    """What the unpickler means: what it says of versions and of switches is not for who loads a model."""
    why = " ".join(str(error).split())
    called = CALLED.search(why)
    return f"it would run {called[1]}" if called else brief(why or type(error).__name__, LINE)


def _unpickled(file: Path) -> Any:
    with open(file, "rb") as stream:
        is_zip = stream.read(2) == b"PK"  # as torch writes since 1.6; what is older cannot be mapped
    if is_zip:
        _require_stored(file)
    else:
        _require_few_steps(file)
    return torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)


def _require_stored(file: Path) -> None:
    """Nothing in the archive takes more memory than it has bytes there."""
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            most = MOST_PICKLE if entry.filename.endswith(".pkl") else file.stat().st_size
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > most:
                raise ValueError(
                    f"{entry.filename[:80]} in it is compressed, or of {entry.file_size:,} bytes; at most {most:,} "
                    "are read"
                )
            if entry.filename.endswith(".pkl"):
                with archive.open(entry) as stream:
                    require_few_steps(stream, MOST_STEPS)


def _require_few_steps(file: Path) -> None:
    left = MOST_STEPS
    with open(file, "rb") as stream:
        for _ in range(BEFORE_TENSORS):
            left -= require_few_steps(stream, left)


def _name(file: Path, name: Any) -> str:
    if not isinstance(name, str):
        raise CheckpointError(f"{file} has an entry under {type(name).__name__}, not under the name of a tensor")
    return name


def _plain(file: Path, name: str, tensor: Any) -> Any:
    """A tensor as its bytes in memory are; what is none, the source refuses."""
    if not isinstance(tensor, Tensor):
        return tensor
    kind = "sparse" if tensor.layout is not torch.strided else "quantised" if tensor.is_quantized else None
    if (
        kind is None
        and tensor.device.type == "cpu"
        and tensor.numel() * tensor.itemsize <= tensor.untyped_storage().nbytes() <= file.stat().st_size
    ):
        return tensor.detach().resolve_neg()
    raise CheckpointError(
        f"{file}: {shown(name)} is {kind or 'larger than its bytes in the file'}, not a plain tensor; convert the "
        "checkpoint to safetensors"
    )
