"""What POST /v1/responses takes. A null is the same as leaving the field out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ...http.http_errors import RequestError
from ...http.validation_errors import First, shown
from ...request_context import MOST_URGENT
from ..chat.chat_types import MOST_TOOLS, ToolName
from ..openai_common.openai_request_types import StrictModel, as_it_is, refused
from ..openai_common.sampling_fields import loose_type, with_sampling_fields
from .response_items import AnyItem

LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
OF_OTHER_TOOLS = (  # taken: there is nothing of them here
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
Most = Annotated[int, Field(ge=1, lt=2**31)]
Label = Annotated[str, Field(max_length=512)]


class ResponseFunction(StrictModel):
    """A tool that the model may call. `defer_loading` and the like say nothing here: it is always there."""

    type: Literal["function"]
    name: ToolName
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = True  # always so: what is not strict is enforced as well
    defer_loading: bool | None = None
    output_schema: Any = None


class ResponseNamedTool(StrictModel):
    type: Literal["function"]
    name: ToolName


class ResponseAllowedTools(StrictModel):
    """Only some of the tools, as `mode` has it."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[ResponseNamedTool], First] = Field(min_length=1)


def _choice(value: Any) -> Any:
    """One refusal for everything that is none of the five."""
    if value in ("none", "auto", "required") or (
        isinstance(value, dict) and value.get("type") in ("function", "allowed_tools")
    ):
        return value
    raise refused(f'it is "none", "auto", "required" or {{"type": "function", "name": ...}}, not {shown(value)}')


class ResponseTextFormat(StrictModel):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = Field(None, min_length=1, max_length=64)
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool = True  # always so

    @model_validator(mode="after")
    def _schema_where_due(self) -> ResponseTextFormat:
        if (self.schema_ is not None) != (self.type == "json_schema"):
            raise RequestError(
                "the field schema belongs to type 'json_schema', and only to it", param="text.format.schema"
            )
        return self


class TextOptions(StrictModel):
    format: ResponseTextFormat = Field(default_factory=lambda: ResponseTextFormat.model_validate({}))
    verbosity: Literal["low", "medium", "high"] | None = None  # taken, and of no effect


class ReasoningOptions(StrictModel):
    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(StrictModel):
    include_obfuscation: bool = False  # taken: nothing is ever padded


def _metadata(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > 16:
        raise refused(f"it may have 16 entries, not {len(value)}")
    return value


@with_sampling_fields("responses", loose_type)
class ResponseRequest(StrictModel):
    """The body of POST /v1/responses. The fields under the first line are taken and of no effect, those under the
    second are extensions of OpenAI's protocol."""

    model: str | None = None
    input: Annotated[str | list[Any], BeforeValidator(as_it_is, json_schema_input_type=str | list[AnyItem])] = Field(
        default_factory=list
    )
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    metadata: Annotated[dict[str, Label], BeforeValidator(_metadata)] = Field(default_factory=dict)
    include: Annotated[list[Literal[LOGPROBS, ENCRYPTED, *OF_OTHER_TOOLS]], First] = Field(default_factory=list)  # type: ignore[valid-type]
    max_output_tokens: Most | None = None
    top_logprobs: int = Field(0, ge=0, le=20)
    tools: Annotated[list[ResponseFunction], First] = Field(default_factory=list, max_length=MOST_TOOLS)
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ResponseNamedTool | ResponseAllowedTools, BeforeValidator(_choice)
    ] = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    truncation: Literal["auto", "disabled"] = "disabled"
    background: Literal[False] = False
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    # ---
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    service_tier: str | None = None
    max_tool_calls: int | None = None
    # ---
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    priority: int = Field(0, ge=-MOST_URGENT, le=MOST_URGENT)
    timeout: float | None = Field(None, gt=0, allow_inf_nan=False)  # seconds

    @model_validator(mode="after")
    def _something_to_answer(self) -> ResponseRequest:
        if not self.input and self.previous_response_id is None:
            raise RequestError("input is missing; give a text or a list of items", "input", "missing_field")
        return self

    @property
    def logprobs(self) -> bool:
        return LOGPROBS in self.include or self.top_logprobs > 0

    @property
    def summary(self) -> bool:
        """Whether thoughts are sent as summaries, which are their whole text, and not as content."""
        return (self.reasoning.summary or self.reasoning.generate_summary) is not None
