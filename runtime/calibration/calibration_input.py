"""What a user gives to calibrate by, as texts that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .calibration_texts import Text, checked, read_calibration_texts

Runs = Callable[[Callable[[Any], object]], Sequence[Text]]
"""Calls a function with an engine of the unquantised model; gives the texts of what was computed on it."""


def given(calibration: Any, runs: Runs) -> list[Text]:
    """The texts of a list, of a file, or of what a function has an engine compute; one or more.

    Raises ConfigError for anything else, for files that cannot be read, and where there is no text.
    """
    if callable(calibration):
        return _some(
            list(runs(calibration)),
            "the function that it is had the engine compute nothing: run programs with backend=engine",
        )
    if isinstance(calibration, str | Path):
        return _some(read_calibration_texts(_file(calibration)), f"{calibration} is empty")
    if not isinstance(calibration, Sequence) or isinstance(calibration, bytes):
        raise ConfigError(
            f"Engine(calibration={calibration!r:.80}): must be a list of texts or conversations, a file of them, or "
            "a function of an engine"
        )
    return _some(
        [checked(text, f"Engine(calibration=...), text {number}") for number, text in enumerate(calibration, 1)],
        "the list is empty",
    )


def described(calibration: Any, texts: Sequence[Text]) -> str:
    """For reports, which show no texts."""
    return str(calibration) if isinstance(calibration, str | Path) else f"{len(texts)} texts"


def _file(name: str | Path) -> Path:
    file = Path(name)
    if not file.is_file():
        raise ConfigError(
            f"Engine(calibration={str(name)!r:.80}): there is no such file; a text itself goes into a list: "
            "calibration=[text]"
        )
    return file


def _some(texts: list[Text], otherwise: str) -> list[Text]:
    if not texts:
        raise ConfigError(f"Engine(calibration=...): {otherwise}; give at least one text")
    return texts
