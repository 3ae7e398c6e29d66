"""The blocks of a message's content as Anthropic has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ...http.http_errors import RequestError
from ...http.validation_errors import shown
from ..openai_common.chat_translation import parse_chat_request
from ..openai_common.openai_request_types import StrictModel, refused


class ContentBlock(StrictModel):
    """What all blocks may have, and what says nothing here."""

    cache_control: Any = None


class TextBlock(ContentBlock):
    type: Literal["text"]
    text: str
    citations: Any = None


def _text(value: Any) -> Any:
    """A text, or blocks that are all text."""
    if not isinstance(value, list):
        return value
    for block in value:
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            kind = block.get("type") if isinstance(block, dict) else block
            raise refused(
                f'this model reads text alone; write blocks as {{"type": "text", "text": ...}}, not {shown(kind, 100)}'
            )
    return "\n".join(block["text"] for block in value)


Text = Annotated[str, BeforeValidator(_text, json_schema_input_type=str | list[TextBlock])]


class ToolUseBlock(ContentBlock):
    """A call of an earlier answer."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: dict[str, Any]
    caller: Any = None
    toolset_name: str | None = None


class ToolResultBlock(ContentBlock):
    """What a tool answered. `is_error` says nothing that its text does not."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1)
    content: Text = ""
    is_error: bool = False
    toolset_name: str | None = None


class ThinkingBlock(ContentBlock):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedBlock(ContentBlock):
    """An encrypted thought, which cannot be read here; it is left out."""

    type: Literal["redacted_thinking"]
    data: str = ""


AnyBlock = TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedBlock
OF_ROLE: dict[str, dict[str, type[ContentBlock]]] = {
    "user": {"text": TextBlock, "tool_result": ToolResultBlock},
    "assistant": {
        "text": TextBlock,
        "tool_use": ToolUseBlock,
        "thinking": ThinkingBlock,
        "redacted_thinking": RedactedBlock,
    },
    "system": {"text": TextBlock},
}


def blocks_of(role: str, content: str | list[Any], *place: str | int) -> list[ContentBlock]:
    """The content of a message. Raises RequestError that names the block, for kinds that this model cannot read too."""
    if isinstance(content, str):
        return [TextBlock(type="text", text=content)]
    return [_block(role, value, *place, number) for number, value in enumerate(content)]


def _block(role: str, value: Any, *place: str | int) -> ContentBlock:
    kinds = OF_ROLE[role]
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        where = ".".join(map(str, place))
        given = f"type {shown(kind, 100)}" if isinstance(value, dict) else type(value).__name__
        why = "; this model reads text alone" if kind in ("image", "document") else ""
        raise RequestError(
            f"a message of the role {role} has blocks of type {', '.join(kinds)}, not {given}{why}",
            where,
            "invalid_value",
        )
    return parse_chat_request(kinds[kind], value, *place)
