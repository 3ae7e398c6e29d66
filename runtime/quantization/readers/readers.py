"""Which reader takes a module's weight. The headers decide; the configuration gives parameters, its ignore lists are not asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import float8
from .asked import Asked, asked_of
from .claim import Claim, Module, Sibling

SIGNS = ("weight_scale", "weight_scale_inv", "weight_scale_2", "weight_packed", "qweight", "W_q", "SCB", "_weight_qdata")


class Readers:
    """The readers of one checkpoint. notes: a line for each thing that is computed otherwise than the checkpoint asks."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, quantization: dict[str, Any] | None, where: str, beside: Mapping[str, dict[str, Any]] | None = None) -> Readers:
        """quantization: config.json's quantization_config or compression_config; beside: objects of other files by name.

        Raises ConfigError for a method that is not read, and for keys whose value changes results and is not understood.
        """
        return cls(asked_of(quantization, where, beside or {}))

    def claim(self, module: str, siblings: Mapping[str, Sibling]) -> Claim | None:
        """How the weight of `module` is read; None: it is a plain one. siblings: every tensor named module.*, by the rest.

        Raises CheckpointError, naming the tensor, for one that looks quantised and fits no format.
        """
        found = Module(module, siblings)
        if found.dtype("weight").startswith("F8_"):
            return float8.claim(found, self.asked.block)
        for name in SIGNS:
            if found.has(name):
                raise found.wrong(name, f"belongs to no format that is read ({self.asked.method}); take another checkpoint of this model")
        return None
