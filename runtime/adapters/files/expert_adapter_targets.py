"""Which products of mixtures of experts an adapter's tensors are of: modules of single experts, and parameters with the
rows of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch

from ...models.decoder import Decoder
from ...models.reference.reference_experts import ReferenceExperts
from ...models.reference.reference_feedforward import ReferenceGatedFFN, ReferencePlainFFN
from ...models.spec.model_spec import ModelSpec
from ..adapter_sites import WEIGHT

DOWN = ("down", "output", "w2")  # in the names of parameters with the rows of all experts' last products
ROUTER = "mlp.gate"  # what transformers calls the router, whatever the checkpoint does
Key = tuple[int | str, str]  # an expert's number, "shared", or "" for the mixture itself; and the product's name


class ExpertAdapterTarget(NamedTuple):
    """Of a layer's product the loaded rows from `start` on.

    order: where the product has its rows in another order, which they are, int64.
    """

    layer: int
    key: Key
    start: int
    outputs: int
    inputs: int
    order: torch.Tensor | None

    @property
    def rows(self) -> torch.Tensor | None:
        """Where each of the module's outputs is, int64; None: from `start` on."""
        return None if self.order is None else self.order.argsort()


class ExpertModules:
    """modules: by their names, those of the mixtures.  layers: by how the names of
    its parts begin, layers that have a mixture.
    """

    def __init__(self, model: ModelSpec) -> None:
        shape = Decoder(model, torch.float32, "cpu")
        self.modules: dict[str, ExpertAdapterTarget] = {}
        self.layers: dict[str, int] = {}
        self._parts: dict[int, ReferenceExperts] = {}
        for block in shape.layers:
            if isinstance(part := block.ffn, ReferenceExperts):
                prefix = model.names.layer.format(model.stage.first + block.index)
                self.layers[prefix], self._parts[block.index] = block.index, part
                self.modules.update(_targets(part, prefix, block.index))
                self.modules.setdefault(prefix + ROUTER, self.modules[prefix + model.names.experts.router])
        self._of: dict[tuple[int, Key], list[str]] = {}
        for module, target in sorted(self.modules.items(), key=lambda each: each[1].start):
            self._of.setdefault((target.layer, target.key), []).append(module)

    def layer_of(self, module: str) -> int | None:
        return next((layer for prefix, layer in self.layers.items() if module.startswith(prefix)), None)

    def fused(self, layer: int, parameter: str, outputs: int, inputs: int) -> list[list[str]]:
        """Of each expert the modules whose rows a parameter has, in their order, if they are of this shape; otherwise
        nothing.
        """
        part = self._parts[layer]
        name = "down" if any(word in parameter for word in DOWN) else part.experts[0].into
        if tuple(getattr(part.experts[0], name).weight.shape) != (outputs, inputs):
            return []
        return [self._of[layer, (index, name)] for index in range(len(part.experts))]


@lru_cache(maxsize=4)
def expert_modules_of(model: ModelSpec) -> ExpertModules:
    """Nothing of the weights is needed."""
    return ExpertModules(model)


def _targets(part: ReferenceExperts, prefix: str, layer: int) -> Iterator[tuple[str, ExpertAdapterTarget]]:
    holders: list[tuple[int | str, object]] = [*enumerate(part.experts), ("shared", part.shared), ("", part)]
    keys = {
        id(getattr(holder, name)): (key, name)
        for key, holder in holders
        if holder is not None
        for name in names_of(holder)
    }
    exact = {id(part.router.weight): part.router} | (
        {} if part.switch is None else {id(part.switch.weight): part.switch}
    )
    orders = {id(product): torch.from_numpy(rows) for product, rows in part.orders()}
    for place in part.places(prefix):
        product = place.layer or exact.get(id(place.target))
        if product is None or not place.name.endswith(WEIGHT) or id(product) not in keys:
            continue
        outputs, inputs = place.target.shape if product.weight.is_contiguous() else place.target.shape[::-1]
        yield (
            place.name.removesuffix(WEIGHT),
            ExpertAdapterTarget(layer, keys[id(product)], place.start, outputs, inputs, orders.get(id(product))),
        )


def names_of(holder: object) -> Iterator[str]:
    """Of the products that it holds itself."""
    if isinstance(holder, ReferenceExperts):
        yield from (name for name in ("router", "switch", "narrow", "widen") if getattr(holder, name) is not None)
    elif isinstance(holder, ReferenceGatedFFN | ReferencePlainFFN):
        yield from (holder.into, "down")
