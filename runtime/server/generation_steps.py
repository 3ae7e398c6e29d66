"""Samples of several steps on one sequence: text is appended, then a gen or a choice, and again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sgl.runtime.cache import Ints
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.sequences.generation import Chunk, Generation
from sgl.runtime.sequences.ops.score_op import ChoiceScores
from sgl.runtime.sequences.sequence import Sequence

from .event_loop_queue import RequestLoopQueue

END = {"type": "stop", "matched": None}
NOTHING: Ints = np.zeros(0, dtype=np.int32)


class ChatPrompt(NamedTuple):
    """`text` is what the template made, what strangers spell of special tokens left out; `ids`, int32 [n], what the
    model reads.
    """

    text: str
    ids: Ints


class SelectedChoice(NamedTuple):
    text: str
    tokens: Ints


class GenerationStep(NamedTuple):
    """`prefix` is appended to the sequence; then a gen, or with `choices` the likeliest of these.

    Choices are compared as `select` of the language does it: by the mean log-probability of their tokens, at
    temperature 0, the first one of equals.
    """

    params: SamplingParams
    grammar: Any = None
    prefix: Ints = NOTHING
    choices: tuple[SelectedChoice, ...] = ()


class SampleRun:
    """The moves of one sample. What comes of them arrives in `results` under the sample's `index`.

    made: what its moves gave, in order.
    """

    def __init__(self, index: int, sequence: Sequence, results: RequestLoopQueue[Any]) -> None:
        self.made: list[Generation] = []
        self._index, self._sequence, self._arrivals = index, sequence, results
        self._choices: tuple[SelectedChoice, ...] = ()

    def start(self, move: GenerationStep, streamed: bool) -> None:
        """Queue a move; what fails arrives as an error of the whole request. `streamed`: text arrives as it comes."""
        if len(move.prefix):
            self._sequence.extend(move.prefix)
        self._choices = move.choices
        if move.choices:
            self._report(self._sequence.score([choice.tokens for choice in move.choices]))
        elif streamed:
            post: Callable[[Chunk], None] = partial(self._arrivals.post, self._index)
            self._sequence.generate(move.params, move.grammar, post).add_done_callback(self._arrivals.post_failure)
        else:
            self._report(self._sequence.generate(move.params, move.grammar))

    def chunk(self, arrived: Chunk | Generation | ChoiceScores) -> Chunk:
        """What arrived as a chunk; the last one of a move is `finished` and has its `generation`."""
        chunk = (
            arrived
            if isinstance(arrived, Chunk)
            else _whole(arrived if isinstance(arrived, Generation) else self._decide(arrived))
        )
        if chunk.generation is not None:
            self.made.append(chunk.generation)
        return chunk

    def _report(self, future: Future[Any]) -> None:
        future.add_done_callback(partial(self._arrivals.post_outcome, self._index))

    def _decide(self, scores: ChoiceScores) -> Generation:
        best = max(range(len(scores)), key=lambda place: mean_logprob(scores, place))
        chosen = self._choices[best]
        self._sequence.extend(chosen.tokens)
        return Generation(
            text=chosen.text,
            token_ids=chosen.tokens.tolist(),
            finish_reason=END,
            prompt_tokens=scores.prompt_tokens,
            completion_tokens=len(chosen.tokens),
            cached_tokens=scores.cached_tokens,
            forced_tokens=0,
            logprobs=list(scores[best]),
            top_logprobs=None,
            e2e_latency=0.0,
        )


def mean_logprob(scores: ChoiceScores, place: int) -> float:
    """Of the tokens of one choice; -inf for a choice without tokens."""
    values = [value for value, _ in scores[place]]
    return sum(values) / len(values) if values else float("-inf")


def joined(made: list[Generation]) -> Generation:
    """What the moves of a sample gave, as one: counts of what was written are added up, the prompt is that of the
    first.
    """
    return replace(
        made[0],
        text="".join(one.text for one in made),
        finish_reason=made[-1].finish_reason,
        completion_tokens=sum(one.completion_tokens for one in made),
        forced_tokens=sum(one.forced_tokens for one in made),
        drafted_tokens=sum(one.drafted_tokens for one in made),
        accepted_tokens=sum(one.accepted_tokens for one in made),
        e2e_latency=sum(one.e2e_latency for one in made),
        truncated=any(one.truncated for one in made),
        closed=any(one.closed for one in made),
    )


def _whole(made: Generation) -> Chunk:
    return Chunk(
        made.text, made.token_ids, made.logprobs, True, made, made.prompt_tokens, made.cached_tokens, made.top_logprobs
    )
