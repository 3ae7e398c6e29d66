"""What a model thought and what it said, for the language: the runtime's table of marks, by families of models."""

from __future__ import annotations

from sgl.runtime import dialects
from sgl.runtime.dialects import MARKS, ReasoningMarks

from ..errors import BadValueError, nearest

__all__ = ["MARKS", "ReasoningMarks", "marks_of", "split_reasoning"]


def marks_of(model_type: str | None) -> ReasoningMarks:
    """The marks of a family of models. BadValueError for one that is not known."""
    found = MARKS.get((model_type or "").lower())
    if found is None:
        raise BadValueError(f"separate_reasoning: model_type is {model_type!r}; {nearest(str(model_type), MARKS)}")
    return found


def split_reasoning(text: str, model_type: str | None) -> tuple[str, str]:
    """A finished text as (thought, answer), both without the white space around them."""
    return dialects.split_reasoning(text, marks_of(model_type))
