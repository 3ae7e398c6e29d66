"""The contents of messages: text, or text and pictures as the parts that chat APIs have."""

from __future__ import annotations

from typing import Any

from ..backend import Media

Message = dict[str, Any]  # {"role": str, "content": str or a list of content parts}


def content_of(turn: list[str | Media]) -> str | list[Message]:
    """The content of a message: text, or a list of parts if the turn has pictures."""
    if not any(isinstance(part, Media) for part in turn):
        return "".join(part for part in turn if isinstance(part, str)).lstrip()
    first = turn[0].lstrip() if isinstance(turn[0], str) else turn[0]
    return [_content_part(part) for part in [first, *turn[1:]] if part]


def _content_part(part: str | Media) -> Message:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    name = f"{part.kind}_url"
    return {"type": name, name: {"url": part.source}}
