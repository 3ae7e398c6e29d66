"""Made-up steps over a paged pool, and what attention over them has to give, one sequence after the other."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sgl.runtime.attention import AttentionShape
from sgl.runtime.cache.kv_pool import KVPool
from sgl.runtime.step.step_batch import DeviceBatch, StepBatch


class World:
    """A pool of random keys and values, and a table with a row for each sequence; row `rows` - 1 pads."""

    def __init__(
        self,
        shape: AttentionShape,
        pages: int,
        page_size: int,
        rows: int,
        most: int,
        dtype: torch.dtype,
        device: str,
        seed: int = 0,
    ) -> None:
        self.shape, self.page_size, self.device, self.dtype = shape, page_size, device, dtype
        self.random = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.pool = KVPool(shape.layers, pages * page_size, shape.kv_heads, shape.head_dim, dtype, device)
        for place in (self.pool.k, self.pool.v):
            place[:, page_size:] = torch.randn(place[:, page_size:].shape, device=device).to(dtype)
        self.free = list(self.random.permutation(np.arange(1, pages)))
        self.table = torch.full((rows, most), 7, dtype=torch.int32, device=device)
        self.rows = rows

    def sequence(self, tokens: int, prefix: np.ndarray | None = None) -> np.ndarray:
        """The slots of a new sequence of `tokens` tokens that begins with the pages of `prefix`."""
        slots = np.zeros(0, np.int32) if prefix is None else prefix
        while len(slots) < tokens:
            page = self.free.pop() * self.page_size
            slots = np.concatenate([slots, np.arange(page, page + self.page_size, dtype=np.int32)])
        return slots[:tokens]

    def batch(self, slots: list[np.ndarray], new: list[int], pad_to: int = 0) -> StepBatch:
        """The step in which the last new[i] tokens of each come. The table knows of those before only."""
        rows = [int(row) for row in self.random.permutation(self.rows - 1)[: len(slots)]]
        for row, own, count in zip(rows, slots, new, strict=True):
            old = own[: len(own) - count]
            pages = torch.from_numpy(old[:: self.page_size] // self.page_size)
            self.table[row, : len(pages)] = pages.to(self.device)
            self.table[row, -(-len(old) // self.page_size) :] = 7
        padding = max(0, pad_to - len(slots))
        slots, new = [*slots, *[np.zeros(1, np.int32)] * padding], [*new, *[1] * padding]
        rows += [self.rows - 1] * padding
        self.table[self.rows - 1, 0] = 0
        return self._batch(slots, new, rows, static=bool(pad_to))

    def _batch(self, slots: list[np.ndarray], new: list[int], rows: list[int], static: bool) -> StepBatch:
        def ints(values: object) -> Tensor:
            return torch.as_tensor(np.asarray(values, np.int32)).to(self.device)

        contexts = [len(own) for own in slots]
        tokens = sum(new)
        around = DeviceBatch(
            rows=ints(rows),
            token_rows=ints(np.repeat(rows, new)),
            starts=ints([0, *np.cumsum(new)]),
            contexts=ints(contexts),
            table=self.table,
            page_size=self.page_size,
            last=ints([0] * self.rows),
            static=static,
        )
        return StepBatch(
            token_ids=ints([0] * tokens),
            positions=ints(np.concatenate([np.arange(c - n, c) for c, n in zip(contexts, new, strict=True)])),
            slots=ints(np.concatenate([own[len(own) - n :] for own, n in zip(slots, new, strict=True)])),
            query_lens=list(new),
            context_lens=contexts,
            context_slots=slots,
            logit_rows=ints([0]),
            device=around,
        )

    def embed(self, batch: StepBatch) -> None:
        """What the embedding's kernel does in a step: the table learns of the pages of new tokens."""
        where = batch.device.token_rows.long(), batch.positions.long() // self.page_size
        real = batch.slots > 0
        batch.device.table[where] = torch.where(real, batch.slots // self.page_size, batch.device.table[where])

    def queries(self, batch: StepBatch, dtype: torch.dtype) -> Tensor:
        shape = (sum(batch.query_lens), self.shape.query_heads, self.shape.head_dim)
        return torch.randn(shape, device=self.device).to(dtype)

    def expected(self, batch: StepBatch, q: Tensor, layer: int, sinks: Tensor | None = None) -> Tensor:
        """float32: a softmax written out, over the slots that the host knows."""
        out, start = [], 0
        for slots, new in zip(batch.context_slots, batch.query_lens, strict=True):
            index = torch.from_numpy(slots.astype(np.int64)).to(self.device)
            k, v = (
                place[layer].float()[index].repeat_interleave(self.shape.group, 1) * scale
                for place, scale in zip((self.pool.k, self.pool.v), self.pool.scales[layer], strict=True)
            )
            scores = torch.einsum("qhd,khd->hqk", q[start : start + new].float(), k) * self.shape.scale
            if (cap := self.shape.softcap) is not None:
                scores = cap * torch.tanh(scores / cap)
            at = torch.arange(len(slots) - new, len(slots), device=self.device)[:, None]
            keys = torch.arange(len(slots), device=self.device)
            window = self.shape.windows[layer] or len(slots) + 1
            scores.masked_fill_((keys > at) | (keys <= at - window), float("-inf"))
            if sinks is not None:
                scores = torch.cat([scores, sinks[:, None, None].expand(-1, new, 1)], -1)
            out.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : len(k)], v))
            start += new
        return torch.cat(out)
