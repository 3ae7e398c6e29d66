"""`sgl.Engine(model_path=...)` of programs under the alias."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import cached_property
from math import exp
from types import SimpleNamespace
from typing import Any, NoReturn, Self

from ..errors import UnsupportedByBackendError
from .generate_on_engine import Answer, EngineRequestBatch
from .local_backend import LocalBackend, hugging_face_tokenizer
from .server_args import ServerArgs

_LOGPROB_NAMES = ("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs")


class Engine:
    """An engine in this process that takes a server's options; one warning names those without a meaning.

    It is a backend of programs too: `sgl.set_default_backend(engine)`. Use it as a context manager or call
    `shutdown()`.
    """

    def __init__(self, *, server_args: ServerArgs | None = None, **options: Any) -> None:
        self.server_args = server_args or ServerArgs(**options)
        self.endpoint = LocalBackend(self.server_args, "inproc://engine")

    # --- generation --------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        image_data: Any = None,
        return_logprob: bool | list[bool] | None = False,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        stream: bool = False,
        **others: Any,
    ) -> Answer | list[Answer] | Iterator[Answer]:
        """Complete a text (or token ids), or each of a list: {"text", "output_ids", "meta_info"} for each.

        With `stream` an iterator of answers that grow. Raises ArgumentsError, UnknownOptionError,
        UnsupportedByBackendError for what an embedded engine cannot do, and what the engine raises.
        """
        logprobs = (return_logprob, logprob_start_len, top_logprobs_num)
        batch = self._batch(prompt, sampling_params, input_ids, logprobs, {"image_data": image_data, **others})
        return batch.stream(self.endpoint) if stream else batch.run(self.endpoint)

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        image_data: Any = None,
        return_logprob: bool | list[bool] | None = False,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        stream: bool = False,
        **others: Any,
    ) -> Answer | list[Answer] | AsyncIterator[Answer]:
        """`generate` for event loops; with `stream` it gives an async iterator."""
        logprobs = (return_logprob, logprob_start_len, top_logprobs_num)
        batch = self._batch(prompt, sampling_params, input_ids, logprobs, {"image_data": image_data, **others})
        return batch.stream_async(self.endpoint) if stream else await batch.run_async(self.endpoint)

    def _batch(
        self, prompt: Any, params: Any, ids: Any, logprobs: tuple[Any, ...], others: dict[str, Any]
    ) -> EngineRequestBatch:
        text = others.pop("return_text_in_logprobs", None)
        asked = dict(zip(_LOGPROB_NAMES, (*logprobs, text), strict=True))
        return EngineRequestBatch.of(prompt, params, ids, asked, others)

    # --- scores ------------------------------------------------------------------------------------------

    def score(
        self,
        query: str | list[int],
        items: str | list[str] | list[list[int]],
        label_token_ids: list[int],
        apply_softmax: bool = False,
        item_first: bool = False,
    ) -> list[list[float]]:
        """For each item, how likely each label token comes next after query and item (or item and query: `item_first`).

        Probabilities among all tokens, or with `apply_softmax` among the labels. Shape [items][labels].
        """
        rows = [self._row(query, item, item_first) for item in ([items] if isinstance(items, str) else items)]
        futures = []
        for row in rows:
            sequence = self.endpoint.engine.open()
            sequence.extend(row)
            futures.append(sequence.score([[token] for token in label_token_ids]))
        found = [[exp(label[0][0]) for label in future.result()] for future in futures]
        return [[p / sum(row) for p in row] for row in found] if apply_softmax else found

    def _row(self, query: Any, item: Any, item_first: bool) -> list[int]:
        first, second = (item, query) if item_first else (query, item)
        if isinstance(first, str) and isinstance(second, str):
            ids: list[int] = self.endpoint.tokenizer.encode(first + second, special_prefix=True).tolist()
            return ids
        return [*first, *second]

    def encode(self, prompt: str | list[str]) -> Any:
        """For each text the mean of the model's last hidden states, as `{"embedding": [...], "meta_info": {...}}`."""
        texts = [prompt] if isinstance(prompt, str) else prompt
        tokenizer = self.endpoint.tokenizer
        found = [
            {
                "embedding": vector.tolist(),
                "meta_info": {"prompt_tokens": len(tokenizer.encode(text, special_prefix=True))},
            }
            for text, vector in zip(texts, self.endpoint.engine.embed(texts), strict=True)
        ]
        return found[0] if isinstance(prompt, str) else found

    async def async_encode(self, prompt: str | list[str]) -> Any:
        """See encode."""
        return await asyncio.to_thread(self.encode, prompt)

    def rerank(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedByBackendError("the embedded engine has no reranking models; use score()")

    # --- the rest ----------------------------------------------------------------------------------------

    @cached_property
    def tokenizer_manager(self) -> SimpleNamespace:
        """Programs read `.tokenizer` of it, and the model's path."""
        path = self.endpoint.get_model_name()
        return SimpleNamespace(tokenizer=self.get_tokenizer(), model_path=path, server_args=self.server_args)

    def get_tokenizer(self) -> Any:
        """The tokenizer object of transformers."""
        return hugging_face_tokenizer(self.endpoint.get_model_name())

    def flush_cache(self) -> Any:
        return self.endpoint.flush_cache()

    def get_server_info(self) -> dict[str, Any]:
        return self.endpoint.get_server_info()

    def start_profile(self, *args: Any, **kwargs: Any) -> None:
        """See LocalBackend.start_profile."""

    def stop_profile(self) -> None:
        """See LocalBackend.start_profile."""

    def shutdown(self) -> None:
        """Give the engine back. Idempotent."""
        self.endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
