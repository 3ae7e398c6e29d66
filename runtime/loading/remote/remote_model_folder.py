"""A folder of this machine that stands for a model elsewhere: its small files, and where its weights are.

    ~/.cache/sgl/remote/KEY/NAME/     (SGL_CACHE in place of ~/.cache/sgl)
        config.json, tokenizer.json ...
        remote.json                   {"url": ..., "weights": {"model.safetensors": [size, tag], ...}}

KEY is made of the URL and of the sizes and tags of all files: what changes there is another folder here. Anywhere else
a remote.json means nothing: what a folder holds causes no request.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from sgl.common.file_cache import cache_folder

from ...errors import CheckpointError
from ...models.spec.json_fields import shown
from ..model_files.bounded_json import read_json
from ..model_files.choose_weight_files import INDEX, MOST_SMALL, WEIGHTS, is_settings_file, require_small, weight_names
from ..tensor_files.safetensors_header import header_of
from .range_source import RangeSource
from .remote_store import RemoteFile, RemoteStore, open_store

REMOTE = "remote.json"
SMALL = (
    "config.json",
    "generation_config.json",
    "sgl.json",
    "quantize_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    INDEX,
)
MOST_FILES = 4096


def fetch_model(url: str) -> Path:
    """The folder for a URL, with its small files.

    Raises CheckpointError for what is missing there or cannot be reached.
    """
    store = open_store(url)
    found = store.find([*SMALL, WEIGHTS])
    if "config.json" not in found:
        raise CheckpointError(
            f"{store.url}/config.json is missing; the URL must be that of a folder in Hugging Face format, its "
            "weights in safetensors"
        )
    _cache().mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix="new-", dir=_cache()))  # for this user alone: the URL may hold a password
    try:
        return _fetched(store, url, found, new)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _cache() -> Path:
    return cache_folder() / "remote"


def _fetched(store: RemoteStore, url: str, found: dict[str, RemoteFile], new: Path) -> Path:
    """new: an empty folder, which becomes the one that is returned, unless that is there already."""
    if INDEX in found:
        (new / INDEX).write_bytes(_small(store, INDEX, found[INDEX]))
    weights = _weights(store, new, found)
    path = new.parent / _key(url, found | weights) / _name(store.url)
    if is_remote(path):
        return path
    for name in set(SMALL) & set(found) - {INDEX}:
        (new / name).write_bytes(_small(store, name, found[name]))
    (new / REMOTE).write_text(json.dumps({"url": url, "weights": weights}), encoding="utf-8")
    path.parent.mkdir(exist_ok=True)
    try:
        os.rename(new, path)
    except OSError:
        if not is_remote(path):  # else another process was faster
            raise
    return path


def _key(url: str, files: dict[str, RemoteFile]) -> str:
    return hashlib.sha256(json.dumps([url, sorted(files.items())]).encode()).hexdigest()[:24]


def _name(url: str) -> str:
    """What the model is called after its folder there."""
    return re.sub(r"[^\w.-]", "_", url.rstrip("/").rpartition("/")[2]).lstrip(".") or "model"


def _small(store: RemoteStore, name: str, file: RemoteFile) -> Any:
    require_small(name, file.size, store.url)
    return store.read(name, file, 0, file.size)


def _weights(store: RemoteStore, folder: Path, found: dict[str, RemoteFile]) -> dict[str, RemoteFile]:
    names = weight_names(found, lambda name: folder / name, "auto", store.url)
    if len(names) > MOST_FILES:
        raise CheckpointError(f"{store.url}/{INDEX} names {len(names):,} files, at most {MOST_FILES:,} are read")
    there = store.find(names)
    if absent := sorted(set(names) - set(there)):
        raise CheckpointError(
            f"{store.url}/{absent[0]} is missing, of {len(names)} files that its index names; upload the model again"
        )
    return there


def is_remote(path: Path) -> bool:
    """Whether `fetch_model` made it, for this user: a folder of the cache."""
    mark = path / REMOTE
    return mark.is_file() and path.resolve().parent.parent == _cache().resolve() and mark.stat().st_uid == os.getuid()


def remote_sources(path: Path) -> list[RangeSource]:
    """The weights of such a folder, their headers read. Raises CheckpointError for what is damaged, changed or gone."""
    said = read_json(path / REMOTE, MOST_SMALL)
    try:
        url, files = (
            str(said["url"]),
            {str(name): RemoteFile(int(size), str(tag)) for name, (size, tag) in said["weights"].items()},
        )
        if strange := next((name for name in files if not is_settings_file(name, ".safetensors")), None):
            raise ValueError(f"{shown(strange)} is no name of a file")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path / REMOTE} is damaged ({error}); remove its folder and open the model again"
        ) from error
    store = open_store(url)
    return [_source(store, name, file) for name, file in files.items()]


def _source(store: RemoteStore, name: str, file: RemoteFile) -> RangeSource:
    at = 0

    def read(count: int) -> bytes:
        nonlocal at
        count = min(count, file.size - at)
        at += count
        return bytes(store.read(name, file, at - count, count))

    header = header_of(f"{store.url}/{name}", file.size, read)
    return RangeSource(
        f"{store.url}/{name}", file.size, header, lambda start, count: store.read(name, file, start, count)
    )
