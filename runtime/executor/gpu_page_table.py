"""The pages of the running sequences on the device, a row each, kept up with as little copying as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .sequence_row_map import SequenceRowMap

if TYPE_CHECKING:
    from ..cache import GrowableIntArray, WindowPageTable
    from ..sequences.sequence_state import ScheduledWork, SequenceState

Upload = Callable[[np.ndarray], Tensor]


class GpuPageTable:
    """pages: int32 [rows + 1, most pages of a sequence]; the last row pads batches and names page 0 only.

    The pages of a step's new tokens are written by the embedding's kernel (see `DeviceBatch.table`). What is copied
    from the host is what a row lacks of the tokens before: when a sequence gets a row, or other pages.

    window_pages: the same of layers that see a window only, which have separate pages (`windows`); None: none has. The
        place of a page does not change while it is held: what is in a row is right as long as the row's own pages are.
    """

    def __init__(
        self, rows: int, context: int, page_size: int, device: torch.device, windows: WindowPageTable | None = None
    ) -> None:
        self.page_size, self.windows = page_size, windows
        self.padding = rows
        self.pages = torch.zeros(rows + 1, -(-context // page_size) + 1, dtype=torch.int32, device=device)
        self.window_pages = None if windows is None else torch.zeros_like(self.pages)
        self._map = SequenceRowMap(rows)

    def __getitem__(self, seq: SequenceState) -> int:
        return self._map[seq]

    def place(self, work: list[ScheduledWork], upload: Upload) -> list[int]:
        """Each sequence's row, with the pages of all its tokens before this step in it."""
        rows = self.rows_of(work)
        missing = [
            (row, seq.slots, lo) for row, (seq, lo, _) in zip(rows, work, strict=True) if seq.slots.mirrored < lo
        ]
        if missing:
            self._copy(missing, upload)
        for seq, _, hi in work:
            seq.slots.mirrored = hi
        return rows

    def rows_of(self, work: list[ScheduledWork]) -> list[int]:
        return self._map.rows_of(work)

    def _copy(self, missing: list[tuple[int, GrowableIntArray, int]], upload: Upload) -> None:
        size, width = self.page_size, self.pages.shape[1]
        places, values = [], []
        for row, slots, lo in missing:
            first, last = slots.mirrored // size, -(-lo // size)
            values.append(slots.array[first * size : lo : size] // size)
            places.append(np.arange(row * width + first, row * width + last, dtype=np.int64))
        where, pages = upload(np.concatenate(places)), np.concatenate(values).astype(np.int32)
        self.pages.view(-1).index_copy_(0, where, upload(pages))
        if self.window_pages is not None and self.windows is not None:
            self.window_pages.view(-1).index_copy_(0, where, upload(self.windows.where[pages]))

    def forget(self) -> None:
        """Every row has to be copied anew."""
        self._map.forget()


class MirroredPageTable(GpuPageTable):
    """The table of a rank above 0: rows as rank 0 says; sequences that it says nothing of have the padding's.

    rows_by: of the sequences that represent rank 0's rows.
    """

    def __init__(
        self,
        rows: int,
        context: int,
        page_size: int,
        device: torch.device,
        rows_by: Mapping[SequenceState, int],
        windows: WindowPageTable | None = None,
    ) -> None:
        super().__init__(rows, context, page_size, device, windows)
        self._rows_by = rows_by

    def __getitem__(self, seq: SequenceState) -> int:
        return self._rows_by.get(seq, self.padding)

    def rows_of(self, work: list[ScheduledWork]) -> list[int]:
        return [self[seq] for seq, *_ in work]

    def forget(self) -> None:
        """Rank 0's rows are new to their sequences, and it says so."""
