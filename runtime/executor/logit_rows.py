"""What the operations of a step want of it, as places in its flat batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import note_sequence

if TYPE_CHECKING:
    from ..sequences.sequence_state import ScheduledWork


def logit_rows(work: list[ScheduledWork]) -> list[int]:
    """Places in the flat batch of the tokens whose logits the operations want."""
    rows: list[int] = []
    start = 0
    try:
        for seq, lo, hi in work:
            found, shift = seq.ops[0].rows(seq, lo, hi), start - lo
            rows += range(found.start + shift, found.stop + shift)
            start += hi - lo
    except BaseException as error:
        note_sequence(error, seq)
        raise
    return rows


def pooled_rows(work: list[ScheduledWork]) -> list[tuple[int, int]]:
    """Spans of the flat batch whose last hidden states the operations want summed, in the order of the plan."""
    spans: list[tuple[int, int]] = []
    start = 0
    try:
        for seq, lo, hi in work:
            found, shift = seq.ops[0].pool(seq, lo, hi), start - lo
            if found:
                spans.append((found.start + shift, found.stop + shift))
            start += hi - lo
    except BaseException as error:
        note_sequence(error, seq)
        raise
    return spans
