"""Requests in the shape of a server's /generate, answered by an engine in this process."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..backend import Generated, GenRequest
from ..backends.embedded.embedded_backend import EmbeddedBackend
from ..backends.embedded.embedded_stream import EmbeddedStream
from ..backends.embedded.untokenized_tail import UntokenizedTail
from ..concurrency.one_shot_callbacks import when_done
from ..errors import ArgumentsError, BadValueError, UnsupportedByBackendError, reject_unknown
from ..sampling.options import DEFAULTS, NAMES, OTHER_NAMES, SamplingOptions, make_options

Answer = dict[str, Any]

_RENAMED = {"sampling_seed": "seed", "no_stop_trim": "keep_stop"}
# about how a server decodes or schedules; an embedded engine has no use for them
_IGNORED = ("skip_special_tokens", "spaces_between_special_tokens", "stream_interval", "custom_params")


def sampling_options(params: dict[str, Any] | None) -> SamplingOptions:
    """Resolved options of one request. Raises UnknownOptionError, BadValueError."""
    given = {_RENAMED.get(name, name): value for name, value in (params or {}).items() if name not in _IGNORED}
    reject_unknown("sampling_params", given, (*NAMES, *OTHER_NAMES))
    return make_options(**given).over(DEFAULTS)


_UNUSED = ("rid",)  # the server's name of a request, not used here


@dataclass(frozen=True, slots=True)
class EnginePrompt:
    """One text, or its token ids."""

    text: str | None = None
    ids: list[int] | None = None

    def open(self, backend: EmbeddedBackend) -> Any:
        """A stream that holds the prompt."""
        if self.ids is None:
            stream = backend.open()
            stream.append(self.text or "")
            return stream
        if not self.ids:
            raise BadValueError("input_ids is an empty list; give at least one token")
        sequence = backend.engine.open()
        sequence.extend(self.ids)
        return EmbeddedStream(backend, sequence, UntokenizedTail())


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One prompt with its options, no gaps."""

    prompt: EnginePrompt
    options: SamplingOptions

    def samples(self) -> list[EngineRequest]:
        """A request for each of the n samples."""
        count = self.options.n or 1
        return [replace(self, options=replace(self.options.for_sample(i), n=1)) for i in range(count)]

    def start(self, backend: EmbeddedBackend, on_chunk: Callable[[Generated], None] | None = None) -> Future[Any]:
        """Begin; the future gives a Generated."""
        stream = self.prompt.open(backend)
        future = stream.generate(GenRequest(self.options), on_chunk)
        stream.close()
        return future

    def answer(self, generated: Generated) -> Answer:
        """The result as a server would send it."""
        meta = dict(generated.meta_info)
        options = self.options
        if self.prompt.ids and options.return_logprob and options.logprob_start_len == 0:
            meta["input_token_logprobs"] = [
                [None, self.prompt.ids[0], None],
                *meta.get("input_token_logprobs", []),
            ]
        if options.return_logprob:
            meta.setdefault("input_token_logprobs", [])
        return {"text": generated.text, "output_ids": list(generated.token_ids or ()), "meta_info": meta}


@dataclass(frozen=True, slots=True)
class EngineRequestBatch:
    """The requests of one call. `single`: the call named one prompt, and gets one answer unless n > 1."""

    requests: list[EngineRequest]
    single: bool

    @classmethod
    def of(
        cls, prompt: Any, params: Any, input_ids: Any, logprobs: dict[str, Any], others: dict[str, Any]
    ) -> EngineRequestBatch:
        """From the arguments of `generate`; each may be one value, or a list with one for each prompt."""
        for name, value in others.items():
            if value and name not in _UNUSED:
                raise UnsupportedByBackendError(f"the embedded engine takes no {name} here; it got {str(value)[:60]!r}")
        prompts, single = _prompts(prompt, input_ids)
        per_prompt = _per_prompt("sampling_params", params, len(prompts))
        wanted = {name: _per_prompt(name, value, len(prompts)) for name, value in logprobs.items()}
        requests = []
        for index, one in enumerate(prompts):
            asked = {name: values[index] for name, values in wanted.items()}
            asked["return_text_in_logprobs"] = bool(asked.get("return_text_in_logprobs"))
            options = make_options(**asked).over(sampling_options(per_prompt[index]))
            requests += EngineRequest(one, options).samples()
        return cls(requests, single and len(requests) == 1)

    def run(self, backend: EmbeddedBackend) -> Answer | list[Answer]:
        """All answers, in order; blocks. Raises the first error."""
        futures = [request.start(backend) for request in self.requests]
        return self._shaped([future.result() for future in futures])

    async def run_async(self, backend: EmbeddedBackend) -> Answer | list[Answer]:
        futures = [request.start(backend) for request in self.requests]
        return self._shaped(await asyncio.gather(*map(asyncio.wrap_future, futures)))

    def stream(self, backend: EmbeddedBackend) -> Iterator[Answer]:
        """Answers while they grow: each has all of its text so far, and its `index` if there are several."""
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        growing = _StreamedBatch(self, backend, events.put)
        while growing.open:
            yield from growing.take(events.get())

    async def stream_async(self, backend: EmbeddedBackend) -> AsyncIterator[Answer]:
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()
        growing = _StreamedBatch(self, backend, lambda event: loop.call_soon_threadsafe(events.put_nowait, event))
        while growing.open:
            for answer in growing.take(await events.get()):
                yield answer

    def _shaped(self, results: list[Generated]) -> Answer | list[Answer]:
        answers = [request.answer(result) for request, result in zip(self.requests, results, strict=True)]
        return answers[0] if self.single else answers


Event = tuple[int, "Generated | Future[Generated]"]


class _StreamedBatch:
    """The answers of a streamed batch, from the chunks that arrive on any thread."""

    def __init__(self, batch: EngineRequestBatch, backend: EmbeddedBackend, put: Callable[[Event], Any]) -> None:
        self._batch = batch
        self._texts = [""] * len(batch.requests)
        self.open = len(batch.requests)
        for index, request in enumerate(batch.requests):
            future = request.start(backend, partial(_put_chunk, put, index))
            when_done(future, partial(_put_chunk, put, index))

    def take(self, event: Event) -> Iterator[Answer]:
        index, news = event
        request = self._batch.requests[index]
        if isinstance(news, Future):
            self.open -= 1
            yield self._marked(index, request.answer(news.result()))
        elif news.text and not news.meta_info.get("finish_reason"):
            self._texts[index] += news.text
            yield self._marked(index, request.answer(replace(news, text=self._texts[index])))

    def _marked(self, index: int, answer: Answer) -> Answer:
        return answer if self._batch.single else {**answer, "index": index}


def _put_chunk(put: Callable[[Event], Any], index: int, news: Any) -> None:
    put((index, news))


def _prompts(prompt: Any, input_ids: Any) -> tuple[list[EnginePrompt], bool]:
    if (prompt is None) == (input_ids is None):
        raise ArgumentsError("generate takes a prompt or input_ids, one of them")
    if isinstance(prompt, str):
        return [EnginePrompt(prompt)], True
    if prompt is not None:
        return [EnginePrompt(text) for text in prompt], False
    if input_ids and isinstance(input_ids[0], int):
        return [EnginePrompt(ids=list(input_ids))], True
    return [EnginePrompt(ids=list(ids)) for ids in input_ids], False


def _per_prompt(name: str, value: Any, count: int) -> list[Any]:
    """One value for each prompt."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise BadValueError(f"{name} has {len(value)} items for {count} prompts; give one for each, or one for all")
    return value
