"""Programs on OpenAI, and on any server of its protocol (vLLM, SGLang, llama.cpp, `sgl serve` ...)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from ...chat import ChatTemplate
from ...errors import BadValueError
from ...sampling.token_prices import Prices
from ..apis.provider_sdk import CONNECT_SECONDS, require
from ..remote.remote_event_loop import PerEventLoop, remote_loop
from .completions_backend import CompletionsBackend
from .openai_request import Body

COMPLETION_MODELS = frozenset(
    {
        "gpt-3.5-turbo-instruct",
        "gpt-3.5-turbo-instruct-0914",
        "davinci-002",
        "babbage-002",
        "text-davinci-003",
        "text-davinci-002",
        "text-curie-001",
        "text-babbage-001",
        "text-ada-001",
        "davinci",
        "curie",
        "babbage",
        "ada",
    }
)

# The fields that the SDK's create() has names for; all others travel in extra_body.
_NAMED = frozenset(
    {
        "messages",
        "prompt",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "stop",
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "seed",
        "frequency_penalty",
        "presence_penalty",
        "echo",
    }
)


class OpenAI(CompletionsBackend):
    """A model of OpenAI's API or, with `base_url`, of any server with that protocol.

    Programs for chat models consist of turns: `s += sgl.user(...)`, `s += sgl.assistant(sgl.gen("x"))`.

    is_chat_model  False for text completions. None recognises OpenAI's completion models; all others are chat models
    chat_template  a name; affects only `s.text()` of a chat model
    is_azure       use Azure's client
    constrained    "sglang" or "vllm" if the server has that system's extra options (True: send the names of both):
    regex,
                   ebnf, structural_tag, top_k, min_p, stop_token_ids and others. Without it they are errors
    prefill        True if the server continues an assistant message
    reasoning      True for models without temperature and stops; None decides by the name
    tokenizer      an object with encode() and decode(), for select and dtype int on completion models; None uses
    tiktoken
                   if it knows the model
    extra_body     fields sent with each call

    `timeout` (seconds for a call with its retries), `retries` (or `max_retries`), `backoff`, `max_concurrency` and
    `prices` are those of RemoteBackend; `api_key`, `base_url`, `organization` and others go to `openai.AsyncOpenAI`.
    `token_usage` counts the tokens of all calls.
    Raises MissingPackageError without the package, BadValueError for options that its client refuses.
    """

    provider = "openai"

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: ChatTemplate | str | None = None,
        is_azure: bool = False,
        *args: Any,
        constrained: bool | str = False,
        prefill: bool = False,
        reasoning: bool | None = None,
        tokenizer: Any = None,
        extra_body: Body | None = None,
        timeout: float = 600.0,
        retries: int = 3,
        max_retries: int | None = None,
        backoff: float = 0.5,
        max_concurrency: int = 256,
        prices: Prices | None = None,
        **client_kw: Any,
    ) -> None:
        super().__init__(
            model_name,
            model_name not in COMPLETION_MODELS if is_chat_model is None else is_chat_model,
            chat_template,
            constrained=constrained,
            prefill=prefill,
            reasoning=reasoning,
            tokenizer=tokenizer,
            timeout=timeout,
            retries=retries if max_retries is None else max_retries,
            backoff=backoff,
            max_concurrency=max_concurrency,
            prices=prices,
        )
        self.extra_body = dict(extra_body or {})
        self._new_client = self._client_maker(is_azure, args, client_kw)
        self._client = PerEventLoop(self._new_client)

    async def send(self, body: Body) -> Any:
        client = self._client.get()
        create = client.chat.completions.create if self.is_chat_model else client.completions.create
        fields = {name: value for name, value in body.items() if name in _NAMED}
        extra = {name: value for name, value in body.items() if name not in _NAMED}
        return await create(model=self.model_name, extra_body={**extra, **self.extra_body} or None, **fields)

    def shutdown(self) -> None:
        """Close the connections. The backend can be used again."""
        client, self._client = self._client.peek(), PerEventLoop(self._new_client)
        if client is not None:
            asyncio.run_coroutine_threadsafe(client.close(), remote_loop()).result(CONNECT_SECONDS)

    def _client_maker(self, is_azure: bool, args: tuple[Any, ...], client_kw: dict[str, Any]) -> Callable[[], Any]:
        """Makes a client for a loop. The SDK's own retries and timeout are off: ours count."""
        sdk = require("openai", "openai")
        kind = sdk.AsyncAzureOpenAI if is_azure else sdk.AsyncOpenAI
        if client_kw.get("base_url") and not (client_kw.get("api_key") or os.environ.get("OPENAI_API_KEY")):
            client_kw = {**client_kw, "api_key": "none"}  # servers of one's own ask for none

        def make() -> Any:
            return kind(*args, max_retries=0, timeout=sdk.Timeout(None, connect=CONNECT_SECONDS), **client_kw)

        try:
            client = make()
            _ = client.chat.completions, client.completions  # the SDK loads them when they are first used
        except (sdk.OpenAIError, TypeError, ValueError) as error:
            raise BadValueError(f"{self.traits.name}: {error}") from error
        return make


class Crusoe(OpenAI):
    """A model of Crusoe's inference service, which speaks OpenAI's protocol.

    `api_key`: else CRUSOE_API_KEY. `base_url`: else CRUSOE_BASE_URL, else the service's own. The other
    options are those of OpenAI.
    """

    BASE_URL = "https://api.inference.crusoecloud.com/v1"

    def __init__(
        self,
        model_name: str,
        api_key: str | None = None,
        base_url: str | None = None,
        is_chat_model: bool = True,
        **options: Any,
    ) -> None:
        key = api_key or os.environ.get("CRUSOE_API_KEY")
        if not key:
            raise BadValueError(f"Crusoe({model_name!r}): no key; give api_key= or set CRUSOE_API_KEY")
        url = base_url or os.environ.get("CRUSOE_BASE_URL") or self.BASE_URL
        super().__init__(model_name, is_chat_model, api_key=key, base_url=url, **options)
