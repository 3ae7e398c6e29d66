"""A document: its text, and where on which page or in which paragraph each part of it is."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sgl.lang.errors import BadValueError
from sgl.lang.typed.copied_text import Span

BLANK_LINES = re.compile(r"\n[^\S\n\f]*[\n\f]\s*|\f\s*")  # a form feed ends a page


class Box(NamedTuple):
    """A rectangle on a page, in points (1/72 inch) of the PDF's own coordinates: from the bottom left corner up."""

    page: int
    left: float
    bottom: float
    right: float
    top: float


@dataclass(frozen=True, slots=True)
class Page:
    """The characters `start` to `end` of a document's text are those of page `number`, which counts from 1.

    width, height: in points, 0 for a text file. boxes: four numbers (left, bottom, right, top) for each character,
    all 0 for characters without ink; None for formats that have no places on a page.
    """

    number: int
    start: int
    end: int
    width: float = 0.0
    height: float = 0.0
    boxes: array[float] | None = field(default=None, repr=False)

    def line_boxes(self, start: int, end: int) -> Iterator[Box]:
        """The boxes of the characters `start` to `end` of the document that are on this page, one for each line."""
        if self.boxes is None:
            return
        line: Box | None = None
        for at in range(4 * max(0, start - self.start), 4 * (min(end, self.end) - self.start), 4):
            if not any(self.boxes[at : at + 4]):
                continue
            box = Box(self.number, *self.boxes[at : at + 4])
            if line is not None and same_line(line, box):
                line = _around(line, box)
                continue
            if line is not None:
                yield line
            line = box
        if line is not None:
            yield line


def same_line(line: Box, after: Box) -> bool:
    """Whether a box continues a line: it is not left of the line, and half of its height or more is within it."""
    shared = min(line.top, after.top) - max(line.bottom, after.bottom)
    smaller = min(line.top - line.bottom, after.top - after.bottom)
    return shared >= smaller / 2 and after.left >= (line.left + line.right) / 2


def _around(one: Box, other: Box) -> Box:
    return Box(
        one.page,
        min(one.left, other.left),
        min(one.bottom, other.bottom),
        max(one.right, other.right),
        max(one.top, other.top),
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a span of a document is.

    page, last_page: numbers from 1; None for formats without pages. paragraph, last_paragraph: indices into
    `document.paragraphs`. boxes: of a PDF, the rectangles of the span's characters, one for each line.
    """

    source: str
    span: Span
    page: int | None
    last_page: int | None
    paragraph: int
    last_paragraph: int
    boxes: tuple[Box, ...] = ()

    def __str__(self) -> str:
        if self.page is None:
            return f"{self.source}, {_counted('paragraph', self.paragraph + 1, self.last_paragraph + 1)}"
        return f"{self.source}, {_counted('page', self.page, self.last_page)}"


def _counted(word: str, first: int, last: int | None) -> str:
    return f"{word} {first}" if last == first else f"{word}s {first} to {last}"


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a document. `sgl.documents.read` makes one of a file.

    source: the path, or how bytes were named. kind: "pdf", "docx", "html" or "text".
    pages: the pages in order; together they cover the text. Empty for formats without pages (docx and html).
    paragraphs: where each paragraph is, in order; between two of them there is only white space. A table is one
    paragraph with a line for each row.
    metadata: what the file says of itself, such as "title" and "author".
    skipped_pages: numbers of pages that have no text, only pictures or drawings.
    """

    text: str
    source: str = "<text>"
    kind: str = "text"
    pages: tuple[Page, ...] = ()
    paragraphs: tuple[Span, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    skipped_pages: tuple[int, ...] = ()

    def place(self, span: tuple[int, int]) -> Place:
        """Where the characters `span[0]` to `span[1]` of the text are: the page, the paragraph, and a PDF's boxes.

        Raises BadValueError for a span that is empty or outside the text.
        """
        start, end = span if _is_pair(span) else (0, 0)
        if not 0 <= start < end <= len(self.text):
            raise BadValueError(f"{span!r} is no span of {self!r}: give 0 <= start < end <= {len(self.text)}")
        pages = self.pages[_index(self.pages, start) : _index(self.pages, end - 1) + 1]
        return Place(
            self.source,
            Span(start, end),
            pages[0].number if pages else None,
            pages[-1].number if pages else None,
            _index(self.paragraphs, start),
            _index(self.paragraphs, end - 1),
            tuple(box for page in pages for box in page.line_boxes(start, end)),
        )

    def __repr__(self) -> str:
        pages = f"{len(self.pages)} pages, " if self.pages else ""
        return (
            f"<Document {self.source}: {self.kind}, {pages}{len(self.paragraphs)} paragraphs, "
            f"{len(self.text)} characters>"
        )


def _is_pair(span: Any) -> bool:
    return isinstance(span, tuple | list) and len(span) == 2 and all(isinstance(one, int) for one in span)


def as_document(given: Document | str) -> Document:
    """A text as a document without pages; a document as it is. Raises BadValueError for anything else."""
    if isinstance(given, Document):
        return given
    if not isinstance(given, str):
        raise BadValueError(
            f"give a text or a document of sgl.documents.read, not {type(given).__name__}; for a file write "
            "sgl.documents.read(path)"
        )
    return Document(given, paragraphs=split_paragraphs(given))


def split_paragraphs(text: str) -> tuple[Span, ...]:
    """The paragraphs of a text: what is between blank lines, without the white space around it."""
    starts = [0, *(gap.end() for gap in BLANK_LINES.finditer(text))]
    ends = [*(gap.start() for gap in BLANK_LINES.finditer(text)), len(text)]
    return tuple(stripped for start, end in zip(starts, ends, strict=True) if (stripped := _stripped(text, start, end)))


def _stripped(text: str, start: int, end: int) -> Span | None:
    inside = text[start:end]
    left, size = len(inside) - len(inside.lstrip()), len(inside.strip())
    return Span(start + left, start + left + size) if size else None


def joined_paragraphs(paragraphs: Iterable[str]) -> tuple[str, tuple[Span, ...]]:
    """Paragraphs as one text with a blank line between them, and where each is. Empty ones are left out."""
    kept, spans, at = [], [], 0
    for paragraph in paragraphs:
        words = paragraph.strip("\n").rstrip()
        if words.strip():
            kept.append(words)
            spans.append(Span(at, at + len(words)))
            at += len(words) + 2
    return "\n\n".join(kept), tuple(spans)


def _index(places: tuple[Any, ...], at: int) -> int:
    """The last of the places that starts at or before a character; 0 before the first."""
    return max(0, bisect_right(places, at, key=lambda place: place.start if isinstance(place, Page) else place[0]) - 1)
