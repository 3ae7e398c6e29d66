"""Who computes a model directory's architecture: a family of ours, or transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..models.families import FAMILIES, read_model
from ..models.families.family_registry import architecture_of
from ..models.spec.model_spec import ModelSpec
from ..models.transformers_backend.transformers_config import TransformersModelSpec, read_transformers_model
from .gguf_files.gguf_model import is_gguf, open_gguf
from .model_files.model_directory import read_json


def describe(
    path: str | Path, context: int | None = None, implementation: str = "auto", remote_code: bool = False
) -> ModelSpec | TransformersModelSpec:
    """The model that a directory's config.json describes.

    context: the longest sequence that is wanted.  implementation: "sgl", "transformers", or "auto" for transformers
        where no family of ours describes the architecture, which the engine warns about.  remote_code: transformers may
        run the checkpoint's Python.

    Raises ConfigError where neither supports it.
    """
    if is_gguf(Path(path)):
        if implementation == "transformers":
            raise ConfigError(
                f"Engine(implementation='transformers'): {path} is a GGUF file, which transformers does not compute "
                "here; leave implementation out, or take the model's safetensors checkpoint"
            )
        return open_gguf(Path(path)).model(context)
    file = Path(path) / "config.json"
    values, where = read_json(file), str(file)
    if implementation == "transformers":
        return read_transformers_model(values, where, Path(path), remote_code, chosen=True)
    if implementation == "sgl" or _is_known(values):
        return read_model(values, where, context)
    return _by_transformers(values, where, Path(path), remote_code)


def _is_known(values: dict[str, Any]) -> bool:
    names = values.get("architectures")
    return isinstance(names, list) and any(isinstance(name, str) and name in FAMILIES for name in names)


def _by_transformers(values: dict[str, Any], where: str, path: Path, remote_code: bool) -> TransformersModelSpec:
    try:
        architecture_of(values, where)
    except ConfigError as ours:
        try:
            return read_transformers_model(values, where, path, remote_code)
        except ConfigError as theirs:
            raise ConfigError(f"{ours}. Nor by transformers' own implementation: {theirs}") from theirs
    raise AssertionError("an architecture that no family describes has one")
