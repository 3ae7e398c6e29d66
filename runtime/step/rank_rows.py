"""Of a step that several ranks compute together, the rows that one of them attends for, as a separate batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

from torch import Tensor

from .rank_row_share import RankRowShare
from .step_batch import DeviceBatch, RankRows, StepBatch


def own_rows(batch: StepBatch, share: RankRowShare) -> RankRows:
    """A sequence whose rows are on several ranks has on each a context that ends with the last row there."""
    total = len(batch.token_ids)
    start, stop = (total * number // share.ranks for number in (share.rank, share.rank + 1))
    if start == stop:
        return RankRows(slice(start, stop), None)
    return RankRows(slice(start, stop), _cut(batch, start, stop))


def _cut(batch: StepBatch, start: int, stop: int) -> StepBatch:
    """The batch of the rows [start, stop); it has no logits, and nothing is stored by it."""
    begins = list(accumulate(batch.query_lens, initial=0))
    here = [index for index, (begin, end) in enumerate(pairwise(begins)) if begin < stop and end > start]
    sequences = slice(here[0], here[-1] + 1)
    after = max(0, begins[sequences.stop] - stop)  # tokens of the last sequence that are other ranks'
    lengths = [
        min(begins[index + 1], stop) - max(begins[index], start) for index in range(sequences.start, sequences.stop)
    ]
    contexts = batch.context_lens[sequences]
    contexts[-1] -= after
    slots = list(batch.context_slots[sequences])
    slots[-1] = slots[-1][: contexts[-1]]
    rows = slice(start, stop)
    return replace(
        batch,
        token_ids=batch.token_ids[rows],
        positions=batch.positions[rows],
        slots=batch.slots[rows],
        query_lens=lengths,
        context_lens=contexts,
        context_slots=slots,
        logit_rows=batch.logit_rows[:0],
        plan=None,
        chosen=None,
        pools=[],
        device=None if batch.device is None else _on_device(batch.device, sequences, rows),
        state_read=None,
        state_write=None,
        windows=None,
        adapters=None,
        entering=None,
        own=None,
    )


def _on_device(device: DeviceBatch, sequences: slice, rows: slice) -> DeviceBatch:
    """Of a static batch, whose sequences have one row each, everything at addresses that stay."""
    starts, contexts = _bounds(device, sequences, rows)
    return replace(
        device, rows=device.rows[sequences], token_rows=device.token_rows[rows], starts=starts, contexts=contexts
    )


def _bounds(device: DeviceBatch, sequences: slice, rows: slice) -> tuple[Tensor, Tensor]:
    if device.static:
        return device.starts[: sequences.stop - sequences.start + 1], device.contexts[sequences]
    starts = device.starts[sequences.start : sequences.stop + 1]
    after = (starts[1:] - rows.stop).clamp(min=0)
    return starts.clamp(rows.start, rows.stop) - rows.start, device.contexts[sequences] - after
