"""What POST /v1/messages takes. A null is the same as leaving the field out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ...http.http_errors import RequestError
from ...http.validation_errors import First, shown
from ...request_context import MOST_URGENT
from ..chat.chat_types import MOST_TOOLS, ToolName
from ..openai_common.openai_request_types import StrictModel, as_it_is, refused
from ..openai_common.sampling_fields import loose_type, with_sampling_fields
from .content_blocks import AnyBlock, Text


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
