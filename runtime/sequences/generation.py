"""What is asked of a generation, its result, and the pieces in which it is streamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..sampling.sampling_params import SamplingParams

TokenLogprobs = list[tuple[float, int]]  # log-probability (natural logarithm) and token id


@dataclass(slots=True)
class Generation:
    """The result of one `generate`. The sequence's tokens end with exactly `token_ids`."""

    text: str
    token_ids: list[int]
    finish_reason: dict[str, Any]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    forced_tokens: int
    logprobs: TokenLogprobs | None  # nan for the tokens of a cut token that was encoded anew
    top_logprobs: list[TokenLogprobs] | None
    e2e_latency: float  # seconds
    truncated: bool = False  # a limit came before the end of the grammar
    closed: bool = False  # truncated, then completed by the grammar: its last part is not the model's
    queue_seconds: float = 0.0  # until it got a place in the batch
    first_token_seconds: float = 0.0  # until its first token
    drafted_tokens: int = 0  # drafted ahead, see `Engine(speculation=...)`
    accepted_tokens: int = 0  # of these, which are in the text
    reread_tokens: int = 0  # of the prompt, which were computed again as a fork took another adapter


@dataclass(slots=True)
class Chunk:
    """A piece of a running generation: its final text and its new tokens."""

    text: str
    token_ids: list[int]
    logprobs: TokenLogprobs | None = None
    finished: bool = False
    generation: Generation | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    top_logprobs: list[TokenLogprobs] | None = None

    def add(self, later: Chunk) -> None:
        """Append the following piece to this one."""
        self.text += later.text
        self.token_ids = self.token_ids + later.token_ids
        self.logprobs = _both(self.logprobs, later.logprobs)
        self.top_logprobs = _both(self.top_logprobs, later.top_logprobs)
        self.finished, self.generation = later.finished, later.generation
        self.prompt_tokens, self.cached_tokens = later.prompt_tokens, later.cached_tokens


class GenerationRequest(Protocol):
    """What a running generation knows of the operation that asked for it: `generate_op.Generate`."""

    @property
    def params(self) -> SamplingParams: ...
    @property
    def grammar(self) -> Any:
        """What a compile function of sgl.grammars returned, or None."""
        ...

    @property
    def on_chunk(self) -> Callable[[Chunk], None] | None: ...
    @property
    def cached(self) -> int | None:
        """Tokens of the prompt that were computed before; None: not known yet."""
        ...

    @property
    def queue_seconds(self) -> float: ...
    @property
    def elapsed(self) -> float: ...

    def resolve(self, result: Any = None) -> None: ...
    def fail(self, error: BaseException) -> None: ...


T = TypeVar("T")


def _both(first: list[T] | None, second: list[T] | None) -> list[T] | None:
    return None if first is None and second is None else (first or []) + (second or [])
