"""The items of a conversation as OpenAI's Responses has them."""

from __future__ import annotations

import base64
import binascii
import uuid
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ...http.http_errors import RequestError
from ...http.validation_errors import First, shown
from ..openai_common.chat_translation import parse_chat_request
from ..openai_common.openai_request_types import StrictModel, texts_of
from ..openai_common.openai_response_fields import Json

Status = Literal["in_progress", "completed", "incomplete"]
TEXTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
}  # of a part: its type, its field


def _text(value: Any) -> Any:
    """A text, or parts that are all text."""
    example = 'parts as {"type": "input_text", "text": ...}'
    return "".join(texts_of(value, TEXTS, example)) if isinstance(value, list) else value


Text = Annotated[str, BeforeValidator(_text, json_schema_input_type=str | list[dict[str, Any]])]


class ResponseItem(StrictModel):
    """What all items have. `id` and `status` of earlier answers are taken and say nothing new."""

    id: str | None = None
    status: Status | None = None


class MessageItem(ResponseItem):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text
    phase: str | None = None


class CallItem(ResponseItem):
    """A call of an earlier answer. `caller`, `namespace` and `async`, which clients send back, say nothing here."""

    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    arguments: str
    caller: Any = None
    namespace: str | None = None
    async_: bool | None = Field(None, alias="async")


class OutputItem(ResponseItem):
    """What a tool answered."""

    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1)
    output: Text
    caller: Any = None
    name: str | None = None
    namespace: str | None = None


class ReasoningItem(ResponseItem):
    """A thought of an earlier answer: its whole text, or a summary, or what `encrypted` made of it."""

    type: Literal["reasoning"]
    summary: Annotated[list[dict[str, Any]], First] = Field(default_factory=list)
    content: Annotated[list[dict[str, Any]], First] = Field(default_factory=list)
    encrypted_content: str | None = None

    @property
    def text(self) -> str:
        """Raises ValueError for what is no thought of this server."""
        text = "".join(str(part.get("text", "")) for part in self.content or self.summary)
        return text or (decrypted(self.encrypted_content) if self.encrypted_content else "")


class ItemReference(ResponseItem):
    """An item of an answer that the server keeps."""

    type: Literal["item_reference"]
    id: str = Field(min_length=1)


AnyItem = MessageItem | CallItem | OutputItem | ReasoningItem | ItemReference
KINDS: dict[str, type[ResponseItem]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": OutputItem,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
}


def item_of(value: Any, *place: str | int) -> ResponseItem:
    """Raises RequestError that names the place, for what is no item and for kinds that this server has not."""
    kind = value.get("type", "message") if isinstance(value, dict) else None
    known = KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        where = ".".join(map(str, place))
        given = f"type {shown(kind, 100)}" if isinstance(value, dict) else type(value).__name__
        raise RequestError(
            f"{where}: items are objects of type {', '.join(KINDS)}, not {given}", f"{where}.type", "invalid_value"
        )
    return parse_chat_request(known, value, *place)


def kept(item: ResponseItem) -> Json:
    """The item as it is shown and kept: with an id, and content in parts."""
    if isinstance(item, MessageItem):
        kind = "output_text" if item.role == "assistant" else "input_text"
        part: Json = {"type": kind, "text": item.content} | ({"annotations": []} if item.role == "assistant" else {})
        return {
            "id": item.id or new_id("msg"),
            "type": "message",
            "status": "completed",
            "role": item.role,
            "content": [part],
        }
    name = {CallItem: "fc", OutputItem: "fco", ReasoningItem: "rs"}[type(item)]
    dropped = {"caller", "namespace", "async_"}
    return {"id": item.id or new_id(name), "status": "completed", **item.model_dump(exclude_none=True, exclude=dropped)}


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def encrypted(thought: str) -> str:
    """A thought as clients carry it that keep no answers here. Nothing of it is secret: it is base64 of the text."""
    return base64.b64encode(thought.encode("utf-8", "replace")).decode()


def decrypted(content: str) -> str:
    """Raises ValueError for what `encrypted` did not make."""
    try:
        return base64.b64decode(content, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("encrypted_content was not made by this server") from None
