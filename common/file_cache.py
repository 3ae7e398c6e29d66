"""A folder of files that can be made again, in the user's cache folder: bounded, and safe to delete at any time.

SGL_CACHE names another folder than ~/.cache/sgl, and 0 turns caches off; SGL_CACHE_GB is the bound. A file appears
under its name once it is complete, so a reader sees all of it or none. Nothing waits for another process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

OFF = "0"  # of SGL_CACHE
MOST_GB = 20.0
UNFINISHED = ".new-"  # how names of files begin that are being written
ABANDONED = 3600.0  # seconds after which a process no longer writes such a file
SPARED = 2 * 10**9  # bytes that stay free on the disk


def caches_are_off() -> bool:
    return os.environ.get("SGL_CACHE") == OFF


def cache_folder() -> Path:
    """Of everything that sgl keeps for this user, also where caches are off. Raises OSError where there is no home."""
    named, home = os.environ.get("SGL_CACHE") or OFF, os.environ.get("XDG_CACHE_HOME", "")
    try:
        if named != OFF:
            return Path(named).expanduser()
        return (Path(home) if os.path.isabs(home) else Path("~/.cache").expanduser()) / "sgl"
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from error


def most_bytes() -> int:
    """The bound of the environment. Raises OSError for what is no number."""
    asked = os.environ.get("SGL_CACHE_GB") or str(MOST_GB)
    try:
        return int(float(asked) * 1e9)
    except (ValueError, OverflowError):
        raise OSError(f"SGL_CACHE_GB={asked!r} is no number of gigabytes") from None


class CacheEntry(NamedTuple):
    """A file of the cache. used: when it was read or written last, in seconds."""

    path: Path
    bytes: int
    used: float


@dataclass(frozen=True)
class FileCache:
    """Files in `folder`, `most` bytes of them at most. All methods raise OSError alone."""

    folder: Path
    most: int

    def path(self, name: str) -> Path:
        return self.folder / name

    def entries(self) -> list[CacheEntry]:
        """Those that are complete, the least recently used first."""
        return sorted((entry for entry in self._files() if not _unfinished(entry)), key=lambda entry: entry.used)

    def used(self, name: str) -> None:
        """It was read just now; where that cannot be noted it goes earlier than others."""
        with suppress(OSError):
            os.utime(self.path(name))

    def remove(self, name: str) -> None:
        with suppress(OSError):
            self.path(name).unlink()

    @contextmanager
    def writing(self, name: str, size: int) -> Iterator[BinaryIO]:
        """A file to write `size` bytes into, which has its name once the block has ended without an error."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.make_room(name, size)
        handle, new = tempfile.mkstemp(prefix=UNFINISHED, dir=self.folder)
        try:
            with os.fdopen(handle, "wb", buffering=0) as stream:
                yield stream
            os.replace(new, self.path(name))
        except BaseException:
            with suppress(OSError):
                os.unlink(new)
            raise

    def make_room(self, name: str, size: int) -> None:
        """Remove the least recently used until `size` bytes more fit, for an entry of this name.

        Raises OSError, with all of them still there, where that would not be enough.
        """
        self._clear_abandoned()
        entries = [entry for entry in self.entries() if entry.path.name != name]
        kept = sum(entry.bytes for entry in entries)
        free = shutil.disk_usage(self.folder).free - SPARED
        if size > self.most:
            raise OSError(f"it takes {_gb(size)}, and SGL_CACHE_GB is {self.most / 1e9:g}")
        if size > free + kept:
            raise OSError(f"it takes {_gb(size)}, and the disk of {self.folder} is full but for {_gb(free + SPARED)}")
        for entry in entries:
            if kept + size <= self.most and size <= free:
                break
            self.remove(entry.path.name)
            kept, free = kept - entry.bytes, free + entry.bytes

    def _clear_abandoned(self) -> None:
        for entry in self._files():
            if _unfinished(entry) and time.time() - entry.used > ABANDONED:
                self.remove(entry.path.name)

    def _files(self) -> Iterator[CacheEntry]:
        with suppress(FileNotFoundError), os.scandir(self.folder) as found:
            for each in found:
                with suppress(FileNotFoundError):  # another process may remove it now
                    if each.is_file(follow_symlinks=False):
                        status = each.stat(follow_symlinks=False)
                        yield CacheEntry(Path(each.path), status.st_size, status.st_mtime)


def _unfinished(entry: CacheEntry) -> bool:
    return entry.path.name.startswith(UNFINISHED)


def _gb(size: int) -> str:
    return f"{max(size, 0) / 1e9:.1f} GB"
