"""Backends written for the older blocking interface: a class to derive from, and the stream that calls it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar, cast

from ...backend import Backend, Generated, GenRequest, Media, OnChunk, SelectRequest
from ...chat import ChatTemplate
from ...concurrency.unique_ids import fresh_id
from ...errors import RemoteTimeoutError, UnsupportedByBackendError
from ...sampling.choices import ChoicesDecision, ChoicesSamplingMethod
from ...sampling.option_table import FIRST_NAMES
from ...sampling.options import NAMES, SamplingOptions
from ..remote.remote_stream import RemoteStream

T = TypeVar("T")
Meta = dict[str, Any]


class BaseBackend(Backend):
    """A backend of blocking methods. Override `generate`, and what else the programs need.

    The methods get `s`, a `LegacyState`: what the state has so far, as a copy. They are called on up to
    `threads` threads, those of one state one after another. The lifetime methods (`begin_program` and so on)
    do nothing unless overridden.
    """

    support_concate_and_append = False
    takes_media: frozenset[str] = frozenset({"image", "video"})
    threads = 64

    # --- to override -------------------------------------------------------------------------------------

    def get_model_name(self) -> str:
        return type(self).__name__

    def generate(self, s: LegacyState, sampling_params: LegacyParams) -> tuple[str | list[str], Meta]:
        """The new text and its meta_info."""
        raise self._missing("generate(s, sampling_params)")

    def generate_stream(self, s: LegacyState, sampling_params: LegacyParams) -> Iterator[tuple[str, Meta]]:
        """Pieces of the new text, each with meta_info. Without it, streams come in one piece."""
        raise self._missing("generate_stream(s, sampling_params)")

    def select(
        self,
        s: LegacyState,
        choices: list[str],
        temperature: float,
        choices_method: ChoicesSamplingMethod | None = None,
    ) -> ChoicesDecision:
        raise self._missing("select(s, choices, temperature, choices_method)")

    def concatenate_and_append(self, src_rids: list[str], dst_rid: str) -> None:
        raise self._missing("concatenate_and_append(src_rids, dst_rid)")

    def cache_prefix(self, prefix_str: str) -> None:
        """Compute and keep the start of prompts."""

    def uncache_prefix(self, rid: str) -> None:
        """Forget what `cache_prefix` kept."""

    def begin_program(self, s: LegacyState) -> None:
        """Called before the first call for a state."""

    def end_program(self, s: LegacyState) -> None:
        """Called when a state has ended."""

    def end_request(self, s: LegacyState) -> None:
        """Never called; here for those who call it themselves."""

    def commit_lazy_operations(self, s: LegacyState) -> None:
        """Compute the text so far."""

    def fork_program(self, src: LegacyState, dst: LegacyState) -> None:
        """A state was forked."""

    def fill_image(self, s: LegacyState) -> None:
        """A picture was added; the last one of `s.images_`."""

    # --- for the language --------------------------------------------------------------------------------

    def open(self) -> LegacyStream:
        return LegacyStream(self)

    def check(self, request: GenRequest | SelectRequest) -> None:
        """Whatever the program asks for goes to `generate`, which knows what it can do."""

    @cached_property
    def pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.threads, thread_name_prefix=f"sgl-{type(self).__name__}")

    def overrides(self, name: str) -> bool:
        """True if a subclass has its own method of that name."""
        return getattr(type(self), name) is not getattr(BaseBackend, name)

    def _missing(self, method: str) -> UnsupportedByBackendError:
        return UnsupportedByBackendError(f"{type(self).__name__} has no {method}; override it")


@dataclass
class LegacyState:
    """A state as blocking backends see it: a copy of what it has when they are called.

    `text_`: the whole raw text. `messages_`: the finished turns. `images_`: (path or URL, base64 data) of each
    picture. `cur_role`: the role of the open turn. `sid` is the same in all calls for a state.
    """

    sid: str
    backend: BaseBackend
    text_: str = ""
    messages_: list[dict[str, Any]] = field(default_factory=list)
    images_: list[tuple[str, str]] = field(default_factory=list)
    cur_role: str | None = None
    num_api_spec_tokens: int | None = None

    @property
    def chat_template(self) -> ChatTemplate:
        return self.backend.get_chat_template()


class LegacyStream(RemoteStream):
    """Calls the blocking methods on the backend's threads, in order."""

    def __init__(self, backend: Any, born: bool = True) -> None:
        super().__init__(backend, born)
        self.sid = fresh_id()
        self._begun = False

    @property
    def legacy(self) -> BaseBackend:
        return cast(BaseBackend, self.backend)

    def state(self) -> LegacyState:
        prompt = self.draft.prompt()
        images = [(_short(media.source), media.source.partition(",")[2]) for media in prompt.media]
        return LegacyState(self.sid, self.legacy, str(prompt.text), prompt.messages, images, prompt.role)

    def close(self) -> None:
        if self.legacy.overrides("end_program"):
            self.queue(partial(self._hook, "end_program"), lambda nothing: None)

    def attach(self, media: Media, token: str) -> None:
        super().attach(media, token)
        if self.legacy.overrides("fill_image"):
            self.queue(partial(self._hook, "fill_image"), lambda nothing: None)

    def inherit(self, parent: RemoteStream) -> None:
        super().inherit(parent)
        self.legacy.fork_program(cast(LegacyStream, parent).state(), self.state())

    async def produce(self, request: GenRequest, on_chunk: OnChunk | None, deadline: float | None) -> Generated:
        params = LegacyParams.of(request)
        if on_chunk is None or not self.legacy.overrides("generate_stream"):
            return await self._in_thread(partial(self._whole, self.state(), params), deadline)
        stopped = threading.Event()
        try:
            work = partial(self._pieces, self.state(), params, on_chunk, stopped)
            return await self._in_thread(work, deadline)
        finally:
            stopped.set()

    async def decide(self, request: SelectRequest) -> ChoicesDecision:
        if request.end:
            raise UnsupportedByBackendError(
                f"{self.legacy.get_model_name()} cannot score the end of a turn after a choice, and one of the choices "
                "is the beginning of another; change the choices, or use a backend that opens streams"
            )
        call = partial(
            self.legacy.select, self.state(), list(map(str, request.choices)), request.temperature, request.method
        )
        return await self._in_thread(call)

    async def warm(self) -> None:
        await self._hook("commit_lazy_operations")

    def _whole(self, state: LegacyState, params: LegacyParams) -> Generated:
        made, meta = self.legacy.generate(state, params)
        return Generated(made if isinstance(made, str) else made[0], _first(meta))

    def _pieces(
        self, state: LegacyState, params: LegacyParams, on_chunk: OnChunk, stopped: threading.Event
    ) -> Generated:
        texts: list[str] = []
        last: Meta = {}
        for text, meta in self.legacy.generate_stream(state, params):
            if stopped.is_set():
                break
            texts.append(text)
            last = meta or last
            on_chunk(Generated(text, meta or {}))
        return Generated("".join(texts), last)

    async def _hook(self, name: str) -> None:
        if self.legacy.overrides(name):
            await self._in_thread(partial(getattr(self.legacy, name), self.state()))

    async def _in_thread(self, call: Callable[[], T], deadline: float | None = None) -> T:
        if not self._begun:
            self._begun = True
            await self._hook("begin_program")
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            async with asyncio.timeout(left):
                return await asyncio.get_running_loop().run_in_executor(self.legacy.pool, call)
        except TimeoutError as error:
            name = type(self.legacy).__name__
            raise RemoteTimeoutError(f"{name} had not answered in the gen's time; give it a longer timeout") from error


def _first(meta: Any) -> Meta:
    return (meta[0] if isinstance(meta, list) and meta else meta) or {}


def _short(source: str) -> str:
    return source if source.startswith("http") else source.partition(";")[0]


class LegacyParams(SamplingOptions):
    """The options of one gen. Lists are lists, `stop` includes the stops of the chat template, `n` is 1;
    `max_new_tokens`
    may be None: then nothing but the model's context bounds the text."""

    __slots__ = ()

    @classmethod
    def of(cls, request: GenRequest) -> LegacyParams:
        given: dict[str, Any] = {name: getattr(request.options, name) for name in NAMES}
        lists = {name: list(given[name] or ()) for name in ("stop_token_ids", "stop_regex")}
        given |= {"n": 1, "stop": list(request.options.stop or ()) + list(request.template_stops)}
        return cls(**(given | lists))

    def clone(self) -> LegacyParams:
        return replace(self)

    def to_openai_kwargs(self) -> dict[str, Any]:
        return {"n": 1, **self.to_litellm_kwargs()}

    def to_litellm_kwargs(self) -> dict[str, Any]:
        return {
            "max_tokens": self.max_new_tokens,
            "stop": self.stop or None,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
        }

    def to_anthropic_kwargs(self) -> dict[str, Any]:
        return {
            "max_tokens": self.max_new_tokens,
            "stop_sequences": self.stop,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
        }

    def to_vertexai_kwargs(self) -> dict[str, Any]:
        return {
            "candidate_count": 1,
            "max_output_tokens": self.max_new_tokens,
            "stop_sequences": self.stop,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k if (self.top_k or 0) > 0 else None,
        }

    def to_srt_kwargs(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIRST_NAMES}
