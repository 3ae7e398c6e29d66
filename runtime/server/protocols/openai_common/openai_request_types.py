"""What OpenAI's routes take: what both requests share, and that of texts. A null is the same as leaving the field
out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sgl.runtime.sampling.sampling_options import SamplingOption
from sgl.runtime.sampling.sampling_params import SamplingParams

from ...engine_bridge import MOST_NAMED
from ...http.http_errors import RequestError
from ...http.validation_errors import First, shown
from ...request_context import MOST_URGENT
from .sampling_fields import LISTS, Count, integer_type, options_in, with_sampling_fields

Kind = Literal["regex", "json_schema", "ebnf", "structural_tag", "json_object", "choice", "calls"]
Constraint = tuple[Kind, Any, str]  # what compiles it, its source, the field that asked for it
Prompts = Annotated[list[str | Annotated[list[int], First]], First]
TextList = Annotated[list[str], First]
Texts = str | TextList
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], First, Field(min_length=1)]
AnyPrompt = str | TokenIds | Annotated[list[str | TokenIds], First, Field(min_length=1)]

TOKEN_ID = re.compile("[0-9]{1,10}")


_KNOWN: dict[type[BaseModel], frozenset[str]] = {}


def _with_nulls(schema: dict[str, Any]) -> None:
    """What /openapi.json says of it: a null is the same as leaving a field out."""
    for name in schema["properties"].keys() - set(schema.get("required", ())):
        field = schema["properties"][name]
        kinds = field.get("anyOf", [field])
        if {"type": "null"} not in kinds:
            about = {key: field[key] for key in ("title", "default") if key in field}
            schema["properties"][name] = {"anyOf": [*kinds, {"type": "null"}], **about}


class StrictModel(BaseModel):
    """No unknown fields (the first is reported), no conversions between types, nulls dropped."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_with_nulls)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        known = cls.known()
        unknown = next((name for name, item in value.items() if item is not None and name not in known), None)
        return {name: item for name, item in value.items() if item is not None and (name == unknown or name in known)}

    @classmethod
    def known(cls) -> frozenset[str]:
        """The fields by the names that requests call them by."""
        found = _KNOWN.get(cls)
        if found is None:
            found = _KNOWN[cls] = frozenset(field.alias or name for name, field in cls.model_fields.items())
        return found


def refused(why: str) -> PydanticCustomError:
    """A validation error in these very words."""
    return PydanticCustomError("refused", "{why}", {"why": why})


def texts_of(parts: list[Any], fields: Mapping[str, str], example: str) -> list[str]:
    """The texts of a message's parts. fields: where a part of each type has its text; others are refused."""
    found = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else part
        text = part.get(fields.get(str(kind), "")) if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise refused(f"this model reads text alone; write {example}, not {shown(kind, 100)}")
        found.append(text)
    return found


def as_it_is(value: Any) -> Any:
    """For fields that are read later: their documented type is not what pydantic is to check."""
    return value


def few_biases(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MOST_NAMED:
        raise RequestError(f"logit_bias names {len(value)} tokens; give at most {MOST_NAMED}", param="logit_bias")
    return value


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


OneOrMore = Annotated[TextList, BeforeValidator(_texts, json_schema_input_type=Texts)]


def prompts_of(value: Any) -> Prompts:
    """Every form of a prompt as a list of texts and lists of token ids."""
    if isinstance(value, str) or _is_ids(value):
        return [value]
    if isinstance(value, list) and value and all(isinstance(item, str) or _is_ids(item) for item in value):
        return value
    raise refused("a prompt is a text, a list of token ids, or a list of those; none may be an empty list")


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and item >= 0 for item in value)


class StreamOptions(StrictModel):
    include_usage: bool = False
    include_obfuscation: bool = False  # taken: nothing is ever padded


class StructuredOutputs(StrictModel):
    """One of vLLM's ways to say what the text must keep to."""

    json_: str | bool | dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[TextList, Field(min_length=1)] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None

    def constraints(self) -> list[Constraint]:
        given: list[tuple[Kind, Any]] = [
            ("json_schema", self.json_),
            ("regex", self.regex),
            ("choice", self.choice),
            ("ebnf", self.grammar),
            ("json_object", {} if self.json_object else None),
            ("structural_tag", self.structural_tag),
        ]
        return [(kind, source, "structured_outputs") for kind, source in given if source is not None]


class ConstrainedFields(StrictModel):
    """What a text must keep to: in our own words, and as requests to vLLM have it."""

    regex: str | None = None
    json_schema: str | bool | dict[str, Any] | None = None
    ebnf: str | None = None
    resources: dict[str, dict[str, Any] | bool] | None = (
        None  # documents to which references of schemas lead, by address
    )
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | bool | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[TextList, Field(min_length=1)] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None  # taken, and of no effect

    def constraints(self) -> list[Constraint]:
        """Everything the text must keep to; more than one is the caller's error."""
        given: list[tuple[Kind, Any, str]] = [
            ("regex", self.regex, "regex"),
            ("json_schema", self.json_schema, "json_schema"),
            ("ebnf", self.ebnf, "ebnf"),
            ("json_schema", self.guided_json, "guided_json"),
            ("regex", self.guided_regex, "guided_regex"),
            ("choice", self.guided_choice, "guided_choice"),
            ("ebnf", self.guided_grammar, "guided_grammar"),
        ]
        more = [] if self.structured_outputs is None else self.structured_outputs.constraints()
        return [constraint for constraint in given if constraint[1] is not None] + more


def _type(option: SamplingOption) -> Any:
    if option.kind == "integer":
        return integer_type(option) | None if option.optional else integer_type(option)
    listed = {"token ids": Annotated[list[Count], First], "patterns": OneOrMore, "texts": OneOrMore}
    return {"number": float, "switch": bool, **listed}[option.kind]


@with_sampling_fields("openai", _type)
class OpenAISampling(ConstrainedFields):
    """The fields that both requests share, with the table's sampling options. Those under the line are extensions."""

    model: str | None = None
    n: int = Field(1, ge=1, lt=2**31)
    logit_bias: Annotated[dict[str, float], BeforeValidator(few_biases, json_schema_input_type=dict[str, float])] = (
        Field(default_factory=dict)
    )
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    # ---
    skip_special_tokens: bool = True
    priority: int = Field(0, ge=-MOST_URGENT, le=MOST_URGENT)
    timeout: float | None = Field(None, gt=0, allow_inf_nan=False)  # seconds

    @field_validator("logit_bias")
    @classmethod
    def _bias_of_ids(cls, value: dict[str, float]) -> dict[str, float]:
        for key, bias in value.items():
            if not TOKEN_ID.fullmatch(key):
                raise refused(f"the keys are token ids, not {key[:100]!r}")
            if not -100 <= bias <= 100:
                raise refused(f"the bias of token {key} must be in [-100, 100], not {bias!r}")
        return value

    @model_validator(mode="after")
    def _options_of_a_stream(self) -> OpenAISampling:
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream=true", param="stream_options")
        return self

    @property
    def with_usage(self) -> bool:
        """Whether a stream is to end with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    def params(self, max_tokens: int | None, logprobs: bool, top: int) -> SamplingParams:
        """The runtime's parameters, not checked yet; `top`: number of top logprobs per token."""
        values = {option.name: _engine_value(option, getattr(self, name)) for name, option in _OPTIONS}
        if values["top_k"] == 0:
            values["top_k"] = -1
        return SamplingParams(**values, max_tokens=max_tokens, logprobs=logprobs, top_logprobs=top)


_OPTIONS = [(option.names["openai"], option) for option in options_in("openai")]


def _engine_value(option: SamplingOption, value: Any) -> Any:
    if option.kind == "biases":
        return {int(token): bias for token, bias in value.items()}
    return tuple(value) if option.kind in LISTS else value


class CompletionRequest(OpenAISampling):
    """The body of POST /v1/completions."""

    prompt: Annotated[Prompts, BeforeValidator(prompts_of, json_schema_input_type=AnyPrompt)]
    max_tokens: Count = 16
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
