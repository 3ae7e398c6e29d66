"""A line of a journal: JSON that ends in a checksum of all that precedes it in the line."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

_MARK = b',"sum":"'
_SEALED = re.compile(rb'.*,"sum":"([0-9a-f]{16})"}', re.DOTALL)
_TAIL = len(_MARK) + 16 + len(b'"}')


def with_checksum(entry: dict[str, Any]) -> bytes:
    """The line of an entry that is not empty, with its end. TypeError or ValueError for what JSON cannot hold."""
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
