"""Hidden states of a decoder, kept during the step for a head that drafts from them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ..attention.backend_protocols import AttentionBackend
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..step.step_batch import StepBatch
from .cpu.cpu_step import LayerSpan
from .decoder import Decoder


class HiddenStateCapture:
    """Keeps the input states of some of a decoder's layers, concatenated, or the last ones, for all tokens of each
    step.

    layers: in rising order; empty: the states after the last norm.
    newest: of the newest step, [T, hidden * layers, or hidden].
    """

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers = layers
        self.newest: Tensor | None = None

    def forward(
        self, model: Decoder, batch: StepBatch, attention: AttentionBackend, memory: RecurrentStateMemory | None
    ) -> Tensor:
        """As `Decoder.forward`; its spans end where something is kept."""
        batch.keeps = not self.layers
        if model.fused:
            return self._fused(model, batch, attention, memory)
        compiled, count = model.step, len(model.layers)
        spans, seen = compiled.plan(batch, attention) if compiled else ((LayerSpan(0, count, False),), [])
        step = None if all(span.compiled for span in spans) else model.by_reference(batch, attention, memory)
        found: list[Tensor] = []
        x: Tensor | None = None
        for span in self._cut(spans):
            if span.start in self.layers:
                x = model.embedded(batch) if x is None else x
                found.append(x.clone())
            if compiled and span.compiled:
                x = compiled.run(model, span, x, batch, attention, seen)
            else:
                assert step is not None
                x = model.span_by_reference(span, x, step)
        assert x is not None
        self.newest = torch.cat(found, 1) if self.layers else batch.hidden
        return x

    def _fused(
        self, model: Decoder, batch: StepBatch, attention: AttentionBackend, memory: RecurrentStateMemory | None
    ) -> Tensor:
        from .gpu import gpu_step

        found: dict[int, Tensor] = {}
        logits = gpu_step.forward(model, batch, attention, memory, (self.layers, found))
        self.newest = torch.cat([found[layer] for layer in self.layers], 1) if self.layers else batch.hidden
        return logits

    def _cut(self, spans: tuple[LayerSpan, ...]) -> Iterator[LayerSpan]:
        for span in spans:
            borders = [span.start, *(layer for layer in self.layers if span.start < layer < span.stop), span.stop]
            yield from (LayerSpan(start, stop, span.compiled) for start, stop in pairwise(borders))
