"""One state's text as a Sequence of the engine: literals are joined, tokenised once, and never again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sgl.runtime.errors import RequestAborted
from sgl.runtime.text.chat_templates.quoted_text import joined

from ...backend import Generated, GenRequest, Media, OnChunk, SelectRequest, Stream
from ...concurrency.one_shot_callbacks import when_done
from ...errors import UnsupportedByBackendError, check_text
from ...global_config import own_words
from ...sampling.choices import ChoicesDecision
from ...sampling.options import SamplingOptions
from ..pending_calls import PendingCalls, break_all, forward_result, gather_results
from .embedded_select import SelectCandidates, decide, score_without_prompt
from .meta_info import Entry, MetaInfoWriter
from .untokenized_tail import Ints, UntokenizedTail, common_prefix

if TYPE_CHECKING:
    from sgl.grammars import Grammar
    from sgl.runtime.engine import Engine
    from sgl.runtime.sampling.sampling_params import SamplingParams
    from sgl.runtime.sequences.generation import Generation
    from sgl.runtime.sequences.sequence import Sequence as TokenSequence
    from sgl.runtime.text.tokenizer import Tokenizer

InputLogprobs = Callable[[MetaInfoWriter], tuple[list[Entry], list[list[Entry]]]]


class StreamBackend(Protocol):
    """What an EmbeddedStream asks of its backend: an EmbeddedBackend."""

    engine: Engine
    tokenizer: Tokenizer
    shows_prompt_token: bool

    @property
    def start_token(self) -> int: ...
    @property
    def deciders(self) -> Executor: ...
    def sampling_params(self, request: GenRequest) -> SamplingParams: ...
    def grammar(self, options: SamplingOptions) -> Grammar | None: ...


class EmbeddedStream(Stream):
    """Queues operations on a Sequence. Literal text waits until something needs its tokens.

    The tail, the last literal text, is kept with its tokens: what is appended next is tokenised together
    with it and the tokens that change are replaced, so that tokens between literals are those of the whole
    text. Generated tokens stay as they are.

    While a select is undecided, what follows it is held back; its decision continues it, with no thread
    waiting.
    """

    def __init__(
        self,
        backend: StreamBackend,
        sequence: TokenSequence | None = None,
        tail: UntokenizedTail | None = None,
        adapter: str | None = None,
    ) -> None:
        self._backend = backend
        self._adapter = adapter
        self._opened = sequence  # None: a fork of a stream that is not there yet
        self._tail = tail or UntokenizedTail(starts_row=True)
        self._literals: list[str] = []
        self._first_token: int | None = None
        self._gate = PendingCalls(shut=sequence is None)

    @property
    def _sequence(self) -> TokenSequence:
        """Where the gate is open there is one."""
        assert self._opened is not None
        return self._opened

    # --- the protocol ------------------------------------------------------------------------------------

    def append(self, text: str) -> None:
        check_text(text, "the text")
        if text:
            self._gate.run(partial(self._literals.append, text))

    def generate(self, request: GenRequest, on_chunk: OnChunk | None = None) -> Future[Generated]:
        params = self._backend.sampling_params(request)
        grammar = self._backend.grammar(request.options)
        result: Future[Generated] = Future()
        self._gate.run(partial(self._generate, request, params, grammar, on_chunk, result), result.set_exception)
        return result

    def select(self, request: SelectRequest) -> Future[ChoicesDecision]:
        result: Future[ChoicesDecision] = Future()
        self._gate.run(partial(self._select, request, result), result.set_exception)
        return result

    def fork(self, size: int) -> list[Stream]:
        children = [EmbeddedStream(self._backend, adapter=self._adapter) for _ in range(size)]
        self._gate.run(partial(self._fork, children), partial(break_all, [child._gate for child in children]))
        return list(children)

    def fork_adapted(self, adapters: Sequence[str | None]) -> list[Stream]:
        for adapter in {*adapters}:
            if adapter is not None:
                self._backend.engine.adapters.get(adapter)  # what is not loaded is said at once
        children = [EmbeddedStream(self._backend, adapter=adapter) for adapter in adapters]
        self._gate.run(partial(self._fork_adapted, children), partial(break_all, [child._gate for child in children]))
        return list(children)

    def prefill(self) -> Future[None]:
        result: Future[None] = Future()
        self._gate.run(partial(self._prefill, result), result.set_exception)
        return result

    def attach(self, media: Media, token: str) -> None:
        raise UnsupportedByBackendError(
            f"the embedded engine does not accept {media.kind}s, only text; run the program on a server whose model "
            "reads them: backend=sgl.OpenAI(model), sgl.Anthropic(model) or sgl.RuntimeEndpoint(url)"
        )

    def restore(self, generated: Generated) -> None:
        self._gate.run(partial(self._restore, generated.token_ids, generated.text))

    def close(self) -> None:
        self._gate.run(self._close, lambda error: self._close())

    def abort(self) -> None:
        self._gate.break_with(RequestAborted("the state was stopped"))
        if self._opened is not None:
            self._opened.abort()
            self._opened.close()

    # --- operations, in order ----------------------------------------------------------------------------

    def _generate(
        self,
        request: GenRequest,
        params: SamplingParams,
        grammar: Grammar | None,
        on_chunk: OnChunk | None,
        result: Future[Generated],
    ) -> None:
        self._flush(need_token=True)
        meta = MetaInfoWriter(self._backend.tokenizer.token_bytes, request.options)
        inputs = self._input_logprobs(request)
        report = None if on_chunk is None else lambda chunk: on_chunk(meta.chunk(chunk))
        future = self._sequence.generate(params, grammar, report)
        self._tail = UntokenizedTail()

        def written(generation: Generation) -> Generated:
            return meta.whole(generation, inputs and inputs(meta))

        if request.keep is None:
            forward_result(future, result, written)
        else:
            self._gate.shut()
            when_done(future, partial(self._decide_later, partial(self._keep, request.keep, written), result))

    def _input_logprobs(self, request: GenRequest) -> InputLogprobs | None:
        """Ask for the log-probabilities of the tokens so far, if the gen wants them; a function that writes them."""
        options = request.options
        start = options.logprob_start_len
        if not options.return_logprob or start is None or start < 0:
            return None
        future = self._sequence.logprobs(max(start, 1), options.top_logprobs_num or 0)
        first = self._first_token

        def written(meta: MetaInfoWriter) -> tuple[list[Entry], list[list[Entry]]]:
            found, top = future.result()
            entries, tops = meta.entries(found), [meta.entries(row) for row in top]
            if start == 0 and first is not None:
                return [meta.entry(None, first), *entries], [[], *tops]
            return entries, tops

        return written

    def _select(self, request: SelectRequest, result: Future[ChoicesDecision]) -> None:
        self._flush()
        prompt = self._short_tail()
        candidates = SelectCandidates.of(prompt, request, self._backend.tokenizer, self._backend.shows_prompt_token)
        self._replace_tail(candidates.shared)
        if prompt.starts_row and candidates.start == 0:
            self._replace_tail(np.array([self._backend.start_token], np.int32))
        futures: list[Future[Any]] = [self._sequence.score(candidates.shown)]
        if request.method.requires_unconditional_logprobs:
            futures.append(score_without_prompt(self._backend.engine, candidates.scored, self._adapter))
        self._gate.shut()
        choose = partial(self._choose, request, candidates)
        when_done(gather_results(futures), partial(self._decide_later, choose, result))

    def _decide_later(self, decide: Callable[[Future[Any]], Any], result: Future[Any], found: Future[Any]) -> None:
        """The parent stream is ready: continue from it, on a thread that may tokenise."""
        try:
            self._backend.deciders.submit(self._decide, decide, result, found)
        except RuntimeError:  # no thread can be started any more
            self._give_up(result, RequestAborted("the interpreter is shutting down"))

    def _give_up(self, result: Future[ChoicesDecision], error: BaseException) -> None:
        result.set_exception(error)
        self._gate.break_with(error)

    def _decide(self, decide: Callable[[Future[Any]], Any], result: Future[Any], found: Future[Any]) -> None:
        """Let the stream continue with what `decide` returns. Runs on a thread of the backend."""
        try:
            decision = decide(found)
        except BaseException as error:
            self._give_up(result, error)
        else:
            result.set_result(decision)

    def _choose(
        self, request: SelectRequest, candidates: SelectCandidates, scored: Future[list[Any]]
    ) -> ChoicesDecision:
        scores, *priors = scored.result()
        token_bytes = self._backend.tokenizer.token_bytes
        index, decision = decide(request, candidates, scores, priors[0] if priors else None, token_bytes)
        self._gate.open(lambda: self._set_tail(candidates.tails[index]))
        return decision

    def _keep(
        self, keep: Callable[[str], str], written: Callable[[Generation], Generated], found: Future[Generation]
    ) -> Generated:
        generation = found.result()
        generated = written(generation)
        self._gate.open(partial(self._cut, len(generation.token_ids), keep(generation.text), generation.text))
        return generated

    def _cut(self, count: int, kept: str, text: str) -> None:
        """Put `kept` in place of the last `count` tokens, which say `text`."""
        if kept != text:
            tail = UntokenizedTail().extended(own_words(kept), self._backend.tokenizer)
            self._sequence.extend(tail.tokens, drop=count)
            self._tail = tail

    def _fork(self, children: list[EmbeddedStream]) -> None:
        self._flush()
        self._short_tail()
        if self._adapter is None and self._tail.starts_row and not len(self._tail.tokens):
            sequences = [self._backend.engine.open() for _ in children]
        else:
            sequences = self._sequence.fork(len(children))
        self._bear(children, sequences)

    def _fork_adapted(self, children: list[EmbeddedStream]) -> None:
        self._flush()
        self._short_tail()
        self._bear(children, [self._sequence.fork(1, adapter=child._adapter)[0] for child in children])

    def _bear(self, children: list[EmbeddedStream], sequences: list[TokenSequence]) -> None:
        for child, sequence in zip(children, sequences, strict=True):
            child._gate.open(partial(child._begin, sequence, self._tail, self._first_token))

    def _begin(self, sequence: TokenSequence, tail: UntokenizedTail, first_token: int | None) -> None:
        self._opened, self._tail, self._first_token = sequence, tail, first_token
        if self._gate.broken:  # aborted before it was born
            sequence.abort()
            sequence.close()

    def _restore(self, token_ids: list[int] | None, text: str) -> None:
        """Without tokens (what a gen kept, or was edited to) the text is encoded by itself, as `_cut` does."""
        self._flush(need_token=True)
        if token_ids is not None:
            self._sequence.extend(np.array(token_ids, np.int32))
            self._tail = UntokenizedTail()
        else:
            self._tail = UntokenizedTail().extended(own_words(text), self._backend.tokenizer)
            self._sequence.extend(self._tail.tokens)

    def _prefill(self, result: Future[None]) -> None:
        self._flush(need_token=True)
        forward_result(self._sequence.prefill(), result, lambda done: None)

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    # --- text to tokens ----------------------------------------------------------------------------------

    def _take_literals(self) -> str:
        text = joined(self._literals)
        self._literals.clear()
        return text

    def _flush(self, need_token: bool = False) -> None:
        """Give the sequence the tokens of all literal text so far (at least one, if that is needed)."""
        untouched = self._tail.starts_row and not len(self._tail.tokens)
        if self._literals or untouched:
            self._set_tail(self._short_tail().extended(self._take_literals(), self._backend.tokenizer))
        if need_token and self._tail.starts_row and not len(self._tail.tokens):
            self._replace_tail(np.array([self._backend.start_token], np.int32))

    def _short_tail(self) -> UntokenizedTail:
        """The tail, cut to what the text that follows can change."""
        self._tail = self._tail.shortened(self._backend.tokenizer)
        return self._tail

    def _set_tail(self, tail: UntokenizedTail) -> None:
        self._replace_tail(tail.tokens)
        self._tail = tail

    def _replace_tail(self, tokens: Ints) -> None:
        """Make `tokens` the end of the sequence in place of the tail's, keeping what both have in common."""
        old = self._tail.tokens
        same = common_prefix([old, tokens])
        if same < len(old) or same < len(tokens):
            self._sequence.extend(tokens[same:], drop=len(old) - same)
        if self._tail.starts_row and len(tokens):
            self._first_token = int(tokens[0])
        self._tail = UntokenizedTail(self._tail.text, tokens, self._tail.starts_row)
