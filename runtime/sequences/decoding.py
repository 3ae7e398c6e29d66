"""One generation in progress: each sampled token goes through grammar, text, stops and stream."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from sgl.grammars.errors import GrammarLimitError

from ..errors import ConfigError, NoTokenAllowed, RuntimeFailure, TruncatedError
from ..sampling import SamplingRow
from ..sampling.sampler import NO_TOKEN
from .ops import Chunk, Generate, Generation, TokenLogprobs
from .stops import Finish, StopChecker

if TYPE_CHECKING:
    from sgl.grammars import Matcher

    from ..sampling import Samples
    from .life import Life
    from .sequence import SequenceState

GRAMMAR_END = {"type": "stop", "matched": None}
WRONG_VOCABULARY = "the grammar was compiled for another vocabulary; compile it with engine.vocabulary of this engine"


class Decoding:
    """Takes sampled tokens until something says stop; then the sequence ends with exactly the kept ones."""

    def __init__(self, life: Life, seq: SequenceState, op: Generate) -> None:
        params = op.params
        params.check_ids(life.vocab_size)
        self.life, self.op = life, op
        self.prompt_tokens = len(seq)
        self.limit = min(params.max_tokens, life.context - len(seq))
        self.matcher = _matcher(life, op)
        self.stops = StopChecker(dataclasses.replace(params, max_tokens=self.limit, min_tokens=0), life.text.tokenizer)
        self.forced = self.jumped = self.drafted = self.accepted = 0
        self.logprobs: TokenLogprobs | None = [] if params.logprobs or params.top_logprobs else None
        self.top_logprobs: list[TokenLogprobs] | None = [] if params.top_logprobs else None
        self.result: Generation | TruncatedError | None = None
        self.jumps = life.text.jumps is not None and self.matcher is not None and self.logprobs is None
        self.row = SamplingRow(
            params,
            seed=life.seed() if params.seed is None else params.seed,
            prompt_ids=seq.tokens.array.tolist() if params.repetition_penalty != 1.0 else [],
            output_ids=self.stops.token_ids,
            end_ids=params.end_ids(life.text.tokenizer.eos_ids),
        )
        self._first: float | None = None  # seconds from the start to the first token
        self._sent = 0  # tokens
        self._given = 0  # characters

    @property
    def output(self) -> list[int]:
        return self.stops.token_ids

    def row_behind(self, tokens: list[int]) -> SamplingRow:
        """How the token behind these is sampled, which follow the output."""
        if not (tokens and self.row.changes_by(len(tokens))):
            return self.row
        return dataclasses.replace(self.row, output_ids=self.output + tokens)

    def begin(self, seq: SequenceState) -> bool:
        """Append what the grammar forces at the very start; True when that is all there is."""
        finish = self._jump(seq) if self.jumps and self.limit and self.life.may_jump else None
        if finish is not None:
            self._settle(seq, finish)
        return finish is not None

    def take(self, seq: SequenceState, samples: Samples, index: int) -> bool:
        """The next token of this generation; True when it ends here."""
        if index in samples.errors:
            raise _failure(samples.errors[index])
        if self._first is None:
            self._first = self.op.elapsed
        self._note(samples, index)
        finish = self._push(seq, samples.ids[index]) if self.limit else self.stops.close({"type": "length", "length": 0})
        if finish is None:
            if self.op.on_chunk is not None:
                self._stream(self.op)
            return False
        self._settle(seq, finish)
        return True

    def deliver(self) -> None:
        """Hand the result to whoever waits for it."""
        if isinstance(self.result, BaseException):
            self.op.fail(self.result)
            return
        try:
            if self.op.on_chunk is not None:
                self._stream(self.op)
            self.op.resolve(self.result)
        except BaseException as error:  # the receiver's, whatever it is
            self.op.fail(error)

    def _push(self, seq: SequenceState, token: int) -> Finish | None:
        finish = self.stops.push(token)
        if self.matcher is None:
            if finish is None:
                seq.tokens.append(token)
            return finish
        if not self.matcher.accept(token):
            raise RuntimeFailure(f"the grammar refused token {token} that its mask allowed; please report this")
        if finish is None:
            seq.tokens.append(token)
            if self.matcher.finished:
                return self.stops.close(GRAMMAR_END)
            if self.jumps and self.life.may_jump:
                return self._jump(seq)
        return finish

    def _jump(self, seq: SequenceState) -> Finish | None:
        """Append what the grammar forces, in the tokens the model knows, without sampling it."""
        assert self.matcher is not None and self.life.text.jumps is not None
        jump = self.life.text.jumps.jump(self.matcher, self.output, self.limit)
        if jump is None:
            return None
        finish = self.stops.rewrite(jump.drop, jump.token_ids)
        self.life.truncate(seq, len(seq) - jump.drop)
        seq.tokens.extend(jump.token_ids)
        self.forced, self.jumped = self.forced + len(jump.token_ids) - jump.drop, self.jumped + 1
        return self.stops.close(GRAMMAR_END) if finish is None and self.matcher.finished else finish

    def _settle(self, seq: SequenceState, finish: Finish) -> None:
        """Cut tokens, pages and text together, then make the result."""
        truncated = finish.reason["type"] == "length" and self.matcher is not None and not self.matcher.can_end
        if truncated and self.op.params.close_at_limit:
            finish, truncated = self._closed(finish)
        tokens = self.output[: finish.kept]
        if finish.remainder:
            tokens = tokens + self.life.text.tokenizer.encode(finish.remainder, parse_special=False).tolist()
        self.life.truncate(seq, self.prompt_tokens + finish.kept)
        seq.tokens.extend(tokens[len(seq) - self.prompt_tokens :])
        self.result = self._result(finish.text, tokens, finish, truncated)

    def _closed(self, finish: Finish) -> tuple[Finish, bool]:
        """The shortest text that completes the grammar goes on after the last whole character; whether it is cut still."""
        assert self.matcher is not None
        try:
            end = self.matcher.shortest_end()
        except GrammarLimitError:
            return finish, True
        pieces = [self.life.text.tokenizer.token_bytes[token] for token in self.output]
        kept = next(n for n in range(len(pieces), -1, -1) if _is_whole(b"".join(pieces[:n])))
        remainder = (b"".join(pieces[kept:]) + end).decode()
        return Finish(finish.reason, b"".join(pieces[:kept]).decode() + remainder, kept, remainder), False

    def _result(self, text: str, tokens: list[int], finish: Finish, truncated: bool) -> Generation | TruncatedError:
        if truncated and self.op.params.error_on_truncation:
            return TruncatedError(
                f"max_tokens={self.op.params.max_tokens} was reached before the grammar could end, after {text!r}; "
                "allow more tokens, or set close_at_limit to have the text closed"
            )
        return Generation(
            text=text,
            token_ids=tokens,
            finish_reason=finish.reason,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(tokens),
            cached_tokens=min(self.op.cached or 0, self.prompt_tokens),
            forced_tokens=self.forced,
            logprobs=_aligned(self.logprobs, tokens),
            top_logprobs=None if self.top_logprobs is None else self.top_logprobs[: max(len(tokens), 1)],
            e2e_latency=self.op.elapsed,
            truncated=truncated,
            queue_seconds=self.op.queue_seconds,
            first_token_seconds=self.op.elapsed if self._first is None else self._first,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
        )

    def _note(self, samples: Samples, index: int) -> None:
        if self.logprobs is not None and samples.logprobs is not None:
            self.logprobs.append((samples.logprobs[index] or 0.0, samples.ids[index]))
        if self.top_logprobs is not None and samples.top is not None:
            self.top_logprobs.append(samples.top[index] or [])

    def _stream(self, op: Generate) -> None:
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


def _matcher(life: Life, op: Generate) -> Matcher | None:
    if op.grammar is None:
        return None
    if op.grammar.vocabulary is not life.text.vocabulary:
        raise ConfigError(WRONG_VOCABULARY)
    return op.grammar.matcher()


def _failure(why: str) -> RuntimeFailure:
    return NoTokenAllowed(why) if why == NO_TOKEN else RuntimeFailure(why)


def _is_whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _aligned(logprobs: TokenLogprobs | None, tokens: list[int]) -> TokenLogprobs | None:
    """One entry a kept token; tokens that were encoded anew have no probability of their own.

    A text without tokens keeps the entry of the token that ended it.
    """
    if logprobs is None or not tokens:
        return logprobs and logprobs[:1]
    kept = [entry for entry, token in zip(logprobs, tokens, strict=False) if entry[1] == token]
    return kept + [(float("nan"), token) for token in tokens[len(kept) :]]

