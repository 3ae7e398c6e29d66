"""What becomes known of one request while it runs. Metrics, request log and traces are made of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from sgl.runtime.cache import Ints
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.sequences.generation import Chunk, Generation

GapObserver = Callable[[float, int], None]  # seconds a token, tokens
Prompt = str | Sequence[int] | Ints


@dataclass(slots=True)
class RequestRecord:
    """One request.

    Moments are `time.perf_counter()` seconds, `clock` is the same moment as `started` by the calendar.
    """

    id: str = ""
    method: str = ""
    route: str = ""  # as it is declared: "/v1/models/{name}"
    tenant: str = ""
    adapter: str | None = None  # that computed it
    started: float = field(default_factory=time.perf_counter)
    clock: float = field(default_factory=time.time)
    ended: float | None = None
    status: int = 0  # sent; of a stream that failed midway the error's; 499: the client left
    error: str | None = None  # the error code that the client received
    params: SamplingParams | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    queue_seconds: float | None = None  # of the sample that waited longest
    first_token_seconds: float | None = None  # from the request's start
    finish_reasons: list[str] = field(default_factory=list)
    content: list[dict[str, str | list[int]]] | None = None  # prompts and texts, where they are to be kept

    @property
    def seconds(self) -> float:
        return (time.perf_counter() if self.ended is None else self.ended) - self.started

    @property
    def worked(self) -> bool:
        """Whether the model had to do with it."""
        return self.params is not None or self.prompt_tokens > 0

    def end(self, route: str) -> None:
        self.route, self.ended = route, time.perf_counter()

    def first_token(self, seconds: float) -> None:
        if self.first_token_seconds is None or seconds < self.first_token_seconds:
            self.first_token_seconds = seconds


RECORD: ContextVar[RequestRecord | None] = ContextVar("RECORD", default=None)


class RequestProgress:
    """How one call to the engine, of one prompt and its samples, comes along. Tells the request's record."""

    def __init__(self, params: SamplingParams | None, observe_gap: GapObserver | None) -> None:
        self._record = RECORD.get() or RequestRecord()
        self._record.params = self._record.params or params
        self._observe_gap = observe_gap
        self._asked = time.perf_counter()
        self._before: dict[int, float] = {}  # when the last piece of each sample came
        self._streamed: Counter[int] = Counter()  # tokens of each sample so far

    def read(self, tokens: int) -> None:
        """So many tokens were read, after which none are generated."""
        self._record.prompt_tokens += tokens

    def chunk(self, index: int, chunk: Chunk) -> None:
        """A piece of a sample has come; `generation` follows when it is complete."""
        if chunk.token_ids:
            now = time.perf_counter()
            before = self._before.get(index)
            if before is None:
                self._record.first_token(now - self._record.started)
            elif self._observe_gap is not None:
                self._observe_gap((now - before) / len(chunk.token_ids), len(chunk.token_ids))
            self._before[index] = now
            self._streamed[index] += len(chunk.token_ids)
            self._record.completion_tokens += len(chunk.token_ids)

    def generation(self, index: int, made: Generation, prompt: Prompt = "") -> None:
        """A sample is complete. Samples share one prompt, which counts once, with the first."""
        record = self._record
        if index not in self._before:
            record.first_token(self._asked - record.started + made.first_token_seconds)
        if index == 0:
            record.prompt_tokens += made.prompt_tokens
            record.cached_tokens += made.cached_tokens
        record.completion_tokens += made.completion_tokens - self._streamed[index]
        record.forced_tokens += made.forced_tokens
        record.drafted_tokens += made.drafted_tokens
        record.accepted_tokens += made.accepted_tokens
        record.queue_seconds = max(record.queue_seconds or 0.0, made.queue_seconds)
        record.finish_reasons.append(made.finish_reason["type"])
        if record.content is not None:
            record.content.append(
                {"prompt": prompt if isinstance(prompt, str) else list(map(int, prompt)), "text": made.text}
            )
