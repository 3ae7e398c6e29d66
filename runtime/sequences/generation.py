"""The result of a generation, and the pieces in which it is streamed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

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


T = TypeVar("T")


def _both(first: list[T] | None, second: list[T] | None) -> list[T] | None:
    return None if first is None and second is None else (first or []) + (second or [])
