"""What OpenAI's routes take: strict models of the two requests. A null is the same as leaving the field out."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sgl.runtime.sampling.params import SamplingParams

from .errors import RequestError

Kind = Literal["regex", "json_schema", "ebnf", "structural_tag", "json_object"]
Constraint = tuple[Kind, Any, str]  # what compiles it, its source, the field that asked for it
Prompts = list[str | list[int]]

TOKEN_ID = re.compile("[0-9]{1,10}")
UNIT = Field(ge=0, le=1)
PENALTY = Field(ge=-2, le=2)


class Strict(BaseModel):
    """No unknown fields, no conversions between types, nulls dropped."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: item for name, item in value.items() if item is not None}
        return value


def _refusal(why: str) -> PydanticCustomError:
    """A validation error in these very words."""
    return PydanticCustomError("refused", "{why}", {"why": why})


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _prompts(value: Any) -> Prompts:
    """Every form of a prompt as a list of texts and lists of token ids."""
    if isinstance(value, str) or _is_ids(value):
        return [value]
    if isinstance(value, list) and value and all(isinstance(item, str) or _is_ids(item) for item in value):
        return value
    raise _refusal("a prompt is a text, a list of token ids, or a list of those; none may be an empty list")


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and item >= 0 for item in value)


def _joined(value: Any) -> str:
    """The text of a message: a string, or parts that are all text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _refusal(f"the content of a message is a text or a list of parts, not {type(value).__name__}")
    return "".join(_text_of(part) for part in value)


def _text_of(part: Any) -> str:
    if isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text" and isinstance(part["text"], str):
        return part["text"]
    kind = part.get("type") if isinstance(part, dict) else part
    raise _refusal(f'this model reads text alone; write parts as {{"type": "text", "text": ...}}, not {kind!r}')


class StreamOptions(Strict):
    include_usage: bool = False


class Sampling(Strict):
    """The fields that both requests share; those under the line are extensions of OpenAI's protocol."""

    model: str | None = None
    n: int = Field(1, ge=1)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    frequency_penalty: Annotated[float, PENALTY] = 0.0
    presence_penalty: Annotated[float, PENALTY] = 0.0
    logit_bias: dict[str, float] = Field(default_factory=dict)
    stop: Annotated[list[str], BeforeValidator(_texts)] = Field(default_factory=list)
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    # ---
    top_k: int = -1
    min_p: Annotated[float, UNIT] = 0.0
    repetition_penalty: float = Field(1.0, gt=0, le=2)
    min_tokens: int = Field(0, ge=0)
    ignore_eos: bool = False
    stop_token_ids: list[int] = Field(default_factory=list)
    stop_regex: Annotated[list[str], BeforeValidator(_texts)] = Field(default_factory=list)
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    regex: str | None = None
    json_schema: str | bool | dict[str, Any] | None = None
    ebnf: str | None = None

    @field_validator("logit_bias")
    @classmethod
    def _bias_of_ids(cls, value: dict[str, float]) -> dict[str, float]:
        for key, bias in value.items():
            if not TOKEN_ID.fullmatch(key):
                raise _refusal(f"the keys are token ids, not {key[:100]!r}")
            if not -100 <= bias <= 100:
                raise _refusal(f"the bias of token {key} must lie in [-100, 100], not {bias!r}")
        return value

    @model_validator(mode="after")
    def _options_of_a_stream(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream=true", param="stream_options")
        return self

    @property
    def with_usage(self) -> bool:
        """Whether a stream is to end with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    def params(self, max_tokens: int, logprobs: bool, top: int) -> SamplingParams:
        """The runtime's parameters, not checked yet; `top` likeliest tokens beside each."""
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=-1 if self.top_k == 0 else self.top_k,
            min_p=self.min_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias={int(key): bias for key, bias in self.logit_bias.items()},
            stop=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            stop_regex=tuple(self.stop_regex),
            keep_stop=self.no_stop_trim,
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
            seed=self.seed,
            logprobs=logprobs,
            top_logprobs=top,
        )

    def constraints(self) -> list[Constraint]:
        """Everything the text must keep to; more than one is the caller's error."""
        given: list[tuple[Kind, Any]] = [("regex", self.regex), ("json_schema", self.json_schema), ("ebnf", self.ebnf)]
        return [(kind, source, kind) for kind, source in given if source is not None]


class CompletionRequest(Sampling):
    """The body of POST /v1/completions."""

    prompt: Annotated[Prompts, BeforeValidator(_prompts)]
    max_tokens: int = Field(16, ge=0)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False


class Message(Strict):
    """One message of a conversation, its parts joined to one text."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_joined)]
    name: str | None = None
    tool_call_id: str | None = None


class NamedSchema(Strict):
    name: str = Field(min_length=1, max_length=64)
    schema_: dict[str, Any] | bool = Field(alias="schema")
    description: str | None = None
    strict: bool = True


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _schema_where_due(self) -> ResponseFormat:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise RequestError(
                "the field json_schema belongs to type 'json_schema', and only to it", param="response_format.json_schema"
            )
        return self

    def constraint(self) -> Constraint | None:
        """Enforced whether `strict` says so or not."""
        if self.type == "json_object":
            return "json_object", {}, "response_format"
        if self.json_schema is not None:
            return "json_schema", self.json_schema.schema_, "response_format"
        return None


class ChatRequest(Sampling):
    """The body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=0)
    max_completion_tokens: int | None = Field(None, ge=0)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    # ---
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs=true", param="top_logprobs")
        explicit = "add_generation_prompt" in self.model_fields_set and self.add_generation_prompt
        if self.continue_final_message and explicit:
            raise RequestError(
                "continue_final_message goes on with the last message: leave add_generation_prompt out",
                param="add_generation_prompt",
            )
        return self

    @property
    def limit(self) -> int | None:
        """The most tokens to write; None where the request leaves it to the context."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def constraints(self) -> list[Constraint]:
        own = None if self.response_format is None else self.response_format.constraint()
        return super().constraints() + ([] if own is None else [own])
