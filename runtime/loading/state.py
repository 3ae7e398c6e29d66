"""The sharded state of a model: a directory whose weights are stored as they are computed with. Its manifest, and its names.

Tensors outside the packed projections have the names and shapes of the model's own places. Those of a packed projection are
called packed.PART.NUMBER.NAME: the number counts the projections of a part (embedding, layers, head) in their order.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import CheckpointError
from ..models.fields import shown
from ..quantization.packing import KINDS
from .objects import read_json

MANIFEST = "sgl_state.json"
VERSION = 1
PREFIX = "packed."
MOST_MANIFEST = 64 * 2**20  # bytes


class Entry(NamedTuple):
    """Of a packed projection. numbers: what it is beside its tensors."""

    kind: str
    numbers: dict[str, int]


@dataclass(frozen=True)
class Manifest:
    """files: of rank 0.  packed: by "PART.NUMBER".  weights: what was asked for when it was written."""

    files: tuple[str, ...]
    packed: dict[str, Entry]
    weights: str

    def as_json(self) -> dict[str, Any]:
        packed = {key: entry._asdict() for key, entry in self.packed.items()}
        return {"version": VERSION, "ranks": 1, "weights": self.weights, "files": [list(self.files)], "packed": packed}


def file_name(number: int) -> str:
    """number: of the part, from 1."""
    return f"state-rank-0-part-{number:05}.safetensors"


def has_state(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def read_manifest(path: Path) -> Manifest:
    """Of a directory. Raises CheckpointError where there is none, for another version or rank, and for what is damaged."""
    file = path / MANIFEST
    if not file.exists():
        raise CheckpointError(f"{path} has no {MANIFEST}: it is no sharded state; write one with `sgl shard`, or leave load_format at 'auto'")
    said = read_json(file, MOST_MANIFEST)
    if said.get("version") != VERSION or said.get("ranks") != 1:
        raise CheckpointError(
            f"{file} is of version {shown(said.get('version'))} with {shown(said.get('ranks'))} ranks, version {VERSION} with 1 rank is read; write it again with `sgl shard`"
        )
    files, packed = said.get("files"), said.get("packed")
    if not isinstance(files, list) or len(files) != 1 or not _are_names(files[0]) or not isinstance(packed, dict):
        raise CheckpointError(f"{file}: files and packed are {shown(files)} and {shown(packed)}; write it again with `sgl shard`")
    if absent := [name for name in files[0] if not (path / name).is_file()]:
        raise CheckpointError(f"{path} lacks {', '.join(absent[:5])}, which {MANIFEST} names; complete the copy")
    return Manifest(tuple(files[0]), {key: _entry(file, key, value) for key, value in packed.items()}, str(said.get("weights")))


def _are_names(files: object) -> bool:
    return isinstance(files, list) and bool(files) and all(isinstance(name, str) and name.endswith(".safetensors") and os.path.basename(name) == name for name in files)


def _entry(file: Path, key: str, value: object) -> Entry:
    kind, numbers = (value.get("kind"), value.get("numbers")) if isinstance(value, dict) else (None, None)
    if kind not in KINDS or not isinstance(numbers, dict) or not all(type(number) is int and abs(number) < 2**53 for number in numbers.values()):
        raise CheckpointError(f"{file}: packed projection {shown(key)} is {shown(value)}; known kinds: {', '.join(KINDS)}; write it again with `sgl shard`")
    return Entry(kind, numbers)
