"""Weights in few bits by what flows through a model: calibration, checkpoints of the result, and what it loses."""

from .calibrating import Calibrating
from .given import described, given
from .texts import LENGTH, encoded, read_texts

__all__ = ["LENGTH", "Calibrating", "described", "encoded", "given", "read_texts"]
