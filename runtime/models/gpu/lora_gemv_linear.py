"""Products to which adapters add, as the layers for a batch of one see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ...layers.linear_layers import WrappedLinear

if TYPE_CHECKING:
    from ...kernels.gemv.gemv_lora import GemvLora
    from ...kernels.residual_norm import NormWeights


class LoraGemvLinear(WrappedLinear):
    """inner: computes the product without adapters."""

    __slots__ = ()

    @property
    def adds_in_kernel(self) -> bool:
        """Whether the gemv kernel adds the adapter's output itself, by `pair`."""
        return False

    def pair(self, x: Tensor, norm: NormWeights | None) -> GemvLora:
        """What the adapter of the row norm(x) [1, inputs] adds."""
        raise NotImplementedError
