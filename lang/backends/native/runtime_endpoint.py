"""Programs on a server that speaks the native protocol (`POST /generate`)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from ...backend import Generated, GenRequest, OnChunk, SelectRequest
from ...chat import get_chat_template_by_model_path
from ...errors import RemoteConnectionError, RemoteError, RemoteProtocolError, RemoteStatusError
from ...sampling.choices import ChoicesDecision
from ...sampling.text_limits import at_limit, is_complete, is_constrained, truncated_error
from ..remote.base import RemoteBackend
from ..remote.remote_event_loop import PerEventLoop
from ..remote.remote_prompt import RemotePrompt
from ..remote.retry_policy import public_url
from .generate_request import check_options, generate_body, prompt_body, with_quotes
from .json_http_client import JsonHttpClient
from .native_response import NativeResponseStream, answer_of, generated_of
from .native_select import choose

_INCREMENTAL = ("stream_output", "incremental_streaming_output")  # server options: events hold only new text


class RuntimeEndpoint(RemoteBackend):
    """A server at `base_url`: `sgl serve`, or another server with the same protocol.

    `api_key` is sent as a bearer token. `verify`: False accepts any certificate; a path names a file of trusted
    certificates. `chat_template_name` names the template of the turns; by default it follows from the model's path,
    and you can assign `hf_chat_template` later. Other options are those of RemoteBackend. Raises RemoteError if no such
    server answers.
    """

    takes_media = frozenset({"image"})
    shows_prompt_token = (
        False  # in a select's input_token_logprobs, the prompt's last token before those of each choice
    )

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str | None = None,
        chat_template_name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(chat_template=chat_template_name, **options)
        self.client = JsonHttpClient(base_url, api_key, verify)
        self.base_url = self.client.base_url
        self.model_info: dict[str, Any] = self._model_info()
        self.masks_logprobs = bool(self.model_info.get("masks_logprobs"))
        if chat_template_name is None:
            self.chat_template = get_chat_template_by_model_path(self.get_model_name())
        self._incremental: bool | None = None
        self._asking = PerEventLoop(asyncio.Lock)

    # --- what programs ask -------------------------------------------------------------------------------

    def get_model_name(self) -> str:
        return str(self.model_info["model_path"])

    def get_server_info(self) -> dict[str, Any]:
        return self._first_that_exists("/server_info", "/get_server_info")

    def flush_cache(self) -> bool:
        self.client.call_now("POST", "/flush_cache")
        return True

    def health(self) -> bool:
        """True if the server reports that it is healthy."""
        try:
            self.client.call_now("GET", "/health")
        except RemoteError:
            return False
        return True

    def start_profile(self) -> None:
        self.client.call_now("POST", "/start_profile")

    def stop_profile(self) -> None:
        self.client.call_now("POST", "/stop_profile")

    def shutdown(self) -> None:
        """Close the connections. The server keeps running."""
        self.client.close()

    # --- calls -------------------------------------------------------------------------------------------

    def check(self, request: GenRequest | SelectRequest) -> None:
        if isinstance(request, GenRequest):
            check_options(request.options, self.model_info)

    async def complete(self, prompt: RemotePrompt, request: GenRequest, emit: OnChunk | None) -> Generated:
        body = generate_body(prompt, request, stream=emit is not None)
        if emit is None:
            generated = generated_of(answer_of(await self._generate(body)))
        else:
            generated = await self._stream(body, request, emit)
        return _checked(generated, request)

    async def choose(self, prompt: RemotePrompt, request: SelectRequest) -> ChoicesDecision:
        return await choose(self._generate, prompt, request, self.shows_prompt_token)

    async def warm(self, prompt: RemotePrompt) -> None:
        if prompt.text:
            answer_of(await self._generate({**prompt_body(prompt), "sampling_params": {"max_new_tokens": 0}}))

    async def _generate(self, body: dict[str, Any]) -> Any:
        return await self.client.post("/generate", self._quoting(body))

    def _quoting(self, body: dict[str, Any]) -> dict[str, Any]:
        return with_quotes(body) if self.model_info.get("takes_quoted_text") else body

    async def _stream(self, body: dict[str, Any], request: GenRequest, emit: OnChunk) -> Generated:
        answer = NativeResponseStream(request, emit, await self._streams_incrementally())
        async with aclosing(self.client.events("/generate", self._quoting(body))) as events:
            async for event in events:
                answer.take(event)
        if not answer.complete:
            raise RemoteConnectionError(
                f"the stream of {public_url(self.base_url)}/generate ended before its text was complete", retryable=True
            )
        return answer.result()

    async def _streams_incrementally(self) -> bool:
        """Asked of the server before the first stream; servers that do not say it send the whole text."""
        async with self._asking.get():
            if self._incremental is None:
                info = await self._server_info()
                self._incremental = any(info.get(name) is True for name in _INCREMENTAL)
        return self._incremental

    async def _server_info(self) -> dict[str, Any]:
        for path in ("/server_info", "/get_server_info"):
            try:
                info = await self.client.get(path)
            except RemoteProtocolError:
                continue
            except RemoteStatusError as error:
                if error.retryable:
                    raise
                continue
            if isinstance(info, dict):
                return info
        return {}

    # --- the server's messages --------------------------------------------------------------------------

    def _model_info(self) -> dict[str, Any]:
        info = self._first_that_exists("/get_model_info", "/model_info")
        if "model_path" not in info:
            raise RemoteProtocolError(f"{self.base_url}/get_model_info has no model_path: {info}")
        return info

    def _first_that_exists(self, path: str, older: str) -> dict[str, Any]:
        try:
            found = self.client.call_now("GET", path)
        except RemoteStatusError as error:
            if error.status != 404:
                raise
            found = self.client.call_now("GET", older)
        if not isinstance(found, dict):
            raise RemoteProtocolError(f"{self.base_url}{path} answered {str(found)[:200]!r}, which is not an object")
        return found


def _checked(generated: Generated, request: GenRequest) -> Generated:
    """With `truncated` where the server does not say it. Raises TruncatedError where the request wants that for a
    text that was cut by a limit."""
    options, meta = request.options, generated.meta_info
    if not is_constrained(options) or meta.get("closed"):
        return generated
    cut = bool(meta.get("truncated")) or (at_limit(meta) and not is_complete(generated.text, options))
    if cut and options.error_on_truncation:
        raise truncated_error(generated.text, options, meta)
    generated.meta_info = {**meta, "truncated": cut}
    return generated
