"""What a step is about, as arrays, and the batch of their copies on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ..errors import note_sequence
from ..step.step_batch import DeviceBatch, StepBatch
from ..step.window_slots import LazyWindowSlots, WindowSlots
from .eager_runner import state_slots
from .gpu_page_table import GpuPageTable
from .logit_rows import logit_rows, pooled_rows

if TYPE_CHECKING:
    from ..cache import WindowPageTable
    from ..sequences.sequence_state import ScheduledWork

PER_TOKEN = 4  # the first ones of `arrays`
ALIGNED = 4  # values: 16 bytes, so that kernels are compiled once for every place in the packed array


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A step on the host.

    arrays: int32: ids, positions, slots and rows of the new tokens [T], rows of the sequences [S], where they begin
        among the tokens [S + 1], their contexts [S], places of the tokens whose logits are wanted [R]; of models that
        keep states, where those of the sequences are read and written [S]; else slots of the new tokens in windowed
        layers [T], if these have some.
    windows: of all tokens of each sequence in windowed layers.
    """

    arrays: list[np.ndarray]
    query_lens: list[int]
    context_lens: list[int]
    context_slots: list[np.ndarray]
    pools: list[tuple[int, int]]
    windows: Sequence[np.ndarray] | None = None

    @classmethod
    def of(
        cls, work: list[ScheduledWork], rows: list[int], states: bool = False, windows: WindowPageTable | None = None
    ) -> StepArrays:
        """The step of `work`, whose sequences have these rows of the page table. states: the model keeps some.

        windows: where rows of windowed layers are; there are none together with states.
        """
        query_lens, contexts = [hi - lo for _, lo, hi in work], [hi for *_, hi in work]
        lengths, own = np.array(query_lens, np.int32), np.array(rows, np.int32)
        slots = [seq.slots.array[:hi] for seq, _, hi in work]
        starts = np.zeros(len(work) + 1, np.int32)
        np.cumsum(lengths, out=starts[1:])
        firsts = np.array([lo for _, lo, _ in work], np.int32)
        arrays = [
            _token_ids(work, rows, starts),
            np.arange(starts[-1], dtype=np.int32) + np.repeat(firsts - starts[:-1], lengths),
            np.concatenate([s[lo:] for s, (_, lo, _) in zip(slots, work, strict=True)]),
            np.repeat(own, lengths),
            own,
            starts,
            firsts + lengths,
            np.array(logit_rows(work), np.int32),
            *(np.array(found, np.int32) for found in (state_slots(work) if states else ())),
        ]
        if windows is None:
            return cls(arrays, query_lens, contexts, slots, pooled_rows(work))
        return cls(
            [*arrays, windows.slots_of(arrays[2])],
            query_lens,
            contexts,
            slots,
            pooled_rows(work),
            window_context_slots(windows, work),
        )

    @property
    def tokens(self) -> int:
        return len(self.arrays[0])

    @property
    def sizes(self) -> list[int]:
        return [len(array) for array in self.arrays]

    def batch(self, on_device: Sequence[Tensor], table: GpuPageTable, last: Tensor) -> StepBatch:
        """The batch of the copies of `arrays`."""
        ids, positions, slots, token_rows, rows, starts, contexts, wanted, *more = on_device
        states = more if self.windows is None else []
        return StepBatch(
            token_ids=ids,
            positions=positions,
            slots=slots,
            query_lens=self.query_lens,
            context_lens=self.context_lens,
            context_slots=self.context_slots,
            logit_rows=wanted,
            device=DeviceBatch(rows, token_rows, starts, contexts, table.pages, table.page_size, last),
            pools=self.pools,
            state_read=states[0] if states else None,
            state_write=states[1] if states else None,
            windows=None if self.windows is None else WindowSlots(more[0], self.windows, table.window_pages),
        )


def last_tokens(work: list[ScheduledWork], rows: list[int]) -> list[int]:
    """The last token of each sequence's work, or -1 - row where only the device knows it."""
    found = []
    try:
        for (seq, _, hi), row in zip(work, rows, strict=True):
            found.append(int(seq.tokens.reaching(hi)[-1]) if hi <= seq.known else -1 - row)
    except BaseException as error:
        note_sequence(error, seq)
        raise
    return found


def _token_ids(work: list[ScheduledWork], rows: list[int], starts: np.ndarray) -> np.ndarray:
    known = np.concatenate([seq.tokens.reaching(min(hi, seq.known))[lo:] for seq, lo, hi in work])
    if len(known) == starts[-1]:
        return known
    ids = np.empty(starts[-1], np.int32)
    tokens = last_tokens(work, rows)
    try:
        for (seq, lo, hi), token, start, stop in zip(work, tokens, starts, starts[1:], strict=False):
            there = seq.tokens.reaching(min(hi, seq.known))[lo:]
            ids[start : start + len(there)] = there
            ids[stop - 1] = token
    except BaseException as error:
        note_sequence(error, seq)
        raise
    return ids


def window_context_slots(windows: WindowPageTable, work: list[ScheduledWork], padding: int = 0) -> LazyWindowSlots:
    """Of all tokens of each sequence in windowed layers, for who does not read them on the device.

    padding: so many more have one token in slot 0.
    """
    rows = [(seq.slots.array[:hi], lo) for seq, lo, hi in work]
    return LazyWindowSlots(lambda: [windows.slots(row, lo) for row, lo in rows] + [np.zeros(1, np.int32)] * padding)


def pack(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Small int32 arrays in one, for one copy to the device; each starts at a multiple of `ALIGNED`."""
    sizes = [len(array) for array in arrays]
    packed = np.zeros(sum(map(_aligned, sizes)), np.int32)
    start = 0
    for array, size in zip(arrays, sizes, strict=True):
        packed[start : start + size] = array
        start += _aligned(size)
    return packed


def unpack(packed: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Views of what `pack` was given, by the lengths of the arrays."""
    views, start = [], 0
    for size in sizes:
        views.append(packed[start : start + size])
        start += _aligned(size)
    return views


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
