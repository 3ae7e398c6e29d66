"""What `POST /generate` takes, field by field, and the words for what it does not take."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from .caller import MOST_URGENT
from .errors import RequestError


def _encodable(text: str) -> str:
    """JSON can hold halves of characters, which are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("lone_surrogate", "text without lone surrogates") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Texts = Text | list[Text]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Word = Annotated[int, Field(ge=-(2**31), lt=2**31)]

# Fields of the protocol that this server has nothing behind: null, false and empty are taken, a value is refused.
WITHOUT = frozenset({
    "audio_data", "bootstrap_host", "bootstrap_pair_key", "bootstrap_port", "bootstrap_room",
    "custom_logit_processor", "data_parallel_rank", "extra_key", "image_data", "input_embeds", "lora_path",
    "modalities", "return_hidden_states", "session_params", "token_ids_logprob", "video_data",
})  # fmt: skip
SAMPLING_WITHOUT = frozenset({"custom_params", "stream_interval"})


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SamplingFields(_Fields):
    """One `sampling_params`. None is the default of the field, whatever the field."""

    max_new_tokens: Count | None = None
    min_new_tokens: Count | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Word | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None  # by token id, as JSON has it: in quotes
    stop: Texts | None = None
    stop_token_ids: list[Count] | None = None
    stop_regex: Texts | None = None
    no_stop_trim: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None  # tokens are joined as they are, whatever it says
    sampling_seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    regex: Text | None = None
    json_schema: Text | bool | dict[str, Any] | None = None
    ebnf: Text | None = None
    structural_tag: Text | dict[str, Any] | None = None


class GenerateFields(_Fields):
    """One call: `text` or `input_ids`, each one prompt or a list of prompts. A list elsewhere has one entry a prompt."""

    text: Texts | None = None
    input_ids: list[Count] | list[list[Count]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: Texts | None = None
    stream: bool | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: Word | list[Word] | None = None  # -1: only the output
    top_logprobs_num: Count | list[Count] | None = None
    return_text_in_logprobs: bool | None = None
    priority: Annotated[int, Field(ge=-MOST_URGENT, le=MOST_URGENT)] | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # seconds


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
    try:
        return model.model_validate({name: value for name, value in data.items() if name not in without})
    except ValidationError as error:
        raise _refusal(error, model, place) from None


def _refusal(error: ValidationError, model: type[BaseModel], place: str) -> RequestError:
    first, *rest = error.errors(include_url=False)
    if not first["loc"]:  # the name of a field that is no Unicode text
        return RequestError(f"{place or 'the body'}: {first['msg']}, got {first['input']!r}")
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return RequestError(f"there is no field {place}{name}; {_nearest(name, list(model.model_fields))}", param=place + name)
    same = [first, *(other for other in rest if other["loc"][0] == name)]
    wishes = dict.fromkeys(other["msg"].removeprefix("Input should be ") for other in same)
    return RequestError(f"{place}{name} should be {', or '.join(wishes)}; got {repr(first['input'])[:100]}", param=place + name)


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"known ones: {', '.join(known)}"
