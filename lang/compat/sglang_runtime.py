"""`sgl.Runtime(model_path=...)`: in old programs a separate server, here an engine in the process."""

from __future__ import annotations

import itertools
import json
import weakref
from collections.abc import AsyncIterator
from typing import Any

from ..errors import UnsupportedByBackendError
from .sglang_alias_engine import Engine
from .sglang_alias_settings import print_once, settings

_numbers = itertools.count(1)
by_url: weakref.WeakValueDictionary[str, Runtime] = weakref.WeakValueDictionary()


class Runtime:
    """`Runtime(model_path=..., **options of a server)`.

    `url` names it inside this process only: RuntimeEndpoint(runtime.url) finds it, nothing listens there.
    Under `sgl run --backend URL` it is that server.
    """

    def __init__(self, log_level: str = "error", launch_timeout: float = 300.0, *args: Any, **server_args: Any) -> None:
        self.engine: Engine | None = None
        self.pid: int | None = None
        if settings.url is None:
            self.engine = Engine(log_level=log_level, **server_args)
            self.endpoint: Any = self.engine.endpoint
            self.server_args: Any = self.engine.server_args
            self.url = f"inproc://runtime-{next(_numbers)}"
            self.endpoint.base_url = self.url
        else:
            from ..backends.native.runtime_endpoint import RuntimeEndpoint

            print_once(f"Runtime({server_args.get('model_path')!r}) is the server at {settings.url}")
            self.endpoint, self.server_args, self.url = RuntimeEndpoint(settings.url), None, settings.url
        by_url[self.url] = self

    @property
    def generate_url(self) -> str:
        return f"{self.url}/generate"

    def _local(self, what: str) -> Engine:
        if self.engine is None:
            raise UnsupportedByBackendError(f"Runtime.{what} of a server at a URL; call {self.url} itself")
        return self.engine

    def generate(
        self,
        prompt: str | list[str],
        sampling_params: dict[str, Any] | None = None,
        return_logprob: bool | list[bool] | None = False,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        lora_path: Any = None,
    ) -> str:
        """The answer of `Engine.generate` as JSON text."""
        options = {
            "sampling_params": sampling_params,
            "return_logprob": return_logprob,
            "logprob_start_len": logprob_start_len,
            "top_logprobs_num": top_logprobs_num,
            "lora_path": lora_path,
        }
        if self.engine is None:
            return self._post({"text": prompt, **options})
        return json.dumps(self.engine.generate(prompt, **options))

    def _post(self, body: dict[str, Any]) -> str:
        import httpx

        given = {name: value for name, value in body.items() if value is not None}
        reply = httpx.post(self.generate_url, json=given, timeout=None).raise_for_status()
        return reply.text

    async def async_generate(self, prompt: str, sampling_params: dict[str, Any] | None = None) -> AsyncIterator[str]:
        """The pieces of the text, as they come."""
        answers: Any = await self._local("async_generate").async_generate(prompt, sampling_params, stream=True)
        sent = ""
        async for answer in answers:
            delta = answer["text"][len(sent) :]
            sent = answer["text"]
            if delta:
                yield delta

    add_request = async_generate

    def encode(self, prompt: str | list[str]) -> str:
        return json.dumps(self._local("encode").encode(prompt))

    def get_tokenizer(self) -> Any:
        """The tokenizer object of transformers."""
        return self._local("get_tokenizer").get_tokenizer()

    def cache_prefix(self, prefix: str) -> None:
        self.endpoint.cache_prefix(prefix)

    def flush_cache(self) -> Any:
        return self.endpoint.flush_cache()

    async def get_server_info(self) -> dict[str, Any]:
        info: dict[str, Any] = self.endpoint.get_server_info()
        return info

    def start_profile(self) -> None:
        self.endpoint.start_profile()

    def stop_profile(self) -> None:
        self.endpoint.stop_profile()

    def shutdown(self) -> None:
        """Give the engine back. Idempotent."""
        if self.engine is not None:
            self.engine.shutdown()
