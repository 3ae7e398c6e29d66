"""From what the user calls a model to a directory on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import CheckpointError
from .gguf import is_gguf

FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
WEIGHTS = ["*.safetensors"]
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def resolve_model(name: str | Path, weights: bool = True) -> Path:
    """The directory of a model: a local one as it is, otherwise a hub id's snapshot, with its weights if they are wanted.

    A local directory or a snapshot that is already in the Hugging Face cache costs no network call. Raises
    CheckpointError saying what was looked for and what to do.
    """
    path = Path(name).expanduser()
    if path.is_dir() or (is_gguf(path) and path.is_file()):
        return path
    if path.exists():
        raise CheckpointError(
            f"{str(path)!r} is a file; give a GGUF file, or the directory that holds config.json and the weights"
        )
    if isinstance(name, Path) or not HUB_ID.fullmatch(name):
        raise CheckpointError(
            f"no directory {str(name)!r}; give the path of a Hugging Face model directory or a hub id"
        )
    return _cached_snapshot(name, weights) or _download(name, weights)


def _cached_snapshot(hub_id: str, weights: bool) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        path = Path(snapshot_download(hub_id, local_files_only=True, allow_patterns=FILES))
    except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError):
        return None
    complete = (path / "config.json").is_file() and (not weights or any(path.glob("*.safetensors")))
    return path if complete else None


def _download(hub_id: str, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=FILES, ignore_patterns=None if weights else WEIGHTS))
    except Exception as error:  # the hub client raises a dozen unrelated types for "could not get it"
        raise CheckpointError(
            f"model {hub_id!r} is not a local directory, is not in the Hugging Face cache, and could not be downloaded "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}); "
            "give a local path, or check the name and the network"
        ) from error
