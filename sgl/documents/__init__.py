"""Documents: their text with pages and places, and its pieces."""

from __future__ import annotations

from .document import Box, Document, Page, Place
from .document_error import DocumentError
from .pieces import Piece, pieces
from .reading import read

__all__ = ["Box", "Document", "DocumentError", "Page", "Piece", "Place", "pieces", "read"]
