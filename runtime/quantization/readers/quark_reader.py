"""AMD's Quark: whole numbers of four bits as AWQ packs them, or along the inputs;
its other dtypes are those of other formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..quantized_weight import QuantizedWeight
from . import awq_reader
from .quantization_config import CheckpointQuantization
from .weight_reader_match import FLOATS, QuantizedModule, WeightReader

METHOD = "quark"
CALLED = {"qweight": "weight", "qzeros": "weight_zero_point", "scales": "weight_scale"}
OURS = {theirs: ours for ours, theirs in CALLED.items()}
WHOLE = {"int4": 8, "uint4": 0}  # by dtype, what codes and zeros are to be moved by
READ = ("fp8_e4m3", "fp4", "fp6_e2m3", "int8", *WHOLE)
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


def weights(quant_config: CheckpointQuantization) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What the configuration says of weights, and where."""
    places: list[tuple[str, object]] = [("global_quant_config", quant_config.keys.get("global_quant_config"))]
    for key in ("layer_quant_config", "layer_type_quant_config"):
        places += [(f"{key}.{name}", each) for name, each in quant_config.table(key).items()]
    for where, each in places:
        if isinstance(each, Mapping) and each.get("weight") is not None:
            spec = each["weight"]
            if not isinstance(spec, Mapping):
                raise quant_config.refused(
                    f"{where}.weight", spec, "weights that are rounded in two stages are not read; export them in one"
                )
            yield f"{where}.weight", spec
