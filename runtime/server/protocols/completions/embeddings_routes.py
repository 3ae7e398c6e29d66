"""POST /v1/embeddings: the mean of the model's last hidden states over each text."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, BeforeValidator, Field

from sgl.runtime.cache import Ints
from sgl.runtime.sequences.ops.embed_op import Floats, normalized

from ...http.documented_routes import OF_MODELS, answers
from ...http.http_errors import RequestError
from ...http.request_bodies import JsonBodyRoute
from ...request_context import MOST_URGENT, apply_caller
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_request_types import AnyPrompt, Prompts, StrictModel, prompts_of
from ..openai_common.openai_response_fields import Json

MOST_INPUTS = 2048  # of one request
AT_ONCE = 16  # of them in the engine: the others wait here, and leave room for other requests

router = APIRouter(route_class=JsonBodyRoute)


class EmbeddingRequest(StrictModel):
    """The body of POST /v1/embeddings; the fields under the line are extensions of OpenAI's protocol."""

    input: Annotated[Prompts, BeforeValidator(prompts_of, json_schema_input_type=AnyPrompt)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None
    # ---
    normalize: bool = False
    priority: int = Field(0, ge=-MOST_URGENT, le=MOST_URGENT)
    timeout: float | None = Field(None, gt=0, allow_inf_nan=False)  # seconds


class Embedding(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@router.post("/v1/embeddings", responses=answers(Embeddings, *OF_MODELS))
async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """One vector for each input, in their order."""
    work = OpenAIRequestSetup(request, body.model)
    _check(work, body)
    apply_caller(work.settings, body.priority, body.timeout)
    work.bridge.admission.check()
    prompts = await work.bridge.encode_all(body.input)
    vectors = await work.bridge.embed(prompts, AT_ONCE)
    if body.normalize:
        vectors = normalized(vectors)
    answer = await asyncio.to_thread(_written, work.model, body.encoding_format, vectors, prompts)
    return Response(answer, media_type="application/json")


def _check(work: OpenAIRequestSetup, body: EmbeddingRequest) -> None:
    size = work.engine.fixed_info["hidden_size"]
    if body.dimensions not in (None, size):
        raise RequestError(
            f"dimensions={body.dimensions}: this model's vectors have {size} numbers and cannot be shortened; leave "
            "it out",
            param="dimensions",
        )
    if len(body.input) > MOST_INPUTS:
        raise RequestError(f"input has {len(body.input)} entries, send at most {MOST_INPUTS}", param="input")


def _written(model: str, form: str, vectors: Floats, prompts: Sequence[Ints]) -> str:
    """The answer as JSON, which takes a while for many vectors."""
    tokens = sum(map(len, prompts))
    answer: Json = {"object": "list", "model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    entries: Iterator[Json] = (
        {"object": "embedding", "index": index, "embedding": _base64(vector) if form == "base64" else vector.tolist()}
        for index, vector in enumerate(vectors)
    )
    return f'{json.dumps(answer)[:-1]}, "data": {written_list(entries)}}}'


def written_list(entries: Iterable[Json]) -> str:
    """As JSON, entry by entry: other threads run in between, which one call for all of it would not let them."""
    return f"[{', '.join(json.dumps(entry, allow_nan=False) for entry in entries)}]"


def _base64(vector: Floats) -> str:
    """Little-endian float32, as OpenAI's clients read it."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
