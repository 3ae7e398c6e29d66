"""The host's tier: adapters read once, kept within a budget of bytes, the least recently used one let go first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..errors import CheckpointError, RuntimeFailure
from ..memory.pinned_memory_pool import PinnedMemoryPool
from .adapter import Adapter


@dataclass(slots=True)
class StoredAdapter:
    """An adapter by its digest. adapter: None: it was let go, and is read again when it is wanted.

    paths: that it was loaded from, the newest last.  rank: of its widest pair; padded: up to the multiple that is
        computed with.  on_base: see `Adapter`.  names: how many names mean it; pinned: how many of these keep it here.
        uses: sequences that are open with it.
    """

    paths: list[Path]
    digest: str
    rank: int
    padded: int
    bytes: int
    adapter: Adapter | None
    on_base: bool = False
    names: int = 0
    pinned: int = 0
    uses: int = 0
    opened: int = 0
    used: int = 0
    reading: Future[Adapter] | None = None


class AdapterHostStore:
    """All methods are thread-safe. read: reads a directory.  budget: bytes; what is pinned or in use may exceed it.

    locked: the pool that `read` lays pairs into; None: main memory may be paged out.

    reads: of files, those that were let go before included.  let_go: adapters that had to make room.
    """

    def __init__(self, read: Callable[[Path], Adapter], budget: int, locked: PinnedMemoryPool | None = None) -> None:
        self._read, self._budget, self._locked = read, budget, locked
        self._kept: dict[str, StoredAdapter] = {}
        self._clock = 0
        self._reader: ThreadPoolExecutor | None = None
        self.lock = threading.RLock()
        self.reads = self.let_go = 0

    @property
    def bytes(self) -> int:
        with self.lock:
            return sum(kept.bytes for kept in self._kept.values() if kept.adapter is not None)

    def fresh(self, path: Path) -> Adapter:
        """Read from its files, on the caller's thread."""
        self.reads += 1
        adapter = self._read(path)
        return adapter if self._locked is None else replace(adapter, extras=adapter.extras.locked())

    def name(self, adapter: Adapter, path: Path, pinned: bool) -> StoredAdapter:
        """One more name means this adapter."""
        with self.lock:
            kept = self._kept.setdefault(
                adapter.digest,
                StoredAdapter([], adapter.digest, adapter.widest, adapter.rank, adapter.bytes, None, adapter.on_base),
            )
            kept.paths = [each for each in kept.paths if each != path and each.exists()] + [path]
            kept.adapter = kept.adapter or adapter
            kept.names, kept.pinned = kept.names + 1, kept.pinned + pinned
            self._touch(kept)
            self._make_room(kept)
            return kept

    def remove_name(self, kept: StoredAdapter, pinned: bool) -> bool:
        """One name less; True: none is left, and it is forgotten."""
        with self.lock:
            kept.names, kept.pinned = kept.names - 1, kept.pinned - pinned
            return self._tidy(kept)

    def enter(self, digest: str) -> None:
        """A sequence was opened with it."""
        with self.lock:
            kept = self.of(digest)
            kept.uses, kept.opened = kept.uses + 1, kept.opened + 1
            self._touch(kept)

    def leave(self, digest: str) -> bool:
        """Such a sequence was closed; True as for `remove_name`."""
        with self.lock:
            kept = self.of(digest)
            kept.uses -= 1
            return self._tidy(kept)

    def of(self, digest: str) -> StoredAdapter:
        if digest not in self._kept:
            raise RuntimeFailure(f"no adapter of digest {digest} is loaded; load it and open another sequence")
        return self._kept[digest]

    def memory(self, digest: str) -> Adapter | None:
        """The adapter if it is in main memory; otherwise it is read in the background. Raises what that raised."""
        with self.lock:
            kept = self.of(digest)
            if kept.adapter is None and kept.reading is not None and kept.reading.done():
                found, kept.reading = kept.reading, None
                kept.adapter = found.result()
                self._make_room(kept)
            if kept.adapter is None and kept.reading is None:
                self._reader = self._reader or ThreadPoolExecutor(1, "sgl-adapters")
                kept.reading = self._reader.submit(self._again, kept)
            return kept.adapter

    def renew(self, kept: StoredAdapter) -> Adapter:
        """Read again, as the base is another. Raises what that raises."""
        adapter = self._again(kept)
        with self.lock:
            kept.adapter, kept.reading = None if kept.adapter is None else adapter, None
        return adapter

    def release(self, kept: StoredAdapter) -> None:
        """Hold it no longer: who wants it has it read again."""
        with self.lock:
            kept.adapter = kept.reading = None

    def __iter__(self) -> Iterator[StoredAdapter]:
        with self.lock:
            return iter(list(self._kept.values()))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)
        if self._locked is not None:
            self._locked.close()

    def _again(self, kept: StoredAdapter) -> Adapter:
        with torch.inference_mode():
            path = next(
                (each for each in reversed(kept.paths) if each.exists()), kept.paths[-1]
            )  # of several names one may be gone
            adapter = self.fresh(path)
        if adapter.digest != kept.digest:
            raise CheckpointError(
                f"{path} holds another adapter than the one that was loaded from it; load it again and open another "
                "sequence"
            )
        return adapter

    def _touch(self, kept: StoredAdapter) -> None:
        self._clock += 1
        kept.used = self._clock

    def _tidy(self, kept: StoredAdapter) -> bool:
        if kept.names or kept.uses or self._kept.get(kept.digest) is not kept:
            return False
        del self._kept[kept.digest]
        return True

    def _make_room(self, spared: StoredAdapter) -> None:
        for kept in sorted(self._kept.values(), key=lambda each: each.used):
            if self.bytes <= self._budget:
                return
            if kept is not spared and kept.adapter is not None and not kept.pinned and not kept.uses:
                kept.adapter, self.let_go = None, self.let_go + 1
