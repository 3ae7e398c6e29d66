"""From requests on an event loop to sequences in the engine, and back. Who goes away takes its pages along."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from collections.abc import Sequence as Items
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sgl.runtime.cache import Ints
from sgl.runtime.engine import Engine
from sgl.runtime.ops import Chunk, Generation
from sgl.runtime.sampling.params import SamplingParams
from sgl.runtime.scoring import Scores
from sgl.runtime.sequence import Sequence

from .errors import RequestError
from .postbox import Arrivals, Postbox
from .settings import ServerSettings

Prompt = str | Items[int] | Ints
T = TypeVar("T")

LONG_TEXT = 10_000  # characters; longer ones are encoded beside the event loop


Counted = TypeVar("Counted", Chunk, Generation)


class Samples(NamedTuple):
    """Sequences with one prompt. Where there are several, its computation was a step of its own: `prefilled`."""

    sequences: list[Sequence]
    prefilled: Future[int] | None

    def corrected(self, made: Counted) -> Counted:
        """With the prompt's tokens out of the cache, not those that samples share, as `cached_tokens`."""
        if self.prefilled is not None:
            made.cached_tokens = self.prefilled.result()
        return made


class Bridge:
    """The engine for coroutines, on any event loop, also on several.

    Cancelling a call, or closing an iterator, aborts what runs for it and frees its pages. All methods raise what the
    engine raises, RequestError for what the settings forbid, and TimeoutError after `settings.request_timeout`.
    """

    def __init__(self, engine: Engine, settings: ServerSettings | None = None) -> None:
        self.engine, self.settings = engine, settings or ServerSettings()
        self._postboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Postbox] = weakref.WeakKeyDictionary()

    async def encode(self, prompt: Prompt) -> Ints:
        """Token ids, int32 [n]: of a text with the tokenizer's special prefix, or the given ones, checked."""
        if not isinstance(prompt, str):
            ids = self._checked_ids(prompt)
        elif len(prompt) <= LONG_TEXT:
            ids = self._tokenize(prompt)
        else:
            ids = await asyncio.to_thread(self._tokenize, prompt)
        most = self.settings.max_prompt_tokens
        if not len(ids):
            raise RequestError("the prompt is empty; give at least one token")
        if most is not None and len(ids) > most:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, this server takes at most {most}; shorten it",
                code="context_length_exceeded",
            )
        return ids

    async def generate(
        self, prompt: Prompt, params: SamplingParams, grammar: Any = None, n: int = 1
    ) -> list[Generation]:
        """`n` samples after the prompt, which is computed once; the first keeps the seed of `params`."""
        ids = await self.encode(prompt)
        results: dict[int, Generation] = {}
        with self._samples(ids, n) as samples, self._arrivals() as arrivals:
            for index, sequence in enumerate(samples.sequences):
                future = sequence.generate(self._params(params, index), grammar)
                future.add_done_callback(partial(arrivals.post_outcome, index))
            while len(results) < n:
                index, generation = await arrivals.next()
                results[index] = samples.corrected(generation)
        return [results[index] for index in range(n)]

    async def stream(
        self, prompt: Prompt, params: SamplingParams, grammar: Any = None, n: int = 1
    ) -> AsyncGenerator[tuple[int, Chunk], None]:
        """(index of the sample, its next piece) until all `n` have finished.

        The last chunk of each has `finished` and its `generation`. Leave it early with `aclosing`.
        """
        ids, left = await self.encode(prompt), n
        with self._samples(ids, n) as samples, self._arrivals() as arrivals:
            for index, sequence in enumerate(samples.sequences):
                post = partial(arrivals.post, index)
                sequence.generate(self._params(params, index), grammar, post).add_done_callback(arrivals.post_failure)
            while left:
                index, chunk = await arrivals.next()
                left -= chunk.finished
                if chunk.generation is not None:
                    chunk.generation = samples.corrected(chunk.generation)
                yield index, samples.corrected(chunk)

    async def ask(self, prompt: Prompt, question: Callable[[Sequence], Future[T]]) -> T:
        """The answer to a question put to a sequence that holds the prompt, such as `lambda s: s.logprobs(1)`."""
        ids = await self.encode(prompt)
        with self._samples(ids, 1) as samples, self._arrivals() as arrivals:
            question(samples.sequences[0]).add_done_callback(partial(arrivals.post_outcome, 0))
            _, answer = await arrivals.next()
        return answer

    async def score(self, prompt_ids: Prompt, choices: Items[Items[int]]) -> Scores:
        """Log-probabilities of the tokens of each choice after the prompt: lists of (logprob, token id)."""
        checked = [self._checked_ids(choice) for choice in choices]
        return await self.ask(prompt_ids, lambda sequence: sequence.score(checked))

    async def alive(self, seconds: float) -> bool:
        """Whether the engine's thread takes a task within that time."""
        with self._opened() as [sequence], Arrivals[Any](self._postbox(), seconds) as arrivals:
            sequence.prefill().add_done_callback(partial(arrivals.post_outcome, 0))
            try:
                await arrivals.next()
            except TimeoutError:
                return False
        return True

    # inside

    @contextmanager
    def _opened(self) -> Iterator[list[Sequence]]:
        """Sequences, the first one given; all are closed behind it, and aborted first where it is left early."""
        sequences = [self.engine.open()]
        try:
            yield sequences
        except BaseException:
            for sequence in sequences:
                sequence.abort()
            raise
        finally:
            for sequence in sequences:
                sequence.close()

    @contextmanager
    def _samples(self, ids: Ints, n: int) -> Iterator[Samples]:
        """`n` sequences that hold the prompt."""
        if not 1 <= n <= self.settings.max_choices:
            raise RequestError(f"n={n} must lie in 1..{self.settings.max_choices}", param="n")
        with self._opened() as sequences:
            sequences[0].extend(ids)
            prefilled = sequences[0].prefill() if n > 1 else None
            if n > 1:
                sequences += sequences[0].fork(n - 1)
            yield Samples(sequences, prefilled)

    def _arrivals(self) -> Arrivals[Any]:
        return Arrivals(self._postbox(), self.settings.request_timeout)

    def _postbox(self) -> Postbox:
        loop = asyncio.get_running_loop()
        found = self._postboxes.get(loop)
        if found is None:
            found = self._postboxes[loop] = Postbox(loop)
        return found

    def _params(self, params: SamplingParams, index: int) -> SamplingParams:
        """Those of one sample: a seed of its own, not more tokens than the server gives."""
        most = self.settings.max_new_tokens
        limit = params.max_tokens if most is None else min(params.max_tokens, most)
        seed = params.seed if params.seed is None else sample_seed(params.seed, index)
        return dataclasses.replace(params, max_tokens=limit, min_tokens=min(params.min_tokens, limit), seed=seed)

    def _tokenize(self, text: str) -> Ints:
        try:
            text.encode()
            return self.engine.tokenizer.encode(text, special_prefix=True)
        except UnicodeEncodeError as error:
            raise RequestError(f"the prompt is no Unicode text: {error.reason} at character {error.start}") from error

    def _checked_ids(self, ids: Items[int] | Ints) -> Ints:
        size = self.engine.tokenizer.vocab_size
        ids = ids.tolist() if isinstance(ids, np.ndarray) else ids
        wrong = next((i for i in ids if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < size), None)
        if wrong is not None:
            raise RequestError(f"token ids must be whole numbers in 0..{size - 1}, got {wrong!r}")
        return np.asarray(ids, dtype=np.int32)


def sample_seed(seed: int, index: int) -> int:
    """The seed of a sample, 63 bits; the first keeps the one given."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 if index else seed
