"""When a generation ends, what of its text stays, and which of its text may be shown already."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.text.stop_patterns import StopPatterns
from sgl.runtime.text.stop_strings import StopStrings

from .generation import TokenLogprobs

if TYPE_CHECKING:
    from sgl.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class GenerationFinish:
    """How a generation ended.

    Attributes:
        reason: {"type": "stop", "matched": str | int}, {"type": "length", "length": n}, or what `close` got.
        text: the whole text that stays.
        kept: how many of the tokens stay as they are.
        remainder: the text after them, left of a token that was cut; to be encoded anew.
    """

    reason: dict[str, Any]
    text: str
    kept: int
    remainder: str = ""


class StopChecker:
    """Follows one generation: tokens in, text out, until something says stop.

    The order of the checks is part of the language: the length, end tokens, stop strings, stop regexes. So a stop
    completed by the very last permitted token does not count. End tokens are no part of the text. Stop strings and
    regexes are searched in what comes after the first min_tokens tokens, so that the text has that many; the sampler
    offers no end token before.
    """

    def __init__(self, params: SamplingParams, tokenizer: Tokenizer, eos_ids: Sequence[int] | None = None) -> None:
        self.finish: GenerationFinish | None = None
        self.token_ids: list[int] = []
        self._params = params
        self._tokenizer = tokenizer
        self._end_ids = params.end_ids(tokenizer.eos_ids if eos_ids is None else eos_ids)
        self._detokenizer = tokenizer.detokenizer(params.skip_special_tokens)
        self._limit = math.inf if params.max_tokens is None else params.max_tokens
        self._stops = StopStrings(params.stop) if params.stop else None
        self._patterns = StopPatterns(params.stop_regex) if params.stop_regex else None
        self._searching = bool(self._stops or self._patterns)
        self._state = 0  # of the stop strings
        self._least = 0  # characters of the first min_tokens tokens, in which no stop is searched
        self._pieces: list[str] = []
        self._shown = 0  # pieces
        self._held = ""  # text of shown pieces that was held back
        self._given = 0  # characters

    @property
    def text(self) -> str:
        """All text so far, what is held back included."""
        return self.finish.text if self.finish else "".join(self._pieces)

    def push(self, token_id: int) -> GenerationFinish | None:
        """Take the next token; the Finish when it ends the generation."""
        if len(self.token_ids) + 1 >= self._limit or token_id in self._end_ids:
            return self._last(token_id)
        self.token_ids.append(token_id)
        delta = self._detokenizer.push(token_id)
        if delta:
            self._pieces.append(delta)
            if self._searching:
                return self._search(delta)
        return None

    def rewrite(self, drop: int, token_ids: Sequence[int]) -> GenerationFinish | None:
        """Replace the last `drop` tokens by tokens whose bytes begin with theirs (jump-forward).

        Tokens after one that ends the generation are not read. Text that was not searched, being that of the first
        min_tokens tokens, is not searched again: it may have been given out.
        """
        table = self._tokenizer.visible_bytes(self._params.skip_special_tokens)
        known = sum(len(table[i]) for i in self.token_ids[len(self.token_ids) - drop :])
        del self.token_ids[len(self.token_ids) - drop :]
        for token_id in token_ids:
            self.token_ids.append(token_id)
            data = table[token_id]
            delta = self._detokenizer.feed(data[known:])
            known = max(0, known - len(data))
            if delta:
                self._pieces.append(delta)
            if len(self.token_ids) >= self._limit:
                return self._at_limit()
            if delta and self._searching and (finish := self._search(delta)):
                return finish
        return None

    def close(self, reason: dict[str, Any]) -> GenerationFinish:
        """End here for a reason of the engine's own (abort, the end of the grammar)."""
        self._pieces.append(self._detokenizer.flush())
        return self._finish(reason, "".join(self._pieces), len(self.token_ids))

    def take(self) -> str:
        """Text that was not given out yet and will not be taken back; after the finish all of the rest."""
        if self.finish:
            fresh = self.finish.text[self._given :]
        else:
            fresh = self._held + "".join(self._pieces[self._shown :])
            self._shown = len(self._pieces)
            hold = self._stops.depth[self._state] if self._stops and not self._params.keep_stop else 0
            split = len(fresh) - hold
            fresh, self._held = fresh[:split], fresh[split:]
        self._given += len(fresh)
        return fresh

    def _last(self, token_id: int) -> GenerationFinish:
        ends = token_id in self._end_ids
        at_limit = len(self.token_ids) + 1 >= self._limit
        if ends and not at_limit and not (self._params.keep_stop and token_id in self._params.stop_token_ids):
            return self.close({"type": "stop", "matched": token_id})
        self.token_ids.append(token_id)
        self._pieces.append(self._detokenizer.push(token_id))
        return self._at_limit() if at_limit else self.close({"type": "stop", "matched": token_id})

    def _at_limit(self) -> GenerationFinish:
        """The length is reached: nothing is trimmed, but an end token that shows no text does not stay."""
        count = len(self.token_ids)
        last = self.token_ids[-1]
        table = self._tokenizer.visible_bytes(self._params.skip_special_tokens)
        if last in self._end_ids and not table[last]:
            self.token_ids.pop()
        return self.close({"type": "length", "length": count})

    def _search(self, delta: str) -> GenerationFinish | None:
        if len(self.token_ids) <= self._params.min_tokens:
            self._least = sum(map(len, self._pieces))
            return None
        if self._stops:
            self._state, match = self._stops.scan(self._state, delta)
            if match:
                text = "".join(self._pieces)
                cut = len(text) - len(delta) + (match.end if self._params.keep_stop else match.start)
                return self._cut(text[:cut], {"type": "stop", "matched": match.stop})
        if self._patterns:
            text = "".join(self._pieces)
            self._pieces, self._held, self._shown = [text], text[self._given :], 1
            if found := self._patterns.search(text, len(delta), self._least):
                return self.close({"type": "stop", "matched": found})
        return None

    def _cut(self, text: str, reason: dict[str, Any]) -> GenerationFinish:
        """Keep `text` and the tokens that end inside it at a whole character."""
        follower = self._tokenizer.detokenizer(self._params.skip_special_tokens)
        kept = end = length = 0
        for count, token_id in enumerate(self.token_ids, 1):
            length += len(follower.push(token_id))
            if length > len(text):
                break
            if not follower.partial:
                kept, end = count, length
        return self._finish(reason, text, kept, text[end:])

    def _finish(self, reason: dict[str, Any], text: str, kept: int, remainder: str = "") -> GenerationFinish:
        del self.token_ids[kept:]
        self.finish = GenerationFinish(reason, text, kept, remainder)
        return self.finish


def completed(finish: GenerationFinish, pieces: list[bytes], end: bytes) -> GenerationFinish:
    """With a text that goes on after the last whole character of the tokens' bytes."""
    kept = next(n for n in range(len(pieces), -1, -1) if _is_whole(b"".join(pieces[:n])))
    remainder = (b"".join(pieces[kept:]) + end).decode()
    return GenerationFinish(finish.reason, b"".join(pieces[:kept]).decode() + remainder, kept, remainder)


def aligned(logprobs: TokenLogprobs | None, tokens: list[int]) -> TokenLogprobs | None:
    """One entry a kept token; tokens that were encoded anew have no probability of their own.

    A text without tokens keeps the entry of the token that ended it.
    """
    if logprobs is None or not tokens:
        return logprobs and logprobs[:1]
    kept = [entry for entry, token in zip(logprobs, tokens, strict=False) if entry[1] == token]
    return kept + [(float("nan"), token) for token in tokens[len(kept) :]]


def replace_forced(
    logprobs: TokenLogprobs, top_logprobs: list[TokenLogprobs] | None, drop: int, token_ids: list[int]
) -> None:
    """After a jump-forward: the first of the new tokens has what was chosen of their text, the others are forced."""
    kept = len(logprobs) - drop
    chosen = sum((logprob for logprob, _ in logprobs[kept:]), 0.0)
    logprobs[kept:] = [(chosen, token_ids[0]), *((0.0, token) for token in token_ids[1:])]
    if top_logprobs is not None:
        top_logprobs[kept:] = [[pair] for pair in logprobs[kept:]]


def _is_whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
