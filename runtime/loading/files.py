"""The files of a Hugging Face model directory, read with errors that say which file and why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sgl.grammars import GrammarError, SchemaOptions

from ..errors import CheckpointError, ConfigError
from ..models.families import read_model
from ..models.fields import shown
from ..models.spec import Model
from .objects import parse_object

MOST_JSON, MOST_INDEX = 4 * 2**20, 64 * 2**20  # bytes; of config.json and of an index of shards
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OWN = "sgl.json"  # what a model says to sgl alone
WRITING = {"whitespace", "ascii", "integers"}  # options that change how JSON is written, not what is enforced


def read_json(path: Path, most: int = MOST_JSON) -> dict[str, Any]:
    """The object in a file of at most `most` bytes. Raises CheckpointError for any other file, saying what is wrong."""
    if not path.exists():
        raise CheckpointError(f"{path} is missing; {path.parent} must be a Hugging Face model directory")
    try:
        value = parse_object(_bounded(path, most))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); restore the file") from error
    return value


def _bounded(path: Path, most: int) -> bytes:
    """Of a regular file: a pipe could make the reader wait for ever."""
    if not path.is_file():
        raise ValueError("it is not a regular file")
    with open(path, "rb") as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has {path.stat().st_size:,} bytes, at most {most:,} are read")
    return data


def load_config(path: str | Path, context: int | None = None) -> Model:
    """The model that a directory's config.json describes. context: the longest sequence that is wanted."""
    config = Path(path) / "config.json"
    return read_model(read_json(config), str(config), context)


QUANTIZATION = ("quantization_config", "compression_config")  # keys of config.json
BESIDE = ("quantize_config.json", "hf_quant_config.json")  # what some writers put beside it


def quantization_of(path: Path) -> tuple[dict[str, Any] | None, str, dict[str, dict[str, Any]]]:
    """What a directory says of weights in few bits: config.json's object, its place for errors, and other files' objects by name."""
    values = read_json(path / "config.json")
    places = [values, *(value for key in ("text_config", "llm_config") if isinstance(value := values.get(key), dict))]
    said = next((found for place in places for key in QUANTIZATION if (found := place.get(key)) is not None), None)
    where = f"{path / 'config.json'}: quantization_config"
    if said is not None and not isinstance(said, dict):
        raise ConfigError(f"{where} must be an object, not {shown(said)}")
    return said, where, {name: read_json(path / name) for name in BESIDE if (path / name).is_file()}


def load_json_options(path: str | Path) -> dict[str, Any]:
    """How the model writes JSON: `json_options` in the `sgl.json` of its directory, {} without such a file."""
    file = Path(path) / OWN  # beside a GGUF file there is none
    if not file.is_file():
        return {}
    options = read_json(file).get("json_options", {})
    if not isinstance(options, dict) or (strange := sorted(set(options) - WRITING)):
        shown = options if not isinstance(options, dict) else ", ".join(strange)
        raise CheckpointError(f"{file}: json_options has {shown}; a model may say {', '.join(sorted(WRITING))}")
    try:
        SchemaOptions.of(options)
    except GrammarError as error:
        raise CheckpointError(f"{file}: {error}") from error
    return options


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a directory: the shards of its index, or the single one."""
    names = _shards(path / INDEX) if (path / INDEX).exists() else [WEIGHTS]
    there = set(os.listdir(path))  # an index may name 100,000 files that are not
    if absent := [name for name in names if name not in there or not (path / name).is_file()]:
        found = sorted(
            file.name for file in path.iterdir() if file.suffix in (".safetensors", ".bin", ".pt", ".gguf")
        )
        raise CheckpointError(
            f"{path} lacks the weights {_some(absent)} (found: {_some(found) or 'no weights at all'}); "
            "complete the download, or convert the checkpoint to safetensors"
        )
    return [path / name for name in names]


def _shards(index: Path) -> list[str]:
    """The files that an index names, each beside it."""
    shards = read_json(index, MOST_INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index} has no 'weight_map'; restore the file")
    for tensor, name in shards.items():
        if not isinstance(name, str) or not name.endswith(".safetensors") or os.path.basename(name) != name or "\0" in name:
            raise CheckpointError(
                f"{index}: weight_map has {shown(tensor)} in {shown(name)}, which is not the name of a safetensors file "
                "beside it; restore the file"
            )
    return sorted(set(shards.values()))


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:8])}{f' and {len(names) - 8} more' if len(names) > 8 else ''}"
