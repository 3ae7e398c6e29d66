"""Pieces of a document that fit into a model's context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sgl.lang.errors import BadValueError
from sgl.lang.typed.copied_text import Span

from .document import Document, Place, as_document
from .text_units import Unit, units_of
from .token_counts import TokenCounter, token_counter


@dataclass(frozen=True, slots=True)
class Piece:
    """The characters `span` of a document.

    index: from 0. tokens: how many tokens `text` has; `exact` says whether a tokenizer counted them or they are an
    estimate. overlap: so many characters at its start are the end of the piece before.
    """

    index: int
    span: Span
    text: str
    tokens: int
    exact: bool
    overlap: int
    document: Document = field(repr=False)

    @property
    def place(self) -> Place:
        """Its pages, paragraphs and boxes in the document."""
        return self.document.place(self.span)


def pieces(
    document: Document | str, tokens: int, overlap: int = 0, *, backend: Any = None, tokenizer: Any = None
) -> list[Piece]:
    """Cut a document into pieces of at most `tokens` tokens, in order. Every character is in a piece.

    Pieces begin and end where paragraphs do. A paragraph that is longer than a piece is cut between sentences, a
    longer sentence between lines, a longer line between words, and a longer word anywhere.

    Args:
        document: of `sgl.documents.read`, or a text, whose paragraphs end with blank lines.
        tokens: the most tokens of a piece.
        overlap: the most tokens that a piece repeats of the one before it, in whole paragraphs (of a paragraph that was
            cut: in whole sentences or lines). A paragraph that is longer is not repeated.
        backend: what counts tokens: the tokenizer of an embedded engine, by default that of the default backend.
            For a remote one they are estimated: a token for three bytes of UTF-8 (`piece.exact` is False).
        tokenizer: counts instead: an object with `encode(text)`, or a function that returns the number of tokens.

    Raises BadValueError for limits that are no whole numbers, or too small for the text.
    """
    given = as_document(document)
    _check(tokens, overlap)
    count = token_counter(backend, tokenizer)
    units = list(units_of(given.text, (paragraph.start for paragraph in given.paragraphs[1:]), tokens, count))
    return list(_pieces(given, units, tokens, overlap, count))


def _check(tokens: int, overlap: int) -> None:
    for name, value, least in (("tokens", tokens, 1), ("overlap", overlap, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadValueError(f"{name} is {value!r}; give a whole number from {least}")
    if overlap >= tokens:
        raise BadValueError(f"overlap is {overlap} and tokens {tokens}: pieces must be longer than what they repeat")


def _pieces(
    document: Document, units: Sequence[Unit], limit: int, overlap: int, count: TokenCounter
) -> Iterator[Piece]:
    first = done = index = 0  # a piece starts with unit `first`; those before `done` are in an earlier piece
    while done < len(units):
        last, tokens = _filled(document.text, units, first, done, limit, count)
        if last <= done:  # what is repeated leaves no room
            first += 1
            continue
        span = Span(units[first].start, units[last - 1].end)
        repeated = units[done].start - span.start
        yield Piece(index, span, document.text[span.start : span.end], tokens, count.exact, repeated, document)
        first, done, index = _repeated_from(units, first, last, overlap), last, index + 1


def _filled(
    text: str, units: Sequence[Unit], first: int, done: int, limit: int, count: TokenCounter
) -> tuple[int, int]:
    """The unit after the last one that fits into a piece that starts with unit `first`, and the piece's tokens.

    Texts may have more tokens together than one by one, so the whole is counted.
    """
    last, tokens = first, 0
    while last < len(units) and tokens + units[last].tokens <= limit:
        tokens += units[last].tokens
        last += 1
    while last > done and (tokens := count(text[units[first].start : units[last - 1].end])) > limit:
        last -= 1
    return last, tokens


def _repeated_from(units: Sequence[Unit], first: int, last: int, overlap: int) -> int:
    """The first of the units before `last` that the next piece repeats."""
    start, tokens = last, 0
    while start - 1 > first and (tokens := tokens + units[start - 1].tokens) <= overlap:
        start -= 1
    return start
