"""Programs on the providers that LiteLLM knows."""

from __future__ import annotations

from typing import Any

from ...chat import ChatTemplate
from ..openai.completions_backend import CompletionsBackend
from ..openai.openai_request import Body
from .provider_sdk import require


class LiteLLM(CompletionsBackend):
    """A chat model under its LiteLLM name, such as "anthropic/..." or "openai/..." (with `base_url`: any server).

    `timeout`: seconds for a call with its retries. `max_retries`: retries by sgl; LiteLLM's own are switched off.
    `default_headers` are sent with each call. `constrained`, `prefill` and `reasoning` are those of `sgl.OpenAI`,
    other options those of RemoteBackend.
    Raises MissingPackageError without the package.
    """

    provider = "litellm"
    takes_seed = False  # that depends on the provider

    def __init__(
        self,
        model_name: str,
        chat_template: ChatTemplate | str | None = None,
        api_key: str | None = None,
        organization: str | None = None,
        base_url: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 3,
        default_headers: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model_name, True, chat_template, sparse=True, timeout=timeout, retries=max_retries, **options)
        self._litellm = require("litellm", "litellm")
        fields = {
            "api_key": api_key,
            "organization": organization,
            "base_url": base_url,
            "extra_headers": default_headers,
        }
        self._fields = {name: value for name, value in fields.items() if value is not None}

    async def send(self, body: Body) -> Any:
        return await self._litellm.acompletion(
            model=self.model_name, num_retries=0, max_retries=0, timeout=self.timeout, **self._fields, **body
        )
