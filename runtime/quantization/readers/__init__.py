"""Weights of other people's quantised checkpoints: what the headers hold -> `Grouped`, exactly."""

from __future__ import annotations

from .claim import Claim, Sibling
from .readers import Readers

__all__ = ["Claim", "Readers", "Sibling"]
