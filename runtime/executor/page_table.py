"""The pages of the running sequences on the device, a row each, kept up with as little copying as possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .rows import RowMap

if TYPE_CHECKING:
    from ..cache import IntRow
    from ..sequences.sequence import SequenceState, Work

Upload = Callable[[np.ndarray], Tensor]


class PageTable:
    """pages: int32 [rows + 1, most pages of a sequence]; the last row pads batches and names page 0 only.

    The pages of a step's new tokens are written by the embedding's kernel (see `DeviceBatch.table`). What is
    copied from the host is what a row lacks of the tokens before: when a sequence gets a row, or other pages.
    """

    def __init__(self, rows: int, context: int, page_size: int, device: torch.device) -> None:
        self.page_size = page_size
        self.padding = rows
        self.pages = torch.zeros(rows + 1, -(-context // page_size) + 1, dtype=torch.int32, device=device)
        self._map = RowMap(rows)

    def __getitem__(self, seq: SequenceState) -> int:
        return self._map[seq]

    def place(self, work: list[Work], upload: Upload) -> list[int]:
        """Each sequence's row, with the pages of all its tokens before this step in it."""
        rows, fresh = self._map.place([seq for seq, *_ in work])
        for index in fresh:
            work[index].seq.slots.mirrored = 0
        missing = [(row, seq.slots, lo) for row, (seq, lo, _) in zip(rows, work, strict=True) if seq.slots.mirrored < lo]
        if missing:
            self._copy(missing, upload)
        for seq, _, hi in work:
            seq.slots.mirrored = hi
        return rows

    def _copy(self, missing: list[tuple[int, IntRow, int]], upload: Upload) -> None:
        size, width = self.page_size, self.pages.shape[1]
        places, values = [], []
        for row, slots, lo in missing:
            first, last = slots.mirrored // size, -(-lo // size)
            values.append(slots.array[first * size : lo : size] // size)
            places.append(np.arange(row * width + first, row * width + last, dtype=np.int64))
        where = upload(np.concatenate(places))
        self.pages.view(-1).index_copy_(0, where, upload(np.concatenate(values).astype(np.int32)))

    def forget(self) -> None:
        """Every row has to be copied anew."""
        self._map.forget()
