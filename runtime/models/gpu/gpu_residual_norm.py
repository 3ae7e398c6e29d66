"""Additions and norms between two branches of a decoder on a GPU, in one kernel each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...kernels.experts.fused_moe import UnreducedExpertOutput
from ...kernels.quantized.quantized_gemm import NormedInput
from ...kernels.residual_norm import NormWeights, add_norm
from ...kernels.rms_norm import add_rms_norm, rms_norm
from ...layers.norm_layers import LayerNorm, RMSNorm
from ..reference.tensor_parallel_linear import PartialSum

if TYPE_CHECKING:
    from ..reference.reference_block import ReferenceBlock

# what is still to be added to x: one output, or both of two parallel branches; or x includes it, and the norm that
# follows has begun
Pending = (
    Tensor | UnreducedExpertOutput | PartialSum | tuple[Tensor | PartialSum, Tensor | PartialSum] | NormedInput | None
)


@dataclass(frozen=True, slots=True)
class ResidualNorm:
    """x += a branch's output, normed by `after`, times `branch`, all times `scalar`; returns `before` of x.

    of_sum: `after` is applied to the sum.  See `kernels.add_norm`.
    """

    after: NormWeights | None
    before: NormWeights | None
    branch: float = 1.0
    scalar: Tensor | None = None
    of_sum: bool = False

    def __call__(self, x: Tensor, delta: Pending, overlap: bool = False) -> Tensor:
        """x [T, hidden] is written into, unless delta is None; without `before` the result is x itself."""
        assert not isinstance(delta, NormedInput)  # quantized products take it
        delta = delta.total() if isinstance(delta, UnreducedExpertOutput) else delta
        first, other = (delta, None) if delta is None or isinstance(delta, Tensor | PartialSum) else delta
        return add_norm(
            x,
            _whole(first),
            other=_whole(other),
            after=self.after,
            before=self.before,
            branch=self.branch,
            scalar=self.scalar,
            of_sum=self.of_sum,
            overlap=overlap,
        )


@dataclass(frozen=True, slots=True)
class ResidualRmsNorm:
    """The usual case: x += delta, then an RMS norm."""

    before: NormWeights

    def __call__(self, x: Tensor, delta: Pending, overlap: bool = False) -> Tensor:
        norm = self.before
        if delta is None:
            return rms_norm(x, norm.weight, norm.eps, overlap)
        if isinstance(delta, UnreducedExpertOutput):
            return delta.join(x, norm.weight, norm.eps)
        if isinstance(delta, PartialSum):
            return delta.joined(x, norm.weight, norm.eps)
        return add_rms_norm(x, delta, norm.weight, norm.eps, overlap)  # type: ignore[arg-type]


AnyJoin = ResidualNorm | ResidualRmsNorm


def summed_locally(delta: Pending) -> Pending:
    """With the pending all-reduce done, which is done once and may then be added twice."""
    if delta is None or isinstance(delta, Tensor | UnreducedExpertOutput | NormedInput):
        return delta
    if isinstance(delta, PartialSum):
        return delta.sum()
    first, other = (each.sum() if isinstance(each, PartialSum) else each for each in delta)
    return first, other


def _whole(delta: Tensor | PartialSum | None) -> Tensor | None:
    return delta.sum() if isinstance(delta, PartialSum) else delta


def between(previous: ReferenceBlock | None, before: NormWeights | None, dtype: torch.dtype) -> AnyJoin:
    """From the end of a layer, or of the embeddings, to the next layer."""
    if previous is None:
        return _join(None, before, None)
    layer = previous.layer
    after = weights_of(previous.after_ffn, dtype)
    return _join(after, before, previous, previous.scalar, layer.norms.parallel)


def within(block: ReferenceBlock, before: NormWeights | None, dtype: torch.dtype) -> AnyJoin:
    """From a layer's mixer to its feedforward network."""
    return _join(weights_of(block.after_mixer, dtype), before, block)


def _join(
    after: NormWeights | None,
    before: NormWeights | None,
    block: ReferenceBlock | None,
    scalar: Tensor | None = None,
    two: bool = False,
) -> AnyJoin:
    of_sum = block is not None and block.layer.norms.of_sum
    branch = 1.0 if block is None or of_sum else block.layer.branch
    if (
        before is not None
        and not (after or before.layer or before.bias is not None or two)
        and branch == 1
        and scalar is None
    ):
        return ResidualRmsNorm(before)
    return ResidualNorm(after, before, branch, scalar, of_sum)


def weights_of(norm: RMSNorm | None, dtype: torch.dtype) -> NormWeights | None:
    """A norm's weights for the kernels, in the model's type if that is exact."""
    if norm is None:
        return None
    return NormWeights(exact_in(norm.weight, dtype), norm.bias, norm.eps, isinstance(norm, LayerNorm))


def exact_in(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 numbers in a smaller type if none is rounded: each program of a gemv kernel reads all of them."""
    narrow = weight.to(dtype)
    return narrow if torch.equal(narrow.float(), weight) else weight
