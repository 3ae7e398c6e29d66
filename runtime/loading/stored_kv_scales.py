"""What a checkpoint says that stored keys and values are to be divided by, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import CheckpointError
from ..models.spec.model_spec import ModelSpec
from ..models.spec.tensor_names import TensorNames
from ..quantization.readers.kv_scale_reader import kv_scales
from .load_plan import LoadPlan, renamed, scale_of_kv
from .raw_weight import RawTensor
from .tensor_files.tensor_source import WeightSource, bytes_of

if TYPE_CHECKING:
    from ..layers.float8_reference import KVScaleFactors


def read_scales(plan: LoadPlan, config: ModelSpec) -> tuple[KVScaleFactors | str | None, ...]:
    """Of each layer; None: nothing is said.  A text: why what is said cannot be used, for people who ask for it."""
    if plan.other_kv is not None:
        return ()
    return tuple(
        _read(config.names, config.stage.first + layer, plan.kv.get(layer, {})) for layer in range(len(config.layers))
    )


def kv_scales_note(config: ModelSpec, sources: Iterable[WeightSource], other: str | None) -> tuple[str, ...]:
    """A line where there are any. other: see `Readers.other_kv`."""
    names = (renamed(stored.name, config, ()) for source in sources for stored in source.tensors)
    if not any(scale_of_kv(name, config) for name in names):
        return ()
    if other is not None:
        return (f"the checkpoint's scales for keys and values are not used ({other}); kv_dtype='fp8' takes 1",)
    return (
        "the checkpoint has scales for keys and values in float8: kv_dtype='fp8' uses them, no other kv_dtype does",
    )


def _read(names: TensorNames, layer: int, pieces: dict[str, RawTensor]) -> KVScaleFactors | str | None:
    module = names.layer.format(layer) + names.output.rpartition(".")[0]
    try:
        found = kv_scales(module, {suffix: piece.header for suffix, piece in pieces.items()})
    except CheckpointError as error:
        return str(error)
    if found is None:
        return (
            f"layer {layer} has {', '.join(sorted(pieces))} without its partner; take a complete checkpoint"
            if pieces
            else None
        )
    from ..layers.float8_reference import KVScaleFactors

    scales = KVScaleFactors(*(_number(pieces[name]) for name in found))
    return (
        scales
        if all(math.isfinite(scale) and scale > 0 for scale in scales)
        else f"{module}: the scales of keys and values are {scales.k} and {scales.v}, not positive numbers"
    )


def _number(piece: RawTensor) -> float:
    import torch

    from .tensor_files.torch_dtypes import DTYPES

    dtype = DTYPES[piece.stored.dtype]
    return float(torch.from_numpy(bytes_of(piece.source, piece.stored, 0, piece.bytes)).view(dtype).float())
