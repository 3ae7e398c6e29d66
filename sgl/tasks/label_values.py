"""Labels as callers give them: what the model reads and writes, and the value that each stands for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sgl.lang.errors import BadValueError, check_text, shown
from sgl.lang.nodes.special_token_text import labels_in

NONE_LABEL = "none of these"


@dataclass(frozen=True)
class LabelValues:
    """`about` has the text of each label and what it means, or None; `values` what each text stands for."""

    about: dict[str, str | None]
    values: dict[str, Any]

    @classmethod
    def of(cls, caller: str, labels: Any, none: bool | str | None = None, fewest: int = 2) -> LabelValues:
        """The labels of a list, a dict of definitions, an Enum class, a Literal or bool.

        none: one more label, whose value is None: True for "none of these", or its text. Raises BadValueError, which
        begins with `caller`, for fewer labels than `fewest` and for two with the same text.
        """
        found = labels_in(caller, labels)
        about: dict[str, str | None] = {text: found.about.get(text) for text in found.texts}
        if len(about) < len(found.texts):
            twice = next(text for text in about if found.texts.count(text) > 1)
            raise BadValueError(f"{caller}: the label {shown(twice)} is there twice; leave one out")
        reading = found.reading
        read = (lambda text: text) if reading is None else (lambda text: reading.read(text, None))  # type: ignore[arg-type]
        values = {text: read(text) for text in about}
        if none:
            text = _none_text(caller, none, about)
            about[text] = values[text] = None
        if len(about) < fewest:
            raise BadValueError(f"{caller}: labels is {shown(labels)}; give at least {fewest} labels to choose from")
        return cls(about, values)

    @property
    def texts(self) -> list[str]:
        return list(self.about)

    def text_of(self, caller: str, value: Any) -> str:
        """The text of a label that is given as a value or as its text. Raises BadValueError for another value."""
        for text, known in self.values.items():
            if value is known or (type(value) is type(known) and value == known):
                return text
        if isinstance(value, str) and value in self.values:
            return value
        raise BadValueError(f"{caller}: {shown(value)} is none of the labels {shown(self.texts)}")

    def by_value(self, probs: Mapping[str, float]) -> dict[Any, float]:
        """Probabilities by text as probabilities by value, most likely first; on a tie in the order of the labels."""
        ordered = sorted(self.values, key=lambda text: -probs[text])
        return {self.values[text]: probs[text] for text in ordered}


def _none_text(caller: str, none: bool | str, about: Mapping[str, Any]) -> str:
    text = NONE_LABEL if none is True else none
    if not isinstance(text, str) or not text:
        raise BadValueError(f"{caller}: none is {shown(none)}; give True, or the text of that label")
    check_text(text, f"{caller}: none")
    if text in about:
        raise BadValueError(f"{caller}: none={shown(text)} is one of the labels already; give it another text")
    return text


def concentration(probs: Sequence[float]) -> float:
    """How far the most likely of them is above chance: 0 where all are equal, 1 where one is certain."""
    chance = 1 / len(probs)
    return min(max((max(probs) - chance) / (1 - chance), 0.0), 1.0)


def normalized(logits: Mapping[str, float]) -> dict[str, float]:
    """Probabilities in proportion to exp(logit); they sum to 1."""
    top = max(logits.values())
    weights = {text: math.exp(value - top) for text, value in logits.items()}
    total = math.fsum(weights.values())
    return {text: weight / total for text, weight in weights.items()}
