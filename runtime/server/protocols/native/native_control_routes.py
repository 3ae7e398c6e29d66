"""Routes of the native protocol besides `/generate`: ending what runs, vectors of texts, and thoughts in finished
texts.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict

from sgl.runtime.dialects import reasoning_named, split_reasoning

from ...http.documented_routes import OF_BODIES, OF_MODELS, answers
from ...http.http_errors import RequestError
from ...http.request_bodies import JsonBodyRoute
from ...http.validation_errors import First
from ...served_adapters import check_adapters
from ..completions.embeddings_routes import AT_ONCE, MOST_INPUTS, written_list
from .generate_request_reader import each
from .native_types import Prompts, Text, Texts, checked, unread

NONE: frozenset[str] = frozenset()

router = APIRouter(route_class=JsonBodyRoute)


class AbortFields(BaseModel):
    """`rid`: the name that a call of /generate was given, or the X-Request-Id of any request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rid: Text | None = None
    abort_all: bool = False


class EncodeFields(BaseModel):
    """`text` or `input_ids`, each one or a list. lora_path: as of `GenerateFields`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Texts | None = None
    input_ids: Prompts | None = None
    rid: Texts | None = None  # taken and not used: the answer comes in the order of the texts
    lora_path: Text | Annotated[list[Text | None], First] | None = None


class ReasoningFields(BaseModel):
    """`reasoning_parser`: a reasoning format such as "qwen3"; by default that of the server's model."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Text
    reasoning_parser: Text | None = None


class NativeVector(BaseModel):
    embedding: list[float]
    meta_info: dict[str, Any]


class Aborted(BaseModel):
    aborted: int


class SeparatedReasoning(BaseModel):
    reasoning_text: str
    text: str


@router.post("/separate_reasoning", responses=answers(SeparatedReasoning, *OF_BODIES))
async def separate_reasoning(
    data: Annotated[dict[str, Any], unread(ReasoningFields), Body()], request: Request
) -> JSONResponse:
    """A finished text as its thought and its answer. No model runs."""
    fields = checked(ReasoningFields, data, NONE)
    marks = request.app.state.dialect.reasoning
    if fields.reasoning_parser is not None:
        marks = reasoning_named(fields.reasoning_parser)
    if marks is None:
        raise RequestError("this model has no reasoning format; name one", param="reasoning_parser")
    thought, answer = split_reasoning(fields.text, marks)
    return JSONResponse({"reasoning_text": thought, "text": answer})


@router.post("/abort_request", responses=answers(Aborted, *OF_BODIES))
async def abort_request(data: Annotated[dict[str, Any], unread(AbortFields), Body()], request: Request) -> JSONResponse:
    """End one call, or all of the caller's. Those who wait for it get what there is so far, or an error."""
    fields = checked(AbortFields, data, NONE)
    if not fields.rid and not fields.abort_all:
        raise RequestError('say what to abort: {"rid": NAME} or {"abort_all": true}', param="rid")
    aborted = request.app.state.bridge.runs.abort(None if fields.abort_all else fields.rid)
    return JSONResponse({"aborted": aborted})


@router.post("/encode", responses=answers(NativeVector | list[NativeVector], *OF_MODELS))
async def encode(data: Annotated[dict[str, Any], unread(EncodeFields), Body()], request: Request) -> Response:
    """The mean of the model's last hidden states over each text."""
    fields = checked(EncodeFields, data, NONE)
    if (fields.text is None) == (fields.input_ids is None):
        raise RequestError("give either text or input_ids, one of the two", param="text")
    given: Any = fields.text if fields.text is not None else fields.input_ids
    batched = isinstance(given, list) and not (given and isinstance(given[0], int))
    inputs = given if batched else [given]
    if not 1 <= len(inputs) <= MOST_INPUTS:
        raise RequestError(f"there are {len(inputs)} texts; send from 1 to {MOST_INPUTS} in one call", param="text")
    bridge = request.app.state.bridge
    adapters = [name or None for name in each("lora_path", fields.lora_path, len(inputs), batched)]
    check_adapters(adapters, request.app.state.adapters)
    bridge.admission.check()
    prompts = await bridge.encode_all(inputs)
    vectors = await bridge.embed(prompts, AT_ONCE, adapters)
    answers = (
        {"embedding": vector.tolist(), "meta_info": {"prompt_tokens": len(ids)}}
        for vector, ids in zip(vectors, prompts, strict=True)
    )
    written = await asyncio.to_thread(written_list, answers)
    return Response(written if batched else written[1:-1], media_type="application/json")
