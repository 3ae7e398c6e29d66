"""A transform that knows what each projection is multiplied with: texts flow through the layers as these are sealed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import ConfigError
from ..layers.linear_layers import Linear, WrappedLinear
from ..models.decoder import Decoder
from ..models.reference.reference_block import ReferenceBlock
from ..quantization.calibration_statistics import InputHessian, InputStatistics
from ..quantization.quantized_transform import LayerTransform
from .layerwise_forward import LayerwiseForward

Quantise = Callable[[str, Linear, Any], Linear]
"""(name, loaded layer, what was seen of its inputs: None outside the layers) -> the one to compute with."""


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
