"""The file of a journal: lines of JSON that are only ever appended."""

from __future__ import annotations

import json
import os
import threading
import warnings
from pathlib import Path
from typing import Any

from ..errors import JournalError, MissingJournalError

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The complete lines, and how many bytes they have. A torn last line is left out, with a warning.

    Raises JournalError for a line that is not JSON, MissingJournalError.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise MissingJournalError(
            f"there is no journal at {path}; sgl.journal({str(path)!r}) begins one, and resumes it once it is there"
        ) from None
    end = data.rfind(b"\n") + 1
    if end < len(data):
        warnings.warn(
            f"{path}: the last line is torn (the writer was killed); its node is dropped and will be computed again",
            stacklevel=2,
        )
    lines = data[:end].split(b"\n")[:-1]
    return [_parse(path, number, line) for number, line in enumerate(lines, 1)], end


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise JournalError(f"{path}:{number} is not JSON ({error}); is this a journal?") from error
    if not isinstance(entry, dict):
        raise JournalError(f"{path}:{number} is {entry!r:.40}, not an object; is this a journal?")
    return entry


class JournalFile:
    """A journal that is open for writing, by this one only. Each entry is handed to the system at once.

    `keep` is how many bytes of the file are good; what follows them is cut off.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self._lock = threading.Lock()
        self._path = path
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
            raise JournalError(
                f"{path} is being written by another process; let that one end first"
            ) from error

    def append(self, entry: dict[str, Any]) -> None:
        """Raises JournalError for what JSON cannot hold, OSError for a full disk or a closed file."""
        try:
            line = json.dumps(entry, ensure_ascii=False, separators=(",", ":"), default=_plain)
        except (TypeError, ValueError) as error:
            raise JournalError(f"{self._path}: {error}, in {entry!r:.200}") from error
        data = memoryview((line + "\n").encode("utf-8", "surrogatepass"))
        with self._lock:
            while data:
                data = data[os.write(self._file, data) :]

    @property
    def size(self) -> int:
        """Bytes."""
        return os.fstat(self._file).st_size

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


def _plain(value: Any) -> Any:
    """What a backend reports that is not JSON: numbers and arrays of numpy, sets."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a journal cannot hold {value!r:.60} (a {type(value).__name__})")
