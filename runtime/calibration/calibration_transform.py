"""A transform that knows what each projection is multiplied with: texts flow through the layers as these are sealed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attention import attention_backend
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..cache.recurrent_state_slots import EMPTY_SLOT, FIRST_SLOT, SCRAP_SLOT
from ..errors import ConfigError
from ..layers.linear_layers import Linear, WrappedLinear
from ..models.decoder import Decoder
from ..models.reference.reference_block import ReferenceBlock
from ..models.reference.reference_embedding import known_ids
from ..models.reference.reference_mixer import ReferenceStep, step_states
from ..quantization.calibration_statistics import InputHessian, InputStatistics
from ..quantization.quantized_transform import LayerTransform
from ..step.step_batch import StepBatch

Quantise = Callable[[str, Linear, Any], Linear]
"""(name, loaded layer, what was seen of its inputs: None outside the layers) -> the one to compute with."""


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


class CalibrationTransform(LayerTransform):
    """See `Decoder.load`. Each layer sees the outputs of the quantised layers before it.

    texts: returns the token ids of the calibration texts, once the first part is sealed.
    held_out: texts that flow through the layers both as they were and as they became, for `compared`.
    seen: what is kept of the inputs of each projection.

    In memory are one layer, the states of all texts and what is kept of the inputs.
    """

    def __init__(
        self,
        quantise: Quantise,
        texts: Callable[[], Sequence[np.ndarray]],
        held_out: Sequence[np.ndarray] = (),
        seen: type[InputStatistics] = InputHessian,
    ) -> None:
        self._quantise, self._texts, self._kind = quantise, texts, seen
        self.calibration, self.before, self.after = (
            LayerwiseForward(()),
            LayerwiseForward(held_out),
            LayerwiseForward(held_out),
        )
        self._block: ReferenceBlock | None = None
        self._seen: dict[int, InputStatistics] | None = None

    def begin(self, model: object, index: int) -> None:
        assert isinstance(model, Decoder)
        part = model.parts[index]
        self._block, self._seen = (part, None) if isinstance(part, ReferenceBlock) else (None, {})
        if isinstance(part, ReferenceBlock) and any(
            getattr(holder, name).coded is not None for holder, name in part.products()
        ):
            raise ConfigError(
                f"layer {part.index} is in few bits already: there is nothing to calibrate; take the unquantised "
                "checkpoint"
            )

    def __call__(self, name: str, layer: Linear) -> Linear:
        if self._seen is None:
            assert self._block is not None
            self._seen = self._observed(self._block)
            self.before.run(self._block)
        return self._quantise(name, layer, self._seen.pop(id(layer), None))

    def end(self, model: object, index: int) -> None:
        assert isinstance(model, Decoder)
        if index == 0:
            self.calibration = LayerwiseForward(self._texts())
            for flow in (self.calibration, self.before, self.after):
                flow.enter(model)
        elif self._block is not None:
            self.calibration.run(self._block)
            self.after.run(self._block)
        else:
            self.calibration.leave()

    def _observed(self, block: ReferenceBlock) -> dict[int, InputStatistics]:
        """Of each projection, by its id. The block's rows and norms are in order already, its weights as loaded."""
        if not self.calibration.texts:
            return {}
        products = [(holder, name, getattr(holder, name)) for holder, name in block.products()]
        watched = [_ObservedLayer(layer, self._kind) for _, _, layer in products]
        try:
            for (holder, name, _), layer in zip(products, watched, strict=True):
                setattr(holder, name, layer)
            self.calibration.run(block, stay=True)
        finally:
            for holder, name, layer in products:
                setattr(holder, name, layer)
        return {id(layer.inner): layer.seen for layer in watched}


class _ObservedLayer(WrappedLinear):
    """A loaded layer that shows what it is multiplied with."""

    __slots__ = ("seen",)

    def __init__(self, inner: Linear, kind: type[InputStatistics]) -> None:
        super().__init__(inner)
        self.seen = kind(inner.weight.shape[1], inner.weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        self.seen.add(x)
        return super().__call__(x)
