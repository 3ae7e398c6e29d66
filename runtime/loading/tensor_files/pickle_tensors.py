"""Tensors of pickled files (.bin, .pt), read without running any code that they bring."""

from __future__ import annotations

import pickletools
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ...errors import CheckpointError, brief
from ...models.spec.json_fields import shown
from .memory_source import MemoryWeightSource

MOST_PICKLE = 16 * 2**20  # bytes of what describes the tensors
BEFORE_TENSORS = 5  # pickles of a file that torch wrote before 1.6
LINE = 300
CALLED = re.compile(r"GLOBAL (\S{1,200})")
MOST_STEPS = 400_000  # some twenty for each tensor
MOST_IN_TUPLE = 10_000  # parts of a tuple, those of the tuples in it among them: as a key, it is hashed by all of them
AMPLIFYING = {
    "builtins bytearray",
    "__builtin__ bytearray",
    "torch.storage _load_from_bytes",
}  # a number makes memory of that size; a pickle in a pickle
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


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


def require_few_steps(stream: IO[bytes], most: int) -> int:
    """Of one pickle, at the end of which the stream is left; returns its steps, `most` at most. Raises
    ValueError for what is too much, and for no pickle.
    """
    stack, memo, steps = _PickleStack(), dict[Any, int](), 0
    for steps, (operation, argument, _) in enumerate(pickletools.genops(stream), 1):
        if steps > most:
            raise ValueError(f"it takes more than {most:,} steps")
        name = operation.name
        if name == "GLOBAL" and argument in AMPLIFYING:
            raise ValueError(f"it would run {argument.replace(' ', '.')}")
        if name in ("BINGET", "LONG_BINGET", "GET"):
            stack.push(memo.get(argument, 1))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[argument] = stack.top
        elif name == "MEMOIZE":
            memo[len(memo)] = stack.top
        elif name in _TUPLES:
            stack.push(1 + stack.popped(_TUPLES[name]))
        elif name == "TUPLE":
            stack.push(1 + stack.popped_to_mark())
        else:
            stack.apply(operation)
        if stack.top > MOST_IN_TUPLE:
            raise ValueError(f"it has a tuple of more than {MOST_IN_TUPLE:,} parts")
    return steps


class _PickleStack:
    """The unpickler's: of each value how many parts a tuple has, of all others 1; 0 for a mark."""

    def __init__(self) -> None:
        self._values: list[int] = []

    @property
    def top(self) -> int:
        return self._values[-1] if self._values else 1

    def push(self, parts: int) -> None:
        self._values.append(parts)

    def popped(self, count: int) -> int:
        if count > len(self._values):
            raise ValueError("it takes a value where there is none")
        taken = [self._values.pop() for _ in range(count)]
        return sum(taken)

    def popped_to_mark(self) -> int:
        found = 0
        while self._values and (parts := self._values.pop()):
            found += parts
        return found

    def apply(self, operation: Any) -> None:
        """Any other operation, by what it says it takes and leaves."""
        before = operation.stack_before
        if pickletools.markobject in before:
            self.popped_to_mark()
            before = before[: before.index(pickletools.markobject)]
        self.popped(len(before))
        self._values += [0 if kind is pickletools.markobject else 1 for kind in operation.stack_after]
