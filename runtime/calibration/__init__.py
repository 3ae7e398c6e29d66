"""Weights in few bits by what flows through a model: calibration, checkpoints of the result, and what it loses."""

from .calibrating import Calibrating
from .texts import encoded, read_texts

__all__ = ["Calibrating", "encoded", "read_texts"]
