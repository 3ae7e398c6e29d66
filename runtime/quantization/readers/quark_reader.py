"""AMD's Quark: whole numbers of four bits as AWQ packs them, or along the inputs;
its other dtypes are those of other formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from ..quantized_weight import QuantizedWeight
from . import awq_reader
from .quantization_config import CheckpointQuantization
from .quark_config import WHOLE, weights
from .weight_reader_match import FLOATS, QuantizedModule, WeightReader

CALLED = {"qweight": "weight", "qzeros": "weight_zero_point", "scales": "weight_scale"}
OURS = {theirs: ours for ours, theirs in CALLED.items()}
MIDDLE = 8


def claim(module: QuantizedModule, quant_config: CheckpointQuantization) -> WeightReader:
    """w = (q - z) * s; a vector of scales: one an output, and words run along the inputs."""
    again = QuantizedModule(
        module.name, {OURS.get(name, name): sibling for name, sibling in module.siblings.items()}, CALLED
    )
    moved = _moved(quant_config, again)
    inner = (
        awq_reader.claim(again, CheckpointQuantization())
        if len(module.siblings["weight_scale"].shape) == 2
        else _along_inputs(again)
    )

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        found = inner.read({OURS.get(name, name): tensor for name, tensor in tensors.items()})
        assert isinstance(found.zero, Tensor)
        zero = found.zero ^ moved
        return replace(found, stored=found.codes ^ moved, zero=float(MIDDLE) if bool((zero == MIDDLE).all()) else zero)

    names = tuple(CALLED[name] for name in inner.names)
    return WeightReader(f"Quark, {inner.format.removeprefix('AWQ, ')}", inner.shape, names, inner.unused, read)


def _along_inputs(module: QuantizedModule) -> WeightReader:
    out, words = module.matrix("qweight", awq_reader.WHOLE)
    module.expect("scales", FLOATS, (out,))
    module.expect("qzeros", awq_reader.WHOLE, (-(-out // awq_reader.EACH),))
    inputs = words * awq_reader.EACH

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        codes, zero = (
            awq_reader.unpacked(tensors["qweight"]).T.contiguous(),
            awq_reader.unpacked(tensors["qzeros"][None])[:out],
        )
        return QuantizedWeight(codes, tensors["scales"][:, None], inputs, zero=zero)

    return module.claim("4 bits, a scale per output", (out, inputs), ("qweight", "qzeros", "scales"), read)


def _moved(quant_config: CheckpointQuantization, module: QuantizedModule) -> int:
    found = {
        dtype for _, spec in weights(quant_config) if isinstance(dtype := spec.get("dtype"), str) and dtype in WHOLE
    }
    if len(found) != 1:
        listed = " and ".join(sorted(found)) or "neither"
        raise module.wrong(
            "qweight",
            f"holds words of int4 or uint4, and the configuration has {listed}: which it is decides what they mean; "
            "take another checkpoint",
        )
    return WHOLE[found.pop()]
