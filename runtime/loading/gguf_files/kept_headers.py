"""Headers that are kept while an engine starts, so that each file is read once however many ask what it says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .gguf_file import GGUFFile

Identity = tuple[Path, int, int, int, int]  # path, device, inode, size, time of the last change in ns

_lock = threading.RLock()
_kept: dict[Identity, GGUFFile] = {}
_users = 0


@contextmanager
def headers_read_once() -> Iterator[None]:
    """Inside, on any thread, a file that stays as it is is read once; also for functions, `headers_read_once()(f)`.

    A header takes as much memory as it has bytes in the file, up to tens of MB; all are given up at the end.
    """
    global _users
    with _lock:
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _kept.clear()


def kept_header(file: Path, read: Callable[[Path], GGUFFile]) -> GGUFFile:
    """What `read` returns. Another thread that asks meanwhile waits for it."""
    if not _users:
        return read(file)
    with _lock:
        identity = _identity(file)
        if identity is None or not _users:
            return read(file)
        if identity not in _kept:
            _kept[identity] = read(file)
        return _kept[identity]


def _identity(file: Path) -> Identity | None:
    """None where there is no such file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return file, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
