"""Files in a redis server, cut so that each tensor is a value.

    PREFIX:manifest            {"version": 1, "key": KEY, "files": {name: {"size": bytes, "digest": sha256, "starts":
    [0, ...]}}}
    PREFIX:KEY:NAME:START      the bytes of a file from START to the next start: the header, a tensor, or up to 256 MB
    of one

KEY is made of all digests. The manifest is written last and the values of the one before go after that, so a reader
sees one model or the other, or learns that its own is gone.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from ...errors import CheckpointError, ConfigError
from ..model_files.bounded_json import parse_object
from ..tensor_files.safetensors_header import read_header
from .remote_store import SECONDS, TRIES, RemoteFile, extra, lost, shown_url

MOST_VALUE = 256 * 2**20  # bytes; redis itself takes 512 MB
PIECE = 16 * 2**20  # bytes that are hashed at a time
MANIFEST = "manifest"


class RedisChunks(NamedTuple):
    """starts: of the values, the first is 0."""

    size: int
    digest: str
    starts: list[int]


class RedisStore:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url, self._prefix = shown_url(url), parts.path.strip("/")
        if not self._prefix:
            raise ConfigError(f"{self.url}: give the model a name there, such as {self.url}/my-model")
        self._redis = extra("redis", url)
        retry = extra("redis.retry", url).Retry(
            extra("redis.backoff", url).ExponentialBackoff(cap=1, base=0.1), TRIES - 1
        )
        try:
            self._client = self._redis.Redis.from_url(
                urlunsplit((parts.scheme, parts.netloc, "/0", "", "")),
                socket_timeout=SECONDS,
                socket_connect_timeout=SECONDS,
                retry=retry,
            )
        except ValueError as error:
            raise ConfigError(f"{self.url}: {error}; write redis://host:port/name") from error
        self._key, self._cuts = "", dict[str, RedisChunks]()

    def find(self, wanted: Iterable[str]) -> dict[str, RemoteFile]:
        if not self._key and not self._read_manifest():
            raise CheckpointError(
                f"{self.url} holds no model: there is no key {self._name(MANIFEST)}; write it with: sgl push MODEL "
                f"{self.url}"
            )
        return {name: self._file(name) for name in wanted if name in self._cuts}

    def read(self, name: str, file: RemoteFile, start: int, count: int) -> bytes:
        if not self._key:
            self._read_manifest()
        if name not in self._cuts or self._file(name) != file:
            raise CheckpointError(
                f"{self.url} holds another model than when it was opened: {name} is changed or gone; open the model "
                "again"
            )
        return b"".join(self._pieces(name, start, start + count))

    def _pieces(self, name: str, start: int, stop: int) -> Iterator[bytes]:
        starts = self._cuts[name].starts
        while start < stop:
            at = bisect_right(starts, start) - 1
            until = min(stop, starts[at + 1] if at + 1 < len(starts) else stop)
            key = self._name(self._key, name, str(starts[at]))
            data: bytes = self._ask(name, "getrange", key, start - starts[at], until - starts[at] - 1)
            if len(data) != until - start:
                raise CheckpointError(
                    f"{self.url}: the key {key} has {len(data):,} of {until - start:,} bytes of {name} from "
                    f"{start:,} on: it is gone or cut short; push the model again"
                )
            yield data
            start = until

    def _read_manifest(self) -> bool:
        data = self._ask(MANIFEST, "get", self._name(MANIFEST))
        if data is None:
            return False
        try:
            said = parse_object(data)
            cuts = {
                name: RedisChunks(int(file["size"]), str(file["digest"]), [int(start) for start in file["starts"]])
                for name, file in said["files"].items()
            }
            if said["version"] != 1 or not all(
                cut.starts[0] == 0 and sorted(set(cut.starts)) == cut.starts for cut in cuts.values()
            ):
                raise ValueError("it is of another version or without order")
            self._key, self._cuts = str(said["key"]), cuts
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"{self.url}: the key {self._name(MANIFEST)} is damaged ({error}); push the model again"
            ) from error
        return True

    def _file(self, name: str) -> RemoteFile:
        return RemoteFile(self._cuts[name].size, self._cuts[name].digest)

    def _name(self, *parts: str) -> str:
        return ":".join((self._prefix, *parts))

    def _ask(self, name: str, command: str, *arguments: Any) -> Any:
        try:
            return getattr(self._client, command)(*arguments)
        except self._redis.RedisError as error:
            raise lost(self, name, error) from error

    def push(self, files: Iterable[Path]) -> int:
        """Write a model in place of what was there; returns its bytes. Raises CheckpointError where the server does not
        take it.
        """
        self._read_manifest()
        before, cuts = self._keys(), {file.name: _cut(file) for file in files}
        self._cuts, self._key = (
            cuts,
            hashlib.sha256(json.dumps(sorted((name, cut.digest) for name, cut in cuts.items())).encode()).hexdigest()[
                :24
            ],
        )
        for file in files:
            self._write(file, cuts[file.name])
        manifest = {"version": 1, "key": self._key, "files": {name: cut._asdict() for name, cut in cuts.items()}}
        self._ask(MANIFEST, "set", self._name(MANIFEST), json.dumps(manifest))
        for key in sorted(before - self._keys()):
            self._ask(MANIFEST, "unlink", key)
        return sum(cut.size for cut in cuts.values())

    def _write(self, file: Path, cut: RedisChunks) -> None:
        with open(file, "rb") as stream:
            for start, stop in zip(cut.starts, [*cut.starts[1:], cut.size], strict=True):
                self._ask(file.name, "set", self._name(self._key, file.name, str(start)), stream.read(stop - start))

    def _keys(self) -> set[str]:
        return {self._name(self._key, name, str(start)) for name, cut in self._cuts.items() for start in cut.starts}


def _cut(file: Path) -> RedisChunks:
    size, marks = file.stat().st_size, {0}
    if file.suffix == ".safetensors":
        marks |= {stored.start for stored in read_header(file).tensors if stored.stop > stored.start}
    ordered = [*sorted(marks), size]
    starts = [first for start, stop in pairwise(ordered) for first in range(start, stop, MOST_VALUE)]
    with open(file, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return RedisChunks(size, digest, starts or [0])


connect = RedisStore
