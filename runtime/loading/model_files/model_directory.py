"""The files of a Hugging Face model directory, read with errors that say which file and why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, ConfigError
from ...models.families import read_model
from ...models.spec.json_fields import shown
from ...models.spec.model_spec import ModelSpec
from .bounded_json import read_json
from .choose_weight_files import no_weights_error, weight_names

OWN = "sgl.json"  # what a model says to sgl alone
WRITING = {"whitespace", "ascii", "integers"}  # options that change how JSON is written, not what is enforced


def load_config(path: str | Path, context: int | None = None) -> ModelSpec:
    """The model that a directory's config.json describes. context: the longest sequence that is wanted."""
    config = Path(path) / "config.json"
    return read_model(read_json(config), str(config), context)


QUANTIZATION = ("quantization_config", "compression_config")  # keys of config.json
QUANTIZATION_FILES = ("quantize_config.json", "hf_quant_config.json")  # what some writers put next to it


def quantization_of(path: Path) -> tuple[dict[str, Any] | None, str, dict[str, dict[str, Any]]]:
    """What a directory says of weights in few bits: config.json's object, its place for errors, and other files'
    objects by name.
    """
    values = read_json(path / "config.json")
    places = [values, *(value for key in ("text_config", "llm_config") if isinstance(value := values.get(key), dict))]
    said = next((found for place in places for key in QUANTIZATION if (found := place.get(key)) is not None), None)
    if (
        said is None and isinstance(older := values.get("quantization"), dict) and "bits" in older
    ):  # MLX', before it wrote both
        said = older
    where = f"{path / 'config.json'}: quantization_config"
    if said is not None and not isinstance(said, dict):
        raise ConfigError(f"{where} must be an object, not {shown(said)}")
    return said, where, {name: read_json(path / name) for name in QUANTIZATION_FILES if (path / name).is_file()}


def load_json_options(path: str | Path) -> dict[str, Any]:
    """How the model writes JSON: `json_options` in the `sgl.json` of its directory, {} without such a file."""
    file = Path(path) / OWN  # a GGUF file has none
    if not file.is_file():
        return {}
    options = read_json(file).get("json_options", {})
    if not isinstance(options, dict) or (strange := sorted(set(options) - WRITING)):
        shown = options if not isinstance(options, dict) else ", ".join(strange)
        raise CheckpointError(f"{file}: json_options has {shown}; a model may say {', '.join(sorted(WRITING))}")
    if not options:
        return options
    from sgl.grammars import GrammarError, SchemaOptions

    try:
        SchemaOptions.of(options)
    except GrammarError as error:
        raise CheckpointError(f"{file}: {error}") from error
    return options


def weight_files(path: Path, load_format: str = "auto") -> list[Path]:
    """The files of a directory that hold its weights, see `choosing.weight_names`.

    Raises CheckpointError where one is missing.
    """
    there = set(os.listdir(path))  # an index may name 100,000 files that are not
    names = weight_names(there, lambda name: path / name, load_format, str(path))
    if absent := [name for name in names if name not in there or not (path / name).is_file()]:
        raise no_weights_error(there, absent, str(path))
    return [path / name for name in names]
