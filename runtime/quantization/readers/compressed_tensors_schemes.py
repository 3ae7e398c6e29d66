"""config_groups of compressed-tensors: what its configuration says of the weights of a set of modules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .quantization_config import CheckpointQuantization, is_size

PRESET = re.compile(
    r"W([2-8])A(\d+|FP8)(_ASYM)?"
)  # their weights are whole numbers, in groups of 128 where groups there are
OF_PRESETS = 128
ALL = -1  # inputs share a scale
SECONDS = 1.0  # for a pattern of the file on one name


class CompressedTensorsScheme(NamedTuple):
    """bits: of a whole number; group: inputs that share a scale, 0: all; targets: names, classes, "re:" patterns."""

    bits: int
    group: int
    targets: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.bits} bits, {f'groups of {self.group}' if self.group else 'a scale per output'}"


def schemes(quant_config: CheckpointQuantization) -> list[CompressedTensorsScheme]:
    """Those of whole numbers; the others are plain from the headers. Raises ConfigError for sizes that cannot be."""
    found: list[CompressedTensorsScheme] = []
    for name, group in quant_config.table("config_groups").items():
        if isinstance(group, list) and (preset := PRESET.fullmatch(name.upper())):
            found += [CompressedTensorsScheme(int(preset[1]), size, _targets(group)) for size in (OF_PRESETS, 0)]
        if isinstance(group, Mapping) and isinstance(weights := group.get("weights"), Mapping):
            found += _of_weights(quant_config, f"config_groups.{name}.weights", weights, _targets(group.get("targets")))
    return found


def _of_weights(
    quant_config: CheckpointQuantization, where: str, weights: Mapping[str, Any], targets: tuple[str, ...]
) -> list[CompressedTensorsScheme]:
    if weights.get("type", "int") != "int":
        return []
    bits, group = weights.get("num_bits", 8), weights.get("group_size") or ALL
    if not is_size(bits, 8):
        raise quant_config.refused(f"{where}.num_bits", bits, "weights have 1 to 8 bits; correct the file")
    if group != ALL and not is_size(group):
        raise quant_config.refused(f"{where}.group_size", group, "it must be a number of inputs; correct the file")
    grouped = group != ALL and weights.get("strategy") in (None, "group", "tensor_group")
    return [CompressedTensorsScheme(bits, group if grouped else 0, targets)]


def _targets(value: object) -> tuple[str, ...]:
    return tuple(target for target in value if isinstance(target, str)) if isinstance(value, list) else ()


def matching(module: str, found: Sequence[CompressedTensorsScheme]) -> list[CompressedTensorsScheme]:
    """The schemes by how closely their targets name the module: itself, a pattern, a class."""
    return sorted(found, key=lambda scheme: min((_distance(module, target) for target in scheme.targets), default=3))


def _distance(module: str, target: str) -> int:
    if target == module or module.endswith("." + target):
        return 0
    if not target.startswith("re:"):
        return 2
    import regex

    try:
        return 1 if regex.match(target[3:], module, timeout=SECONDS) else 3
    except (regex.error, TimeoutError):
        return 3
