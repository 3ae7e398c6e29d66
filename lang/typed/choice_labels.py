"""The labels that a text may get: their texts, what each means in words, and which value each stands for."""

from __future__ import annotations

import ast
import enum
import inspect
import json
import textwrap
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin

from sgl.runtime.nano import nano_prompts

from ..errors import BadValueError, shown
from .type_constraint import type_name
from .typed_text_parsing import TypedTextParser
from .unquoted_types import bare_reading


class ChoiceLabels:
    """Labels in their order.

    `about` has the definitions of those that have one; `reading` makes a label's value of its text.
    """

    def __init__(
        self,
        name: str,
        texts: Iterable[Any],
        about: Mapping[str, str] | None = None,
        reading: TypedTextParser[Any] | None = None,
    ) -> None:
        self.name = name
        self.texts = list(texts)
        self.about = dict(about or {})
        self.reading = reading

    def text(self, backend: Any = None, task: str | None = None) -> str:
        """`- label: definition`, a line each, below the task. All models get the same text."""
        lines = [nano_prompts.LABEL_TASK if task is None else task, *map(self._line, self.texts)]
        return "\n".join(line for line in lines if line)

    def _line(self, label: str) -> str:
        shown_label = json.dumps(label, ensure_ascii=False) if label.splitlines() != [label] else label
        about = self.about.get(label)
        return f"- {shown_label}: {about}" if about else f"- {shown_label}"


def labels_of(given: Any) -> ChoiceLabels | None:
    """The labels of a dict of definitions, an Enum class, a Literal or bool; None for anything else, such as a list.

    Raises BadValueError for definitions that are not texts, and for a type whose values are not all texts or all whole
    numbers.
    """
    if isinstance(given, Mapping):
        return ChoiceLabels("labels", given, _definitions(given))
    if given is bool or get_origin(given) is Literal or (isinstance(given, type) and issubclass(given, enum.Enum)):
        return _of_type(given)
    return None


def choice_labels(kind: Any) -> ChoiceLabels | None:
    """The labels that a typed gen of `kind` chooses from; None if its texts are not a few that are known."""
    try:
        return None if isinstance(kind, Mapping) else labels_of(kind)
    except BadValueError:
        return None


def _definitions(given: Mapping[Any, Any]) -> dict[str, str]:
    for label, about in given.items():
        if about is not None and not isinstance(about, str):
            raise BadValueError(
                f"the definition of {shown(label)} is {shown(about)}; give a text that says what the label means, or "
                "None"
            )
    return {label: " ".join(about.split()) for label, about in given.items() if about}


@lru_cache(maxsize=512)
def _of_type(kind: Any) -> ChoiceLabels:
    values = [True, False] if kind is bool else _members(kind)
    reading = bare_reading(kind)
    if reading is None or not values:
        raise BadValueError(
            f"{type_name(kind)} has no labels: its values are {shown(values)}; their values must be all texts or all "
            "whole numbers"
        )
    is_enum = isinstance(kind, type) and issubclass(kind, enum.Enum)
    return ChoiceLabels(type_name(kind), map(_text, values), _documented(kind) if is_enum else None, reading)


def _members(kind: Any) -> list[Any]:
    return list(get_args(kind)) if get_origin(kind) is Literal else [member.value for member in kind]


def _text(value: Any) -> str:
    return str.__str__(value) if isinstance(value, str) else str(value)


def _documented(kind: type[enum.Enum]) -> dict[str, str]:
    """What is said of members: by their own `__doc__`, or by a string on the line below, where the source is at
    hand."""
    below = _strings_below(kind)
    found = {}
    for member in kind:
        own = member.__dict__.get("__doc__") or below.get(member.name)
        if isinstance(own, str) and own.strip():
            found[_text(member.value)] = " ".join(own.split())
    return found


def _strings_below(kind: type) -> dict[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return {}
    found: dict[str, str] = {}
    lines = body.body if isinstance(body, ast.ClassDef) else []
    for line, after in pairwise(lines):
        if (
            isinstance(line, ast.Assign)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            found |= {target.id: after.value.value for target in line.targets if isinstance(target, ast.Name)}
    return found
