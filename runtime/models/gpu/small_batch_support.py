"""Why small batches run the layers of a quantized model unfused, without norms and additions fused into products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ...quantization import GpuQuantizedLinear
from ..reference.reference_block import ReferenceBlock
from ..reference.tensor_parallel_linear import AllReduceLinear
from .gemv_layers import GpuLayer, can_fully_fuse, output_of
from .gpu_latent_attention import FusedLatentLayer
from .gpu_layers import FusedLayer, FusedRecurrentLayer
from .small_batch_layers import DTYPE, supports_small_batch


def unfused_reasons(layers: Sequence[GpuLayer], dtype: torch.dtype) -> str:
    """For layers for which `small_batch_layers` returned None, for people."""
    return next(_reasons(layers, dtype), "they have parts that are not folded")


def is_quantized(block: ReferenceBlock) -> bool:
    """Whether a product of the layer is quantized, and none has fixed sums: these stay unfused for any number of
    rows.
    """
    products = (getattr(*place) for place in block.products())
    return any(isinstance(product, GpuQuantizedLinear) and product.folds for product in products)


def _reasons(layers: Sequence[GpuLayer], dtype: torch.dtype) -> Iterator[str]:
    if dtype != DTYPE:
        yield f"they compute in {_name(dtype)}, and products that fold in {_name(DTYPE)}"
    for layer in layers:
        index = layer.block.index
        if isinstance(layer, FusedLatentLayer):
            yield f"layer {index} attends to latents"
        elif isinstance(layer, FusedRecurrentLayer):
            yield f"layer {index} keeps a state"
        elif not isinstance(layer, FusedLayer):
            yield f"torch computes layer {index} or its mixer"
        elif isinstance(output_of(layer), AllReduceLinear):
            yield f"the sums of layer {index} are over ranks"
        elif not can_fully_fuse(layer):
            yield f"more than RMS norms and additions stands between the products of layer {index}"
        else:
            kinds = {
                name: type(getattr(holder, name)).__name__
                for holder, name in layer.block.products()
                if not supports_small_batch(getattr(holder, name))
            }
            yield from (f"{name} of layer {index} is kept as {kind}" for name, kind in kinds.items())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
