"""What POST /v1/chat/completions takes: messages, tools, and how the answer is to look."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ...http.http_errors import RequestError
from ...http.validation_errors import First
from ..openai_common.openai_request_types import Constraint, OpenAISampling, StrictModel, refused
from ..openai_common.sampling_fields import Count
from .deprecated_functions import as_tools

MOST_TOOLS = 128
MOST_MESSAGES = 20_000
OF_PARTS = {"cache_control", "annotations"}  # what parts of a message may have besides, of no effect here
DROPPED = ("refusal", "annotations", "cache_control", "parsed")  # fields of messages
SETTLED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt"}
)  # variables of templates that are the server's
NAME = r"^[A-Za-z0-9_.-]{1,64}$"
ToolName = Annotated[str, Field(pattern=NAME)]


def _content(value: Any) -> Any:
    """The content of a message: a text, or a list of parts that are all text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refused(f"the content of a message is a text or a list of parts, not {type(value).__name__}")
    return [{"type": "text", "text": _text_of(part)} for part in value]


def _text_of(part: Any) -> str:
    name = {"text": "text", "refusal": "refusal"}.get(str(part.get("type"))) if isinstance(part, dict) else None
    if name is not None and part.keys() - OF_PARTS == {"type", name} and isinstance(part[name], str):
        return part[name]
    kind = part.get("type") if isinstance(part, dict) else part
    raise refused(f'this model reads text alone; write parts as {{"type": "text", "text": ...}}, not {kind!r}')


def _few_messages(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MOST_MESSAGES:
        raise RequestError(f"there are {len(value)} messages; send at most {MOST_MESSAGES}", param="messages")
    return value


# --- tools -----------------------------------------------------------------------------------------------


class ChatFunction(StrictModel):
    name: ToolName
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = True  # always so: what is not strict is enforced as well


class FunctionTool(StrictModel):
    """A tool that the model may call. Its arguments always keep to the schema of `parameters`."""

    type: Literal["function"]
    function: ChatFunction
    cache_control: Any = None  # taken: what can be reused of a prompt always is


class NamedFunction(StrictModel):
    name: ToolName


class NamedToolChoice(StrictModel):
    """`tool_choice` for one call of this tool."""

    type: Literal["function"]
    function: NamedFunction


class ChatCalledFunction(StrictModel):
    """What a call of an earlier answer was: the arguments are JSON text.
    Parsed ones, which clients add, are dropped.
    """

    name: str = Field(min_length=1)
    arguments: str
    parsed_arguments: Any = None


class ChatToolCall(StrictModel):
    """A call of an earlier answer."""

    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: ChatCalledFunction
    index: int | None = None


class AllowedTools(StrictModel):
    """mode: "auto" or "required", as `tool_choice` itself has them. tools: those of the request that may be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice], First, Field(min_length=1, max_length=MOST_TOOLS)]


class AllowedToolsChoice(StrictModel):
    """`tool_choice` for some of the tools. The prompt shows all of them, so that it stays the same for each choice."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


_CHOICES = {"function": "function", "allowed_tools": "allowed_tools"}  # the type of a choice: the field that it needs
AnyChoice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolsChoice


def _tool_choice(value: Any) -> Any:
    """One refusal for everything that is none of the five.

    Raises the errors of a choice's own fields by their names.
    """
    if value in ("none", "auto", "required"):
        return value
    if isinstance(value, dict) and _CHOICES.get(str(value.get("type")), "type ") in value:
        return (NamedToolChoice if value["type"] == "function" else AllowedToolsChoice).model_validate(value)
    raise refused(
        'it is "none", "auto", "required", {"type": "function", "function": {"name": ...}} or '
        f'{{"type": "allowed_tools", "allowed_tools": {{"mode": "auto", "tools": [...]}}}}, not {value!r:.200}'
    )


# --- messages --------------------------------------------------------------------------------------------


class ChatTextPart(StrictModel):
    type: Literal["text"]
    text: str
    cache_control: Any = None
    annotations: Any = None


class ChatMessage(StrictModel):
    """One message of a conversation. The fields under the line are dropped: they tell of earlier answers, or come of
    clients."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[
            str | list[dict[str, str]], BeforeValidator(_content, json_schema_input_type=str | list[ChatTextPart])
        ]
        | None
    ) = None
    name: str | None = None
    tool_calls: Annotated[list[ChatToolCall], First] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    # ---
    refusal: str | None = None  # the content of a message that has no other
    annotations: list[Any] | None = None
    cache_control: Any = None
    parsed: Any = None

    @model_validator(mode="after")
    def _has_its_parts(self) -> ChatMessage:
        own = {"tool_calls": "assistant", "reasoning_content": "assistant", "tool_call_id": "tool"}
        for name, role in own.items():
            if getattr(self, name) is not None and self.role != role:
                raise refused(f"{name} belongs to the role {role!r}, not to {self.role!r}")
        if self.content is None and self.refusal is not None:
            self.content = self.refusal
        if self.content is None and not self.tool_calls:
            raise refused("a message needs content; only an assistant's message with tool_calls goes without")
        return self

    @property
    def length(self) -> int:
        """Characters of what is said and thought."""
        said = self.content or ""
        return len(self.reasoning_content or "") + (
            len(said) if isinstance(said, str) else sum(len(part["text"]) for part in said)
        )

    def plain(self) -> dict[str, Any]:
        """As templates and dialects read it."""
        dropped = {
            **dict.fromkeys(DROPPED, True),
            "tool_calls": {"__all__": {"index": True, "function": {"parsed_arguments"}}},
        }
        return self.model_dump(exclude_none=True, exclude=dropped)  # type: ignore[arg-type]


def check_answers(messages: Iterable[ChatMessage]) -> None:
    """Raise RequestError unless every call is answered, once, by a tool's message right after it."""
    open_calls: dict[str, str] = {}
    called = False
    for place, message in enumerate(messages):
        if message.role == "tool":
            _check_answer(message, place, open_calls, called)
            open_calls.pop(message.tool_call_id or "", None)
            continue
        if open_calls:
            break
        open_calls = {call.id: f"messages.{place}.tool_calls" for call in message.tool_calls or ()}
        called = called or bool(open_calls)
    if open_calls:
        name, where = next(iter(open_calls.items()))
        raise RequestError(
            f"the call {name!r} has no answer; send a message with role 'tool' and that tool_call_id after it",
            param=where,
        )


def _check_answer(message: ChatMessage, place: int, open_calls: dict[str, str], called: bool) -> None:
    name = message.tool_call_id
    if name is None and not called:  # a conversation without calls of this interface
        return
    if name not in open_calls:
        known = ", ".join(map(repr, open_calls)) or "none"
        raise RequestError(
            f"tool_call_id is {name!r}, which is not an unanswered call of the assistant message before it; "
            f"those are: {known}",
            param=f"messages.{place}.tool_call_id",
        )


# --- the answer ------------------------------------------------------------------------------------------


class NamedJsonSchema(StrictModel):
    name: str = Field(min_length=1, max_length=64)
    schema_: dict[str, Any] | bool = Field(alias="schema")
    description: str | None = None
    strict: bool = True


class ResponseFormat(StrictModel):
    """structural_tag is SGLang's and vLLM's: `structures` and `triggers`, or the newer `format`, as the grammar reads
    them.
    """

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: NamedJsonSchema | None = None
    structures: Annotated[list[dict[str, Any]], First] | None = None
    triggers: Annotated[list[str], First] | None = None
    format: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _fields_where_due(self) -> ResponseFormat:
        for name, kind in _OF_FORMATS.items():
            if getattr(self, name) is not None and self.type != kind:
                raise RequestError(
                    f"the field {name} belongs to type {kind!r}, and only to it", param=f"response_format.{name}"
                )
        if self.type == "json_schema" and self.json_schema is None:
            raise RequestError("type 'json_schema' needs the field json_schema", param="response_format.json_schema")
        if self.type == "structural_tag" and self.format is None and self.structures is None:
            raise RequestError(
                "type 'structural_tag' needs the field format, or structures and triggers",
                param="response_format.format",
            )
        return self

    def constraint(self) -> Constraint | None:
        """Enforced whether `strict` says so or not."""
        if self.type == "json_object":
            return "json_object", {}, "response_format"
        if self.json_schema is not None:
            return "json_schema", self.json_schema.schema_, "response_format"
        if self.type == "structural_tag":
            return "structural_tag", self.model_dump(exclude_none=True), "response_format"
        return None


_OF_FORMATS = {
    "json_schema": "json_schema",
    "structures": "structural_tag",
    "triggers": "structural_tag",
    "format": "structural_tag",
}


class ChatRequest(OpenAISampling):
    """The body of POST /v1/chat/completions. The fields under the first line are taken and of no effect, those under
    the second are extensions of OpenAI's protocol."""

    messages: Annotated[
        list[ChatMessage], First, BeforeValidator(_few_messages, json_schema_input_type=list[ChatMessage])
    ] = Field(min_length=1)
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: Annotated[list[FunctionTool], First] = Field(default_factory=list, max_length=MOST_TOOLS)
    tool_choice: Annotated[AnyChoice, BeforeValidator(_tool_choice)] = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    functions: Annotated[list[ChatFunction], First] | None = Field(None, max_length=MOST_TOOLS)
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    # ---
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: Annotated[list[Literal["text"]], First] | None = None
    prediction: dict[str, Any] | None = None
    # ---
    separate_reasoning: bool = True
    stream_reasoning: bool = True  # False: a stream gives the whole thought at once
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @model_validator(mode="before")
    @classmethod
    def _with_functions(cls, value: Any) -> Any:
        return as_tools(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.function_call is not None and self.functions is None:
            raise RequestError(
                "function_call asks for one of functions, but there are none; give some", param="function_call"
            )
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs=true", param="top_logprobs")
        explicit = "add_generation_prompt" in self.model_fields_set and self.add_generation_prompt
        if self.continue_final_message and explicit:
            raise RequestError(
                "continue_final_message goes on with the last message: leave add_generation_prompt out",
                param="add_generation_prompt",
            )
        check_answers(self.messages)
        self._check_tools()
        return self

    def _check_tools(self) -> None:
        names = [tool.function.name for tool in self.tools]
        twice = next((i for i, name in enumerate(names) if name in names[:i]), None)
        if twice is not None:
            raise RequestError(
                f"two tools are called {names[twice]!r}; rename one", param=f"tools.{twice}.function.name"
            )
        if not names and self.tool_choice not in ("none", "auto"):
            raise RequestError("tool_choice asks for a call, but there are no tools; give some", param="tool_choice")
        for name in self.allowed or ():
            if name not in names:
                where = "function.name" if isinstance(self.tool_choice, NamedToolChoice) else "allowed_tools.tools"
                raise RequestError(
                    f"there is no tool {name!r}; tools has {', '.join(names)}", param=f"tool_choice.{where}"
                )
        if self.calls_tools and (self.continue_final_message or not self.add_generation_prompt):
            name = "continue_final_message" if self.continue_final_message else "add_generation_prompt"
            raise RequestError(
                f"{name} continues a text, but tool calls begin a new one; set tool_choice to 'none'", param=name
            )

    @property
    def choice(self) -> str:
        """auto, required, none, or the name of the tool that is to be called."""
        if isinstance(self.tool_choice, NamedToolChoice):
            return self.tool_choice.function.name
        return (
            self.tool_choice.allowed_tools.mode
            if isinstance(self.tool_choice, AllowedToolsChoice)
            else self.tool_choice
        )

    @property
    def allowed(self) -> list[str] | None:
        """The names of the tools that may be called, where `tool_choice` names some; None: all."""
        if isinstance(self.tool_choice, NamedToolChoice):
            return [self.tool_choice.function.name]
        if isinstance(self.tool_choice, AllowedToolsChoice):
            return [tool.function.name for tool in self.tool_choice.allowed_tools.tools]
        return None

    @property
    def calls_tools(self) -> bool:
        """Whether the answer may hold calls."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def limit(self) -> int | None:
        """The most tokens to write; None where the request leaves it to the context."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def constraints(self) -> list[Constraint]:
        own = None if self.response_format is None else self.response_format.constraint()
        return super().constraints() + ([] if own is None else [own])
