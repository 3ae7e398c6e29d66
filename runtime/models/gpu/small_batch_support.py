"""Why a step of few rows takes the layers of a model in few bits as they are, and not those that fold norms and additions into the products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..quantization import FewBitsLinear
from .block import Block
from .few_rows import DTYPE, readable
from .gpu_latent import LatentLayer
from .gpu_layers import FusedLayer, StateLayer
from .lone_layers import GpuLayer, folds, output_of
from .over_ranks import Summed


def unfolded(layers: Sequence[GpuLayer], dtype: torch.dtype) -> str:
    """Of layers of which `few_rows` has made nothing, for people."""
    return next(_reasons(layers, dtype), "they have parts that are not folded")


def in_few_bits(block: Block) -> bool:
    """Whether a product of the layer is in few bits, and none of fixed sums: these stay alike for any number of rows, unfolded."""
    products = (getattr(*place) for place in block.products())
    return any(isinstance(product, FewBitsLinear) and product.folds for product in products)


def _reasons(layers: Sequence[GpuLayer], dtype: torch.dtype) -> Iterator[str]:
    if dtype != DTYPE:
        yield f"they compute in {_name(dtype)}, and products that fold in {_name(DTYPE)}"
    for layer in layers:
        index = layer.block.index
        if isinstance(layer, LatentLayer):
            yield f"layer {index} attends to latents"
        elif isinstance(layer, StateLayer):
            yield f"layer {index} keeps a state"
        elif not isinstance(layer, FusedLayer):
            yield f"torch computes layer {index} or its mixer"
        elif isinstance(output_of(layer), Summed):
            yield f"the sums of layer {index} are over ranks"
        elif not folds(layer):
            yield f"more than RMS norms and additions stands between the products of layer {index}"
        else:
            kinds = {name: type(getattr(holder, name)).__name__ for holder, name in layer.block.products() if not readable(getattr(holder, name))}
            yield from (f"{name} of layer {index} is kept as {kind}" for name, kind in kinds.items())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
