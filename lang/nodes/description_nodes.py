"""Nodes that describe something to the model: the fields of a type, the labels of a choice."""

from __future__ import annotations

from typing import Any

from .ir import SglExpr


class SglFields(SglExpr):
    """The fields of a type in words, as the backend's model wants them.

    `words` is a FieldDescriptions; see `sgl.fields`.
    """

    def __init__(self, words: Any, task: str | None = None) -> None:
        self.words = words
        self.task = task

    _hint = "; .text() is a string, what most models see"

    def __repr__(self) -> str:
        return f"Fields({self.text()!r})"

    def __str__(self) -> str:
        """For print(): what it is. An f-string is refused, as it would put this into a prompt."""
        return (
            f"the fields of {self.words.name}, as a part of a prompt. It is written in a program, for the model that "
            "runs it: "
            f"s += sgl.system(sgl.fields({self.words.name})). For most models it is this, which .text() "
            f"returns:\n\n{self.text()}"
        )

    def text(self, backend: Any = None) -> str:
        """What is appended at a backend; without one, what most models see."""
        return self.words.text(backend, self.task)


class SglLabels(SglFields):
    """Labels and what they mean, a line each. `words` is a Labels; see `sgl.labels`."""

    def __repr__(self) -> str:
        return f"Labels({self.text()!r})"

    def __str__(self) -> str:
        return (
            f"{self.words.name} in words, as a part of a prompt. It is written in a program: s += "
            "sgl.system(sgl.labels(...)). "
            f"It is this, which .text() returns:\n\n{self.text()}"
        )
