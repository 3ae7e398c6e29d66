"""What OpenAI's routes take: what both requests share, and that of texts. A null is the same as leaving the field out."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sgl.runtime.sampling.params import SamplingParams

from .caller import MOST_URGENT
from .errors import RequestError

Kind = Literal["regex", "json_schema", "ebnf", "structural_tag", "json_object"]
Constraint = tuple[Kind, Any, str]  # what compiles it, its source, the field that asked for it
Prompts = list[str | list[int]]
Texts = str | list[str]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
AnyPrompt = str | TokenIds | Annotated[list[str | TokenIds], Field(min_length=1)]

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


def refused(why: str) -> PydanticCustomError:
    """A validation error in these very words."""
    return PydanticCustomError("refused", "{why}", {"why": why})


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def prompts_of(value: Any) -> Prompts:
    """Every form of a prompt as a list of texts and lists of token ids."""
    if isinstance(value, str) or _is_ids(value):
        return [value]
    if isinstance(value, list) and value and all(isinstance(item, str) or _is_ids(item) for item in value):
        return value
    raise refused("a prompt is a text, a list of token ids, or a list of those; none may be an empty list")


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and item >= 0 for item in value)


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
    stop: Annotated[list[str], BeforeValidator(_texts, json_schema_input_type=Texts)] = Field(default_factory=list)
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
    stop_regex: Annotated[list[str], BeforeValidator(_texts, json_schema_input_type=Texts)] = Field(default_factory=list)
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    regex: str | None = None
    json_schema: str | bool | dict[str, Any] | None = None
    ebnf: str | None = None
    priority: int = Field(0, ge=-MOST_URGENT, le=MOST_URGENT)
    timeout: float | None = Field(None, gt=0, allow_inf_nan=False)  # seconds

    @field_validator("logit_bias")
    @classmethod
    def _bias_of_ids(cls, value: dict[str, float]) -> dict[str, float]:
        for key, bias in value.items():
            if not TOKEN_ID.fullmatch(key):
                raise refused(f"the keys are token ids, not {key[:100]!r}")
            if not -100 <= bias <= 100:
                raise refused(f"the bias of token {key} must lie in [-100, 100], not {bias!r}")
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

    prompt: Annotated[Prompts, BeforeValidator(prompts_of, json_schema_input_type=AnyPrompt)]
    max_tokens: int = Field(16, ge=0)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
