"""Mixed steps as CUDA graphs: all but attention, cut where attention comes, by the number of new tokens.

A piece leaves the queries of a layer in `q`, with keys and values in the pool. Then attention runs on the real batch,
eagerly, from `q` into `mixed`, where the next piece finds it. Padding tokens have separate rows in every buffer; they
write nothing to the pool, and nothing in a piece mixes rows.

Steps with adapters have separate pieces, which find at fixed addresses too which adapter each row has.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from ..attention.backend_protocols import AttentionBackend
from ..kernels.launch.compile_ahead import is_compiling
from ..models.gpu import gpu_step
from ..models.gpu.gemv_layers import GpuLayer
from ..models.gpu.gpu_latent_attention import FusedLatentLayer
from ..models.gpu.gpu_layers import FusedLayer, FusedRecurrentLayer, ReferenceLayer, ReferenceMixerLayer
from ..step.adapter_blocks import FEW as BLOCK
from ..step.adapter_blocks import StaticAdapterRows
from ..step.device_upload import upload_into
from ..step.step_batch import DeviceBatch, StepBatch
from ..step.window_slots import WindowSlots
from .cuda_graphs import FEW, eager_runs_before_capture
from .gpu_page_table import GpuPageTable
from .step_arrays import PER_TOKEN, StepArrays

if TYPE_CHECKING:
    from ..adapters.adapted_model import AdaptedModel
    from ..models.decoder import Decoder
    from ..step.adapter_rows import AdapterRows

log = logging.getLogger("sgl.runtime")

SIZES = (2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512)  # tokens; more are bound by the device
ARRAYS, WIDTH = (
    8,
    SIZES[-1] + 4,
)  # of a step, and one more with windows apart; each has at most one entry more than there are tokens

Piece = Callable[[], None]
Key = tuple[int, bool]  # tokens of the pieces, and whether adapters add to their products


class PoolOnlyAttention(AttentionBackend, Protocol):
    """A backend that reads keys and values in the pool only."""

    def attend_into(self, out: Tensor, q: Tensor, layer: int, batch: StepBatch, sinks: Tensor | None = None) -> None:
        """`attend` with the result in `out` [T, query_heads, value_dim]; both contiguous."""


def refusal(model: Decoder, attention: AttentionBackend) -> str | None:
    """Why steps of this model are not cut, for people; None: they can be."""
    if not model.fused:
        return "torch's operations compute the layers"
    if (
        why := next((why for layer in model.execution_plan.layers if (why := _uncut(layer)) is not None), None)
    ) is not None:
        return why
    return None if hasattr(attention, "attend_into") else f"attention={attention.name!r} reads more than the pool"


def _uncut(layer: GpuLayer) -> str | None:
    """Why a step is not cut at this layer."""
    if isinstance(layer, ReferenceLayer | ReferenceMixerLayer):
        return f"torch's operations compute layer {layer.block.index}: {layer.refusal}"
    if isinstance(layer, FusedRecurrentLayer):
        return f"layer {layer.block.index} keeps a state"
    if isinstance(layer, FusedLatentLayer):
        return f"layer {layer.block.index} attends to latents"
    return f"layer {layer.block.index} has gated heads" if layer.block.attention.part.gates else None


class PiecewiseCudaGraphs:
    """Runs steps of up to `most` tokens, see `refusal`; a size is captured when it turns up again.

    While many sequences run, a step captures one piece, so that none of them waits for all.

    graph_for: returns the replay of a piece. A piece whose capture raises runs as it is.
    """

    most, sizes = SIZES[-1], SIZES

    def __init__(
        self,
        model: Decoder,
        attention: PoolOnlyAttention,
        table: GpuPageTable,
        last: Tensor,
        graph_for: Callable[[Piece], Piece],
    ) -> None:
        self._model, self._attention, self._table, self._last = model, attention, table, last
        self._replay_of = graph_for
        self._x = torch.zeros(self.most, model.config.hidden_size, dtype=model.dtype, device=last.device)
        self._layers = model.config.attention.attending
        most = self.most * max(layer.query_heads * layer.key_dim for layer in self._layers)
        self._q, self._mixed = (torch.zeros(most, dtype=model.dtype, device=last.device) for _ in range(2))
        self._sinks = [layer.sinks for layer in model.execution_plan.layers if isinstance(layer, FusedLayer)]
        self._ints = torch.zeros(
            ARRAYS if table.windows is None else ARRAYS + 1, WIDTH, dtype=torch.int32, device=last.device
        )
        self._arrays = self._ints.unbind(0)
        self._pieces: dict[Key, list[Piece]] = {}
        self._runs: dict[Key, int] = {}
        self._captures: dict[Key, Iterator[None]] = {}  # begun or done
        self._captured: set[Key] = set()
        self._adapted: dict[int, tuple[Tensor, StaticAdapterRows]] = {}  # by tokens
        self._cuts: bool | None = None  # not asked yet

    def supports_adapters(self) -> bool:
        """Whether steps with adapters that have nothing but pairs are cut too, of a model that has adapters."""
        if self._cuts is None:
            self._cuts = (
                self._adapted_model.products.capturable
                and refusal(self._adapted_model.plain(), self._attention) is None
            )
        return self._cuts

    def run(self, step: StepArrays, rows: AdapterRows | None = None) -> Tensor:
        """The logits of a step, as `Decoder.forward` returns them. rows: None: none has an adapter."""
        size = SIZES[bisect_left(SIZES, step.tokens)]
        self._upload(step, size)
        views = [array[:count] for array, count in zip(self._arrays, step.sizes, strict=True)]
        batch = step.batch(views, self._table, self._last)
        gpu_step.require_positions(self._model, batch)
        if rows is not None:
            self._begin_adapted(size, rows)
        self._attention.plan(batch)
        pieces = self._pieces_of((size, rows is not None), len(step.query_lens))
        return self._run(pieces, batch, step.tokens, rows)

    def _run(self, pieces: list[Piece], batch: StepBatch, tokens: int, rows: AdapterRows | None) -> Tensor:
        rooms, attend = self._rooms(tokens), self._attention.attend_into
        last, model = len(pieces) - 1, self._model_of(rows is not None)
        for layer in model.execution_plan.compiled if is_compiling() else range(len(pieces)):
            if layer < last:
                (q, mixed), sinks = rooms[layer], self._sinks[layer]
                pieces[layer]()
                attend(mixed, q, layer, batch, *sinks)
        pieces[-1]()
        if not len(batch.logit_rows):
            return self._model.no_logits()
        q, mixed = rooms[-1]
        attend(mixed, q, last, batch, *self._sinks[-1])
        if rows is not None:
            self._adapted_model.products.begin(
                rows
            )  # what is left is computed for the real rows, or those that are wanted
        return gpu_step.finish(model, self._x[:tokens], mixed.view(tokens, -1), batch)

    @property
    def _adapted_model(self) -> AdaptedModel:
        return cast("AdaptedModel", self._model.adapted)

    def _model_of(self, adapted: bool) -> Decoder:
        return self._adapted_model.plain() if adapted else self._model

    def _begin_adapted(self, size: int, rows: AdapterRows) -> None:
        """Pieces find which adapters the rows of the step have."""
        if size not in self._adapted:
            blocks = min(size, size // BLOCK + self._adapted_model.products.places)
            sizes = StaticAdapterRows.sizes(size, blocks)
            packed = torch.zeros(sum(sizes), dtype=torch.int32, device=self._last.device)
            self._adapted[size] = packed, StaticAdapterRows(size, blocks, packed.split(sizes), grouped=False)
        packed, static = self._adapted[size]
        upload_into(packed, np.concatenate(static.arrays(rows.tokens)))
        self._adapted_model.products.begin(static.rows)

    def _rooms(self, tokens: int) -> list[tuple[Tensor, Tensor]]:
        """Of each layer, where the queries of so many tokens are, and what they attend."""
        found: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        for layer in self._layers:
            shape = tokens, layer.query_heads, layer.key_dim
            if shape not in found:
                count = tokens * layer.query_heads * layer.key_dim
                found[shape] = self._q[:count].view(shape), self._mixed[:count].view(shape)
        return [found[tokens, layer.query_heads, layer.key_dim] for layer in self._layers]

    def _upload(self, step: StepArrays, size: int) -> None:
        host = np.zeros(self._ints.shape, np.int32)  # padding: token 0 at position 0, in slot 0
        for row, array in zip(host, step.arrays, strict=True):
            row[: len(array)] = array
        host[PER_TOKEN - 1, step.tokens : size] = self._table.padding
        upload_into(self._ints, host)

    def _pieces_of(self, key: Key, running: int) -> list[Piece]:
        if is_compiling():
            return self._eager(*key)
        runs = self._runs[key] = self._runs.get(key, 0) + 1
        if key not in self._pieces:
            self._pieces[key] = self._eager(*key)
        if runs > eager_runs_before_capture(running) and not self.is_captured(*key):
            for _ in islice(self.capture(*key), None if running <= FEW else 1):
                pass
        return self._pieces[key]

    def is_captured(self, size: int, adapted: bool = False) -> bool:
        """Whether it was, or cannot be."""
        return (size, adapted) in self._captured

    def _eager(self, size: int, adapted: bool) -> list[Piece]:
        ids, positions, slots, rows, *_ = (array[:size] for array in self._arrays)
        table, none = self._table, rows[:0]
        around = DeviceBatch(none, rows, none, none, table.pages, table.page_size, self._last, static=True)
        windows = None if table.windows is None else WindowSlots(self._arrays[ARRAYS][:size], [], table.window_pages)
        batch = StepBatch(ids, positions, slots, [], [], [], none, device=around, windows=windows)
        return gpu_step.pieces(self._model_of(adapted), batch, self._attention, self._x[:size], self._rooms(size))

    def capture(self, size: int, adapted: bool = False) -> Iterator[None]:
        """Captures the pieces of a size that has run before, one between two items, from where it was left."""
        key = size, adapted
        return self._captures.setdefault(key, self._capture(key))

    def _capture(self, key: Key) -> Iterator[None]:
        first, *others = self._pieces[key]

        def with_room() -> None:
            self._make_room()
            first()

        replays = []
        try:
            for piece in (with_room, *others):
                replays.append(self._replay_of(piece))
                yield
            self._pieces[key] = replays
        except Exception as error:
            log.warning(
                "steps of %d tokens%s cannot be captured as CUDA graphs and run without: %s",
                key[0],
                " with adapters" if key[1] else "",
                error,
            )
        self._captured.add(key)

    def _make_room(self) -> None:
        """Have the graphs' memory grow at once to what the largest piece needs, not anew for each larger size."""
        layers = self._model.config.layers
        wide = (
            max(sum(layer.attention.rows) for layer in layers),
            max(block.ffn.widest for block in self._model.layers if block.ffn),
        )
        self._x.new_empty(self.most, wide[0] + 3 * self._model.config.hidden_size + 3 * wide[1])
