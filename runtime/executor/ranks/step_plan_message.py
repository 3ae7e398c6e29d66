"""A step as rank 0 sends it to the others: its plan in whole numbers, with slots that they do not know yet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from ...cache import Ints, WindowPageTable
from ...cache.state_checkpoints import StateCheckpoint, read_slot, write_slot
from ...errors import note_sequence
from ...sequences.draft_tokens import DraftSource, DraftTokens
from ...sequences.sequence_options import USUAL, SequenceOptions
from ...sequences.sequence_state import ScheduledWork, SequenceOp, SequenceState
from ...step.adapter_rows import NONE

ROW = 13  # numbers of a sequence in front of its tokens and slots
COLUMNS = 5  # of a step of single tokens: rows, positions, tokens or UNKNOWN, slots, adapters
UNKNOWN = -1  # a token that was sampled last
RECEIVED = DraftTokens([], DraftSource("received"))  # steps are cut by it; its tokens are among the others


class MirroredOp(SequenceOp):
    """Wants what the operation of rank 0's sequence wants: spans of positions."""

    wanted_span = pooled_span = (0, 0)

    def rows(self, seq: SequenceState, lo: int, hi: int) -> range:
        return _within(self.wanted_span, lo, hi)

    def pool(self, seq: SequenceState, lo: int, hi: int) -> range:
        return _within(self.pooled_span, lo, hi)


class MirroredNextToken(SequenceOp):
    """Wants what follows a single token."""

    def rows(self, seq: SequenceState, lo: int, hi: int) -> range:
        return range(lo, hi)

    def pool(self, seq: SequenceState, lo: int, hi: int) -> range:
        return range(lo, lo)


NEXT = MirroredNextToken()


def _within(span: tuple[int, int], lo: int, hi: int) -> range:
    """A step may be cut."""
    start, stop = span
    return range(max(start, lo), max(min(stop, hi), start, lo))


def plan_message(
    work: Sequence[ScheduledWork],
    rows: Sequence[int],
    adapters: Sequence[int] = (),
    moved: tuple[Ints, Ints] | None = None,
) -> bytes:
    """rows: the row of each sequence. What the others know of its slots is what the row's mirror has: `slots.mirrored`.

    adapters: the slot of each one's adapter, or NONE; empty: no sequence has one.  moved: see `WindowPages.moved`, of
    models whose windowed layers have separate places.
    """
    singles = len(work) if _all_single(work) else 0
    parts: list[np.ndarray] = [np.array((0 if moved is None else len(moved[0]), singles), np.int32), *(moved or ())]
    if singles:
        return np.concatenate([*parts, *_columns(work, rows, adapters)]).astype(np.int32, copy=False).tobytes()
    try:
        for (seq, lo, hi), row, slot in zip(work, rows, adapters or [NONE] * len(work), strict=True):
            op, known, stop = seq.ops[0], min(seq.slots.mirrored, hi), min(hi, seq.known)
            wanted, pool = op.rows(seq, lo, hi), op.pool(seq, lo, hi)
            spans = (wanted.start, wanted.stop, pool.start, pool.stop)
            parts.append(
                np.array(
                    (row, lo, hi, known, stop, *spans, seq.draft is not None, slot, read_slot(seq), write_slot(seq)),
                    np.int32,
                )
            )
            parts += (seq.tokens.reaching(stop)[lo:stop], seq.slots.array[known:hi])
    except BaseException as error:
        note_sequence(error, seq)
        raise
    return np.concatenate(parts).astype(np.int32, copy=False).tobytes()


def _all_single(work: Sequence[ScheduledWork]) -> bool:
    """Whether all that is to be sent of each are a row, a position, a token, a slot and an adapter."""
    try:
        for seq, lo, hi in work:
            if hi - lo != 1 or seq.slots.mirrored < lo or seq.draft is not None or seq.trail or seq.into:
                return False
            op = seq.ops[0]
            if len(op.rows(seq, lo, hi)) != 1 or op.pool(seq, lo, hi):
                return False
    except BaseException as error:
        note_sequence(error, seq)
        raise
    return True


def _columns(work: Sequence[ScheduledWork], rows: Sequence[int], adapters: Sequence[int]) -> list[np.ndarray]:
    positions, tokens, slots = [], [], []
    try:
        for seq, lo, hi in work:
            positions.append(lo)
            tokens.append(int(seq.tokens.reaching(hi)[lo]) if hi <= seq.tokens.length else UNKNOWN)
            slots.append(seq.slots.reaching(hi)[lo])
    except BaseException as error:
        note_sequence(error, seq)
        raise
    return [np.array(column, np.int32) for column in (rows, positions, tokens, slots, adapters or [NONE] * len(work))]


@cache
def _terms_of(slot: int) -> SequenceOptions:
    """Adapters are called by their slots here, see `adapters.batch_adapters.BatchAdaptersBySlot`."""
    return USUAL if slot == NONE else USUAL._replace(adapter=str(slot))


class SequenceMirrors:
    """What a rank knows of rank 0's sequences: one for each row.

    count: rows.  windows: where the places of windowed layers are put.
    """

    def __init__(self, count: int, windows: WindowPageTable | None = None) -> None:
        self._windows = windows
        self.rows = {SequenceState(row): row for row in range(count)}
        self._all = [(seq, MirroredOp()) for seq in self.rows]

    def work(self, words: bytes) -> list[ScheduledWork]:
        """Equal to what the words were made of, for a runner. Sequences are those of the rows."""
        values, found = np.frombuffer(words, np.int32), []
        moved, singles = values[:2].tolist()
        at = 2 + 2 * moved
        if self._windows is not None:
            self._windows.put(values[2 : 2 + moved], values[2 + moved : at])
        if singles:
            return [self._gone_on(*each) for each in zip(*values[at:].reshape(COLUMNS, singles).tolist(), strict=True)]
        while at < len(values):
            row, lo, hi, known, stop, *wanted = values[at : at + ROW].tolist()
            tokens = at + ROW
            slots = tokens + max(0, stop - lo)
            at = slots + hi - known
            self._learn(row, lo, known, values[tokens:slots], values[slots:at])
            found.append(self._mirrored(row, lo, hi, *wanted))
        return found

    def _gone_on(self, row: int, position: int, token: int, slot: int, adapter: int) -> ScheduledWork:
        seq, _ = self._all[row]
        seq.tokens.end_at(position)
        if token != UNKNOWN:
            seq.tokens.append(token)
        seq.slots.truncate(position)
        seq.slots.append(slot)
        seq.draft, seq.terms = None, _terms_of(adapter)
        if not (seq.ops and seq.ops[0] is NEXT):
            seq.ops.clear()
            seq.ops.append(NEXT)
        return ScheduledWork(seq, position, position + 1)

    def _learn(self, row: int, lo: int, known: int, tokens: np.ndarray, slots: np.ndarray) -> None:
        seq, _ = self._all[row]
        seq.tokens.put(lo, tokens)
        seq.slots.truncate(known)
        seq.slots.extend(slots)

    def _mirrored(
        self, row: int, lo: int, hi: int, start: int, stop: int, first: int, last: int, *others: int
    ) -> ScheduledWork:
        """start .. stop: whose logits are wanted.  first .. last: whose hidden states are summed."""
        seq, op = self._all[row]
        drafted, adapter, read, write = others
        op.wanted_span, op.pooled_span = (start, stop), (first, last)
        seq.draft, seq.terms = RECEIVED if drafted else None, _terms_of(adapter)
        seq.trail, seq.into = [StateCheckpoint(lo, read)], write
        seq.ops.clear()
        seq.ops.append(op)
        return ScheduledWork(seq, lo, hi)
