"""A part of a model in torch, whose weights are found by its attributes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from ...layers.headwise_matmul import HeadwiseMatmul
from ...layers.linear_layers import Linear
from ...layers.norm_layers import RMSNorm


class ReferenceModule:
    """Its public attributes, and lists of them, hold its projections, norms, tensors and modules.

    Their order is the order of projections in a sharded state.
    """

    def held(self) -> Iterator[tuple[str, object]]:
        for name, value in [*vars(self).items()]:
            if not name.startswith("_"):
                yield from ((name, each) for each in (value if isinstance(value, list) else (value,)))

    def modules(self) -> Iterator[ReferenceModule]:
        yield from (each for _, each in self.held() if isinstance(each, ReferenceModule))

    def products(self) -> Iterator[tuple[object, str]]:
        """The modules that hold each projection, and its name there."""
        for name, each in self.held():
            if isinstance(each, Linear):
                yield self, name
            elif isinstance(each, ReferenceModule):
                yield from each.products()

    def tensors(self) -> Iterator[Tensor]:
        """All tensors of its weights; some appear more than once."""
        for _, each in self.held():
            if isinstance(each, Tensor):
                yield each
            elif isinstance(each, Linear | ReferenceModule):
                yield from each.tensors()
            elif isinstance(each, RMSNorm | HeadwiseMatmul):
                yield from (tensor for tensor in (each.weight, getattr(each, "bias", None)) if tensor is not None)

    def orders(self) -> Iterator[tuple[Linear, np.ndarray]]:
        """The projections whose rows are reordered once loaded, with the file's row for each of theirs, int64."""
        for module in self.modules():
            yield from module.orders()

    def finish_loading(self) -> None:
        """Bring what is no projection into order, once the rows of projections are."""
        for _, each in self.held():
            if isinstance(each, RMSNorm):
                each.seal()
            elif isinstance(each, ReferenceModule):
                each.finish_loading()
