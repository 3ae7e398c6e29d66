"""Weights in few bits by what flows through a model: calibration, checkpoints of the result, and what it loses."""

from .calibration_input import described, given
from .calibration_texts import LENGTH, CalibrationTextPiece, RecordedText, encoded, pieces, read_calibration_texts
from .calibration_transform import CalibrationTransform

__all__ = [
    "LENGTH",
    "CalibrationTextPiece",
    "CalibrationTransform",
    "RecordedText",
    "described",
    "encoded",
    "given",
    "pieces",
    "read_calibration_texts",
]
