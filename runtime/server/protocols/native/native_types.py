"""What `POST /generate` takes, field by field, and the words for what it does not take."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from sgl.runtime.sampling.sampling_options import SamplingOption

from ...http.http_errors import RequestError
from ...http.validation_errors import First, shown
from ...request_context import MOST_URGENT
from ..openai_common.openai_request_types import as_it_is, few_biases
from ..openai_common.sampling_fields import Count, Word, integer_type, with_sampling_fields

MOST_TOP = 128  # top logprobs of each


def _encodable(text: str) -> str:
    """JSON can hold halves of characters, which are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("lone_surrogate", "text without unpaired surrogates") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]
TextList = Annotated[list[Text], First]
Texts = Text | TextList
Counts = Annotated[list[Count], First]
Prompts = Counts | Annotated[list[Counts], First]
Stretches = Annotated[list[Counts], First]
Top = Annotated[int, Field(ge=0, le=MOST_TOP)]

# Fields of the protocol that this server does not support: null, false and empty are taken, a value is refused.
WITHOUT = frozenset(
    {
        "audio_data",
        "bootstrap_host",
        "bootstrap_pair_key",
        "bootstrap_port",
        "bootstrap_room",
        "custom_logit_processor",
        "data_parallel_rank",
        "extra_key",
        "image_data",
        "input_embeds",
        "modalities",
        "return_hidden_states",
        "session_params",
        "token_ids_logprob",
        "video_data",
    }
)
SAMPLING_WITHOUT = frozenset({"custom_params", "stream_interval"})


EMPTY: dict[str, Any] = {
    "enum": [None, False, 0, "", [], {}],
    "description": "not supported: no value but an empty one is taken",
}


def unread(model: type[BaseModel]) -> BeforeValidator:
    """Marks an object that is checked later, by `checked`, for messages in the words of the protocol."""
    return BeforeValidator(as_it_is, json_schema_input_type=model)


def _but_empty(names: frozenset[str]) -> ConfigDict:
    """What /openapi.json says of fields that are not supported."""
    return ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra=lambda schema: schema["properties"].update(dict.fromkeys(names, EMPTY)),
    )


_TYPES: dict[str, Any] = {
    "number": float,
    "switch": bool,
    "biases": Annotated[dict[str, float], BeforeValidator(few_biases)],  # by token id, as JSON has it: in quotes
    "texts": Texts,
    "patterns": Texts,
    "token ids": Counts,
}


def _type(option: SamplingOption) -> Any:
    return (integer_type(option) if option.kind == "integer" else _TYPES[option.kind]) | None


@with_sampling_fields("native", _type)
class SamplingFields(BaseModel):
    """One `sampling_params`. None is the default of the field, but for max_new_tokens."""

    model_config = _but_empty(SAMPLING_WITHOUT)

    max_new_tokens: Count | None = None  # null: to the end of the context; left out: 128
    max_tokens: Count | None = None  # another name of max_new_tokens
    min_tokens: Count | None = None  # another name of min_new_tokens
    n: Annotated[int, Field(ge=1)] | None = None
    spaces_between_special_tokens: bool | None = None  # tokens are joined as they are, whatever it says
    regex: Text | None = None
    json_schema: Text | bool | dict[str, Any] | None = None
    ebnf: Text | None = None
    structural_tag: Text | dict[str, Any] | None = None
    resources: dict[str, dict[str, Any] | bool] | None = (
        None  # documents to which references of schemas lead, by address
    )


SamplingBody = Annotated[dict[str, Any], unread(SamplingFields)]


class GenerateFields(BaseModel):
    """One call: `text` or `input_ids`, each one prompt or a list of prompts. A list elsewhere has one entry a prompt.

    quoted: stretches of the text in which special tokens are plain text, as [first character, end (exclusive), 1 if the
        model wrote it (then other marks of its template count) or 0].
    lora_path: the name of an adapter, never a path; null and "" are the base.
    """

    model_config = _but_empty(WITHOUT)

    text: Texts | None = None
    input_ids: Prompts | None = None
    quoted: Stretches | Annotated[list[Stretches], First] | None = None  # of the text, or of each text
    sampling_params: SamplingBody | Annotated[list[SamplingBody], First] | None = None
    rid: Texts | None = None
    stream: bool | None = None
    return_logprob: bool | Annotated[list[bool], First] | None = None
    logprob_start_len: Word | Annotated[list[Word], First] | None = None  # -1: only the output
    top_logprobs_num: Top | Annotated[list[Top], First] | None = None
    return_text_in_logprobs: bool | None = None
    priority: Annotated[int, Field(ge=-MOST_URGENT, le=MOST_URGENT)] | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # seconds
    lora_path: Text | Annotated[list[Text | None], First] | None = None


Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], data: Mapping[str, Any], without: frozenset[str], within: str = "") -> Model:
    """`data` as `model`. `within` is the path of `data` itself, for the messages.

    Raises:
        RequestError: names the field, the value, and the known field that is nearest to an unknown one.
    """
    place = f"{within}." if within else ""
    for name in sorted(without & data.keys()):
        if data[name]:
            raise RequestError(f"this server does not support {place}{name}; leave it out", param=place + name)
    wanted = {name: value for name, value in data.items() if name not in without}
    unknown = next((name for name in wanted if name not in model.model_fields), None)
    if unknown is not None:
        raise RequestError(
            f"there is no field {place}{unknown}; {_nearest(unknown, list(model.model_fields))}", param=place + unknown
        )
    try:
        return model.model_validate(wanted)
    except ValidationError as error:
        raise _refusal(error, model, place) from None


def _refusal(error: ValidationError, model: type[BaseModel], place: str) -> RequestError:
    first, *rest = error.errors(include_url=False)
    name = str(first["loc"][0])
    same = [first, *(other for other in rest if other["loc"][0] == name)]
    wishes = dict.fromkeys(other["msg"].removeprefix("Input should be ") for other in same)
    return RequestError(
        f"{place}{name} should be {', or '.join(wishes)}; got {shown(first['input'], 100)}", param=place + name
    )


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"known ones: {', '.join(known)}"
