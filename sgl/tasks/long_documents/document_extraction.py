"""What an extraction from a document gives, and what fails of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sgl.documents import Piece, Place
from sgl.lang.errors import LanguageError
from sgl.lang.interpreter.token_usage import Usage

from ..extract_program import Extraction
from .document_cost import DocumentCost
from .found_values import FoundValue

T = TypeVar("T")


@dataclass(frozen=True)
class DocumentExtraction(Generic[T]):
    """What `sgl.extract_document(..., details=True)` returns.

    value: of the type that was asked for.
    places: where in the document each field, and each item of a list, was read, by its path ("lines[0].price"). The
        place of a text is where it is in the document; of other values it is the piece that was read.
    pieces: each piece, with the Extraction from it: the value (a dict of the fields that it has), the confidence, and
        the spans in its text. With on_failed_piece="skip" a piece may have its error instead.
    found: by field what the pieces say of it, before the rule of the field chose.
    cost: the bound that was known before. usage: what it did cost.
    """

    value: T
    places: dict[str, list[Place]]
    pieces: list[tuple[Piece, Extraction[Any] | Exception]] = field(repr=False)
    found: dict[str, list[FoundValue]] = field(repr=False)
    cost: DocumentCost
    usage: Usage


class PieceError(LanguageError, ValueError):
    """A piece of a document from which no value was read. `piece` is it; `__cause__` is what went wrong."""

    def __init__(self, message: str, piece: Piece) -> None:
        super().__init__(message)
        self.piece = piece

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.piece)
