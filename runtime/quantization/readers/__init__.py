"""Weights of other people's quantised checkpoints: what the headers hold -> `QuantizedWeight`, exactly."""

from __future__ import annotations

from .reader_match import WeightReader, TensorHeader
from .weight_readers import WeightReaders

__all__ = ["WeightReader", "WeightReaders", "TensorHeader"]
