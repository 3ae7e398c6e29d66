"""Models of the Hugging Face hub: which files of a repository are needed, and where they are on this machine."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from ...errors import CheckpointError
from .choose_weight_files import HOLDING, chosen_gguf, require_small, weight_names

SMALL = (
    "*.json",
    "*.model",
    "tokenizer.model.v*",
    "*.tiktoken",
    "*.txt",
    "*.jinja",
)  # next to the weights, not in folders
TEMPLATES = "additional_chat_templates/*.jinja"


class HubModelId(NamedTuple):
    """`organisation/name@revision:word`. revision: a branch, tag or commit.  word: of the name of one GGUF file."""

    repository: str
    revision: str | None
    word: str | None

    @classmethod
    def of(cls, text: str) -> HubModelId | None:
        """None: it is no hub id."""
        found = re.fullmatch(r"(\w[\w.-]*(?:/\w[\w.-]*)?)(?:@(\w[\w./-]*))?(?::([\w.-]+))?", text)
        return None if found is None else cls(*found.groups())

    def __str__(self) -> str:
        return f"{self.repository}{f'@{self.revision}' if self.revision else ''}{f':{self.word}' if self.word else ''}"


def snapshot(model_id: HubModelId, weights: bool, load_format: str) -> Path:
    """The directory of a snapshot, or in it the GGUF file.

    Raises CheckpointError where it is neither cached nor to be had.
    """
    return _cached(model_id, weights, load_format) or _download(model_id, weights, load_format)


def _cached(model_id: HubModelId, weights: bool, load_format: str) -> Path | None:
    """None: something of it is missing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    small = list(SMALL) if model_id.word is None else []  # the client says whether these are complete
    try:
        found = snapshot_download(
            model_id.repository,
            revision=model_id.revision,
            local_files_only=True,
            allow_patterns=small,
            ignore_patterns=["*/*"],
        )
    except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError):
        return None
    path = Path(found)
    there = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    try:
        names = _needed(model_id, there, weights, load_format, lambda name: path / name)
    except CheckpointError:  # of what is here; the repository may have more
        return None
    return _place(path, names) if set(names) <= there else None


def _download(model_id: HubModelId, weights: bool, load_format: str) -> Path:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    def fetch(name: str) -> Path:
        require_small(name, sizes.get(name), f"the repository {model_id.repository!r}")
        return Path(hf_hub_download(model_id.repository, name, revision=model_id.revision))

    try:
        repository = HfApi().model_info(model_id.repository, revision=model_id.revision, files_metadata=True)
        sizes = {file.rfilename: file.size for file in repository.siblings or ()}
        names = _needed(model_id, {file.rfilename for file in repository.siblings or ()}, weights, load_format, fetch)
        for name in names:
            if not name.endswith(HOLDING):
                require_small(name, sizes.get(name), f"the repository {model_id.repository!r}")
        path = snapshot_download(
            model_id.repository, revision=model_id.revision, allow_patterns=[glob.escape(name) for name in names]
        )
        return _place(Path(path), names)
    except CheckpointError:
        raise
    except Exception as error:  # the hub client raises a dozen unrelated types for "could not get it"
        raise CheckpointError(
            f"model {str(model_id)!r} is not a local directory, is not in the Hugging Face cache, and could not be "
            "downloaded "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}); "
            "give a local path, or check the name and the network"
        ) from None


def _needed(
    model_id: HubModelId, there: set[str], weights: bool, load_format: str, open_file: Callable[[str], Path]
) -> list[str]:
    """The names of a repository's files that the model needs; a GGUF model needs none but its own."""
    where = f"the repository {model_id.repository!r}"
    if model_id.word is not None or ("config.json" not in there and any(name.endswith(".gguf") for name in there)):
        return chosen_gguf(there, model_id.word, where)
    if "config.json" not in there:
        raise CheckpointError(
            f"{where} has neither config.json nor GGUF files, so it is not a model that sgl can load; use another "
            "repository"
        )
    small = [
        name
        for name in there
        if ("/" not in name and any(fnmatch(name, pattern) for pattern in SMALL)) or fnmatch(name, TEMPLATES)
    ]
    return sorted(small) + (weight_names(there, open_file, load_format, where) if weights else [])


def _place(path: Path, names: list[str]) -> Path:
    return path if "config.json" in names else path / names[0]
