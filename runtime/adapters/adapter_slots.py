"""Slots on the device that hold the adapters of a step, by classes of rank, with LRU eviction.

A slot that sequences in the batch hold is not evicted. Copies run on a separate stream; a sequence that waits for one
does not hold up the others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from ..layers import cpu_kernels
from .adapter import Adapter, pair_span_of
from .adapter_sites import AdapterSite

CLASSES = (8, 16, 32, 64, 128, 256, 512, 1024)
GROWN = 8  # slots of a class where none were asked for
SILENCE = 256  # times that others ask, after which nothing is kept for one that waited
PATIENCE = 16  # refusals after which a slot is emptied for one that waits
RESERVED = 1.0  # seconds for which a slot that was filled for one who waits is kept for it, since it last asked


class AdapterSlot:
    """number: by which rows of a step name it.  there: the adapter in it, or None.  holds: sequences in the batch that
    use it.

    reserved: until when it is kept for the sequence that waits for the copy.
    """

    __slots__ = ("copied", "holds", "memory", "number", "rank", "reserved", "there", "used")

    def __init__(self, number: int, rank: int, memory: Tensor) -> None:
        self.number, self.rank, self.memory = number, rank, memory
        self.there: Adapter | None = None
        self.copied: Any = None  # the event after the copy that is under way
        self.holds = self.used = 0
        self.reserved = 0.0

    @property
    def is_free(self) -> bool:
        return not self.holds and self.reserved <= time.monotonic()


class AdapterSlots:
    """Only the scheduler thread calls this.

    counts: slots by class of rank.  grows: classes that lack are made when an adapter needs one.
    room: bytes on the GPU for what adapters have besides pairs; None: no limit.
    version: changes whenever the contents of a slot do.
    hits, misses: sequences that found their adapter in a slot, or waited for it.  loads, evictions: of slots.
    """

    def __init__(
        self,
        sites: tuple[AdapterSite, ...],
        dtype: torch.dtype,
        device: torch.device,
        counts: Mapping[int, int],
        grows: bool,
        room: int | None = None,
    ) -> None:
        self._sites, self._dtype, self.device, self._grows, self.room = sites, dtype, device, grows, room
        self.slots: list[AdapterSlot] = []
        self.hits = self.misses = self.loads = self.evictions = 0
        self.version = self._clock = 0
        self._refused: dict[str, int] = {}
        self._draining: tuple[str, AdapterSlot] | None = None  # for which others take no slot any more
        self._silent = 0  # times that others asked since that one did
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._read: deque[tuple[Any, Adapter]] = (
            deque()
        )  # what copies under way read, each before its event: it may not be overwritten
        self._make([rank for rank, count in sorted(counts.items()) for _ in range(count)])

    @property
    def bytes(self) -> int:
        return sum(slot.memory.nbytes for slot in self.slots) + (self.room or 0)

    @property
    def most_rank(self) -> int:
        """The widest adapters that have a slot."""
        return CLASSES[-1] if self._grows else max((slot.rank for slot in self.slots), default=0)

    def adapter(self, slot: int) -> Adapter:
        """The adapter in it, with its memory there."""
        found = self.slots[slot].there
        assert found is not None
        return found

    def slot_of(self, digest: str) -> int:
        """Of an adapter that is held."""
        found = self._find(digest)
        assert found is not None and found.holds
        return found.number

    def has(self, digest: str) -> bool:
        return self._find(digest) is not None

    def take(self, digest: str, adapter: Adapter | None, waits: bool) -> bool:
        """Hold a slot with this adapter for a sequence; False: not now.

        adapter: None: it is not in main memory.  waits: others have work, so a copy need not be waited for.
        """
        found = self._find(digest)
        self._let_go_of_read()
        self._listen(digest)
        if self._draining is not None and self._draining[1] is found:
            return False
        fresh = found is None
        if found is None and adapter is not None and (found := self._free_for(adapter)) is not None:
            self._load(found, adapter)
        if found is None:
            return False
        if not self._is_ready(found, waits):
            found.reserved = time.monotonic() + RESERVED
            return False
        if self._refused.pop(digest, 0) or fresh or found.reserved:
            self.misses += 1
        else:
            self.hits += 1
        self._clock += 1
        found.used, found.holds, found.reserved = self._clock, found.holds + 1, 0.0
        return True

    def drop(self, digest: str) -> None:
        """A sequence that held the adapter's slot left the batch."""
        found = self._find(digest)
        assert found is not None and found.holds > 0
        found.holds -= 1

    def forget(self, digest: str) -> None:
        """It is not needed again."""
        found = self._find(digest)
        if found is not None and not found.holds:
            self.empty(found.number)

    def evict_all(self) -> None:
        """Empty the slots that are not held."""
        for slot in self.slots:
            if not slot.holds and slot.there is not None:
                self.empty(slot.number)
                self.evictions += 1

    def empty(self, number: int) -> None:
        """Empty a slot."""
        slot = self.slots[number]
        slot.there, slot.reserved, self.version = None, 0.0, self.version + 1

    def renew(self, adapter: Adapter) -> None:
        """Replace an adapter in its slot by another one of the same digest."""
        if (found := self._find(adapter.digest)) is not None:
            self.empty(found.number)
            self._load(found, adapter)
            self._is_ready(found, waits=False)

    def check_fits(self, adapter: Adapter, name: str) -> None:
        """Raise ConfigError where no slot is wide enough for an adapter, or its extras exceed the room."""
        rank = adapter.rank
        if self.room is not None and adapter.most_extras > self.room:
            raise ConfigError(
                f"adapter {name!r} has {adapter.most_extras:,} bytes besides its pairs "
                f"({', '.join(adapter.extra_kinds)}), and {self.room:,} are set aside for it on the device: open the "
                f"engine with a larger adapter_extras, such as '{-(-adapter.most_extras // 2**20)}MB'"
            )
        if rank <= self.most_rank:
            return
        there = (
            f"slots here take ranks up to {self.most_rank}" if self.slots else "no slots were reserved on the device"
        )
        raise ConfigError(
            f"adapter {name!r} has rank {rank}, {there}: open the engine with adapter_slots={{{class_of(rank)}: 8}}, "
            "or as many as run at a time"
        )

    def _find(self, digest: str) -> AdapterSlot | None:
        return next((slot for slot in self.slots if slot.there is not None and slot.there.digest == digest), None)

    def _free_for(self, adapter: Adapter) -> AdapterSlot | None:
        if self._grows and not any(slot.rank >= adapter.rank for slot in self.slots):
            self._make([class_of(adapter.rank)] * GROWN)
        wide = [slot for slot in self.slots if slot.rank >= adapter.rank]
        free = [
            slot
            for slot in wide
            if slot.is_free
            and (self._draining is None or slot is not self._draining[1] or self._draining[0] == adapter.digest)
        ]
        found = min(free, key=lambda slot: (slot.there is not None, slot.rank, slot.used), default=None)
        if found is None:
            self._wait_longer(adapter, [slot for slot in wide if slot.holds])
        elif not self._makes_room(adapter, found):
            self._wait_longer(
                adapter,
                [slot for slot in self.slots if slot.there is not None and slot.there.most_extras and slot.holds],
            )
            return None
        return found

    def _makes_room(self, adapter: Adapter, chosen: AdapterSlot) -> bool:
        """Empty slots that are not held, until there is room for this adapter's extras; False: there would not be."""
        others = {
            slot.number: slot.there.most_extras for slot in self.slots if slot is not chosen and slot.there is not None
        }
        idle = sorted(
            (number for number in others if others[number] and self.slots[number].is_free),
            key=lambda number: self.slots[number].used,
        )
        over = 0 if self.room is None else adapter.most_extras + sum(others.values()) - self.room
        if over > sum(others[number] for number in idle) or self._others_wait(adapter):
            return False
        while over > 0:
            over -= others[idle[0]]
            self.empty(idle.pop(0))
            self.evictions += 1
        return True

    def _others_wait(self, adapter: Adapter) -> bool:
        """Whether the room that it wants is being emptied for another one."""
        return (
            self.room is not None
            and adapter.most_extras > 0
            and self._draining is not None
            and self._draining[0] != adapter.digest
        )

    def _wait_longer(self, adapter: Adapter, held: list[AdapterSlot]) -> None:
        """Count a refusal; after some, a held slot is drained, so that popular adapters do not keep slots for ever."""
        count = self._refused[adapter.digest] = self._refused.get(adapter.digest, 0) + 1
        done = self._draining is None or (
            self._draining[0] == adapter.digest and not self._draining[1].holds
        )  # one of them was not enough
        if count >= PATIENCE and done and held:
            self._draining = adapter.digest, min(held, key=lambda slot: slot.holds)

    def _listen(self, digest: str) -> None:
        """Who waited may have been given up."""
        self._silent = 0 if self._draining is None or self._draining[0] == digest else self._silent + 1
        if self._silent > SILENCE:
            self._draining = None

    def _load(self, slot: AdapterSlot, adapter: Adapter) -> None:
        if slot.there is not None:
            slot.there, self.evictions = None, self.evictions + 1  # its memory may be needed
        if self._draining is not None and self._draining[0] == adapter.digest:
            self._draining = None
        self.loads, self.version = self.loads + 1, self.version + 1
        with self._copying():
            there = slot.memory[: len(adapter.memory)]
            there.copy_(adapter.memory, non_blocking=True)
            slot.there = replace(adapter, memory=there, extras=adapter.extras.on(self.device))
            self.placed(slot)
            if self._stream is not None:
                slot.copied = self._stream.record_event()
                self._read.append((slot.copied, adapter))
        self._let_go_of_read()

    def _let_go_of_read(self) -> None:
        """Steps wait for a copy on the device; here it has to be over, as the next adapter's bytes come from a CPU."""
        while self._read and self._read[0][0].query():
            self._read.popleft()

    def placed(self, slot: AdapterSlot) -> None:
        """The contents of a slot have changed."""

    def wait_for(self, number: int) -> None:
        """Make later steps wait for the copy into a slot."""
        self._is_ready(self.slots[number], waits=False)

    def mirror(self, ranks: Sequence[int], number: int, adapter: Adapter) -> None:
        """Mirror the slots of another rank: they have these `ranks`, and slot `number` holds the adapter now."""
        self._make(ranks[len(self.slots) :])
        self._load(self.slots[number], adapter)

    def _copying(self) -> AbstractContextManager[object]:
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))  # steps under way may still read it
        return torch.cuda.stream(self._stream)

    def _is_ready(self, slot: AdapterSlot, waits: bool) -> bool:
        if slot.copied is None:
            return True
        if waits and not slot.copied.query():
            return False
        torch.cuda.current_stream(self.device).wait_event(slot.copied)
        slot.copied = None
        return True

    def _make(self, ranks: Sequence[int]) -> None:
        """Slots in one piece of memory."""
        spans = [pair_span_of(self._sites, rank) for rank in ranks]
        memory = self._memory(sum(spans))
        self.slots += [
            AdapterSlot(len(self.slots) + i, rank, part)
            for i, (rank, part) in enumerate(zip(ranks, memory.split(spans), strict=True))
        ]

    def _memory(self, count: int) -> Tensor:
        """On a CPU on huge pages: kernels go through the rows of a matrix side by side."""
        if self.device.type != "cpu" or cpu_kernels.kernels is None or not count:
            return torch.zeros(count, dtype=self._dtype, device=self.device)
        return cpu_kernels.huge_page_bytes(count * self._dtype.itemsize).view(self._dtype).zero_()


def class_of(rank: int) -> int:
    return next(each for each in CLASSES if each >= rank)


def bytes_of(sites: Iterable[AdapterSite], counts: Mapping[int, int], itemsize: int) -> int:
    """That slots take on the device."""
    return sum(count * pair_span_of(tuple(sites), rank) * itemsize for rank, count in counts.items())
