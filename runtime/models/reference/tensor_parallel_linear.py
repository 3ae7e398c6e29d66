"""Products whose inputs or outputs lie on several ranks, and sums that wait for the addition and norm behind them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch.nn.functional as F
from torch import Tensor

from ...layers.linear_layers import Linear

if TYPE_CHECKING:
    from ...kernels.comm.all_reduce import AllReduceBuffers


class TensorParallelGroup(Protocol):
    """What ranks compute together. All of them call the same methods in the same order, with the same shapes."""

    def summed(self, x: Tensor) -> Tensor:
        """The sum of the ranks' x [T, size], the same bits on all of them; x may be written over."""

    def joined(self, x: Tensor, part: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x += the sum of the ranks' parts, in place; then as `kernels.norm.rms_norm` of x. On a GPU."""

    def rooms(self, out: Tensor) -> AllReduceBuffers | None:
        """Where products of one row send their parts of the sum `out` [1, size]
        themselves, on a GPU; None: they give them.
        """

    def gathered(self, x: Tensor, columns: int) -> Tensor:
        """[R, columns] on rank 0, of the ranks' columns beside each other; elsewhere x."""


class TensorParallelLinear(Linear):
    """product: this rank's part of it."""

    __slots__ = ("product", "ranks")

    def __init__(self, product: Linear, ranks: TensorParallelGroup) -> None:
        super().__init__(product.weight, product.bias)
        self.product, self.ranks = product, ranks

    def whole(self, part: Tensor) -> Tensor:
        """What all ranks' products give together. part: what this one's gives."""
        raise NotImplementedError

    def __call__(self, x: Tensor) -> Tensor:
        return self.whole(self.product(x))

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual.add_(self(x))

    def tensors(self) -> Iterator[Tensor]:
        return self.product.tensors()


class AllReduceLinear(TensorParallelLinear):
    """A product whose inputs lie on several ranks: their sum."""

    __slots__ = ()

    def whole(self, part: Tensor) -> Tensor:
        return self.ranks.summed(part)


class PrecomputedLinear(Linear):
    """A product that the mixer in front of it has taken already, of this rank's own
    rows: what the other ranks add to these is 0.
    """

    __slots__ = ("product",)

    def __init__(self, product: Linear) -> None:
        super().__init__(product.weight, product.bias)
        self.product = product

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def of_rows(self, x: Tensor, rows: slice, count: int) -> Tensor:
        """[count, out], of which `rows` are those of x."""
        return F.pad(self.product(x), (0, 0, rows.start, count - rows.stop))

    def tensors(self) -> Iterator[Tensor]:
        return self.product.tensors()


class GatherLinear(TensorParallelLinear):
    """A product whose outputs lie on several ranks: all of them on rank 0. columns: of all ranks."""

    __slots__ = ("columns",)

    def __init__(self, product: Linear, ranks: TensorParallelGroup, columns: int) -> None:
        super().__init__(product, ranks)
        self.columns = columns

    def whole(self, part: Tensor) -> Tensor:
        return self.ranks.gathered(part, self.columns)


@dataclass(frozen=True, slots=True)
class PartialSum:
    """[T, size], of which each rank has a part."""

    part: Tensor
    ranks: TensorParallelGroup

    def sum(self) -> Tensor:
        return self.ranks.summed(self.part)

    def joined(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `TensorParallelGroup`."""
        return self.ranks.joined(x, self.part, weight, eps)


def pending_sum(product: Linear, x: Tensor) -> Tensor | PartialSum:
    """product(x), whose sum over ranks may wait for what is done with it."""
    return PartialSum(product.product(x), product.ranks) if isinstance(product, AllReduceLinear) else product(x)


def local_product(product: Linear) -> Linear:
    """This rank's part of a product."""
    while isinstance(product, TensorParallelLinear | PrecomputedLinear):
        product = product.product
    return product


def precomputed(product: Linear) -> PrecomputedLinear:
    """What of a product over ranks a mixer has taken."""
    assert isinstance(product, AllReduceLinear) and isinstance(product.product, PrecomputedLinear)
    return product.product


def around(product: Linear, make: Callable[[Linear], Linear]) -> Linear:
    """What `make` puts around a product, or around this rank's part of it,
    which is joined with the others' as before.
    """
    if not isinstance(product, TensorParallelLinear):
        return make(product)
    found = copy.copy(product)
    found.product = make(product.product)
    return found
