"""What a checkpoint's configuration says of its quantisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError
from .scales import Reach

LARGEST_SIZE = 2**20  # of a block or group


@dataclass(frozen=True)
class Asked:
    """method: as `quant_method` has it, "" without; keys: its object; where: the file, for errors."""

    method: str = ""
    where: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)

    def refused(self, key: str, why: str) -> ConfigError:
        return ConfigError(f"{self.where}: quantization key {key!r} is {self.keys.get(key)!r:.80}: {why}")

    @property
    def block(self) -> Reach | None:
        """Sizes of the blocks of a float8 weight."""
        sizes = self.keys.get("weight_block_size")
        if sizes is None:
            return None
        if not isinstance(sizes, list | tuple) or len(sizes) != 2 or not all(_size(size) for size in sizes):
            raise self.refused("weight_block_size", "it must be two sizes, as [128, 128]; correct the file")
        return Reach(*sizes)


def _size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST_SIZE


def asked_of(quantization: dict[str, Any] | None, where: str, beside: Mapping[str, dict[str, Any]]) -> Asked:
    """Of the first of these that says something."""
    keys = quantization or {}
    asked = Asked(str(keys.get("quant_method", "")), where, keys)
    asked.block  # noqa: B018 - so that a wrong one is found at once
    return asked
