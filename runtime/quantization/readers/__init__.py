"""Weights of other people's quantised checkpoints: what the headers hold -> `QuantizedWeight`, exactly."""

from __future__ import annotations

from .weight_reader_match import TensorHeader, WeightReader
from .weight_readers import WeightReaders

__all__ = ["TensorHeader", "WeightReader", "WeightReaders"]
