"""select: which tokens of the choices are scored, and the decision."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sgl.runtime.sequences.ops.score_op import ChoiceScores

from ...backend import SelectRequest
from ...concurrency.one_shot_callbacks import when_done
from ...sampling.choices import ChoicesDecision
from ..pending_calls import gather_results
from ..select_decision import conclude_select
from .meta_info import token_text
from .untokenized_tail import Ints, TailTokenizer, UntokenizedTail, common_prefix

if TYPE_CHECKING:
    from sgl.runtime.engine import Engine

Logprobs = list[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class SelectCandidates:
    """The tail of a row, and what it would be with each of the choices; `rows` are the tokens that are scored.

    Scoring begins at `start`, the end of the tokens that the prompt and all choices have in common, so that
    each choice is measured from the same place, whatever tokens its text melts into. `head`: how many tokens before
    that are scored too, to be shown: 1 or 0.
    """

    prompt: UntokenizedTail
    tails: list[UntokenizedTail]
    rows: list[Ints]
    start: int
    head: int = 0

    @classmethod
    def of(
        cls, prompt: UntokenizedTail, request: SelectRequest, tokenizer: TailTokenizer, with_head: bool = False
    ) -> SelectCandidates:
        """`with_head`: also show the last token before the choices, where the tail has it and it has one before it."""
        tails = [prompt.extended(choice, tokenizer) for choice in request.choices]
        ended = [prompt.extended(text, tokenizer) for text in request.scored] if request.end else tails
        rows = [tail.tokens for tail in ended]
        start = common_prefix([prompt.tokens, *rows])
        return cls(prompt, tails, rows, start, int(with_head and start > prompt.starts_row))

    @property
    def shared(self) -> Ints:
        """The tokens before the first that is scored, int32 [start - head]."""
        return self.prompt.tokens[: self.start - self.head]

    @property
    def scored(self) -> list[Ints]:
        """The tokens of each choice that decide, int32 [n] each."""
        return [row[self.start :] for row in self.rows]

    @property
    def shown(self) -> list[Ints]:
        """The same with the head before them."""
        return [row[self.start - self.head :] for row in self.rows]


def score_without_prompt(engine: Engine, rows: list[Ints], adapter: str | None = None) -> Future[list[Logprobs | None]]:
    """Log-probabilities of each row alone, without its first token, which has no context. None: no tokens."""
    sequences = [engine.open(adapter=adapter) for _ in rows]
    futures: list[Future[Any]] = []
    for sequence, row in zip(sequences, rows, strict=True):
        if len(row) > 1:
            sequence.extend(row[:1])
            futures.append(sequence.score([row[1:]]))
        else:
            futures.append(_ready([[]] if len(row) else None))
    result: Future[list[Logprobs | None]] = Future()
    together = gather_results(futures)

    def unpack(done: Future[list[Any]]) -> None:
        if error := done.exception():
            result.set_exception(error)
        else:
            result.set_result([scores and scores[0] for scores in done.result()])

    when_done(together, unpack)
    return result


def decide(
    request: SelectRequest,
    candidates: SelectCandidates,
    scores: ChoiceScores,
    priors: list[Logprobs | None] | None,
    token_bytes: Sequence[bytes],
) -> tuple[int, ChoicesDecision]:
    """Let the method choose. Returns the index of the choice and the decision with its meta_info."""
    shown = [_entries(row, token_bytes) for row in scores]
    rows = [row[candidates.head :] for row in shown]
    unconditional = None
    if priors is not None:
        unconditional = [
            _unconditional(tokens.tolist(), row, token_bytes)
            for tokens, row in zip(candidates.scored, priors, strict=True)
        ]
    decision = conclude_select(request, rows, priors=unconditional)
    meta = {**(decision.meta_info or {}), **_counts(scores)}
    if meta.get("input_token_logprobs") == rows:
        meta["input_token_logprobs"] = shown
    return request.choices.index(decision.decision), ChoicesDecision(decision.decision, meta)


def _counts(scores: ChoiceScores) -> dict[str, Any]:
    """What it took: the tokens of the prompt and, each once, those of the choices; and seconds."""
    return {
        "prompt_tokens": scores.prompt_tokens + scores.scored_tokens,
        "cached_tokens": scores.cached_tokens,
        "completion_tokens": 0,
        "e2e_latency": scores.e2e_latency,
        "queue_seconds": scores.queue_seconds,
    }


def _entries(row: Logprobs, token_bytes: Sequence[bytes]) -> list[list[Any]]:
    return [[value, token, token_text(token_bytes, token)] for value, token in row]


def _unconditional(tokens: list[int], row: Logprobs | None, token_bytes: Sequence[bytes]) -> list[list[Any]]:
    if not tokens:
        return []
    return [[None, tokens[0], token_text(token_bytes, tokens[0])], *_entries(row or [], token_bytes)]


def _ready(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
