"""Layers of a step on a CPU: neighbouring layers run in one call of the compiled kernels (csrc/step/decoder_step.inc).

They round where the layers in torch round, which are their oracle: set `Decoder.step` to None to run those.
Embedding and head are part of the call if they are next to such layers and plain.
"""

from __future__ import annotations

import weakref
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...attention.backend_protocols import AttentionBackend
from ...cache.recurrent_state_memory import RecurrentStateMemory
from ...layers import cpu_kernels
from ...layers.float8_reference import FP8
from ...layers.linear_layers import BlockedLinear
from ...layers.recurrent import RaggedSequences
from ...step.step_batch import StepBatch
from ..decoder_parts import DecoderParts
from ..reference.reference_attention import ReferenceAttention
from ..reference.reference_block import ReferenceBlock
from .cpu_step_structs import ModelStruct
from .cpu_support import cpu_refusal

FIELDS = 18  # of the struct Step
SEEN = 10  # of them, where what rows see is; then the tables


class LayerSpan(NamedTuple):
    """Neighbouring layers of a step, `start` to `stop`, that run in the compiled kernels, or in torch."""

    start: int
    stop: int
    compiled: bool


class CpuStepPlan(NamedTuple):
    """A step's spans.

    seen: pointers to what rows see and where they store, four for each group of layers that see the same.
    """

    spans: tuple[LayerSpan, ...]
    seen: list[int]


def are_blocked(block: ReferenceBlock) -> bool:
    """Whether the kernels can multiply with a sealed layer's weights."""
    return all(isinstance(getattr(*place), BlockedLinear) for place in block.products())


class CpuStep:
    """Runs layers of a sealed decoder, one step at a time. It keeps the buffers that they need, and not the model.

    claimed: for each layer, whether it runs here if its attention allows it.
    """

    def __init__(self, model: DecoderParts, claimed: list[bool]) -> None:
        self.claimed = claimed
        self._dtype, self._row = model.dtype, model.config.hidden_size
        layout = model.config.attention
        kinds = {i: (group, layout.layer(i).window, layout.layer(i).chunk) for i, (group, _) in layout.places.items()}
        firsts = {kind: i for i, kind in reversed(kinds.items())}  # a layer of each kind that sees the same
        self._attending = set(kinds)
        self._firsts = sorted(firsts.values())
        self._keeps = [
            layer.mixer is not None and not isinstance(layer.mixer, ReferenceAttention) for layer in model.layers
        ]
        self._sees = [self._firsts.index(firsts[kinds[i]]) if i in kinds else 0 for i in range(len(model.layers))]
        self._words = ModelStruct(
            model, [block for block, ours in zip(model.layers, claimed, strict=True) if ours], self._sees
        )
        self._embeds = claimed[0] and model.embedding.plain
        self._ends = claimed[-1] and model.head.project is None and isinstance(model.head.product, BlockedLinear)
        self._space = torch.empty(0, dtype=model.dtype)
        self._bound: weakref.ref[AttentionBackend] | None = None
        self._cuts: dict[tuple[bool, tuple[bool, ...]], tuple[LayerSpan, ...]] = {}

    @classmethod
    def of(cls, model: DecoderParts) -> CpuStep | None:
        """None if the kernels support no layer."""
        there = cpu_kernels.can_compute(model.dtype, model.device)
        claimed = [
            there and cpu_refusal(block.layer, block.gate is not None) is None and are_blocked(block)
            for block in model.layers
        ]
        if not any(claimed):
            return None
        return cls(model, claimed)

    def plan(self, batch: StepBatch, attention: AttentionBackend) -> CpuStepPlan:
        """How a planned batch is divided: supported layers whose attention the kernels compute run compiled."""
        if attention.pool.dtype not in (self._dtype, FP8):
            return CpuStepPlan((LayerSpan(0, len(self.claimed), False),), [])
        seen = [attention.seen(layer, batch) for layer in self._firsts]
        attended = tuple(each is not None for each in seen)
        key = len(batch.token_ids) <= cpu_kernels.STEP_ROWS, attended
        if key not in self._cuts:
            self._cuts[key] = self._cut(*key)
        return CpuStepPlan(self._cuts[key], [pointer for each in seen for pointer in each or (0, 0, 0, 0)])

    def _cut(self, few: bool, attended: tuple[bool, ...]) -> tuple[LayerSpan, ...]:
        """few: the rows fit one pass through the layers; states are otherwise kept through a whole sequence."""
        ours = [
            claim and (few if keeps else not attended or attended[sees])
            for claim, keeps, sees in zip(self.claimed, self._keeps, self._sees, strict=True)
        ]
        runs = [
            (compiled, [layer for layer, _ in group])
            for compiled, group in groupby(enumerate(ours), lambda each: each[1])
        ]
        return tuple(LayerSpan(layers[0], layers[-1] + 1, compiled) for compiled, layers in runs)

    def run(
        self,
        model: DecoderParts,
        span: LayerSpan,
        x: Tensor | None,
        batch: StepBatch,
        attention: AttentionBackend,
        seen: list[int],
        memory: RecurrentStateMemory | None = None,
    ) -> Tensor:
        """Hidden states after the span's layers, from those before it; after the last layer the logits.

        x: [T, hidden], written over; None before the first layer.  The batch's `logit_rows` are in rising order.
        """
        self._bind(attention)
        ragged = (
            None if memory is None else RaggedSequences.of(batch.query_lens, batch.token_ids.device)
        )  # kept until the call is over
        states = self._bind_states(batch, memory, ragged)
        rows, last = len(batch.token_ids), span.stop == len(model.layers)
        results = len(batch.logit_rows) if last and not batch.whole else rows
        logits = (
            torch.empty(results, model.config.vocab_size, dtype=torch.float32)
            if last and self._ends and not batch.whole
            else None
        )
        space, tokens = self._room(rows), 0
        if x is None and self._embeds:
            x, tokens = space, batch.token_ids.data_ptr()
        x = (model.embedded(batch) if x is None else x).contiguous()
        longest = max(batch.context_lens)
        tables = [rotary.reach(longest).data_ptr() for rotary in model.rotaries.values()]
        step = np.array(
            [
                span.start,
                span.stop,
                rows,
                results,
                tokens,
                batch.positions.data_ptr(),
                0 if results == rows else batch.logit_rows.data_ptr(),
                x.data_ptr(),
                space.data_ptr() + rows * self._row * space.itemsize,
                0 if logits is None else logits.data_ptr(),
                0,
                0,
                *adapters_of(batch),
                *states,
                *seen,
                *tables,
            ],
            np.int64,
        )
        address = step.ctypes.data
        step[SEEN], step[SEEN + 1] = address + 8 * FIELDS, address + 8 * (FIELDS + len(seen))
        cpu_kernels.kernels.step(self._words.address, address)
        if logits is not None:
            return model.head.logits_of(logits, model.dtype)
        x = x.view(-1)[: rows * self._row].view(rows, self._row)
        return model.finished(x[:results], batch) if last else x

    def _bind_states(
        self, batch: StepBatch, memory: RecurrentStateMemory | None, ragged: RaggedSequences | None
    ) -> tuple[int, int, int, int]:
        """Set the memory of the layers' states.

        Returns the number of sequences, and pointers to where their rows begin and to their slots.
        """
        if memory is None or ragged is None or batch.state_read is None or batch.state_write is None:
            return 0, 0, 0, 0
        for words in self._words.states.values():
            words.bind(memory)
        return (
            len(batch.query_lens),
            ragged.starts.data_ptr(),
            batch.state_read.data_ptr(),
            batch.state_write.data_ptr(),
        )

    def _room(self, rows: int) -> Tensor:
        wanted = rows * self._row + min(rows, cpu_kernels.STEP_ROWS) * self._words.space
        if len(self._space) < wanted:
            self._space = self._space.new_empty(wanted)
        return self._space

    def _bind(self, attention: AttentionBackend) -> None:
        """Set the memory and layout of the layers' keys and values; a backend represents memory that stays."""
        if self._bound is not None and self._bound() is attention:
            return
        for layer, words in enumerate(self._words.layers):
            if self.claimed[layer] and not self._keeps[layer] and layer in self._attending:
                keys, values = attention.stored(layer)
                words["keys"], words["values"], words["eight"] = keys.data_ptr(), values.data_ptr(), keys.dtype == FP8
                words["k_scale"], words["v_scale"] = attention.scales(layer)
        self._bound = weakref.ref(attention)


def adapters_of(batch: StepBatch) -> tuple[int, int]:
    """The slots of the rows' adapters and the contents of these slots; zeros: no row has one."""
    return (0, 0) if batch.adapters is None or batch.adapters.compiled is None else batch.adapters.compiled
