"""The functions of the language that describe a type or a choice to a model."""

from __future__ import annotations

from typing import Any

from ..errors import BadValueError
from ..typed.field_descriptions import words_of
from .description_nodes import SglFields, SglLabels
from .special_token_text import labels_in


def fields(kind: Any, task: str | None = None) -> SglFields:
    """Describe the fields of a type to the model: an expression for the prompt, with one line per field.

    `kind`: a dataclass, TypedDict, NamedTuple or pydantic model, a list of one, or a JSON Schema of an object (a dict).
    A line has the field's name, its kind or choices, and its description; the fields of nested objects and lists are
    indented below.

        s += sgl.system(sgl.fields(Invoice))
        s += sgl.user(text)
        s += sgl.assistant(sgl.gen("invoice", Invoice))

    The first line is the `task`. By default it asks to extract these fields as JSON and, if fields have defaults, to
    leave out what the text does not say; "" omits it. On sgl-nano the wording is the one it was trained on.
    `fields(Invoice).text()` returns the text. Raises BadValueError.
    """
    if task is not None and not isinstance(task, str):
        raise BadValueError(f"fields(..., task={task!r}): give a text, the first line of the prompt")
    return SglFields(words_of(kind), task)


def labels(choices: Any, task: str | None = None) -> SglLabels:
    """Describe labels to the model: an expression for the prompt, with one line per label.

    `choices`: what `select` and `gen(choices=)` take. A dict has the definition of each label; of an Enum, the string
        below a
    member (or its `__doc__`) is its definition; a list, a Literal and bool have none.

        KINDS = {"billing": "invoices and payments", "technical": "something does not work"}
        s += sgl.system(sgl.labels(KINDS))
        s += sgl.user(ticket)
        s += sgl.assistant(sgl.select("kind", KINDS))

    The first line is the `task`, by default "Choose the label that fits the text."; "" omits it. `labels(KINDS).text()`
    returns the text. Raises BadValueError.
    """
    if task is not None and not isinstance(task, str):
        raise BadValueError(f"labels(..., task={task!r}): give a text, the first line of the prompt")
    return SglLabels(labels_in("labels", choices), task)
