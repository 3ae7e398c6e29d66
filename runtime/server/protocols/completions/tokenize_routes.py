"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, model_validator

from sgl.runtime.cache import Ints

from ...http.documented_routes import OF_MODELS, answers
from ...http.http_errors import RequestError
from ...http.request_bodies import JsonBodyRoute
from ...http.validation_errors import First
from ..chat.chat_plan import tools_of
from ..chat.chat_prompt import build_chat_prompt
from ..chat.chat_types import MOST_TOOLS, ChatMessage, ChatRequest, FunctionTool
from ..openai_common.chat_translation import parse_chat_request
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_request_types import StrictModel
from ..openai_common.openai_response_fields import Json
from ..openai_common.sampling_fields import Count

router = APIRouter(route_class=JsonBodyRoute)


class TokenizeRequest(StrictModel):
    """The body of POST /tokenize: a prompt, or messages with further template variables."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], First] | None = Field(None, min_length=1)
    add_special_tokens: bool | None = None  # None: before a prompt; messages have those of their template
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Annotated[list[FunctionTool], First] = Field(default_factory=list, max_length=MOST_TOOLS)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("give either prompt or messages", "messages" if self.messages else "prompt")
        if self.messages is not None and self.add_special_tokens:
            raise RequestError(
                "messages have the special tokens of their template; leave add_special_tokens out", "add_special_tokens"
            )
        return self


class DetokenizeRequest(StrictModel):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[Count], First]


class Tokens(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(BaseModel):
    prompt: str


@router.post("/tokenize", responses=answers(Tokens, *OF_MODELS))
async def tokenize(body: TokenizeRequest, request: Request) -> Json:
    """The tokens that a prompt, or a chat, is for the model."""
    work = OpenAIRequestSetup(request, body.model)
    found = await _ids(work, body)
    ids: list[int] = [int(id) for id in found]
    texts = work.engine.tokenizer.token_bytes
    strings = [texts[id].decode("utf-8", "replace") for id in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": work.context, "tokens": ids, "token_strs": strings}


@router.post("/detokenize", responses=answers(Detokenized, *OF_MODELS))
async def detokenize(body: DetokenizeRequest, request: Request) -> Json:
    """The text of tokens, special ones too."""
    work = OpenAIRequestSetup(request, body.model)
    if not body.tokens:
        return {"prompt": ""}
    return {"prompt": work.engine.tokenizer.decode(await work.bridge.encode(body.tokens), skip_special_tokens=False)}


async def _ids(work: OpenAIRequestSetup, body: TokenizeRequest) -> Ints:
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        return (
            await work.bridge.encode(body.prompt, special) if body.prompt else work.engine.tokenizer.encode("", special)
        )
    same = ("messages", "tools", "chat_template_kwargs", "continue_final_message")
    given: Json = {name: getattr(body, name) for name in same} | {"tool_choice": "none"}
    if not body.continue_final_message:
        given["add_generation_prompt"] = body.add_generation_prompt
    chat = parse_chat_request(ChatRequest, given)
    return (await build_chat_prompt(work, chat, tools_of(chat))).ids
