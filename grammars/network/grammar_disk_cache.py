"""Slow grammars kept on disk between processes, as finished networks.

Off by default; `SGL_GRAMMAR_CACHE=folder` or `set_cache_dir(folder)` turns it on. Only a grammar whose front end took
longer than `WORTHWHILE` seconds is stored: reading a file is no faster than compiling an ordinary schema, but it
saves most of the time of a long one. A file is read only if no other user could have written it.
"""

from __future__ import annotations

import hashlib
import logging
import marshal
import os
import sys
import tempfile
import time
import unicodedata
from array import array
from collections.abc import Callable
from functools import cache
from pathlib import Path

from sgl.grammars.algebra.expr import NEVER, Expr, GrammarRule
from sgl.grammars.errors import GrammarError
from sgl.grammars.network.transition_network import TransitionNetwork

WORTHWHILE = 0.02
MOST_SECONDS = 2.0
MOST_BYTES = 256 << 20
_SUFFIX = ".network"
_log = logging.getLogger("sgl.grammars")
_DIGEST = 32


class GrammarDiskCache:
    """A folder of networks, the least recently used of which are removed beyond `most_bytes`."""

    def __init__(self, folder: str | Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = Path(folder)
        self._most_bytes = most_bytes

    def get(self, kind: str, source: str, make: Callable[[], Expr]) -> Expr | TransitionNetwork:
        """The stored network of a grammar, or what `make` makes; what was slow to make is stored."""
        found = self.load(kind, source)
        if found is not None:
            return found
        started = time.perf_counter()
        made = make()
        if time.perf_counter() - started < WORTHWHILE:
            return made
        network = TransitionNetwork(made)
        return network if self.store(kind, source, network) else made

    def load(self, kind: str, source: str) -> TransitionNetwork | None:
        """The stored network of a grammar; None where there is none that can be trusted."""
        key = key_of(kind, source)
        file = self._file(key)
        try:
            if not _ours(file):
                return None
            network = unpack(file.read_bytes(), key)
            os.utime(file)
        except OSError:
            return None
        if network is None:
            _log.warning("the cached grammar %s is damaged: it is compiled anew", file)
        return network

    def store(self, kind: str, source: str, network: TransitionNetwork) -> bool:
        """Build all rules of a network and write it; False, with a warning, where that cannot be done."""
        try:
            if not _finished(network):
                return False
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            key = key_of(kind, source)
            _write(self._file(key), pack(network, key))
            self._forget()
        except OSError as error:
            _log.warning("the grammar cache %s cannot be written: %s", self.folder, error)
            return False
        return True

    def _file(self, key: str) -> Path:
        return self.folder / (key + _SUFFIX)

    def _forget(self) -> None:
        """Remove the files that were used longest ago until the rest fits."""
        found = [(file.stat(), file) for file in self.folder.glob(f"*{_SUFFIX}")]
        total = sum(stat.st_size for stat, _ in found)
        for stat, file in sorted(found, key=lambda pair: pair[0].st_mtime_ns):
            if total <= self._most_bytes:
                return
            file.unlink(missing_ok=True)
            total -= stat.st_size


def key_of(kind: str, source: str) -> str:
    """Hex digits that are equal for equal grammars read by this very package."""
    return hashlib.sha256("\0".join([_package(), kind, source]).encode("utf-8", "surrogatepass")).hexdigest()


@cache
def _package() -> str:
    """What a network depends on but its source: the files of all of `grammars`, the Unicode tables, the byte order."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*")):
        if file.suffix in (".py", ".so", ".pyd"):
            digest.update(file.read_bytes())
    return f"{digest.hexdigest()} {unicodedata.unidata_version} {sys.byteorder}"


def _ours(file: Path) -> bool:
    """Whether a file belongs to this user and no other user may write to it or to its folder."""
    if not hasattr(os, "getuid"):
        return True
    stats = (file.stat(), file.parent.stat())
    return all(stat.st_uid == os.getuid() and not stat.st_mode & 0o022 for stat in stats)


def _finished(network: TransitionNetwork) -> bool:
    """Build every rule, for a bounded time; whether that succeeded."""
    deadline = time.perf_counter() + MOST_SECONDS
    rule = 0
    while rule < len(network.rules):
        if time.perf_counter() > deadline or network.rules[rule].end is not None:
            return False  # rules that know their end are far too many
        try:
            network.build(rule)
        except (GrammarError, RecursionError):
            return False
        rule += 1
    return not network.texts  # what is copied from is the user's, and is not kept


def _write(file: Path, data: bytes) -> None:
    """All of it or nothing, also for concurrent readers."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.stem)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


_chosen: dict[str, GrammarDiskCache | None] = {}  # the cache in use, once somebody has asked for it or set it


def set_cache_dir(folder: str | Path | None) -> None:
    """Cache slowly compiled grammars in a folder across processes; None turns the cache off, despite the
    environment."""
    _chosen["cache"] = GrammarDiskCache(Path(folder).expanduser()) if folder else None


def disk_cache() -> GrammarDiskCache | None:
    """The cache in use, if any."""
    if not _chosen:
        set_cache_dir(os.environ.get("SGL_GRAMMAR_CACHE"))
    return _chosen["cache"]


class StoredNetwork(TransitionNetwork):
    """Tables that were lowered before (nodes, edges, entries, classes); every rule is built."""

    def __init__(self, tables: list[bytes], names: list[str]) -> None:
        super().__init__(NEVER, native=False)
        self.nodes, self.edges, self.entries = (array("i", table) for table in tables[:3])
        self.classes = bytearray(tables[3])
        self.rules = [GrammarRule(name, lambda: NEVER) for name in names]


def pack(network: TransitionNetwork, key: str) -> bytes:
    """A network whose rules are all built: a checksum, then the key, the tables and the names of the rules."""
    tables = [network.nodes.tobytes(), network.edges.tobytes(), network.entries.tobytes(), bytes(network.classes)]
    body = marshal.dumps((key, tables, [rule.name for rule in network.rules]), 4)  # plain data: reading it runs nothing
    return hashlib.sha256(body).digest() + body


def unpack(data: bytes, key: str) -> TransitionNetwork | None:
    """The network of a file; None where the file is damaged or another grammar's."""
    body = data[_DIGEST:]
    if hashlib.sha256(body).digest() != data[:_DIGEST]:
        return None
    stored, tables, names = marshal.loads(body)
    return StoredNetwork(tables, names) if stored == key else None
