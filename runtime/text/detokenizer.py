"""Tokens to text as they come: every delta is whole characters, and the deltas add up to the whole text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from sgl.runtime.errors import ConfigError
from sgl.runtime.text.tokenizer_protocols import DecodesTokens

REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The text of a continuation, token by token. Not to be shared between threads."""

    def push(self, token_id: int) -> str:
        """The text that this token completes; "" while a character is unfinished."""

    def feed(self, data: bytes) -> str:
        """As `push`, for bytes that are not a whole token's; only where tokens have separate bytes."""

    def flush(self) -> str:
        """End of the tokens: U+FFFD once if a character stayed unfinished, else ""."""

    @property
    def partial(self) -> bool:
        """Whether the last token ended inside a character."""

    def copy(self) -> Detokenizer:
        """An independent one at the same point."""


def detokenizer(tokenizer: DecodesTokens, skip_special_tokens: bool = True) -> Detokenizer:
    """The exact one where tokens have bytes of their own, else one that follows the tokenizer's decoder."""
    if tokenizer.exact_bytes:
        return ByteDetokenizer(tokenizer.visible_bytes(skip_special_tokens))
    return StreamDetokenizer(tokenizer, skip_special_tokens)


class ByteDetokenizer:
    """A byte table and the incremental UTF-8 decoder; ill-formed bytes become U+FFFD as `bytes.decode` does."""

    __slots__ = ("_decode", "_decoder", "_table")

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decode = self._decoder.decode

    def push(self, token_id: int) -> str:
        return self._decode(self._table[token_id])

    def feed(self, data: bytes) -> str:
        return self._decode(data)

    def flush(self) -> str:
        return self._decode(b"", True)

    @property
    def partial(self) -> bool:
        return bool(self._decoder.getstate()[0])

    def copy(self) -> ByteDetokenizer:
        copied = ByteDetokenizer(self._table)
        copied._decoder.setstate(self._decoder.getstate())
        return copied


class StreamDetokenizer:
    """For decoders that look at neighbouring tokens (WordPiece and the like): asks the tokenizers library."""

    __slots__ = ("_ids", "_partial", "_skip", "_stream", "_tokenizer")

    def __init__(self, tokenizer: DecodesTokens, skip_special_tokens: bool) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special_tokens
        self._stream = tokenizer.decode_stream(skip_special_tokens)
        self._ids: list[int] = []
        self._partial = False

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        delta = self._stream(token_id)
        self._partial = delta is None
        return delta or ""

    def feed(self, data: bytes) -> str:
        raise ConfigError("the tokens of this tokenizer have no separate bytes; turn jump_forward off")

    def flush(self) -> str:
        text = self._tokenizer.backend_decode(self._ids, self._skip) if self._partial else ""
        self._partial = False
        return REPLACEMENT if text.endswith(REPLACEMENT) else ""

    @property
    def partial(self) -> bool:
        return self._partial

    def copy(self) -> StreamDetokenizer:
        copied = StreamDetokenizer(self._tokenizer, self._skip)
        for token_id in self._ids:
            copied.push(token_id)
        return copied
