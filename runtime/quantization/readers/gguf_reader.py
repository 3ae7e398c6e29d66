"""Which tensors of a GGUF file come in blocks: each says so itself, by its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from .gguf_block_kinds import BLOCKS
from .weight_reader_match import QuantizedModule, TensorHeader, WeightReader

if TYPE_CHECKING:
    from torch import Tensor

    from ..quantized_weight import QuantizedWeight


class GGUFWeightReaders:
    """Used in place of `WeightReaders` for files that need no configuration."""

    notes: tuple[str, ...] = ()
    other_kv: str | None = None

    def claim(self, module: str, siblings: Mapping[str, TensorHeader]) -> WeightReader | None:
        """None: the weight is a plain one.

        Raises CheckpointError, naming the tensor, for weights that are no matrix.
        """
        found = QuantizedModule(module, siblings)
        kind = found.dtype("weight")
        if kind not in BLOCKS:
            return None
        shape = found.matrix("weight", (kind,))
        names = ("weight", "scale") if found.has("scale") else ("weight",)
        return found.claim(f"GGUF {kind}", shape, names, lambda tensors: _read(kind, shape, tensors))


def _read(kind: str, shape: tuple[int, int], tensors: Mapping[str, Tensor]) -> QuantizedWeight:
    from .gguf_blocks import decode

    weight = decode(kind, tensors["weight"], shape)
    scale = tensors.get("scale")
    return weight if scale is None else replace(weight, factor=scale.float().reshape(1).expand(shape[0]).contiguous())
