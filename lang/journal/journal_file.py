"""The file of a journal: lines that are only ever appended, each whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import JournalError, MissingJournalError

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]
_MARK = b',"sum":"'
_SEALED = re.compile(rb'.*,"sum":"([0-9a-f]{16})"}', re.DOTALL)
_TAIL = len(_MARK) + 16 + len(b'"}')


class JournalLine(NamedTuple):
    """A complete line of a journal.

    number: counted from 1.  entry: {} where the line is damaged, and `why` says how.
    """

    number: int
    entry: dict[str, Any]
    has_sum: bool
    why: str = ""


def read_lines(path: Path) -> tuple[list[JournalLine], int]:
    """The complete lines, and how many bytes they have. A torn last line is left out, with a warning.

    Lines of the first format had no checksum. They are read as they are, up to the first that has one.
    Raises MissingJournalError.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise MissingJournalError(
            f"there is no journal at {path}; sgl.journal({str(path)!r}) begins one and later resumes it"
        ) from None
    end = data.rfind(b"\n") + 1
    if end < len(data):
        warnings.warn(
            f"{path}: the last line is torn (the writer was killed); its node is dropped and will be computed again",
            stacklevel=2,
        )
    return list(_lines(data[:end].split(b"\n")[:-1])), end


def _lines(lines: list[bytes]) -> Iterator[JournalLine]:
    has_sums = False
    for number, line in enumerate(lines, 1):
        try:
            entry, summed = checked_line(line, has_sums)
        except ValueError as error:
            yield JournalLine(number, {}, False, str(error))
            continue
        has_sums = has_sums or summed
        yield JournalLine(number, entry, summed)


class JournalFile:
    """A journal that is open for writing, by this one only. Each entry is handed to the system at once.

    `keep` is how many bytes of the file are good; what follows them is cut off.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._end = keep
        self._torn = False
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._hold(path)
            os.ftruncate(self._file, keep)
        except BaseException:
            self.close()
            raise

    def _hold(self, path: Path) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise JournalError(f"{path} is being written by another process; let that one end first") from error

    def append(self, entry: dict[str, Any]) -> None:
        """Raises JournalError for what JSON cannot hold, and for a write that failed: the file is then as before."""
        try:
            line = with_checksum(entry)
        except (TypeError, ValueError) as error:
            raise JournalError(f"{self._path}: {error}, in {entry!r:.200}") from error
        with self._lock:
            try:
                self._write(line)
            except OSError as error:
                raise JournalError(
                    f"{self._path} cannot be written ({error}); what it has stays good. Once the cause is gone (a full "
                    f"disk, say), this run's next nodes are written again, and sgl.resume({str(self._path)!r}) "
                    "computes what is missing"
                ) from error

    def _write(self, line: bytes) -> None:
        """All of the line or, where that fails half way, nothing of it."""
        if self._torn:
            self._cut_back()
        self._torn, left = True, memoryview(line)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except BaseException:
            self._cut_back()
            raise
        self._torn = False
        self._end += len(line)

    def _cut_back(self) -> None:
        """To the last whole line; raises OSError where not even that is possible, and the next write tries again."""
        os.ftruncate(self._file, self._end)
        self._torn = False

    @property
    def size(self) -> int:
        """Bytes of whole lines."""
        return self._end

    def is_at(self, path: Path) -> bool:
        """False once somebody has deleted or replaced the file."""
        return path.exists() and os.path.samestat(path.stat(), os.fstat(self._file))

    def close(self) -> None:
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            os.close(self._file)


def with_checksum(entry: dict[str, Any]) -> bytes:
    """The line of an entry that is not empty: JSON that ends in a checksum of all before it.

    Raises TypeError or ValueError for what JSON cannot hold.
    """
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"), default=_plain)
    body = text.encode("utf-8", "surrogatepass")[:-1]
    return body + _MARK + _sum(body) + b'"}\n'


def checked_line(line: bytes, must_be_sealed: bool) -> tuple[dict[str, Any], bool]:
    """The entry of a line without its end, and whether it has a checksum. ValueError, saying why, for a damaged one."""
    found = _SEALED.fullmatch(line)
    if found and found[1] != _sum(line[:-_TAIL]):
        raise ValueError("its checksum is that of another text")
    if must_be_sealed and not found:
        raise ValueError("it does not end in a checksum")
    try:
        entry = json.loads(line.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise ValueError("it nests too deep") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise ValueError(f"it is {entry!r:.40}, not an object")
    if found:
        del entry["sum"]
    return entry, found is not None


def _sum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).hexdigest().encode()


def _plain(value: Any) -> Any:
    """What a backend reports that is not JSON: numbers and arrays of numpy, sets."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a journal cannot hold {value!r:.60} (a {type(value).__name__})")
