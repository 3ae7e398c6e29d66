"""The sampling fields of requests, from the table of sampling options."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, create_model

from sgl.runtime.sampling.sampling_options import SamplingOption
from sgl.runtime.sampling.sampling_params import SAMPLING_OPTIONS

from ...http.validation_errors import First

Model = TypeVar("Model", bound=BaseModel)
Count = Annotated[int, Field(ge=0, lt=2**31)]
Word = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
OWN_FORM = ("max_tokens", "logprobs", "top_logprobs")  # each route has another form of these
LISTS = ("texts", "patterns", "token ids")


def with_sampling_fields(
    protocol: str, type_of: Callable[[SamplingOption], Any]
) -> Callable[[type[Model]], type[Model]]:
    """Add the sampling options of a protocol that the class has not written itself.

    type_of: the type of a field. A field that can be None is None by default; any other has the option's default.
    """

    def added(model: type[Model]) -> type[Model]:
        fields: dict[str, Any] = {
            option.names[protocol]: _field(option, type_of(option))
            for option in options_in(protocol)
            if option.names[protocol] not in model.model_fields
        }
        return create_model(
            model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields
        )

    return added


@cache
def options_in(protocol: str) -> list[SamplingOption]:
    """The options of a protocol that have one form in all of its requests."""
    return [each for name, each in SAMPLING_OPTIONS.items() if protocol in each.names and name not in OWN_FORM]


def as_chat_fields(body: BaseModel, protocol: str) -> dict[str, Any]:
    """The sampling fields of a request under the names that a chat's request has for them."""
    return {
        option.names["openai"]: getattr(body, option.names[protocol])
        for option in options_in(protocol)
        if "openai" in option.names
    }


def integer_type(option: SamplingOption) -> Any:
    """Its type in JSON: a count, 32 bits, or 64 bits."""
    return Count if option.low == 0 else Word if abs(option.low) < 2**31 else Seed


def loose_type(option: SamplingOption) -> Any:
    """For requests that become requests to a chat, which checks integers and texts."""
    return {"integer": int | None, "texts": str | Annotated[list[str], First] | None}.get(option.kind, float)


def _field(option: SamplingOption, kind: Any) -> tuple[Any, Any]:
    if type(None) in getattr(kind, "__args__", ()):
        return kind, None
    if option.kind in LISTS:
        return kind, Field(default_factory=list)
    if option.kind != "number":
        return kind, option.default
    limits: dict[str, Any] = {"gt" if option.open_low else "ge": option.low}
    limits |= {} if option.high == inf else {"le": option.high}
    return kind, Field(option.default, **limits)
