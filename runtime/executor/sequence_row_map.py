"""Rows: where the device keeps what belongs to a running sequence from step to step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..sequences.sequence_state import ScheduledWork, SequenceState, SequenceStatus


class SequenceRowMap:
    """Assigns each sequence of a step its own row, the one that it had before if it still has it.

    A row is taken away only from sequences that are not in the step. What the device keeps there by then is known to
    the host: a sampled token is read one step after it was made.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._rows: dict[SequenceState, int] = {}  # least recently used first

    def __getitem__(self, seq: SequenceState) -> int:
        return self._rows[seq]

    def place(self, seqs: Sequence[SequenceState]) -> tuple[list[int], list[int]]:
        """The rows of the sequences, and the indices of those whose row is new to them.

        Raises RuntimeError when there are more sequences than rows.
        """
        if len(seqs) > self.count:
            raise RuntimeError(f"a step of {len(seqs)} sequences on {self.count} rows")
        kept = {seq: self._rows.pop(seq) for seq in seqs if seq in self._rows}
        fresh = [index for index, seq in enumerate(seqs) if seq not in kept]
        self._make_room(len(fresh))
        for index in fresh:
            kept[seqs[index]] = self._free.pop()
        rows = [kept[seq] for seq in seqs]
        self._rows.update(zip(seqs, rows, strict=True))
        return rows, fresh

    def rows_of(self, work: Sequence[ScheduledWork]) -> list[int]:
        """Each sequence's row. Of a sequence whose row is new to it nothing is mirrored."""
        rows, fresh = self.place([seq for seq, *_ in work])
        for index in fresh:
            work[index].seq.slots.mirrored = 0
        return rows

    def forget(self, seqs: Iterable[SequenceState] | None = None) -> None:
        """Take the rows of these sequences, or of all."""
        for seq in list(self._rows if seqs is None else seqs):
            if seq in self._rows:
                self._free.append(self._rows.pop(seq))

    def _make_room(self, wanted: int) -> None:
        if wanted > len(self._free):
            self.forget([seq for seq in self._rows if seq.status is SequenceStatus.CLOSED])
        while wanted > len(self._free):
            self.forget([next(iter(self._rows))])
