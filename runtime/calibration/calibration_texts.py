"""Texts to calibrate and to measure by: from files, and as token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError
from ..text.tokenizer import Tokenizer

LENGTH = 2048  # tokens of a piece of a text


class RecordedText(NamedTuple):
    """The token ids of a text that an engine computed. answers: where in it they were generated: (start, stop)."""

    tokens: tuple[int, ...]
    answers: tuple[tuple[int, int], ...] = ()


class CalibrationTextPiece(NamedTuple):
    """ids: int32 [T]; answered: bool [T], of those that were generated."""

    ids: np.ndarray
    answered: np.ndarray


Text = str | Sequence[Mapping[str, Any]] | Sequence[int] | RecordedText
"""A text, the messages of a conversation, or token ids."""


def read_calibration_texts(file: Path) -> list[Text]:
    """A text file as one text, or of a .jsonl file each line: text, messages, ids, or an object with one of these as
    "text", "messages", "ids".

    Raises ConfigError for a file that cannot be read, and for lines that are none of these.
    """
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"texts are read from text files in UTF-8, and {file} is none that can be read: {error}"
        ) from error
    if file.suffix != ".jsonl":
        return [content] if content.strip() else []
    return [
        _of_line(line, f"{file}, line {number}") for number, line in enumerate(content.splitlines(), 1) if line.strip()
    ]


def _of_line(line: str, where: str) -> Text:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is no JSON ({error}): write a text, messages or ids as JSON") from error
    if isinstance(value, dict):
        value = next((value[key] for key in ("text", "messages", "ids") if key in value), value)
    return checked(value, where)


def checked(value: Any, where: str) -> Text:
    """Raises ConfigError for what is no text, no messages and no ids."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    kinds = {type(part) for part in value} if isinstance(value, list | tuple) else set()
    if isinstance(value, str | RecordedText) or kinds in ({int}, {dict}):
        found: Text = value
        return found
    raise ConfigError(f"{where}: {value!r:.80} is no text, no list of messages and no list of token ids")


def encoded(tokenizer: Tokenizer, texts: Sequence[Any], longest: int = LENGTH) -> list[np.ndarray]:
    """int32 ids of the `pieces`."""
    return [piece.ids for piece in pieces(tokenizer, texts, longest)]


def pieces(tokenizer: Tokenizer, texts: Sequence[Any], longest: int = LENGTH) -> list[CalibrationTextPiece]:
    """Pieces of at most `longest` tokens; conversations by the model's template.

    Raises ConfigError for texts that are none, ids that the tokenizer has not, and where no token is left.
    """
    found = [
        piece
        for number, text in enumerate(texts, 1)
        for piece in _pieces(_whole(tokenizer, text, f"text {number}"), longest)
    ]
    if not found:
        raise ConfigError("there is no text to calibrate or measure by: give at least one that is not empty")
    return found


def _whole(tokenizer: Tokenizer, text: Any, where: str) -> CalibrationTextPiece:
    ids = _ids(tokenizer, text.tokens if isinstance(text, RecordedText) else text, where)
    answered = np.zeros(len(ids), bool)
    for start, stop in text.answers if isinstance(text, RecordedText) else ():
        answered[start:stop] = True
    return CalibrationTextPiece(ids, answered)


def _ids(tokenizer: Tokenizer, text: Any, where: str) -> np.ndarray:
    text = checked(text, where)
    if isinstance(text, str):
        return tokenizer.encode(text, special_prefix=True)
    if isinstance(text[0], dict):
        return tokenizer.encode_chat(text)
    ids = np.array(text, np.int64)
    if ids.min() < 0 or ids.max() >= tokenizer.vocab_size:
        raise ConfigError(
            f"{where}: token ids run from 0 to {tokenizer.vocab_size - 1}, here: {ids.min()} to {ids.max()}"
        )
    return ids.astype(np.int32)


def _pieces(whole: CalibrationTextPiece, longest: int) -> Iterator[CalibrationTextPiece]:
    for start in range(0, len(whole.ids), longest):
        yield CalibrationTextPiece(*(part[start : start + longest] for part in whole))
