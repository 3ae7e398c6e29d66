"""`truncation: auto`: a conversation that is too long begins later."""

from __future__ import annotations

from collections.abc import Sequence

from ...http.http_errors import RequestError
from ..chat.chat_plan import tools_of
from ..chat.chat_prompt import build_chat_prompt
from ..chat.chat_types import ChatMessage, ChatRequest
from ..openai_common.openai_request_setup import OpenAIRequestSetup


async def truncate_to_fit(work: OpenAIRequestSetup, chat: ChatRequest) -> ChatRequest:
    """The request without its first turns, as few of them as have to go for its prompt and its answer to find room.

    A turn is a user's message with all that follows it. The system's messages before the first one stay, and the last
    turn: where these are too long by themselves, they are what is given back.
    """
    starts = [place for place, message in enumerate(chat.messages) if message.role == "user"]
    if len(starts) < 2 or await _fits(work, chat):
        return chat
    least, most = 1, len(starts) - 1
    while least < most:  # the least number of turns to leave out
        middle = (least + most) // 2
        if await _fits(work, _from(chat, starts, middle)):
            most = middle
        else:
            least = middle + 1
    return _from(chat, starts, least)


def _from(chat: ChatRequest, starts: Sequence[int], turn: int) -> ChatRequest:
    head: list[ChatMessage] = [message for message in chat.messages[: starts[0]] if message.role == "system"]
    return chat.model_copy(update={"messages": head + chat.messages[starts[turn] :]})


async def _fits(work: OpenAIRequestSetup, chat: ChatRequest) -> bool:
    most = min(work.context - (chat.limit or 1), work.settings.max_prompt_tokens or work.context)
    try:
        prompt = await build_chat_prompt(
            work.engine.tokenizer, chat, work.dialect, tools_of(chat), work.bridge.check_size
        )
    except RequestError as error:
        if error.code == "context_length_exceeded":
            return False
        raise
    return len(prompt.ids) <= most
