"""The forms of the answers, for /openapi.json. The routes write plain dicts: a stream has thousands of them a second."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

REF = "#/components/schemas/{model}"
Json = dict[str, Any]


class OpenAIProblem(BaseModel):
    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    error: OpenAIProblem


class NativeProblem(BaseModel):
    message: str


class NativeError(BaseModel):
    error: NativeProblem


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Json | None = None


class _Completion(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage


class CalledFunction(BaseModel):
    name: str
    arguments: str


class CalledTool(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[CalledTool] | None = None
    reasoning_content: str | None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: Json | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(_Completion):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: Json | None
    finish_reason: Literal["stop", "length"]


class TextCompletion(_Completion):
    object: Literal["text_completion"]
    choices: list[TextChoice]


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


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


class NativeMeta(BaseModel):
    id: str
    finish_reason: Json
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class NativeAnswer(BaseModel):
    text: str
    output_ids: list[int]
    meta_info: NativeMeta


class NativeVector(BaseModel):
    embedding: list[float]
    meta_info: Json


class Aborted(BaseModel):
    aborted: int


class Health(BaseModel):
    status: Literal["ok", "failed", "draining"]


class ModelInfo(BaseModel):
    model_path: str
    tokenizer_path: str
    is_generation: bool


class ServerInfo(BaseModel):
    version: str
    served_model_name: str
    options: Json
    engine: Json
    stats: Json


def schema_of(form: Any) -> tuple[Json, dict[str, Json]]:
    """JSON Schema of a type, and the schemas of the models in it by name."""
    schema = TypeAdapter(form).json_schema(ref_template=REF)
    return schema, schema.pop("$defs", {})
