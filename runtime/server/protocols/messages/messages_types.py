"""What POST /v1/messages takes, with its blocks of content. A null is the same as leaving the field out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ...http.http_errors import RequestError
from ...http.validation_errors import First, shown
from ...request_context import MOST_URGENT
from ..chat.chat_types import MOST_TOOLS, ToolName
from ..openai_common.chat_translation import parse_chat_request
from ..openai_common.openai_request_types import StrictModel, as_it_is, refused, texts_of
from ..openai_common.sampling_fields import loose_type, with_sampling_fields


class ContentBlock(StrictModel):
    """What all blocks may have, and what says nothing here."""

    cache_control: Any = None


class TextBlock(ContentBlock):
    type: Literal["text"]
    text: str
    citations: Any = None


def _text(value: Any) -> Any:
    """A text, or blocks that are all text."""
    example = 'blocks as {"type": "text", "text": ...}'
    return "\n".join(texts_of(value, {"text": "text"}, example)) if isinstance(value, list) else value


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


def _kind_of_tool(value: Any) -> Any:
    if value not in (None, "custom"):
        raise refused(
            f"this server has no built-in tool of type {shown(value, 100)}; give tools with an input_schema, which "
            "you run yourself"
        )
    return value


class AnthropicTool(StrictModel):
    """A tool that the model may call. Those under the line are taken and of no effect."""

    type: Annotated[Literal["custom"] | None, BeforeValidator(_kind_of_tool)] = None
    name: ToolName
    description: str = ""
    input_schema: dict[str, Any]
    # ---
    cache_control: Any = None
    strict: bool = True  # always so
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    input_examples: list[Any] | None = None
    allowed_callers: Annotated[list[str], First] | None = None


class AnthropicToolChoice(StrictModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class AnthropicThinking(StrictModel):
    """Whether the model is to think, where its template has a switch for it.

    `budget_tokens` and `display` are of no effect.
    """

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(StrictModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] | bool = Field(alias="schema")


class OutputConfig(StrictModel):
    """`effort` reaches the template where it reads it."""

    format: OutputFormat | None = None
    effort: str | None = None


class AnthropicInputMessage(StrictModel):
    role: Literal["user", "assistant", "system"]
    content: Annotated[str | list[Any], BeforeValidator(as_it_is, json_schema_input_type=str | list[AnyBlock])]


class AnthropicConversation(StrictModel):
    """What is counted and what is answered. The fields under the line are taken and of no effect."""

    model: str | None = None
    messages: Annotated[list[Any], BeforeValidator(as_it_is, json_schema_input_type=list[AnthropicInputMessage])] = (
        Field(min_length=1)
    )
    system: Text | None = None
    tools: Annotated[list[AnthropicTool], First] = Field(default_factory=list, max_length=MOST_TOOLS)
    tool_choice: AnthropicToolChoice = Field(default_factory=lambda: AnthropicToolChoice(type="auto"))
    thinking: AnthropicThinking | None = None
    output_config: OutputConfig = Field(default_factory=OutputConfig)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)  # an extension
    # ---
    cache_control: Any = None
    speed: str | None = None


class AnthropicThread(StrictModel):
    """The server is to keep the conversation. This one keeps none; see `MessagesRequest.check_thread`."""

    type: Literal["create", "continue"]
    previous_message_id: str | None = None


@with_sampling_fields("messages", loose_type)
class MessagesRequest(AnthropicConversation):
    """The body of POST /v1/messages.

    Those under the first line are taken and of no effect, under the second extensions.
    """

    max_tokens: int = Field(ge=1, lt=2**31)
    stop_sequences: Annotated[list[str], First] = Field(default_factory=list)
    stream: bool = False
    # ---
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    # ---
    thread: AnthropicThread | None = None
    priority: int = Field(0, ge=-MOST_URGENT, le=MOST_URGENT)
    timeout: float | None = Field(None, gt=0, allow_inf_nan=False)  # seconds

    def check_thread(self) -> None:
        """Raise the refusal by which Anthropic's clients know that they are to send the whole conversation each
        time."""
        if self.thread is not None:
            raise RequestError(
                "this server keeps no threads: send all messages each time, and no thread",
                "thread",
                details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
            )
