"""Weights in few bits by what flows through a model: calibration, checkpoints of the result, and what it loses."""

from .calibration_transform import CalibrationTransform
from .calibration_input import described, given
from .calibration_texts import LENGTH, TextPiece, RecordedText, encoded, pieces, read_calibration_texts

__all__ = ["LENGTH", "CalibrationTransform", "TextPiece", "RecordedText", "described", "encoded", "given", "pieces", "read_calibration_texts"]
