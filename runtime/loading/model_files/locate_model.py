"""From what the user calls a model to its directory or GGUF file on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from ...errors import CheckpointError, ConfigError
from ..gguf_files.gguf_model import is_gguf
from ..remote.remote_store import is_url
from .choose_weight_files import chosen_gguf
from .hub_download import HubModelId, snapshot

CONFIG = "config.json"
BUNDLED = Path(__file__).parents[2] / "nano"
NAMES = ("nano", "sgl-nano")  # of the bundled model, where no directory of the name is here


def resolve_model(name: str | Path, weights: bool = True, load_format: str = "auto") -> Path:
    """The directory of a model, or its GGUF file: a local one as it is, otherwise a hub id's snapshot, with its weights
    if they are wanted.

    name: "nano" for the bundled model, a directory, a `.gguf` file (any part of a split one), a URL (see `remote`), or
        a hub id: `organisation/name`, then maybe `@revision`, then
    maybe `:WORD` for the one GGUF file whose name holds that word. load_format: see `EngineConfig`. A snapshot that is
    complete in the Hugging Face cache costs no network call; of a repository only the files that are needed are
    fetched, and a download that broke off goes on where it was. Raises CheckpointError saying what was looked for and
    what to do.
    """
    if not isinstance(name, str | os.PathLike):
        raise ConfigError(
            f"a model is named by a directory, a GGUF file, a URL or a hub id, not by {type(name).__name__}; tensors "
            "go into update_weights of an engine that runs"
        )
    if isinstance(name, str) and is_url(name):
        if (local := _file_url(name)) is not None:
            return resolve_model(local, weights, load_format)
        from ..remote.remote_model_folder import fetch_model

        return fetch_model(name)
    path = Path(name).expanduser()
    if path.is_dir():
        return _in_directory(path)
    if path.exists():
        return _file(path)
    if name in NAMES:
        return BUNDLED
    if isinstance(name, Path) or (asked := HubModelId.of(name)) is None:
        raise CheckpointError(
            f"no directory {str(name)!r}; give the path of a Hugging Face model directory or of a GGUF file, or a "
            "hub id"
        )
    return snapshot(asked, weights, load_format)


def _file_url(url: str) -> Path | None:
    """The path of file:///path."""
    parts = urlsplit(url)
    if parts.scheme.lower() != "file":
        return None
    if parts.netloc not in ("", "localhost"):
        raise CheckpointError(f"{url}: a file's URL has three slashes, file:///path, or names localhost")
    from urllib.request import url2pathname  # which imports what fetches from the web

    return Path(url2pathname(parts.path))


def _in_directory(path: Path) -> Path:
    """A directory that holds one GGUF model and nothing else to load stands for it."""
    names = [] if (path / CONFIG).exists() else [name for name in os.listdir(path) if is_gguf(Path(name))]
    return path / chosen_gguf(names, None, str(path))[0] if names else path


def _file(path: Path) -> Path:
    if is_gguf(path):
        return path
    raise CheckpointError(
        f"{str(path)!r} is a file; give a GGUF file, or the directory that holds config.json and the weights"
    )
