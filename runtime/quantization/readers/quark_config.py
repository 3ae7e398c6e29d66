"""What the configuration of AMD's Quark says of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .quantization_config import CheckpointQuantization

METHOD = "quark"
WHOLE = {"int4": 8, "uint4": 0}  # by dtype, what codes and zeros are to be moved by
READ = ("fp8_e4m3", "fp4", "fp6_e2m3", "int8", *WHOLE)


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
