"""What the pieces of a document say of a field, and where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sgl.documents import Piece, Place
from sgl.lang.typed.copied_text import Span

from ..extract_program import Extraction


@dataclass(frozen=True)
class FoundValue:
    """What a piece says of a field.

    value: in JSON. piece: a part of the document. confidence: the probability that the model writes this value there
    (the product over the fields inside of it); None if the backend reports none. spans: where in the document each
    field inside of the value is, by its path; of a copied field every place in the piece.
    """

    field: str
    value: Any
    piece: Piece
    confidence: float | None
    spans: Mapping[str, Sequence[Span]]

    @property
    def place(self) -> Place:
        """Its pages in the document."""
        spans = self.spans.get(self.field)
        return self.piece.document.place(spans[0]) if spans else self.piece.place

    def places(self, path: str, new_path: str) -> dict[str, list[Place]]:
        """The places of what is at `path` in the value, and of what is inside, under a new path."""
        place = self.piece.document.place
        found = {
            f"{new_path}{inner.removeprefix(path)}": [place(span) for span in spans]
            for inner, spans in self.spans.items()
            if is_inside(inner, path)
        }
        return {new_path: [self.piece.place], **found}

    def spans_of_item(self, index: int) -> dict[str, Sequence[Span]]:
        """Of a list: the spans inside of an item, by their paths in it."""
        item = f"{self.field}[{index}]"
        return {path.removeprefix(item): spans for path, spans in self.spans.items() if is_inside(path, item)}


def is_inside(path: str, outer: str) -> bool:
    """Whether a field is another one, or inside of it."""
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


def piece_text(piece: Piece) -> str:
    """What the model reads of a piece: without the white space around it."""
    return piece.text.strip()


def found_values(extraction: Extraction[Any], fields: Mapping[str, Any], piece: Piece) -> Iterator[FoundValue]:
    """What a piece says of each field that it says something of."""
    offset = piece.span.start + len(piece.text) - len(piece.text.lstrip())
    for name, value in fields.items():
        if value is None or value == []:
            continue
        spans = dict(_texts_in(value, name, piece_text(piece)))
        spans |= {path: spans for path, spans in extraction.spans.items() if is_inside(path, name)}
        moved = {path: [Span(start + offset, end + offset) for start, end in inside] for path, inside in spans.items()}
        yield FoundValue(name, value, piece, _confidence(extraction, name), {path: s for path, s in moved.items() if s})


def _confidence(extraction: Extraction[Any], name: str) -> float | None:
    if extraction.confidence is None:
        return None
    inside = [one.whole for path, one in extraction.confidence.items() if is_inside(path, name)]
    product = 1.0
    for one in inside:
        product *= one
    return product if inside else None


def _texts_in(value: Any, path: str, text: str) -> Iterator[tuple[str, list[Span]]]:
    """Where the texts of a value of JSON are in a text as whole words, by their paths. Line breaks count as spaces."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts_in(inner, f"{path}.{name}", text)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _texts_in(inner, f"{path}[{i}]", text)
    elif isinstance(value, str) and value.strip():
        words = r"\s+".join(map(re.escape, value.split()))
        yield path, [Span(*found.span()) for found in re.finditer(rf"(?<!\w){words}(?!\w)", text)]
