"""Weights in few bits by what flows through a model: calibration, checkpoints of the result, and what it loses."""

from .calibrating import Calibrating
from .given import described, given
from .texts import LENGTH, Piece, Recorded, encoded, pieces, read_texts

__all__ = ["LENGTH", "Calibrating", "Piece", "Recorded", "described", "encoded", "given", "pieces", "read_texts"]
