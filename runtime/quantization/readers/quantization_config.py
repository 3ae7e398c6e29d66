"""What a checkpoint's configuration says of its quantisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError
from .weight_scales import ScaleBlock

LARGEST_SIZE = 2**20  # of a block or group


@dataclass(frozen=True)
class CheckpointQuantization:
    """method: as `quant_method` has it, "" without one; where: the file, for errors; keys: its object."""

    method: str = ""
    where: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)

    def refused(self, key: str, value: object, why: str) -> ConfigError:
        return ConfigError(f"{self.where}: quantization key {key!r} is {value!r:.80}: {why}")

    def table(self, key: str) -> Mapping[str, Any]:
        value = self.keys.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.refused(key, value, "it must be an object; correct the file")
        return value or {}

    def size(self, *keys: str, most: int = LARGEST_SIZE) -> int | None:
        """The first of these keys that is there; None: none is, or it is -1, for all."""
        for key in keys:
            value = self.keys.get(key)
            if value is not None and value != -1:
                if not is_size(value, most):
                    raise self.refused(key, value, f"it must be a whole number of 1 to {most}; correct the file")
                return int(value)
        return None

    def one_of(self, key: str, known: Sequence[object], why: str) -> None:
        """Raise for a value that is none of these; where the key is missing or null there is none."""
        value = self.keys.get(key)
        if value is not None and value not in known:
            raise self.refused(key, value, why)

    def none_of(self, keys: Sequence[str], why: str) -> None:
        """Raise for the first of these keys that is set to something."""
        for key in keys:
            if self.keys.get(key):
                raise self.refused(key, self.keys[key], why)

    def rounds_rows(self) -> bool:
        """Whether all groups round activations to int8, and weights too."""
        if self.method == "torchao":
            return _rounds_rows_of_torchao(self.keys.get("quant_type"))
        groups = self.table("config_groups")
        return (
            self.keys.get("format") == "int-quantized"
            and bool(groups)
            and all(map(_rounds_rows, groups, groups.values()))
        )

    def blocks(self) -> list[ScaleBlock]:
        """Sizes of the blocks of float8 weights."""
        found = [("weight_block_size", self.keys.get("weight_block_size"))]
        for name, group in self.table("config_groups").items():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            found.append(
                (
                    f"config_groups.{name}.weights.block_structure",
                    weights.get("block_structure") if isinstance(weights, Mapping) else None,
                )
            )
        return [self._block(key, sizes) for key, sizes in found if sizes is not None]

    def _block(self, key: str, sizes: object) -> ScaleBlock:
        if not isinstance(sizes, list | tuple) or len(sizes) != 2 or not all(map(is_size, sizes)):
            raise self.refused(key, sizes, "it must be two sizes, as [128, 128]; correct the file")
        return ScaleBlock(*sizes)


def is_size(value: object, most: int = LARGEST_SIZE) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most


def _rounds_rows_of_torchao(types: object) -> bool:
    """Only the configuration that all projections have, around zero and each row by its own range."""
    found = types.get("default") if isinstance(types, Mapping) else None
    if (
        not isinstance(found, Mapping)
        or found.get("_type") != "Int8DynamicActivationInt8WeightConfig"
        or not isinstance(keys := found.get("_data"), Mapping)
    ):
        return False
    around, reach = keys.get("act_mapping_type"), keys.get("granularity")
    return _means(around, "_data", "SYMMETRIC") and _means(reach, "_type", "PerRow")


def _means(value: object, key: str, expected: str) -> bool:
    return isinstance(value, Mapping) and value.get(key) == expected


def _rounds_rows(name: str, group: object) -> bool:
    if not isinstance(group, Mapping):
        return name.upper() in ("W8A8", "INT8")  # presets
    return all(
        isinstance(part, Mapping) and part.get("num_bits") == 8 and part.get("type", "int") == "int"
        for part in map(group.get, ("weights", "input_activations"))
    )
