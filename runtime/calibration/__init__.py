"""Weights in few bits by what flows through a model: calibration, checkpoints of the result, and what it loses."""

from .calibration_input import described, given
from .calibration_texts import LENGTH, RecordedText, TextPiece, encoded, pieces, read_calibration_texts
from .calibration_transform import CalibrationTransform

__all__ = [
    "LENGTH",
    "CalibrationTransform",
    "RecordedText",
    "TextPiece",
    "described",
    "encoded",
    "given",
    "pieces",
    "read_calibration_texts",
]
