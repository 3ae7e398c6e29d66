"""Norms of queries and keys, whatever they are taken over."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..layers import norm as norms
from .places import Place
from .spec import HeadNorm


class HeadNorms:
    """Norm of heads x [T, query heads then key heads, dim]; may write into x.

    Load `queries` and `keys`, then call `seal`. each_head: `norms.HeadNorm` where it is that, for the kernels; else None.
    """

    def __init__(self, part: HeadNorm, queries: int, keys: int, dim: int, device: torch.device) -> None:
        self.part, self.after, self._counts, self._dim = part, part.after, (queries, keys), dim
        self.queries, self.keys = (torch.ones(self._shape(count), dtype=torch.float32, device=device) for count in (queries, keys))
        self.biases = [torch.zeros_like(weight) for weight in (self.queries, self.keys)] if part.norm.bias else []
        self.each_head: norms.HeadNorm | None = None

    @property
    def eps(self) -> float:
        return self.part.norm.eps

    def _shape(self, count: int) -> tuple[int, ...]:
        return {"head": (self._dim,), "each": (count, self._dim), "all": (count * self._dim,)}[self.part.over]

    def places(self, q_name: str, k_name: str) -> Iterator[Place]:
        """A name with {} in it stands for a tensor of each head."""
        if self.part.norm.weight:
            yield from self._places(".weight", q_name, k_name, self.queries, self.keys)
        if self.biases:
            yield from self._places(".bias", q_name, k_name, *self.biases)

    def _places(self, ending: str, q_name: str, k_name: str, *tensors: Tensor) -> Iterator[Place]:
        for name, tensor, count in zip((q_name, k_name), tensors, self._counts, strict=True):
            if "{}" in name:
                yield from (Place(name.format(head) + ending, tensor[head]) for head in range(count))
            elif count:
                yield Place(name + ending, tensor)

    def seal(self, order: list[int] | None) -> None:
        """order: in which the numbers of a head lie, see `Rope.order`."""
        self.weight = self._sealed([self.queries, self.keys], order) + self.part.norm.offset
        self.bias = self._sealed(self.biases, order) if self.biases else None
        if self.part.norm.kind == "rms" and self.part.over != "all":
            self.each_head = norms.HeadNorm(self.weight, self.part.norm.eps)

    def _sealed(self, tensors: list[Tensor], order: list[int] | None) -> Tensor:
        """float32 [query heads + key heads, dim]"""
        joined = torch.cat([self._of_heads(tensor, count) for tensor, count in zip(tensors, self._counts, strict=True)])
        return joined if order is None else joined[:, order]

    def _of_heads(self, weight: Tensor, count: int) -> Tensor:
        return weight.view(count, -1) if self.part.over == "all" else weight.expand(count, self._dim)

    def __call__(self, x: Tensor) -> Tensor:
        if self.each_head is not None:
            return self.each_head(x)
        if self.part.over == "all":
            parts = x.float().split_with_sizes(self._counts, 1)
            unit = torch.cat([self._unit(part.flatten(1)).view(part.shape) for part in parts], 1)
        else:
            unit = self._unit(x.float())
        unit = unit * self.weight
        return (unit if self.bias is None else unit + self.bias).to(x.dtype)

    def _unit(self, x: Tensor) -> Tensor:
        """Normed over the last dimension, without a weight."""
        eps, size = self.part.norm.eps, x.shape[-1:]
        if not size[0]:
            return x
        return F.layer_norm(x, size, None, None, eps) if self.part.norm.kind == "layer" else F.rms_norm(x, size, None, eps)
