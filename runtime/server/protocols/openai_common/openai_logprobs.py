"""Log-probabilities in OpenAI's two shapes, with tokens as text and as bytes."""

from __future__ import annotations

import codecs
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sgl.runtime.sequences.generation import Chunk, Generation, TokenLogprobs
from sgl.runtime.text.tokenizer import Tokenizer

Json = dict[str, Any]

UNLIKELY = -9999.0  # OpenAI's word for a log-probability that has no number: -inf, or not known


@dataclass(frozen=True, slots=True)
class LogprobRow:
    """One token: its id, its log-probability (natural; None: it has none) and the likeliest ones in its place."""

    token: int
    logprob: float | None
    top: TokenLogprobs = field(default_factory=list)


def rows_of(pairs: TokenLogprobs, tops: Sequence[TokenLogprobs] | None = None) -> list[LogprobRow]:
    """One row a pair; `tops` as long as `pairs` or empty."""
    lists = tops or [[]] * len(pairs)
    return [LogprobRow(token, value, top) for (value, token), top in zip(pairs, lists, strict=False)]


def rows_of_generation(generation: Generation) -> list[LogprobRow]:
    """A row for each token of the text, none for the end token after it."""
    count = len(generation.token_ids)
    rows = rows_of((generation.logprobs or [])[:count], generation.top_logprobs)
    return rows + [LogprobRow(token, None) for token in generation.token_ids[len(rows) :]]


class LogprobRowStream:
    """The rows of a streamed generation, each given out once the text of its token is.

    Tokens whose text is held back, because a stop string may cut them off, wait with it.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._pieces = tokenizer.visible_bytes(skip_special_tokens)
        self._held: deque[LogprobRow] = deque()
        self._given = 0
        self._room = 0  # bytes of text that is out and has no row yet

    def take(self, chunk: Chunk) -> list[LogprobRow]:
        """The rows that come with this chunk; with the last one all that are left."""
        if chunk.generation is not None:
            return rows_of_generation(chunk.generation)[self._given :]
        self._held += rows_of(chunk.logprobs or [], chunk.top_logprobs)
        self._room += len(chunk.text.encode())
        ready: list[LogprobRow] = []
        while self._held and (size := len(self._pieces[self._held[0].token])) <= self._room:
            self._room -= size
            ready.append(self._held.popleft())
        self._given += len(ready)
        return ready


# --- chat ------------------------------------------------------------------------------------------------


def chat_logprobs(tokenizer: Tokenizer, rows: Sequence[LogprobRow]) -> Json:
    """`choices[].logprobs` of chat completions."""
    return {
        "content": [
            {
                **_entry(tokenizer, row.token, row.logprob),
                "top_logprobs": [_entry(tokenizer, token, value) for value, token in row.top],
            }
            for row in rows
        ],
        "refusal": None,
    }


def _entry(tokenizer: Tokenizer, token: int, logprob: float | None) -> Json:
    data = tokenizer.token_bytes[token]
    known = _known(logprob)
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": UNLIKELY if known is None else known,
        "bytes": list(data),
    }


# --- text ------------------------------------------------------------------------------------------------


class TextLogprobs:
    """`choices[].logprobs` of text completions; follows where in the text each token begins."""

    def __init__(self, tokenizer: Tokenizer, top: int, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._offset = offset  # characters
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, rows: Sequence[LogprobRow]) -> Json:
        """The lists for these rows, which follow those of the last call."""
        return {
            "tokens": [self._name(row.token) for row in rows],
            "token_logprobs": [_known(row.logprob) for row in rows],
            "top_logprobs": [self._best(row) for row in rows] if self._top else None,
            "text_offset": [self._advance(row.token) for row in rows],
        }

    def _advance(self, token: int) -> int:
        start = self._offset
        self._offset += len(self._decoder.decode(self._tokenizer.token_bytes[token]))
        return start

    def _best(self, row: LogprobRow) -> dict[str, float] | None:
        """The likeliest tokens, and the one that was taken if it is not among them."""
        if row.logprob is None:
            return None
        pairs = [*row.top[: self._top], (row.logprob, row.token)]
        best: dict[str, float] = {}
        for value, token in pairs:
            known = _known(value)
            best.setdefault(self._name(token), UNLIKELY if known is None else known)
        return best

    def _name(self, token: int) -> str:
        """The token's text, or its bytes as `bytes:\\xe2` where they are no text alone."""
        data = self._tokenizer.token_bytes[token]
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _known(value: float | None) -> float | None:
    """A number that JSON can say: None for nan, OpenAI's -9999 for -inf."""
    if value is None or math.isnan(value):
        return None
    return max(value, UNLIKELY)
