"""What reading an adapter asks of the base's weights: of a whole model here, or of the parts that ranks hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ...errors import RuntimeFailure
from ...layers.linear_layers import Linear
from ...models.decoder import Decoder
from ...models.reference.tensor_parallel_linear import local_product
from ..adapter import outputs_of
from ..adapter_extras import Pair
from ..adapter_sites import AdapterSite
from ..choose_adapter_kernels import mixtures_refusal


class BaseWeights(Protocol):
    """dtype: of the model.  no_mixtures: why adapters of its mixtures of experts are not read; empty: they are."""

    dtype: torch.dtype
    no_mixtures: str

    def biases(self, modules: Sequence[str]) -> dict[str, Tensor]:
        """By module, float32 in the order of its outputs; those without a bias lack."""

    def squares(self, pairs: dict[str, Pair]) -> dict[str, Tensor | None]:
        """By module, float32: of each row of W + scale * B A the sum of its numbers' squares. None: W is kept in few
        bits.
        """

    def same(self, name: str, table: Tensor) -> bool | None:
        """Whether the embedding, or the head, has these numbers, of the model's type. None: it is kept in few bits."""


class LocalBaseWeights:
    """See `BaseWeights`; of a rank's part, what it has of the modules that it has. sites: of the part."""

    def __init__(self, model: Decoder, sites: Sequence[AdapterSite]) -> None:
        self.dtype, self.no_mixtures, self._model = model.dtype, mixtures_refusal(model), model
        self._found = {module: (site, piece) for site in sites for piece, module in enumerate(site.modules)}

    def biases(self, modules: Sequence[str]) -> dict[str, Tensor]:
        there = {module: self._product(module).bias for module in modules if module in self._found}
        return {module: self._in_order(module, _read(bias)) for module, bias in there.items() if bias is not None}

    def squares(self, pairs: dict[str, Pair]) -> dict[str, Tensor | None]:
        return {module: self._squares(module, pair) for module, pair in pairs.items() if module in self._found}

    def same(self, name: str, table: Tensor | None) -> bool | None:
        """table: None: it has no part of it."""
        if table is None:
            return True
        embeds = name == self._model.config.names.embedding
        own = self._model.embedding.table if embeds else local_product(self._model.head.product).dense()
        return None if own is None else torch.equal(table.float(), _read(own))

    def _squares(self, module: str, pair: Pair) -> Tensor | None:
        (first, second, scale), dense = pair, self._product(module).dense()
        return (
            None if dense is None else (self._in_order(module, _read(dense)) + scale * (second @ first)).square().sum(1)
        )

    def _product(self, module: str) -> Linear:
        site, _ = self._found[module]
        product: Linear = getattr(getattr(self._model.layers[site.layer], site.holder), site.name)
        return local_product(product)

    def _in_order(self, module: str, values: Tensor) -> Tensor:
        """Of the product's outputs the module's, in the order of these."""
        site, piece = self._found[module]
        ours = outputs_of(site, piece)
        found = torch.empty_like(values[ours])
        found[torch.from_numpy(site.row_of)[ours]] = values[ours]
        return found


def _read(weight: Tensor) -> Tensor:
    """In float32 on the CPU."""
    if weight.device.type != "cpu" and not weight.untyped_storage().nbytes():
        raise RuntimeFailure(
            "the engine sleeps, and an adapter that has more than pairs is read together with the base's weights: wake "
            "it first"
        )
    return weight.cpu().float()
