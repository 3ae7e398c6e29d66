"""Checkpoints as others write them: a saved one with other tensors and keys,
and configurations that must be refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sgl.runtime.errors import ConfigError
from sgl.runtime.models.families import read_model

Tensors = dict[str, torch.Tensor]


def rewrite(path: Path, change: Callable[[Tensors], Tensors] | None = None, **keys: Any) -> None:
    """Give the checkpoint in `path` other tensors, and other keys in config.json; a key set to `...` is taken out."""
    if change is not None:
        file = path / "model.safetensors"
        save_file(
            {name: tensor.contiguous().clone() for name, tensor in change(load_file(file)).items()},
            file,
            {"format": "pt"},
        )
    config = json.loads((path / "config.json").read_text()) | keys
    (path / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def replaced(tensors: Tensors, **names: str) -> Tensors:
    """Each part of a name replaced by another; `__` stands for a point."""
    found = {}
    for name, tensor in tensors.items():
        for old, new in names.items():
            name = name.replace(old.replace("__", "."), new)
        found[name] = tensor
    return found


def refused(path: Path, key: str, value: object) -> None:
    """Raises AssertionError unless the configuration in `path` with this value ends in an error that names the key."""
    values = json.loads((path / "config.json").read_text()) | {key: value}
    with pytest.raises(ConfigError, match=key):
        read_model(values)
