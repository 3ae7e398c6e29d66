"""torchao's metadata of a weight in its files: JSON with its class there, and that one's attributes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from .quantization_config import is_size
from .weight_reader_match import QuantizedModule
from .weight_scales import ScaleBlock

LONGEST = 65536  # bytes of JSON
DTYPE = re.compile(r"int([1-8])")
LARGEST = 2**31  # of an output's or input's number


class TorchAOMetadata(NamedTuple):
    """kind: the class, "" where nothing is said; keys: its attributes."""

    module: QuantizedModule
    kind: str = ""
    keys: Mapping[str, Any] = {}

    def wrong(self, key: str) -> Exception:
        return self.module.wrong(
            "weight", f"has {key} {self.keys.get(key)!r:.60} in its file's metadata, which cannot be; quantise it again"
        )

    def reach(self) -> ScaleBlock:
        """Of a scale: how many outputs and inputs share it."""
        found = self.keys.get("block_size")
        if not isinstance(found, list) or len(found) != 2 or not all(map(is_size, found)):
            raise self.wrong("block_size")
        return ScaleBlock(*found)

    def group(self) -> int:
        """How many inputs share a scale, where outputs do not."""
        rows, inputs = self.reach()
        if rows != 1:
            raise self.wrong("block_size")
        return inputs

    def shape(self) -> tuple[int, int]:
        found = self.keys.get("shape")
        if not isinstance(found, list) or len(found) != 2 or not all(is_size(size, LARGEST) for size in found):
            raise self.wrong("shape")
        return found[0], found[1]

    def bits(self) -> int:
        """Of the codes, which may be stored in more."""
        found = self.keys.get("target_dtype")
        name = found.get("_data") if isinstance(found, Mapping) else None
        if not isinstance(name, str) or (match := DTYPE.fullmatch(name)) is None:
            raise self.wrong("target_dtype")
        return int(match[1])


def metadata_of(module: QuantizedModule, text: object) -> TorchAOMetadata:
    """text: as the file has it; None: it has nothing. Raises CheckpointError for what is no such JSON."""
    if text is None:
        return TorchAOMetadata(module)
    try:
        found = json.loads(text) if isinstance(text, str) and len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        found = None
    kind, keys = (found.get("_type"), found.get("_data", {})) if isinstance(found, Mapping) else (None, None)
    if not isinstance(kind, str) or not isinstance(keys, Mapping):
        raise module.wrong(
            "weight",
            f"is described by {text!r:.60} in its file's metadata, not by its class and attributes; quantise it again",
        )
    return TorchAOMetadata(module, kind, keys)
