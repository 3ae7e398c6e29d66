"""Hidden states of texts on their way through a model of which one layer is there at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..attention import attention_backend
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..cache.recurrent_state_slots import EMPTY_SLOT, FIRST_SLOT, SCRAP_SLOT
from ..models.decoder import Decoder
from ..models.reference.reference_block import ReferenceBlock
from ..models.reference.reference_embedding import known_ids
from ..models.reference.reference_mixer import ReferenceStep, step_states
from ..step.step_batch import StepBatch


@dataclass
class _TextStates:
    """A text.

    start: its slot of the first token. states: [T, hidden] before the next layer; own: see `PerLayerEmbeddingGate`.
    """

    ids: np.ndarray
    start: int
    states: Tensor
    own: Sequence[Tensor | None]


class LayerwiseForward:
    """texts: token ids of each, one or more. Attention is torch's: in sums of the model's dtype, whatever the
    machine."""

    def __init__(self, texts: Sequence[np.ndarray]) -> None:
        self.texts = list(texts)
        self._text_states: list[_TextStates] = []

    def __len__(self) -> int:
        """Tokens."""
        return sum(len(ids) for ids in self.texts)

    @torch.inference_mode()
    def enter(self, model: Decoder) -> None:
        """Begin (again) after the embedding, which must be there."""
        if not self.texts:
            return
        layout, self._model = model.config.attention, model
        shares = any(layer.source is not None for layer in layout.attending)  # then a text's keys must stay
        slots = len(self) if shares else max(map(len, self.texts))
        self._attention = attention_backend("torch_native", layout.pool(slots + 1, model.dtype, model.device), layout)
        self._text_states, start = [], 1
        for ids in self.texts:
            text_states = _TextStates(ids, start, torch.empty(0), (None,) * len(model.layers))
            batch = self._batch(text_states)
            text_states.states = model.embedded(batch)
            if model.embedding.own is not None:
                text_states.own = model.embedding.own(known_ids(batch), text_states.states)
            self._text_states.append(text_states)
            start += len(ids) if shares else 0

    @torch.inference_mode()
    def run(self, block: ReferenceBlock, *, stay: bool = False) -> None:
        """Through a layer. stay: only for what it sees of them; the states stay before it."""
        for text_states in self._text_states:
            batch = self._batch(text_states)
            self._attention.plan(batch)
            angles = {
                rope: rotary.gather(batch.positions, len(text_states.ids))
                for rope, rotary in self._model.rotaries.items()
            }
            states = text_states.states.clone() if stay else text_states.states
            kept = step_states(batch, self._memory(block.index))
            states = block.forward(
                states, ReferenceStep(batch, self._attention, angles, kept), None, text_states.own[block.index]
            )
            text_states.states = text_states.states if stay else states

    def _memory(self, layer: int) -> RecurrentStateMemory | None:
        """Of a layer that keeps states: a text begins with an empty one, and leaves none."""
        model = self._model
        shapes = {layer: model.config.states[layer]} if layer in model.config.states else {}
        return RecurrentStateMemory(shapes, FIRST_SLOT, model.dtype, model.device) if shapes else None

    def logits(self) -> Iterator[Tensor]:
        """Of each text after the last layer, float32 [T, vocabulary]; the head must be there."""
        for text_states in self._text_states:
            yield self._model.finished(text_states.states, self._batch(text_states)).float()

    def leave(self) -> None:
        """Forget the states."""
        self._text_states = []
        vars(self).pop("_attention", None)
        vars(self).pop("_model", None)

    def _batch(self, text_states: _TextStates) -> StepBatch:
        count, device = len(text_states.ids), self._model.device
        ids, at = torch.from_numpy(text_states.ids.astype(np.int64)).to(device), torch.arange(count, device=device)
        slots = np.arange(text_states.start, text_states.start + count, dtype=np.int32)
        batch = StepBatch(ids, at, at + text_states.start, [count], [count], [slots], at)
        batch.state_read, batch.state_write = torch.full_like(at[:1], EMPTY_SLOT), torch.full_like(at[:1], SCRAP_SLOT)
        return batch
