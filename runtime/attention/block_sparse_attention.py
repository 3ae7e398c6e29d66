"""Block-sparse attention: each query and KV head attends to chosen blocks of positions, and to a window."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..step.step_batch import DeviceBatch, StepBatch
from .topk_attention import TopKSelection

NONE = -1  # in place of a block
BEYOND = 2**40  # a block number beyond all others


def of_blocks(
    blocks: Tensor, size: int, window: int, batch: StepBatch, tokens: slice | Tensor = slice(None)
) -> TopKSelection:
    """The tokens in blocks of `size` positions and in the window of the latest `window`, as far as the query sees them,
    in order of position.

    blocks: integers [n, heads, most], numbers of blocks, each once, in any order, or `NONE`; of the step's `tokens` [n]
        and each KV head.
    There must be one token at least: give a window, or the query's own block.
    """
    position = batch.positions[tokens].long()[:, None, None]
    begin = (position + 1 - window).clamp_min(0)
    ordered = torch.where(blocks < 0, BEYOND, blocks.long()).sort(-1).values
    inside = (ordered[..., None] * size + torch.arange(size, device=blocks.device)).flatten(2)
    latest = (begin + torch.arange(window, device=blocks.device)).expand(-1, blocks.shape[1], -1)
    places, seen = torch.cat((inside, latest), 2), torch.cat((inside < begin, latest <= position), 2)
    return TopKSelection(_listed(_slots(places.where(seen, 0), batch, tokens), seen), seen.sum(2, dtype=torch.int32))


def _listed(slots: Tensor, seen: Tensor) -> Tensor:
    """The visible ones, moved to the beginning of their rows."""
    most = slots.shape[2]
    where = torch.where(seen, seen.cumsum(2) - 1, most)
    return slots.new_zeros(*slots.shape[:2], most + 1).scatter_(2, where, slots)[..., :most].contiguous()


def _slots(places: Tensor, batch: StepBatch, tokens: slice | Tensor) -> Tensor:
    """int32, of positions [n, heads, any] in the sequences of the step's `tokens`."""
    device = batch.device
    if device is None:
        table, rows = _table(batch)
        return table[rows[tokens][:, None, None], places]
    _enter(batch, device)
    pages = device.table[device.token_rows[tokens].long()[:, None, None], places // device.page_size]
    return (pages * device.page_size + places % device.page_size).int()


def _enter(batch: StepBatch, device: DeviceBatch) -> None:
    """Enters the pages of the step's own tokens, if no Triton kernel embeds them; none for slot 0."""
    rows, pages = device.token_rows.long(), batch.positions.long() // device.page_size
    device.table[rows, pages] = torch.where(
        batch.slots == 0, device.table[rows, pages], (batch.slots // device.page_size).int()
    )


def _table(batch: StepBatch) -> tuple[Tensor, Tensor]:
    """If there is no table: int32 [sequences, longest], the slots of each sequence, and int64 [T], each token's
    sequence.
    """
    table = np.zeros((len(batch.context_slots), max(batch.context_lens)), np.int32)
    for row, slots in zip(table, batch.context_slots, strict=True):
        row[: len(slots)] = slots
    return torch.from_numpy(table), torch.from_numpy(np.repeat(np.arange(len(table)), batch.query_lens))
