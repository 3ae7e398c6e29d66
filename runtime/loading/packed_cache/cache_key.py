"""The name of an entry: a digest of everything that its contents depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ...layers import compiled_kernels
from ...models.spec.model_spec import ModelSpec
from ..model_files.model_directory import QUANTIZATION_FILES

RUNTIME = Path(__file__).parents[2]
DECIDING = (
    "layers",
    "quantization",
    "models",
    "loading",
)  # rooms of the runtime whose code decides what is packed, and how
SIZE = 16  # bytes of a key


def entry_key(
    model: ModelSpec, where: str, contents: Sequence[str], dtype: torch.dtype, options: Mapping[str, Any]
) -> str:
    """contents: digests of the weights' files. options: of the engine, those that change weights.

    Raises OSError where code cannot be read.
    """
    parts = {
        "model": repr(replace(model, notes=(), max_position=0)),
        "says": [_small_file(Path(where) / name) for name in ("config.json", *QUANTIZATION_FILES)],
        "contents": [*contents],
        "dtype": str(dtype),
        "options": dict(options),
        "machine": machine(),
        "threads": None if options.get("weights") == "auto" else torch.get_num_threads(),  # what quantizes sums by them
        "code": code_digest(),
    }
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=SIZE).hexdigest()


def machine() -> dict[str, Any]:
    """What the kernels found here, and the torch that computes while weights are packed."""
    levels = {name: value for name, value in vars(compiled_kernels.kernels).items() if isinstance(value, int)}
    return levels | {"amx": compiled_kernels.AMX, "torch": torch.__version__}


@cache
def code_digest() -> str:
    """Of the kernels and the modules that decide what is packed, and how, so of the version too. Raises OSError."""
    files = [Path(str(compiled_kernels.kernels.__file__))]
    for room in DECIDING:
        files += sorted((RUNTIME / room).rglob("*.py"))
    whole = hashlib.blake2b(digest_size=SIZE)
    for file in files:
        code = file.read_bytes()
        whole.update(f"{file.name} {len(code)} ".encode() + code)
    return whole.hexdigest()


def _small_file(path: Path) -> str | None:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=SIZE).hexdigest()
    except OSError:
        return None
