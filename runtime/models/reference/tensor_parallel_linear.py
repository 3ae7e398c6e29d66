"""Products whose inputs or outputs are split over ranks, and sums deferred to the addition and norm that follow."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch.nn.functional as F
from torch import Tensor

from ...layers.linear_layers import Linear, WrappedLinear

if TYPE_CHECKING:
    from ...kernels.comm.all_reduce import AllReduceBuffers


class TensorParallelGroup(Protocol):
    """The collective operations of the ranks.

    All of them call the same methods in the same order, with the same shapes.
    """

    def summed(self, x: Tensor) -> Tensor:
        """The sum of the ranks' x [T, size], the same bits on all of them; x may be written over."""

    def joined(self, x: Tensor, part: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x += the sum of the ranks' parts, in place; then as `kernels.norm.rms_norm` of x. On a GPU."""

    def rooms(self, out: Tensor) -> AllReduceBuffers | None:
        """Buffers to which products of a batch of one send their parts of the sum `out` [1, size] themselves, on a GPU.

        None: they return them.
        """

    def gathered(self, x: Tensor, columns: int) -> Tensor:
        """[R, columns] on rank 0, of the ranks' columns concatenated; elsewhere x."""


class TensorParallelLinear(WrappedLinear):
    """inner: this rank's part of it."""

    __slots__ = ("ranks",)

    def __init__(self, inner: Linear, ranks: TensorParallelGroup) -> None:
        super().__init__(inner)
        self.ranks = ranks

    def whole(self, part: Tensor) -> Tensor:
        """The ranks' combined output. part: of this rank's product."""
        raise NotImplementedError

    def __call__(self, x: Tensor) -> Tensor:
        return self.whole(self.inner(x))


class AllReduceLinear(TensorParallelLinear):
    """A product whose inputs are split over ranks: the sum of the ranks' products."""

    __slots__ = ()

    def whole(self, part: Tensor) -> Tensor:
        return self.ranks.summed(part)


class PrecomputedLinear(WrappedLinear):
    """A product that the mixer in front of it has already computed, for this rank's own rows.

    The other ranks add 0 to these.
    """

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def of_rows(self, x: Tensor, rows: slice, count: int) -> Tensor:
        """[count, out], of which `rows` are those of x."""
        return F.pad(self.inner(x), (0, 0, rows.start, count - rows.stop))


class GatherLinear(TensorParallelLinear):
    """A product whose outputs are split over ranks: all of them on rank 0. columns: of all ranks."""

    __slots__ = ("columns",)

    def __init__(self, inner: Linear, ranks: TensorParallelGroup, columns: int) -> None:
        super().__init__(inner, ranks)
        self.columns = columns

    def whole(self, part: Tensor) -> Tensor:
        return self.ranks.gathered(part, self.columns)


@dataclass(frozen=True, slots=True)
class PartialSum:
    """[T, size], of which each rank has a summand."""

    part: Tensor
    ranks: TensorParallelGroup

    def sum(self) -> Tensor:
        return self.ranks.summed(self.part)

    def joined(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `TensorParallelGroup`."""
        return self.ranks.joined(x, self.part, weight, eps)


def pending_sum(product: Linear, x: Tensor) -> Tensor | PartialSum:
    """product(x), whose all-reduce may be deferred to what follows."""
    return PartialSum(product.inner(x), product.ranks) if isinstance(product, AllReduceLinear) else product(x)


def local_product(product: Linear) -> Linear:
    """This rank's part of a product."""
    while isinstance(product, TensorParallelLinear | PrecomputedLinear):
        product = product.inner
    return product


def precomputed(product: Linear) -> PrecomputedLinear:
    """The part of a parallel product that a mixer has computed already."""
    assert isinstance(product, AllReduceLinear) and isinstance(product.inner, PrecomputedLinear)
    return product.inner


def around(product: Linear, make: Callable[[Linear], Linear]) -> Linear:
    """The result of `make` for a product, or for this rank's part of it, which is combined with the others' as
    before.
    """
    if not isinstance(product, TensorParallelLinear):
        return make(product)
    found = copy.copy(product)
    found.inner = make(product.inner)
    return found
