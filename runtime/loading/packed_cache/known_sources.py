"""The digest of a checkpoint's file, known from an earlier start, so that its contents are not read for it again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from sgl.common.file_cache import FileCache

from .content_digest import digest_of_file

SUFFIX = ".source"
MOST = 2**14  # bytes of what is noted of a file
GRAIN = 3.0  # seconds within which a file system may give two changes one time


class SourceIdentity(NamedTuple):
    """Of a file as it is now: another one after any change, for ctime cannot be set.

    settled: it changed last so long ago that a change after this look would get another time.
    """

    path: str
    device: int
    inode: int
    size: int
    mtime: int
    ctime: int
    settled: bool = True

    @classmethod
    def of(cls, path: Path) -> SourceIdentity:
        """Raises OSError."""
        now, found = time.time(), os.stat(path)
        settled = found.st_ctime < now - GRAIN
        times = found.st_mtime_ns, found.st_ctime_ns
        return cls(os.path.realpath(path), found.st_dev, found.st_ino, found.st_size, *times, settled)

    @property
    def name(self) -> str:
        """Of the file that has its digest."""
        return hashlib.blake2b(self.path.encode(errors="surrogateescape"), digest_size=16).hexdigest() + SUFFIX


def known_digest(cache: FileCache, source: SourceIdentity) -> str | None:
    """None: it is not known, or was of another file of this path."""
    try:
        with open(cache.path(source.name), "rb") as stream:
            noted = json.loads(stream.read(MOST))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(noted, dict) or noted.get("identity") != [*source[:-1]] or noted.get("check") != _check(noted):
        return None
    cache.used(source.name)
    return str(noted["digest"])


def note_digest(cache: FileCache, source: SourceIdentity, going_on: Callable[[], None]) -> str | None:
    """The digest of a file that is still as it was, noted for later starts; None: it has changed.

    Raises OSError, and what `going_on` raises.
    """
    digest = digest_of_file(Path(source.path), going_on)
    if not source.settled or SourceIdentity.of(Path(source.path)) != source:
        return None
    noted = {"identity": [*source[:-1]], "digest": digest}
    text = json.dumps(noted | {"check": _check(noted)}).encode()
    with cache.writing(source.name, len(text)) as stream:
        stream.write(text)
    return digest


def _check(noted: Mapping[str, object]) -> str:
    text = json.dumps([noted.get("identity"), noted.get("digest")]).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()
