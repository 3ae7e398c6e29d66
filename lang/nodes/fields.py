"""The word of the language that tells a model what a type wants of it."""

from __future__ import annotations

from typing import Any

from ..errors import BadValueError
from ..typed.fields import words_of
from .ir import SglFields


def fields(kind: Any, task: str | None = None) -> SglFields:
    """What a model must know of a type before it writes one, as an expression: a line for each field.

    `kind`: a dataclass, TypedDict, NamedTuple or pydantic model, a list of one, or a JSON Schema of an object (a dict).
    A line has the field's name, kind or choices, and description; objects and lists show what they hold, indented.

        s += sgl.system(sgl.fields(Invoice))
        s += sgl.user(text)
        s += sgl.assistant(sgl.gen("invoice", Invoice))

    The first line is the `task`, by default to extract these fields as JSON (and to leave out what the text does not
    say, where fields have defaults); "" for none. On sgl-nano the words are those that it was trained on.
    `fields(Invoice).text()` is the text. Raises BadValueError.
    """
    if task is not None and not isinstance(task, str):
        raise BadValueError(f"fields(..., task={task!r}): the task is a text, the first line of the prompt")
    return SglFields(words_of(kind), task)
