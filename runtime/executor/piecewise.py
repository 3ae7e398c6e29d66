"""Mixed steps as CUDA graphs: all but attention, cut where attention comes, by the number of new tokens.

A piece leaves the queries of a layer in `q`, with keys and values in the pool. Then attention runs on the real
batch, eagerly, from `q` into `mixed`, where the next piece finds it. Padding tokens have rows of their own in
every buffer; they write nothing to the pool, and nothing in a piece mixes rows.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from ..attention.base import AttentionBackend
from ..models import fused
from ..step.batch import Batch, DeviceBatch
from ..step.staging import upload_into
from .graphs import EAGER_RUNS
from .page_table import PageTable
from .step_arrays import PER_TOKEN, StepArrays

if TYPE_CHECKING:
    from ..models.decoder import Decoder

log = logging.getLogger("sgl.runtime")

SIZES = (2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512)  # tokens; more are bound by the device
ARRAYS, WIDTH = 8, SIZES[-1] + 4  # of a step; each has at most one entry more than there are tokens

Piece = Callable[[], None]


class PooledAttention(AttentionBackend, Protocol):
    """A backend that reads keys and values in the pool only."""

    def attend_into(self, out: Tensor, q: Tensor, layer: int, batch: Batch, sinks: Tensor | None = None) -> None:
        """`attend` with the result in `out` [T, query_heads, value_dim]; both contiguous."""


class MixedSteps:
    """Runs steps of up to `most` tokens, of a model with an even `AttentionLayout`; a size is captured when it turns up again.

    replay_of: gives the replay of a piece. A piece whose capture raises runs as it is.
    """

    most = SIZES[-1]

    def __init__(
        self,
        model: Decoder,
        attention: PooledAttention,
        table: PageTable,
        last: Tensor,
        replay_of: Callable[[Piece], Piece],
    ) -> None:
        self._model, self._attention, self._table, self._last = model, attention, table, last
        self._replay_of = replay_of
        layer, dtype = model.config.attention.layers[0], model.dtype
        heads = self.most, layer.query_heads
        self._x = torch.zeros(self.most, model.config.hidden_size, dtype=dtype, device=last.device)
        self._q, self._mixed = (
            torch.zeros(*heads, dim, dtype=dtype, device=last.device) for dim in (layer.key_dim, layer.value_dim)
        )
        self._ints = torch.zeros(ARRAYS, WIDTH, dtype=torch.int32, device=last.device)
        self._arrays = self._ints.unbind(0)
        self._pieces: dict[int, list[Piece]] = {}
        self._runs: dict[int, int] = {}

    def run(self, step: StepArrays) -> Tensor:
        """The logits of a step, as `Decoder.forward` gives them."""
        size = SIZES[bisect_left(SIZES, step.tokens)]
        self._upload(step, size)
        views = [array[:count] for array, count in zip(self._arrays, step.sizes, strict=True)]
        batch = step.batch(views, self._table, self._last)
        fused.require_positions(self._model, batch)
        self._attention.plan(batch)
        return self._run(self._pieces_of(size), batch, step.tokens)

    def _run(self, pieces: list[Piece], batch: Batch, tokens: int) -> Tensor:
        q, mixed, attend = self._q[:tokens], self._mixed[:tokens], self._attention.attend_into
        for layer, piece in enumerate(pieces[:-1]):
            piece()
            attend(mixed, q, layer, batch)
        pieces[-1]()
        if not len(batch.logit_rows):
            return self._model.no_logits()
        attend(mixed, q, len(pieces) - 1, batch)
        return fused.finish(self._model, self._x[:tokens], mixed.view(tokens, -1), batch)

    def _upload(self, step: StepArrays, size: int) -> None:
        host = np.zeros((ARRAYS, WIDTH), np.int32)  # padding: token 0 at position 0, in slot 0
        for row, array in zip(host, step.arrays, strict=True):
            row[: len(array)] = array
        host[PER_TOKEN - 1, step.tokens : size] = self._table.padding
        upload_into(self._ints, host)

    def _pieces_of(self, size: int) -> list[Piece]:
        runs = self._runs[size] = self._runs.get(size, 0) + 1
        if runs == 1:
            self._pieces[size] = self._eager(size)
        if runs == EAGER_RUNS + 1:
            self._capture(size)
        return self._pieces[size]

    def _eager(self, size: int) -> list[Piece]:
        ids, positions, slots, rows, *_ = (array[:size] for array in self._arrays)
        table, none = self._table, rows[:0]
        around = DeviceBatch(none, rows, none, none, table.pages, table.page_size, self._last, static=True)
        batch = Batch(ids, positions, slots, [], [], [], none, device=around)
        x, q, mixed = self._x[:size], self._q[:size], self._mixed[:size].view(size, -1)
        return fused.pieces(self._model, batch, self._attention, x, q, mixed)

    def _capture(self, size: int) -> None:
        first, *others = self._pieces[size]

        def with_room() -> None:
            self._make_room()
            first()

        try:
            self._pieces[size] = [self._replay_of(piece) for piece in (with_room, *others)]
        except Exception as error:
            log.warning("steps of %d tokens cannot be captured as CUDA graphs and run without: %s", size, error)

    def _make_room(self) -> None:
        """Have the graphs' memory grow at once to what the largest piece needs, not anew for each larger size."""
        config, layer = self._model.config, self._model.config.attention.layers[0]
        heads = (layer.query_heads + layer.kv_heads) * layer.key_dim + layer.kv_heads * layer.value_dim
        self._x.new_empty(self.most, heads + 3 * config.hidden_size + 3 * config.layers[0].ffn.inner)
