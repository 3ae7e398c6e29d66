"""Log-probabilities of what is text, out of those of all that a model wrote."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.sequences.generation import Chunk
from sgl.runtime.text.tokenizer import Tokenizer

from ..openai_common.openai_logprobs import LogprobRow, LogprobRowStream, chat_logprobs
from ..openai_common.openai_response_fields import Json


class _PlacedRow(NamedTuple):
    """A row, and where its token stands: bytes from the beginning of the text."""

    start: int
    end: int
    row: LogprobRow


class VisibleLogprobRows:
    """Finds the rows of pieces of a text that is read from its beginning to its end.

    A token that two pieces share belongs to the first of them.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._bytes = tokenizer.visible_bytes(skip_special_tokens)
        self._rows: deque[_PlacedRow] = deque()
        self._text = b""  # what was not read yet: it begins at `_read`
        self._read = 0

    def add(self, rows: Sequence[LogprobRow]) -> None:
        """What was written, after what was added before."""
        for row in rows:
            start = self._read + len(self._text)
            self._text += self._bytes[row.token]
            self._rows.append(_PlacedRow(start, self._read + len(self._text), row))

    def take(self, piece: str) -> list[LogprobRow]:
        """The rows of the next place where the text has this piece; those before it are dropped."""
        data = piece.encode()
        if data not in self._text:
            data = piece.strip().encode()  # readers change white space next to calls
        found = self._text.find(data)
        if found < 0 or not data:
            return []
        begin, end = self._read + found, self._read + found + len(data)
        self._text, self._read = self._text[found + len(data) :], end
        while self._rows and self._rows[0].end <= begin:
            self._rows.popleft()
        taken = []
        while self._rows and self._rows[0].start < end:
            taken.append(self._rows.popleft().row)
        return taken


class ChoiceLogprobs:
    """`logprobs` of one choice, piece by piece; None throughout where the request wants none.

    plain: all that is written is text.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, plain: bool) -> None:
        self._tokenizer, self._wanted, self._plain = tokenizer, params.logprobs, plain
        self._skip = params.skip_special_tokens
        self._stream = self._fresh_stream()
        self._waiting: list[LogprobRow] = []  # of plain text
        self._said = VisibleLogprobRows(tokenizer, self._skip)
        self._given: list[LogprobRow] = []

    @property
    def all(self) -> Json | None:
        """Those of the whole text so far."""
        return chat_logprobs(self._tokenizer, self._given) if self._wanted else None

    def add(self, chunk: Chunk) -> None:
        if not self._wanted:
            return
        rows = self._stream.take(chunk)
        if self._plain:
            self._waiting += rows
        else:
            self._said.add(rows)
        if chunk.generation is not None:
            self._stream = self._fresh_stream()

    def take_visible(self, piece: str) -> Json | None:
        if not self._wanted:
            return None
        return self._give(self._said.take(piece)) if not self._plain else self.left()

    def pass_over(self, piece: str) -> None:
        """What was written next is no text."""
        if self._wanted:
            self._said.take(piece)

    def left(self) -> Json | None:
        """Those of plain text that no piece took along."""
        rows, self._waiting = self._waiting, []
        return self._give(rows) if rows else None

    def _give(self, rows: list[LogprobRow]) -> Json:
        self._given += rows
        return chat_logprobs(self._tokenizer, rows)

    def _fresh_stream(self) -> LogprobRowStream:
        """Of one move."""
        return LogprobRowStream(self._tokenizer, self._skip)
