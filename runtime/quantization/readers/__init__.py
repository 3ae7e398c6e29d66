"""Weights of other people's quantised checkpoints: what the headers hold -> `QuantizedWeight`, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.lazy_names import lazy_names

if TYPE_CHECKING:
    from .weight_reader_match import TensorHeader, WeightReader
    from .weight_readers import WeightReaders

__all__ = ["TensorHeader", "WeightReader", "WeightReaders"]

_HOMES = {"weight_reader_match": ("TensorHeader", "WeightReader"), "weight_readers": ("WeightReaders",)}

__getattr__ = lazy_names(__name__, _HOMES)
