"""Norms of queries and keys, per head or over all heads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ...layers import cpu_kernels
from ...layers import norm_layers as norms
from ..spec.model_spec import QkNormSpec
from ..spec.weight_targets import WeightTarget
from .reference_module import ReferenceModule


class ReferenceQkNorm(ReferenceModule):
    """Norm of heads x [T, query heads then key heads, dim]; may write into x.

    Load `queries` and `keys`, then call `finish_loading`. each_head: what norms head by head; None: all are normed at
    once.
    """

    def __init__(
        self, part: QkNormSpec, queries: int, keys: int, dim: int, order: list[int] | None, device: torch.device
    ) -> None:
        """order: of the numbers of a head, see `RopeParameters.order`."""
        self.part, self.after, self._counts, self._dim, self._order = part, part.after, (queries, keys), dim, order
        self.queries, self.keys = (
            torch.ones(self._shape(count), dtype=torch.float32, device=device) for count in (queries, keys)
        )
        self.biases = [torch.zeros_like(weight) for weight in (self.queries, self.keys)] if part.norm.bias else []
        self.each_head: norms.PerHeadNorm | None = None

    @property
    def eps(self) -> float:
        return self.part.norm.eps

    def _shape(self, count: int) -> tuple[int, ...]:
        return {"head": (self._dim,), "each": (count, self._dim), "all": (count * self._dim,)}[self.part.over]

    def places(self, q_name: str, k_name: str) -> Iterator[WeightTarget]:
        """A name with {} in it means a tensor of each head."""
        if self.part.norm.weight:
            yield from self._places(".weight", q_name, k_name, self.queries, self.keys)
        if self.biases:
            yield from self._places(".bias", q_name, k_name, *self.biases)

    def _places(self, ending: str, q_name: str, k_name: str, *tensors: Tensor) -> Iterator[WeightTarget]:
        for name, tensor, count in zip((q_name, k_name), tensors, self._counts, strict=True):
            if "{}" in name:
                yield from (WeightTarget(name.format(head) + ending, tensor[head]) for head in range(count))
            elif count:
                yield WeightTarget(name + ending, tensor)

    def finish_loading(self) -> None:
        self.weight = (self._joined([self.queries, self.keys]) + self.part.norm.offset).contiguous()
        self.bias = self._joined(self.biases).contiguous() if self.biases else None
        if self.part.over != "all":
            self.each_head = norms.PerHeadNorm(self.weight, self.eps, self.part.norm.kind, self.bias)
        self._whole = [
            norms.PerHeadNorm(w.view(1, -1), self.eps, self.part.norm.kind, b) for w, b in self._parts() if len(w)
        ]

    def _parts(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of the queries' heads, and of the keys'."""
        biases = (None, None) if self.bias is None else self.bias.split_with_sizes(self._counts)
        return list(zip(self.weight.split_with_sizes(self._counts), biases, strict=True))

    def _joined(self, tensors: list[Tensor]) -> Tensor:
        """float32 [query heads + key heads, dim]"""
        joined = torch.cat([self._of_heads(tensor, count) for tensor, count in zip(tensors, self._counts, strict=True)])
        return joined if self._order is None else joined[:, self._order]

    def _of_heads(self, weight: Tensor, count: int) -> Tensor:
        return weight.view(count, self._dim) if self.part.over == "all" else weight.expand(count, self._dim)

    def __call__(self, x: Tensor) -> Tensor:
        if self.each_head is not None:
            return self.each_head(x)
        parts = x.split_with_sizes([count for count in self._counts if count], 1)
        return torch.cat(
            [norm(part.flatten(1)[:, None]).view(part.shape) for norm, part in zip(self._whole, parts, strict=True)], 1
        )

    def words(self) -> tuple[np.ndarray, np.ndarray]:
        """The struct Norm for queries and for keys, once sealed."""
        queries, keys = (cpu_kernels.norm_struct(self.part.norm.kind, *part, self.eps) for part in self._parts())
        return queries, keys
