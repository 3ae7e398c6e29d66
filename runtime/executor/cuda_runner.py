"""The runner for a GPU: packs a step into one copy, never waits for the device, replays decode steps as graphs."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..attention.base import AttentionBackend
from ..batch import Batch, DeviceBatch
from .graphs import DecodeGraphs
from .packing import pack, unpack
from .page_table import PageTable
from .runner import logit_rows
from .staging import upload

if TYPE_CHECKING:
    from ..models.decoder import Decoder
    from ..scheduler import Work
    from ..sequence import SequenceState


class CudaRunner:
    """See `Runner`, whose methods it has. Everything runs on one stream of its own, in order."""

    def __init__(
        self,
        model: Decoder,
        attention: AttentionBackend,
        device: torch.device,
        *,
        context: int,
        page_size: int,
        max_running: int,
        graphs: bool = True,
    ) -> None:
        self.model, self.attention, self.device = model, attention, device
        self.vocab_size = model.config.vocab_size
        self._limits = (max_running, context, page_size)
        self._with_graphs = graphs
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))  # the weights may still be on their way
        self._allocate()

    def _allocate(self) -> None:
        max_running, context, page_size = self._limits
        self.table = PageTable(max_running, context, page_size, self.device)
        self.last: Tensor | None = torch.zeros(max_running + 1, dtype=torch.int32, device=self.device)
        with_graphs = self._with_graphs and self.attention.capturable
        self._graphs = DecodeGraphs(max_running) if with_graphs else None
        self._static: dict[int, StaticDecode] = {}

    def on_device(self) -> AbstractContextManager[object]:
        """Have this thread's work queued on the runner's stream."""
        return torch.cuda.stream(self._stream)

    def places(self, seqs: list[SequenceState]) -> list[int]:
        return [self.table[seq] for seq in seqs]

    def index(self, rows: list[int]) -> Tensor:
        return upload(np.array(rows, np.int32), self.device)

    @torch.inference_mode()
    def forward(self, work: list[Work]) -> Tensor | None:
        """Queue the computation of `work`; the logits [rows, vocabulary] are valid until the next forward."""
        if not work:
            return None
        rows = self.table.place(work, lambda array: upload(array, self.device))
        tokens = _last_tokens(work, rows)
        if self._graphs is not None and _is_decode(work):
            return self._decode(self._graphs, work, rows, tokens)
        batch = self._eager_batch(work, rows, tokens)
        self.attention.plan(batch)
        return self.model.forward(batch, self.attention)

    def release(self) -> None:
        """Give the device's buffers back, until `restore`."""
        self._stream.synchronize()
        self.table.forget()
        del self.table, self._graphs, self._static, self.attention
        self.last = None

    def restore(self, attention: AttentionBackend) -> None:
        self.attention = attention
        self._allocate()

    def close(self) -> None:
        with suppress(RuntimeError):  # a device that has failed says so once more
            self._stream.synchronize()

    # inside

    def _decode(self, graphs: DecodeGraphs, work: list[Work], rows: list[int], tokens: list[int]) -> Tensor:
        size = graphs.size_for(len(work))
        if size not in self._static:
            assert self.last is not None
            self._static[size] = StaticDecode(size, self.table, self.last)
        static = self._static[size]
        static.fill(work, rows, tokens)
        self.attention.plan(static.batch)
        variant = getattr(self.attention, "variant", None)
        key = (size, variant(static.batch) if variant else None)
        return graphs.run(key, lambda: self.model.forward(static.batch, self.attention))[: len(work)]

    def _eager_batch(self, work: list[Work], rows: list[int], tokens: list[int]) -> Batch:
        lengths = np.array([hi - lo for _, lo, hi in work], np.int32)
        slots = [seq.slots.array[:hi] for seq, _, hi in work]
        starts = np.zeros(len(work) + 1, np.int32)
        np.cumsum(lengths, out=starts[1:])
        token_ids = np.concatenate([seq.tokens.array[lo:hi] for seq, lo, hi in work])
        if len(token_ids) != starts[-1]:
            token_ids = _with_pending(work, tokens, starts)
        firsts = np.array([lo for _, lo, _ in work], np.int32)
        arrays = [
            token_ids,
            np.arange(starts[-1], dtype=np.int32) + np.repeat(firsts - starts[:-1], lengths),
            np.concatenate([s[lo:] for s, (_, lo, _) in zip(slots, work, strict=True)]),
            np.repeat(np.array(rows, np.int32), lengths),
            np.array(rows, np.int32),
            starts,
            firsts + lengths,
            np.array(logit_rows(work), np.int32),
        ]
        packed = upload(pack(arrays), self.device)
        ids, positions, new_slots, token_rows, row, begin, contexts, wanted = unpack(packed, [len(a) for a in arrays])
        assert self.last is not None
        device = DeviceBatch(row, token_rows, begin, contexts, self.table.pages, self.table.page_size, self.last)
        return Batch(
            token_ids=ids,
            positions=positions,
            slots=new_slots,
            query_lens=lengths.tolist(),
            context_lens=[hi for _, _, hi in work],
            context_slots=slots,
            logit_rows=wanted,
            device=device,
        )


class StaticDecode:
    """A decode step of fixed size at fixed addresses; `fill` says what it is about."""

    def __init__(self, size: int, table: PageTable, last: Tensor) -> None:
        device = last.device
        self._size, self._padding = size, table.padding
        self._pad_slots = np.zeros(1, np.int32)
        self._packed = torch.zeros(len(pack([np.zeros(size, np.int32)] * 5)), dtype=torch.int32, device=device)
        ids, positions, slots, rows, contexts = unpack(self._packed, [size] * 5)
        counted = torch.arange(size + 1, dtype=torch.int32, device=device)
        self.batch = Batch(
            token_ids=ids,
            positions=positions,
            slots=slots,
            query_lens=[1] * size,
            context_lens=[],
            context_slots=[],
            logit_rows=counted[:size],
            device=DeviceBatch(rows, rows, counted, contexts, table.pages, table.page_size, last, static=True),
        )

    def fill(self, work: list[Work], rows: list[int], tokens: list[int]) -> None:
        padding = self._size - len(work)
        context_slots = [seq.slots.array[:hi] for seq, _, hi in work]
        arrays = [
            _padded(tokens, padding, 0),
            _padded([lo for _, lo, _ in work], padding, 0),
            _padded([slots[-1] for slots in context_slots], padding, 0),
            _padded(rows, padding, self._padding),
            _padded([hi for *_, hi in work], padding, 1),
        ]
        self._packed.copy_(upload(pack(arrays), self._packed.device))
        self.batch.context_lens = [hi for *_, hi in work] + [1] * padding
        self.batch.context_slots = context_slots + [self._pad_slots] * padding


def _padded(values: list[int], count: int, value: int) -> np.ndarray:
    return np.array(values + [value] * count, np.int32)


def _is_decode(work: list[Work]) -> bool:
    """One new token for each sequence, and everybody wants its logits."""
    return all(hi - lo == 1 and len(seq.ops[0].rows(seq, lo, hi)) == 1 for seq, lo, hi in work)


def _last_tokens(work: list[Work], rows: list[int]) -> list[int]:
    """The last token of each sequence's work, or -1 - row where only the device knows it."""
    return [
        int(seq.tokens.array[hi - 1]) if hi <= len(seq) else -1 - row
        for (seq, _, hi), row in zip(work, rows, strict=True)
    ]


def _with_pending(work: list[Work], tokens: list[int], starts: np.ndarray) -> np.ndarray:
    """The token ids of a step, some of which only the device knows."""
    ids = np.empty(starts[-1], np.int32)
    for (seq, lo, hi), token, start, stop in zip(work, tokens, starts, starts[1:], strict=False):
        known = seq.tokens.array[lo:hi]
        ids[start : start + len(known)] = known
        ids[stop - 1] = token
    return ids
