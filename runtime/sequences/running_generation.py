"""One generation in progress: each sampled token goes through grammar, text, stops and stream."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from sgl.grammars.automaton.automaton_work_budget import WorkUnfinished
from sgl.grammars.errors import GrammarLimitError

from ..errors import ConfigError, NoTokenAllowed, RuntimeFailure, TruncatedError
from ..sampling import SamplingRow
from ..sampling.sampler import NO_TOKEN
from .generation import Chunk, Generation, GenerationRequest, TokenLogprobs
from .pending_grammar import PendingGrammar
from .sequence_state import SequenceEngine, SequenceState
from .stop_checker import GenerationFinish, StopChecker, aligned, completed, replace_forced

if TYPE_CHECKING:
    from sgl.grammars import Matcher

    from ..sampling import SampledTokens

GRAMMAR_END = {"type": "stop", "matched": None}
WRONG_VOCABULARY = "the grammar was compiled for another vocabulary; compile it with engine.vocabulary of this engine"


ACCEPT, END, JUMP, JUMPED, FOLLOWED = range(5)  # what the grammar is to be asked next


class RunningGeneration:
    """Takes sampled tokens until something says stop; then the sequence ends with exactly the kept ones.

    Where its grammar needs long it is `behind`: until `catch_up`, another thread has the matcher.
    """

    def __init__(self, life: SequenceEngine, seq: SequenceState, op: GenerationRequest) -> None:
        params = op.params
        params.check_ids(life.vocab_size)
        self.life, self.op = life, op
        self.prompt_tokens = len(seq)
        room = life.context - len(seq)
        self.limit = room if params.max_tokens is None else min(params.max_tokens, room)
        self.limited = self.limit == params.max_tokens  # by max_tokens, else by the context
        self.matcher = _matcher(life, op)
        ends = _end_ids(life, op)
        limited = dataclasses.replace(params, max_tokens=self.limit, min_tokens=min(params.min_tokens, self.limit))
        self.stops = StopChecker(limited, life.text.tokenizer, ends)
        self.reread, seq.reread = min(seq.reread, len(seq)), 0
        self.forced = self.jumped = self.drafted = self.accepted = 0
        self.logprobs: TokenLogprobs | None = [] if params.logprobs or params.top_logprobs else None
        self.top_logprobs: list[TokenLogprobs] | None = [] if params.top_logprobs else None
        self.result: Generation | TruncatedError | None = None
        self.jumps = life.text.jumps is not None and self.matcher is not None
        self.jumps &= self.logprobs is None or params.masked_logprobs  # a forced token has no other probability
        self.row = SamplingRow(
            params,
            seed=life.seed() if params.seed is None else params.seed,
            prompt_ids=seq.tokens.array.tolist() if params.repetition_penalty != 1.0 else [],
            output_ids=self.stops.token_ids,
            end_ids=params.end_ids(ends),
        )
        self.work: PendingGrammar | None = None
        self._spent = 0  # steps of such work
        self._stage, self._token = FOLLOWED, -1
        # why it ends, where that is known and the grammar is still to be asked
        self._finish: GenerationFinish | None = None
        self._ending: bytes | None = None  # what completes the grammar
        self.first: float | None = None  # seconds from the start to the first token
        self._sent = 0  # tokens
        self._given = 0  # characters

    @property
    def output(self) -> list[int]:
        return self.stops.token_ids

    def next_row(self, tokens: list[int]) -> SamplingRow:
        """How the token after these is sampled, which follow the output."""
        if not (tokens and self.row.changes_by(len(tokens))):
            return self.row
        return dataclasses.replace(self.row, output_ids=self.output + tokens)

    def begin(self, seq: SequenceState) -> bool:
        """Append what the grammar forces at the very start; True when that is all there is."""
        self._stage = JUMP if self.jumps and self.limit and self.life.may_jump else FOLLOWED
        return self._go_on(seq)

    def take(self, seq: SequenceState, samples: SampledTokens, index: int) -> bool:
        """The next token of this generation; True when it ends here."""
        if samples.errors and index in samples.errors:
            raise _failure(samples.errors[index])
        if self.first is None:
            self.first = self.op.elapsed
        if self.logprobs is not None:
            self._note(samples, index)
        if self.limit:
            self._push(seq, samples.ids[index])
        else:
            self._finish = self.stops.close({"type": "length", "length": 0})
        if self.matcher is None and self._finish is None:
            return self._shown()
        return self._go_on(seq) or self._shown()

    def catch_up(self, seq: SequenceState) -> bool:
        """Catch up, as the work for it is done; True when it ends here."""
        assert self.work is not None
        work, self.work = self.work, None
        self._spent = work.spent
        if work.error is not None:
            raise work.error
        return self._go_on(seq) or self._shown()

    def work_in_background(self, seq: SequenceState) -> None:
        """Have another thread find what the grammar is to be asked next, up to the next mask."""
        self.work = PendingGrammar(self._advance_grammar, self._spent)
        self.life.advance_grammar(seq, self.work)

    def deliver(self) -> None:
        """Hand the result to its waiter."""
        if isinstance(self.result, BaseException):
            self.op.fail(self.result)
            return
        try:
            if self.op.on_chunk is not None:
                self._stream(self.op)
            self.op.resolve(self.result)
        except BaseException as error:  # the receiver's, whatever it is
            self.op.fail(error)

    def _push(self, seq: SequenceState, token: int) -> None:
        self._finish = self.stops.push(token)
        if self.matcher is not None:
            self._stage, self._token = ACCEPT, token
        if self._finish is None:
            seq.tokens.append(token)

    def _go_on(self, seq: SequenceState) -> bool:
        """Follow the text with the grammar, as far as it is known by now; True when the text ends."""
        try:
            self._follow(seq)
            if self._finish is not None:
                self._settle(seq, self._finish)
        except WorkUnfinished:
            self.work_in_background(seq)
            return False
        return self._finish is not None

    def _shown(self) -> bool:
        """Stream what has come; False: the text goes on."""
        if self.op.on_chunk is not None and self.work is None:
            self._stream(self.op)
        return False

    def _follow(self, seq: SequenceState) -> None:
        """Ask the grammar what is still to be asked. Where it breaks off, it is called again."""
        if self.matcher is None:
            return
        if self._stage == ACCEPT:
            self._accept(self.matcher)
        if self._stage == END and self._finish is None:
            self._close_if_finished(self.matcher)
            self._stage = JUMP if self.jumps and self.life.may_jump else FOLLOWED
        if self._stage == JUMP and self._finish is None:
            self._jump(seq)
        if self._stage == JUMPED and self._finish is None:
            self._close_if_finished(self.matcher)
        self._stage = FOLLOWED

    def _accept(self, matcher: Matcher) -> None:
        if not matcher.accept(self._token):
            raise RuntimeFailure(f"the grammar refused token {self._token} that its mask allowed; please report this")
        self._stage = END

    def _close_if_finished(self, matcher: Matcher) -> None:
        if matcher.finished:
            self._finish = self.stops.close(GRAMMAR_END)

    def _jump(self, seq: SequenceState) -> None:
        """Append what the grammar forces, in the tokens the model knows, without sampling it."""
        assert self.matcher is not None and self.life.text.jumps is not None
        if not self.matcher.forced():
            return
        matcher = self.matcher.copy()  # it may break off on the way
        jump = self.life.text.jumps.jump(matcher, self.output, self.limit)
        if jump is None:
            return
        self.matcher, self._stage = matcher, JUMPED
        if self.logprobs is not None:
            replace_forced(self.logprobs, self.top_logprobs, jump.drop, jump.token_ids)
        self._finish = self.stops.rewrite(jump.drop, jump.token_ids)
        self.life.truncate(seq, len(seq) - jump.drop)
        seq.tokens.extend(jump.token_ids)
        self.forced, self.jumped = self.forced + len(jump.token_ids) - jump.drop, self.jumped + 1

    def _advance_grammar(self) -> None:
        """On another thread: what `_follow` and `_settle` will ask, and the mask of what comes next."""
        assert self.matcher is not None
        if self._stage == ACCEPT:
            self._accept(self.matcher)
        if self._finish is not None:
            self._work_out_end(self.matcher)
        elif not self.matcher.finished:
            if self._stage in (END, JUMP) and self.jumps and self.life.text.jumps is not None:
                self.life.text.jumps.jump(self.matcher.copy(), self.output, self.limit)
            self.matcher.mask()

    def _work_out_end(self, matcher: Matcher) -> None:
        if not matcher.finished and self.op.params.close_at_limit and self._ending is None:
            try:
                self._ending = matcher.shortest_end()
            except GrammarLimitError:
                self._ending = b""

    def _settle(self, seq: SequenceState, finish: GenerationFinish) -> None:
        """Cut tokens, pages and text together, then make the result."""
        truncated = closed = False
        if finish.reason["type"] == "length" and self.matcher is not None:
            truncated = not self.matcher.finished
            if not truncated:  # the grammar ended with the last token that the limit allows
                finish = dataclasses.replace(finish, reason=GRAMMAR_END)
        if truncated and self.op.params.close_at_limit:
            finish, closed = self._closed(finish)
        tokens = self.output[: finish.kept]
        if finish.remainder:
            tokens = tokens + self.life.text.tokenizer.encode(finish.remainder, parse_special=False).tolist()
        self.life.truncate(seq, self.prompt_tokens + finish.kept)
        seq.tokens.extend(tokens[len(seq) - self.prompt_tokens :])
        self.result = self._result_of(finish, tokens, truncated, closed)

    def _result_of(
        self, finish: GenerationFinish, tokens: list[int], truncated: bool, closed: bool
    ) -> Generation | TruncatedError:
        """Of the text of `finish`, whose tokens these are.

        truncated: a limit came before the end of its grammar; closed: then the grammar completed it.
        """
        op = self.op
        if truncated and not closed and op.params.error_on_truncation:
            action = "allow more tokens" if self.limited else "shorten the prompt"
            return TruncatedError.after(
                finish.text, self._limit(), f"{action}, or set close_at_limit=True to have the text closed"
            )
        return Generation(
            text=finish.text,
            token_ids=tokens,
            finish_reason=finish.reason,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(tokens),
            cached_tokens=min(op.cached or 0, self.prompt_tokens),
            forced_tokens=self.forced,
            logprobs=aligned(self.logprobs, tokens),
            top_logprobs=None if self.top_logprobs is None else self.top_logprobs[: max(len(tokens), 1)],
            e2e_latency=op.elapsed,
            truncated=truncated,
            closed=closed,
            queue_seconds=op.queue_seconds,
            first_token_seconds=op.elapsed if self.first is None else self.first,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            reread_tokens=self.reread,
        )

    def _limit(self) -> str:
        if self.limited:
            return f"max_tokens={self.op.params.max_tokens} was reached"
        return f"the context of {self.life.context} tokens was full"

    def _closed(self, finish: GenerationFinish) -> tuple[GenerationFinish, bool]:
        """With the shortest text that completes the grammar after the last whole character, and whether it is whole."""
        assert self.matcher is not None
        try:
            end = self.matcher.shortest_end() if self._ending is None else self._ending
        except GrammarLimitError:
            end = b""
        pieces = [self.life.text.tokenizer.token_bytes[token] for token in self.output]
        return (completed(finish, pieces, end), True) if end else (finish, self.matcher.can_end)

    def _note(self, samples: SampledTokens, index: int) -> None:
        if self.logprobs is not None and samples.logprobs is not None:
            self.logprobs.append((samples.logprobs[index] or 0.0, samples.ids[index]))
        if self.top_logprobs is not None and samples.top is not None:
            self.top_logprobs.append(samples.top[index] or [])

    def _stream(self, op: GenerationRequest) -> None:
        """Give out what will not be taken back."""
        done = self.result if isinstance(self.result, Generation) else None
        tokens = done.token_ids if done else self.output
        text, start = self._text(done), min(self._sent, len(tokens))
        if not text and not done:
            return
        self._sent = len(tokens)
        logprobs = None if self.logprobs is None else self.logprobs[start : len(tokens)]
        tops = None if self.top_logprobs is None else self.top_logprobs[start : len(tokens)]
        assert op.on_chunk is not None
        cached = min(op.cached or 0, self.prompt_tokens)
        op.on_chunk(Chunk(text, tokens[start:], logprobs, done is not None, done, self.prompt_tokens, cached, tops))

    def _text(self, done: Generation | None) -> str:
        fresh = self.stops.take() if done is None else done.text[self._given :]
        self._given += len(fresh)
        return fresh


def _matcher(life: SequenceEngine, op: GenerationRequest) -> Matcher | None:
    if op.grammar is None:
        return None
    if op.grammar.vocabulary.base is not life.text.vocabulary:
        raise ConfigError(WRONG_VOCABULARY)
    return op.grammar.matcher()


def _end_ids(life: SequenceEngine, op: GenerationRequest) -> list[int]:
    """The tokens that end a text, but for those that its grammar has as terminals and so follows itself."""
    named = frozenset[int]() if op.grammar is None else op.grammar.named_ends
    return [token for token in life.text.tokenizer.eos_ids if token not in named]


def _failure(why: str) -> RuntimeFailure:
    return NoTokenAllowed(why) if why == NO_TOKEN else RuntimeFailure(why)
