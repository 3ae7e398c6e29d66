"""From requests on an event loop to sequences in the engine, and back. Who goes away takes its pages along."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from collections.abc import Sequence as Items
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sgl.runtime.cache import Ints
from sgl.runtime.engine import Engine
from sgl.runtime.errors import ConfigError
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.sequences.generation import Chunk, Generation, TokenLogprobs
from sgl.runtime.sequences.ops.embed_op import Floats
from sgl.runtime.sequences.ops.score_op import ChoiceScores
from sgl.runtime.sequences.sequence import Sequence
from sgl.runtime.sequences.sequence_options import USUAL, SequenceOptions

from .admission_control import AdmissionControl
from .event_loop_queue import LoopQueue, RequestLoopQueue
from .generation_steps import ChatPrompt, GenerationStep, SampleRun, joined
from .http.http_errors import RequestError
from .http.response_size_limit import take
from .http.sse_responses import together
from .observability.request_record import GapObserver, Prompt, RequestProgress
from .request_context import ADAPTER, CALLER, PATIENCE, seconds_left
from .running_requests import RunningRequests
from .served_adapters import ServedAdapters
from .server_settings import ServerSettings

T = TypeVar("T")

MOST_NAMED = 4096  # tokens in a bias, or that end a text
LONG_TEXT = 1000  # characters; longer ones are encoded on another thread, which takes a millisecond for so many


Counted = TypeVar("Counted", Chunk, Generation)


class SampleSequences(NamedTuple):
    """Sequences with one prompt. Where there are several, its computation was a separate step: `prefilled`."""

    sequences: list[Sequence]
    prefilled: Future[int] | None

    def corrected(self, made: Counted) -> Counted:
        """With the prompt's tokens out of the cache, not those that samples share, as `cached_tokens`."""
        if self.prefilled is not None:
            made.cached_tokens = self.prefilled.result()
        return made


class EngineBridge:
    """The engine for coroutines, on any event loop, also on several. What runs is opened on the terms of `CALLER`.

    Cancelling a call, or closing an iterator, aborts what runs for it and frees its pages. All methods raise what the
    engine raises, RequestError for what the settings forbid or `admission` has no room for, and TimeoutError at the
    caller's deadline, or after `settings.request_timeout`.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings | None = None,
        observe_gap: GapObserver | None = None,
        adapters: ServedAdapters | None = None,
    ) -> None:
        self.engine, self.settings = engine, settings or ServerSettings()
        self.adapters = adapters or ServedAdapters(engine, self.settings)
        self.admission = AdmissionControl(
            self.settings.max_queue or 4 * engine.fixed_info["max_running"], self.settings.share
        )
        self.runs = RunningRequests()
        self._observe_gap = observe_gap
        self._postboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopQueue] = weakref.WeakKeyDictionary()

    async def encode(self, prompt: Prompt, special_prefix: bool = True) -> Ints:
        """Token ids, int32 [n]: the given ones, checked, or a text's, with the special prefix if asked for."""
        self.check_size(prompt)
        if not isinstance(prompt, str):
            ids = self._checked_ids(prompt)
        elif len(prompt) <= LONG_TEXT:
            ids = self._tokenize(prompt, special_prefix)
        else:
            ids = await asyncio.to_thread(self._tokenize, prompt, special_prefix)
        if not len(ids):
            raise RequestError("the prompt is empty; give at least one token")
        most = self.settings.max_prompt_tokens
        if most is not None and len(ids) > most:
            raise _too_long(f"{len(ids)} tokens", most)
        return ids

    async def encode_all(self, prompts: Items[Prompt]) -> list[Ints]:
        """The same of each; other requests have a turn between them."""
        found = []
        for prompt in prompts:
            found.append(await self.encode(prompt))
            await asyncio.sleep(0)
        return found

    def stream(
        self, prompt: Prompt, params: SamplingParams, grammar: Any = None, n: int = 1, streamed: bool = True
    ) -> AsyncGenerator[tuple[int, Chunk], None]:
        """As `walk`, of samples that take one move."""
        return self.walk(prompt, GenerationStep(params, grammar), _no_more, n, streamed)

    async def walk(
        self,
        prompt: Prompt | ChatPrompt,
        first: GenerationStep,
        go_on: Callable[[int], Awaitable[GenerationStep | None]],
        n: int = 1,
        streamed: bool = True,
    ) -> AsyncGenerator[tuple[int, Chunk], None]:
        """(index of the sample, its next piece) until all `n` have finished. The prompt is computed once.

        A sample makes the move `first`, then what `go_on(index)` gives until it gives None; the first sample keeps the
        seed of the parameters. The last chunk of each move is `finished` and has its `generation`; when that was taken,
        `go_on` is asked. Unless `streamed` there is one chunk a move. Leave it early with `aclosing`.
        """
        self.admission.check(n)
        await self.adapters.ready()
        text, given = prompt if isinstance(prompt, ChatPrompt) else (prompt, prompt)
        ids, left = await self.encode(given), n
        progress = self._progress(first.params)
        with self._samples(ids, n) as samples, self._result_queue(samples.sequences) as arrivals:
            walks = [SampleRun(index, sequence, arrivals) for index, sequence in enumerate(samples.sequences)]
            for index, walk in enumerate(walks):
                walk.start(first._replace(params=self._params(first.params, index)), streamed)
            while left:
                index, arrived = await arrivals.next()
                walk = walks[index]
                chunk = samples.corrected(walk.chunk(arrived))
                _count(chunk)
                if streamed:
                    progress.chunk(index, chunk)
                if chunk.generation is not None:
                    chunk.generation = samples.corrected(chunk.generation)
                yield index, chunk
                if chunk.finished and (move := await go_on(index)) is not None:
                    walk.start(move._replace(params=self._params(move.params, index)), streamed)
                elif chunk.finished:
                    progress.generation(index, joined(walk.made), text)
                    left -= 1

    async def logprobs(self, ids: Items[int] | Ints, start: int, top: int) -> tuple[TokenLogprobs, list[TokenLogprobs]]:
        """Log-probabilities of the prompt's tokens from `start` on, and the `top` likeliest tokens in each one's
        place."""
        take(max(0, len(ids) - start), top)
        return await self.ask(ids, lambda sequence: sequence.logprobs(start, top))

    async def ask(self, prompt: Prompt, question: Callable[[Sequence], Future[T]]) -> T:
        """The answer to a question put to a sequence that holds the prompt, such as `lambda s: s.logprobs(1)`.

        Never refused for want of room: it may be the second half of a request that was admitted.
        """
        return await self._ask(prompt, question, self.admission.admit(1, refuse=False))

    async def _ask(
        self, prompt: Prompt, question: Callable[[Sequence], Future[T]], place: AbstractContextManager[Any]
    ) -> T:
        await self.adapters.ready()
        ids = await self.encode(prompt)
        with self._samples(ids, 1, place) as samples, self._result_queue() as arrivals:
            question(samples.sequences[0]).add_done_callback(partial(arrivals.post_outcome, 0))
            _, answer = await arrivals.next()
        return answer

    async def score(self, prompt_ids: Prompt, choices: Items[Items[int]]) -> ChoiceScores:
        """Log-probabilities of the tokens of each choice after the prompt: lists of (logprob, token id)."""
        checked = [self._checked_ids(choice) for choice in choices]
        return await self.ask(prompt_ids, lambda sequence: sequence.score(checked))

    async def embed(self, prompts: Items[Ints], at_once: int, adapters: Items[str | None] | None = None) -> Floats:
        """A vector for each prompt, float32 [n, hidden]; at most `at_once` of them are in the engine.

        adapters: of each; None: all have that of the request.
        """
        with self.admission.admit_some(min(at_once, len(prompts))) as places:
            free = asyncio.Semaphore(places)

            async def one(prompt: Ints, adapter: str | None) -> Floats:
                ADAPTER.set(adapter)
                async with free:
                    return await self._ask(prompt, lambda sequence: sequence.embed(), nullcontext())

            asked = adapters or [ADAPTER.get()] * len(prompts)
            vectors = np.stack(
                await together([one(prompt, adapter) for prompt, adapter in zip(prompts, asked, strict=True)])
            )
        self._progress(None).read(sum(map(len, prompts)))
        return vectors

    async def alive(self, seconds: float) -> bool:
        """Whether the engine's thread takes a task within that time."""
        return await self._answers(seconds, lambda sequence: sequence.prefill())

    async def speaks(self, seconds: float) -> bool:
        """Whether a token comes out of the model within that time."""
        params = SamplingParams(max_tokens=1, temperature=0.0)
        return await self._answers(seconds, lambda sequence: sequence.generate(params), [0])

    # inside

    async def _answers(self, seconds: float, question: Callable[[Sequence], Future[Any]], ids: Items[int] = ()) -> bool:
        """Whether the engine answers in time; independent of all limits, and however much waits."""
        with self._opened(USUAL) as [sequence], RequestLoopQueue[Any](self._loop_queue(), seconds) as arrivals:
            sequence.extend(np.asarray(ids, dtype=np.int32))
            question(sequence).add_done_callback(partial(arrivals.post_outcome, 0))
            try:
                await arrivals.next()
            except TimeoutError:
                return False
        return True

    @contextmanager
    def _opened(self, terms: SequenceOptions) -> Iterator[list[Sequence]]:
        """Sequences, the first one given; all are closed on exit, and aborted first where it is left early."""
        left = seconds_left(terms)
        adapter = None if terms is USUAL else ADAPTER.get()
        try:
            first = self.engine.open(
                terms.priority, tenant=terms.tenant, namespace=terms.namespace, timeout=left, adapter=adapter
            )
        except ConfigError as error:
            if adapter is None:
                raise
            raise self.adapters.gone(adapter) from error
        sequences = [first]
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
    def _samples(
        self, ids: Ints, n: int, place: AbstractContextManager[Any] | None = None
    ) -> Iterator[SampleSequences]:
        """`n` sequences that hold the prompt. place: theirs, where it is not asked for here."""
        if not 1 <= n <= self.settings.max_choices:
            raise RequestError(f"n={n} must be in 1..{self.settings.max_choices}", param="n")
        with place or self.admission.admit(n), self._opened(CALLER.get()) as sequences, self.runs.holding(sequences):
            sequences[0].extend(ids)
            prefilled = sequences[0].prefill() if n > 1 else None
            if n > 1:
                sequences += sequences[0].fork(n - 1)
            yield SampleSequences(sequences, prefilled)

    def _result_queue(self, sequences: Items[Sequence] = ()) -> RequestLoopQueue[Any]:
        """What arrives until the caller's deadline, by default the settings' timeout.

        sequences: they stream into it, and are aborted when its output is not taken.
        """
        left = seconds_left(CALLER.get())
        granted = self.settings.request_timeout if left is None else PATIENCE.get()
        return RequestLoopQueue(self._loop_queue(), granted if left is None else left, granted, sequences)

    def _progress(self, params: SamplingParams | None) -> RequestProgress:
        """One for each prompt: it is called with each piece of each sample, or with each complete sample."""
        return RequestProgress(params, self._observe_gap)

    def _loop_queue(self) -> LoopQueue:
        loop = asyncio.get_running_loop()
        found = self._postboxes.get(loop)
        if found is None:
            found = self._postboxes[loop] = LoopQueue(loop)
        return found

    def _params(self, params: SamplingParams, index: int) -> SamplingParams:
        """Those of one sample: its own seed, not more tokens than the server allows.

        Raises RequestError where they name so many tokens that each step of the whole batch would take longer for them.
        """
        for name in ("logit_bias", "stop_token_ids"):
            if (count := len(getattr(params, name))) > MOST_NAMED:
                raise RequestError(f"{name} names {count} tokens; give at most {MOST_NAMED}", param=name)
        most = self.settings.max_new_tokens
        limit = min((bound for bound in (params.max_tokens, most) if bound is not None), default=None)
        seed = params.seed if params.seed is None else sample_seed(params.seed, index)
        return dataclasses.replace(
            params,
            max_tokens=limit,
            min_tokens=params.min_tokens if limit is None else min(params.min_tokens, limit),
            seed=seed,
        )

    def check_size(self, prompt: Prompt) -> None:
        """Raise RequestError for what is too long whatever its tokens are: to look at each takes long."""
        context: int = self.engine.fixed_info["context"]
        most = min(self.settings.max_prompt_tokens or context, context)
        longest = self._longest if isinstance(prompt, str) else 1
        if len(prompt) > most * longest:
            raise _too_long(f"{len(prompt)} {'characters' if isinstance(prompt, str) else 'tokens'}", most)

    @cached_property
    def _longest(self) -> int:
        """Characters that a token may have."""
        return max(map(len, self.engine.tokenizer.token_bytes))

    def _tokenize(self, text: str, special_prefix: bool) -> Ints:
        try:
            text.encode()
            return self.engine.tokenizer.encode(text, special_prefix=special_prefix)
        except UnicodeEncodeError as error:
            raise RequestError(f"the prompt is not valid Unicode: {error.reason} at character {error.start}") from error

    def _checked_ids(self, ids: Items[int] | Ints) -> Ints:
        size = self.engine.tokenizer.vocab_size
        ids = ids.tolist() if isinstance(ids, np.ndarray) else ids
        wrong = next((i for i in ids if type(i) is not int or not 0 <= i < size), None)
        if wrong is not None:
            raise RequestError(f"token ids must be whole numbers in 0..{size - 1}, got {wrong!r}")
        return np.asarray(ids, dtype=np.int32)


async def _no_more(index: int) -> None:
    """What a sample of one move does next."""


def _count(made: Chunk) -> None:
    """What came of log-probabilities, from the request's allowance; the last chunk of a stream brings no new ones."""
    if made.logprobs:
        take(len(made.logprobs), len(made.top_logprobs[0]) if made.top_logprobs else 0)


def _too_long(length: str, most: int) -> RequestError:
    message = f"the prompt has {length}, this server takes at most {most} tokens; shorten it"
    return RequestError(message, code="context_length_exceeded")


def sample_seed(seed: int, index: int) -> int:
    """The seed of a sample, 63 bits; the first keeps the one given."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 if index else seed
