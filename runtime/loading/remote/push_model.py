"""A local model into a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...errors import ConfigError
from ..model_files.model_directory import weight_files
from ..sharded_state import has_sharded_state
from .remote_model_folder import REMOTE, SMALL
from .remote_store import open_store


def push_model(path: Path, url: str) -> int:
    """Write the small files and the weights of a directory to redis:// or a bucket; returns the bytes.

    Raises ConfigError for a model that is not in safetensors and for stores that are only read, CheckpointError where
    one does not take it.
    """
    if not path.is_dir() or (path / REMOTE).exists():
        raise ConfigError(f"{path} is not a directory with safetensors; only those can be pushed")
    if has_sharded_state(path):
        raise ConfigError(
            f"{path} is a sharded state, which is opened where its files are; push the model that it was made of"
        )
    store, files = open_store(url), list(_files(path))
    if hasattr(store, "push"):
        size: int = store.push(files)
        return size
    if not hasattr(store, "write"):
        raise ConfigError(
            f"{store.url} can only be read; push to redis:// or to a bucket, or copy the directory there yourself"
        )
    for file in files:
        store.write(file.name, file)
    return sum(file.stat().st_size for file in files)


def _files(path: Path) -> Iterator[Path]:
    """config.json comes last: what is not whole is no model."""
    yield from weight_files(path)
    yield from (path / name for name in reversed(SMALL) if (path / name).is_file())
