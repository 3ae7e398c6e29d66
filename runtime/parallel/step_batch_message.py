"""A step as rank 0 sends it to the others: whole numbers, with the pages that they do not know yet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from ..adapters.lora_linear import rows_of
from ..step.adapter_rows import AdapterRows
from ..step.step_batch import StepBatch

# tokens, sequences, wanted rows, pools, whether hidden states are kept, places of states of each kind, sequences
# whose adapters are named, slots that follow
HEADER = 8


class NewPageSlots(NamedTuple):
    """Of each sequence: the row that ranks keep its slots in, how many of them they know, and the others, int32."""

    row: int
    known: int
    slots: np.ndarray


def batch_message(batch: StepBatch, news: Sequence[NewPageSlots]) -> bytes:
    """int32, in this machine's order."""
    slots = [each.slots for each in news]
    states = (
        [[], []]
        if batch.state_read is None or batch.state_write is None
        else [batch.state_read.tolist(), batch.state_write.tolist()]
    )
    adapters = (
        [] if batch.adapters is None else batch.adapters.tokens[np.cumsum(batch.query_lens) - batch.query_lens]
    )  # of each sequence's first token
    header = [
        len(batch.token_ids),
        len(news),
        len(batch.logit_rows),
        len(batch.pools),
        int(batch.keeps),
        len(states[0]),
        len(adapters),
        sum(map(len, slots)),
    ]
    tensors = [tensor.numpy().astype(np.int32) for tensor in (batch.token_ids, batch.positions, batch.logit_rows)]
    lists = [
        batch.query_lens,
        batch.context_lens,
        [each.row for each in news],
        [each.known for each in news],
        *zip(*batch.pools, strict=True),
        *states,
        adapters,
    ]
    return np.concatenate([np.asarray(part, np.int32) for part in (header, *tensors, *lists, *slots)]).tobytes()


class MirroredSlots:
    """What a rank knows of the sequences' slots, and the batches that it makes of the words.

    count: rows that there are.
    """

    def __init__(self, count: int) -> None:
        self._slots = [np.empty(0, np.int32)] * count
        self._adapters: tuple[bytes, AdapterRows] | None = None

    def batch(self, words: bytes) -> StepBatch:
        """Equal to that which the words were made of, slots of all sequences included."""
        values = np.frombuffer(words, np.int32)
        tokens, sequences, wanted, pools, keeps, states, adapted, fresh = (int(value) for value in values[:HEADER])
        sizes = [
            HEADER,
            tokens,
            tokens,
            wanted,
            *[sequences] * 4,
            *[pools] * (2 if pools else 0),
            states,
            states,
            adapted,
            fresh,
        ]
        parts = np.split(values, list(accumulate(sizes))[:-1])[1:]
        ids, positions, logit_rows, lengths, contexts, rows, known = parts[:7]
        slots = self._learn(rows, known, contexts, parts[-1])
        new = [each[len(each) - count :] for each, count in zip(slots, lengths, strict=True)]
        return StepBatch(
            token_ids=_int64(ids),
            positions=_int64(positions),
            slots=_int64(np.concatenate(new)),
            query_lens=lengths.tolist(),
            context_lens=contexts.tolist(),
            context_slots=slots,
            logit_rows=_int64(logit_rows),
            pools=list(zip(*(part.tolist() for part in parts[7:-4]), strict=True)),
            keeps=bool(keeps),
            state_read=_int64(parts[-4]) if states else None,
            state_write=_int64(parts[-3]) if states else None,
            adapters=self._adapter_rows(parts[-2], lengths, logit_rows) if adapted else None,
        )

    def _adapter_rows(self, slots: np.ndarray, lengths: np.ndarray, wanted: np.ndarray) -> AdapterRows:
        asked = b" ".join(part.tobytes() for part in (slots, lengths, wanted))
        if self._adapters is None or self._adapters[0] != asked:  # of decode steps one is like the next
            self._adapters = asked, rows_of(slots.tolist(), lengths.tolist(), wanted.tolist())
        return self._adapters[1]

    def _learn(self, rows: np.ndarray, known: np.ndarray, contexts: np.ndarray, fresh: np.ndarray) -> list[np.ndarray]:
        """The slots of each sequence, as far as its context goes."""
        found = []
        for row, count, length in zip(rows.tolist(), known.tolist(), contexts.tolist(), strict=True):
            added, fresh = np.split(fresh, [length - count])
            kept = self._slots[row]
            if length > len(kept):
                kept = np.resize(kept, max(length, 2 * len(kept)))
                self._slots[row] = kept
            kept[count:length] = added
            found.append(kept[:length])
        return found


def _int64(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64))
