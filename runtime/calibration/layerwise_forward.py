"""Hidden states of texts on their way through a model of which one layer is there at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..attention import attention_backend
from ..cache.state_slots import EMPTY_SLOT, FIRST_SLOT, SCRAP_SLOT
from ..cache.states import StateMemory
from ..models.block import Block
from ..models.decoder import Decoder
from ..models.embedding import known_ids
from ..models.mixer import Step, states_of
from ..step.batch import Batch


@dataclass
class _Course:
    """A text. start: its slot of the first token. states: [T, hidden] before the next layer; own: see `PerLayerGate`."""

    ids: np.ndarray
    start: int
    states: Tensor
    own: Sequence[Tensor | None]


class Flow:
    """texts: token ids of each, one or more. Attention is torch's: in sums of the model's dtype, whatever the machine."""

    def __init__(self, texts: Sequence[np.ndarray]) -> None:
        self.texts = list(texts)
        self._courses: list[_Course] = []

    def __len__(self) -> int:
        """Tokens."""
        return sum(len(ids) for ids in self.texts)

    @torch.inference_mode()
    def enter(self, model: Decoder) -> None:
        """Begin (again) behind the embedding, which must be there."""
        if not self.texts:
            return
        layout, self._model = model.config.attention, model
        shares = any(layer.source is not None for layer in layout.attending)  # then a text's keys must stay
        slots = len(self) if shares else max(map(len, self.texts))
        self._attention = attention_backend("torch_native", layout.pool(slots + 1, model.dtype, model.device), layout)
        self._courses, start = [], 1
        for ids in self.texts:
            course = _Course(ids, start, torch.empty(0), (None,) * len(model.layers))
            batch = self._batch(course)
            course.states = model.embedded(batch)
            if model.embedding.own is not None:
                course.own = model.embedding.own(known_ids(batch), course.states)
            self._courses.append(course)
            start += len(ids) if shares else 0

    @torch.inference_mode()
    def run(self, block: Block, *, stay: bool = False) -> None:
        """Through a layer. stay: only for what it sees of them; the states stay before it."""
        for course in self._courses:
            batch = self._batch(course)
            self._attention.plan(batch)
            angles = {rope: rotary.gather(batch.positions, len(course.ids)) for rope, rotary in self._model.rotaries.items()}
            states = course.states.clone() if stay else course.states
            kept = states_of(batch, self._memory(block.index))
            states = block.forward(states, Step(batch, self._attention, angles, kept), None, course.own[block.index])
            course.states = course.states if stay else states

    def _memory(self, layer: int) -> StateMemory | None:
        """Of a layer that keeps states: a text begins with an empty one, and leaves none."""
        model = self._model
        shapes = {layer: model.config.states[layer]} if layer in model.config.states else {}
        return StateMemory(shapes, FIRST_SLOT, model.dtype, model.device) if shapes else None

    def logits(self) -> Iterator[Tensor]:
        """Of each text behind the last layer, float32 [T, vocabulary]; the head must be there."""
        for course in self._courses:
            yield self._model.finished(course.states, self._batch(course)).float()

    def leave(self) -> None:
        """Forget the states."""
        self._courses = []
        vars(self).pop("_attention", None)
        vars(self).pop("_model", None)

    def _batch(self, course: _Course) -> Batch:
        count, device = len(course.ids), self._model.device
        ids, at = torch.from_numpy(course.ids.astype(np.int64)).to(device), torch.arange(count, device=device)
        slots = np.arange(course.start, course.start + count, dtype=np.int32)
        batch = Batch(ids, at, at + course.start, [count], [count], [slots], at)
        batch.state_read, batch.state_write = torch.full_like(at[:1], EMPTY_SLOT), torch.full_like(at[:1], SCRAP_SLOT)
        return batch
