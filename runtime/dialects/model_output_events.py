"""What a model's text turns out to be, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text that the model wrote for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call of a tool, the first of a text has index 0.

    `id` is empty unless the model wrote one before the arguments.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments: JSON text, as written. All of a call together are an object unless it was cut."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """Nothing more comes of a call.

    complete: the arguments are a JSON object; False where the text broke off or went wrong inside of them.
    id: what the model wrote as the id anywhere in the call, or empty.
    text: of an incomplete call all that was written of it, its mark included; else empty.
    """

    index: int
    complete: bool = True
    id: str = ""
    text: str = ""


Event = ContentDelta | ReasoningDelta | ToolCallStart | ArgumentsDelta | ToolCallEnd
