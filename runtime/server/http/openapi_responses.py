"""The forms of the answers, for /openapi.json.

The routes write plain dicts: a stream has thousands of them a second.
"""

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


class AnthropicProblem(BaseModel):
    type: str
    message: str


class AnthropicError(BaseModel):
    type: Literal["error"]
    error: AnthropicProblem
    request_id: str | None


class NativeProblem(BaseModel):
    message: str


class NativeError(BaseModel):
    error: NativeProblem


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Json | None = None
    completion_tokens_details: Json | None = None  # where tokens were guessed ahead


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


class ResponseObject(BaseModel):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]
    error: Json | None
    incomplete_details: Json | None
    model: str
    output: list[Json]
    usage: Json | None
    previous_response_id: str | None
    store: bool


class ResponseDeleted(BaseModel):
    id: str
    object: Literal["response"]
    deleted: bool


class ResponseItems(BaseModel):
    object: Literal["list"]
    data: list[Json]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseTokens(BaseModel):
    object: Literal["response.input_tokens"]
    input_tokens: int


class Tokens(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(BaseModel):
    prompt: str


class OllamaAnswer(BaseModel):
    """A line, or the only one. Counts and durations, in nanoseconds, come with the last."""

    model: str
    created_at: str
    message: Json | None = None
    response: str | None = None
    done: bool
    done_reason: str | None = None


class OllamaModels(BaseModel):
    models: list[Json]


class OllamaVersion(BaseModel):
    version: str


class OllamaAbout(BaseModel):
    template: str
    details: Json
    model_info: Json
    capabilities: list[str]


class OllamaError(BaseModel):
    error: str


class MessageUsage(BaseModel):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicMessage(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Json]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class MessageTokens(BaseModel):
    input_tokens: int


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    parent: str | None = None


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


class SeparatedReasoning(BaseModel):
    reasoning_text: str
    text: str


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
