"""An expert as tensors that another expert of its layer can replace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...layers.linear_layers import BlockedLinear, Linear, PackedLinear, TransposedLinear
from ...quantization.cpu_float_linear import FloatBlockedLinear
from ...quantization.cpu_int4_linear import Int4BlockedLinear, Int8GroupedLinear
from ...quantization.cpu_int8_linear import Int8BlockedLinear
from ...quantization.deterministic_linear import FixedBatchLinear
from ..reference.reference_feedforward import ReferenceGatedFFN, ReferencePlainFFN

PLAIN = (
    Linear,
    TransposedLinear,
    PackedLinear,
    BlockedLinear,
    Int8BlockedLinear,
    Int4BlockedLinear,
    Int8GroupedLinear,
    FloatBlockedLinear,
)
Form = tuple[Any, ...]


def form_of(network: ReferenceGatedFFN | ReferencePlainFFN) -> Form | None:
    """What two experts must have in common for one to replace the other; None: they cannot be compared."""
    forms = [_form(product) for product in _products(network)]
    return None if None in forms or getattr(network, "learned", None) is not None else tuple(forms)


def _form(product: Linear) -> Form | None:
    if isinstance(product, FixedBatchLinear):
        return _form(product.inner)
    if type(product) not in PLAIN:
        return None
    numbers = (
        tuple(product._grouping[3:].tolist())
        if isinstance(product, Int4BlockedLinear | Int8GroupedLinear | FloatBlockedLinear)
        else ()
    )  # reached through addresses
    return (
        type(product).__name__,
        numbers,
        *((str(tensor.dtype), tuple(tensor.shape)) for tensor in product.tensors()),
    )


def tensors_of(network: ReferenceGatedFFN | ReferencePlainFFN) -> list[Tensor]:
    """Contiguous views of the memory itself where possible; oneDNN's own layouts as rows."""
    return [_as_rows(tensor).contiguous() for product in _products(network) for tensor in product.tensors()]


def put(network: ReferenceGatedFFN | ReferencePlainFFN, tensors: list[Tensor]) -> None:
    """Make it the expert of the same form that these tensors are of; its own memory is overwritten."""
    left = iter(tensors)
    for product in _products(network):
        _put(product, left)


def _put(product: Linear, left: Iterator[Tensor]) -> None:
    if isinstance(product, FixedBatchLinear):
        _put(product.inner, left)
        product.weight = product.inner.weight
        return
    own, many = product.tensors(), getattr(product, "many", None)
    if isinstance(product, PackedLinear):
        product.weight = torch.ops.mkldnn._reorder_linear_weight(next(left), None)
        own = iter(() if product.bias is None else (product.bias,))
    elif many is not None:
        own = Linear.tensors(product)
    for tensor in own:
        tensor.copy_(next(left))
    if many is not None:
        _put(many, left)


def _as_rows(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.is_mkldnn else tensor


def _products(network: ReferenceGatedFFN | ReferencePlainFFN) -> Iterator[Linear]:
    yield from (getattr(network, name) for name in (network.into, "down"))
