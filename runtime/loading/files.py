"""The files of a Hugging Face model directory, read with errors that say which file and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sgl.grammars import GrammarError, SchemaOptions

from ..errors import CheckpointError
from ..models.families import read_model
from ..models.spec import Model

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OWN = "sgl.json"  # what a model says to sgl alone
WRITING = {"whitespace", "ascii", "integers"}  # options that change how JSON is written, not what is enforced


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing; {path.parent} must be a Hugging Face model directory"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); restore the file") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def load_config(path: str | Path, context: int | None = None) -> Model:
    """The model that a directory's config.json describes. context: the longest sequence that is wanted."""
    config = Path(path) / "config.json"
    return read_model(read_json(config), str(config), context)


def load_json_options(path: str | Path) -> dict[str, Any]:
    """How the model writes JSON: `json_options` in the `sgl.json` of its directory, {} without such a file."""
    file = Path(path) / OWN
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
    if (path / INDEX).is_file():
        shards = read_json(path / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise CheckpointError(f"{path / INDEX} has no 'weight_map'; restore the file")
        files = [path / name for name in sorted(set(shards.values()))]
    else:
        files = [path / WEIGHTS]
    if absent := [file.name for file in files if not file.is_file()]:
        found = sorted(
            file.name for file in path.iterdir() if file.suffix in (".safetensors", ".bin", ".pt", ".gguf")
        )
        raise CheckpointError(
            f"{path} lacks the weights {', '.join(absent)} (found: {', '.join(found) or 'no weights at all'}); "
            "complete the download, or convert the checkpoint to safetensors"
        )
    return files
