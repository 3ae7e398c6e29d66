"""The matrices of all experts of a layer in one tensor, [experts, outputs, inputs], with a view for each expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from ...kernels.experts.expert_inputs import ExpertWeights, PackedExpertWeights
from ...kernels.packed.packed_weight import PackedWeight
from ...layers.float8_reference import FP8
from ...layers.linear_layers import Linear
from ...quantization.deterministic_linear import DeterministicLinear
from ...quantization.gpu_quantized_linear import (
    DeterministicGpuQuantizedLinear,
    GpuQuantizedLinear,
    Int8ActivationLinear,
)


def allocate_together(layers: Sequence[Linear], device: torch.device) -> None:
    """Give layers of one shape, which have no memory yet, contiguous memory; a transposed weight stays transposed."""
    like, count = layers[0], len(layers)
    size = like.weight.shape if like.weight.is_contiguous() else like.weight.shape[::-1]
    room = torch.empty(count, *size, dtype=like.weight.dtype, device=device)
    weights = room if like.weight.is_contiguous() else room.transpose(1, 2)
    biases = (
        [None] * count
        if like.bias is None
        else torch.empty(count, *like.bias.shape, dtype=like.bias.dtype, device=device)
    )
    for layer, weight, bias in zip(layers, weights, biases, strict=True):
        layer.weight, layer.bias = weight, bias


def store_together(layers: Sequence[Linear]) -> tuple[Tensor, Tensor | None]:
    """weight [layers, out, in] and bias [layers, out] of layers of one shape, which hold views of them from now on."""
    weight = are_contiguous([layer.weight for layer in layers])
    bias = (
        None if layers[0].bias is None else are_contiguous([layer.bias for layer in layers if layer.bias is not None])
    )
    for index, layer in enumerate(layers):
        layer.weight, layer.bias = weight[index], None if bias is None else bias[index]
    return weight, bias


def pack_together(layers: Sequence[GpuQuantizedLinear]) -> tuple[PackedWeight, Tensor | None]:
    """The same for quantized weights of one form: tensors with a first dimension of layers."""
    packed = [layer.packed for layer in layers]
    words, meta, outer = (_all([getattr(each, name) for each in packed]) for name in ("words", "meta", "outer"))
    assert words is not None
    bias = _all([layer.bias for layer in layers])
    for index, layer in enumerate(layers):
        own_meta, own_outer = (None if part is None else part[index] for part in (meta, outer))
        layer.packed = replace(
            layer.packed, words=words[index], meta=own_meta, outer=own_outer, counters=packed[0].counters
        )
        layer.weight, layer.bias = layer.packed.words, None if bias is None else bias[index]
    return replace(packed[0], words=words, meta=meta, outer=outer), bias


def stacked_weights(layers: Sequence[Linear]) -> ExpertWeights | PackedExpertWeights:
    """The weights of sealed layers of one kind as the kernels read them."""
    if isinstance(layers[0], GpuQuantizedLinear):
        return PackedExpertWeights(*pack_together(cast("list[GpuQuantizedLinear]", list(layers))))
    return ExpertWeights(*store_together(layers))


def are_alike(layers: Sequence[GpuQuantizedLinear]) -> bool:
    """Whether all have one form, so that one kernel multiplies with them."""
    forms = {
        (
            each.form,
            each.kind,
            each.words.shape,
            each.outputs,
            each.inputs,
            each.group,
            each.block,
            each.zero,
            each.table,
            each.meta is None,
            each.outer is None,
            each.dtype,
        )
        for each in (layer.packed for layer in layers)
    }
    return len(forms) == 1 and all(layer.packed.order is None for layer in layers)


def _all(tensors: Sequence[Tensor | None]) -> Tensor | None:
    return are_contiguous([tensor for tensor in tensors if tensor is not None]) if tensors[0] is not None else None


def store_alike(layers: Sequence[Linear]) -> None:
    """Move the weights of layers of one kind together, for kinds that the GPU kernels support."""
    kinds = {type(layer) for layer in layers}
    if kinds in ({Linear}, {DeterministicLinear}):
        store_together(layers)
    elif kinds in ({GpuQuantizedLinear}, {DeterministicGpuQuantizedLinear}, {Int8ActivationLinear}) and are_alike(
        found := cast("list[GpuQuantizedLinear]", list(layers))
    ):
        pack_together(found)


def are_contiguous(tensors: Sequence[Tensor]) -> Tensor:
    """Contiguous tensors of one shape as one: their common memory if it is contiguous, otherwise a copy."""
    first, step = tensors[0], tensors[0].nbytes
    storage = first.untyped_storage().data_ptr()
    starts = [
        tensor.data_ptr()
        for tensor in tensors
        if tensor.untyped_storage().data_ptr() == storage and tensor.is_contiguous()
    ]
    if starts == [first.data_ptr() + index * step for index in range(len(tensors))]:
        return first.as_strided((len(tensors), *first.shape), (first.numel(), *first.stride()))
    if first.dtype == FP8:  # which torch does not stack
        return are_contiguous([tensor.view(torch.uint8) for tensor in tensors]).view(FP8)
    return torch.stack(list(tensors))
