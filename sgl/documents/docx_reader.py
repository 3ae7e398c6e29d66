"""Word documents by python-docx: the package is opened by it, the text is read from the elements that it parsed.

Its own paragraphs leave out what is in content controls, tracked insertions, smart tags and text boxes.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

from .document import Document, joined_paragraphs
from .document_error import DocumentError, require_reader
from .table_rows import row_line

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_TEXT, _PARAGRAPH, _TABLE, _ROW, _CELL = (_W + name for name in ("t", "p", "tbl", "tr", "tc"))
_CHARACTERS = {_W + "tab": "\t", _W + "br": "\n", _W + "cr": "\n", _W + "noBreakHyphen": "-", _W + "ptab": "\t"}
_UNSEEN = {_W + name for name in ("del", "moveFrom", "instrText", "delText", "pPr", "rPr", "sectPr")} | {_FALLBACK}
_NOTES = ("/footnotes", "/endnotes")
_COMPOUND_FILE = b"\xd0\xcf\x11\xe0"


def read_docx(data: bytes, source: str, max_bytes: int) -> Document:
    """A Word document: paragraphs and tables of its body in order, then footnotes and endnotes."""
    if data.startswith(_COMPOUND_FILE):
        raise DocumentError(
            source, "it is encrypted, or an old .doc; save it as .docx without a password in a word processor first"
        )
    docx = require_reader("docx", "Word documents")
    _check_size(data, source, max_bytes)
    try:
        file = docx.Document(io.BytesIO(data))
        roots = [file.element.body, *_notes(docx, file)]
        text, paragraphs = joined_paragraphs(one for root in roots for one in _paragraphs(root))
        metadata = dict(_metadata(file.core_properties))
    except (KeyError, ValueError, AttributeError, SyntaxError, zipfile.BadZipFile) as error:
        raise DocumentError(source, f"it is damaged, or not a Word document: {error}") from error
    return Document(text, source, "docx", (), paragraphs, metadata)


def _check_size(data: bytes, source: str, max_bytes: int) -> None:
    """Refuse archives that are damaged, or much larger when they are unpacked."""
    try:
        size = sum(item.file_size for item in zipfile.ZipFile(io.BytesIO(data)).infolist())
    except zipfile.BadZipFile as error:
        raise DocumentError(source, f"it is damaged, or not a Word document: {error}") from error
    if size > max_bytes:
        raise DocumentError(source, f"it has {size:,} bytes when unpacked; read(path, max_bytes={size}) allows that")


def _notes(docx: Any, file: Any) -> Iterator[Any]:
    for relation in file.part.rels.values():
        if relation.reltype.endswith(_NOTES) and not relation.is_external:
            root = docx.oxml.parse_xml(relation.target_part.blob)
            yield from (note for note in root if note.get(_W + "type") in (None, "normal"))


def _metadata(properties: Any) -> Iterator[tuple[str, Any]]:
    for name in ("title", "author", "subject", "keywords", "language", "created", "modified"):
        if value := getattr(properties, name):
            yield name, value


def _paragraphs(root: Any) -> Iterator[str]:
    """The paragraphs below an element, in order; a table is one, with a line for each row."""
    waiting = [iter(root)]
    while waiting:
        element = next(waiting[-1], None)
        if element is None:
            waiting.pop()
        elif element.tag == _PARAGRAPH:
            yield from _boxes_apart(element)
        elif element.tag == _TABLE:
            yield "\n".join(
                line for row in element.iter(_ROW) if _owner(row, _TABLE) is element and (line := _line(row))
            )
        elif element.tag not in _UNSEEN:
            waiting.append(iter(element))


def _boxes_apart(paragraph: Any) -> Iterator[str]:
    """The words of a paragraph, then the paragraphs of the text boxes that hang on it."""
    yield _words(paragraph)
    for inner in paragraph.iter(_PARAGRAPH):
        if inner is not paragraph and not _is_unseen(inner, paragraph):
            yield _words(inner)


def _line(row: Any) -> str:
    cells = [cell for cell in row.iter(_CELL) if _owner(cell, _ROW) is row]
    return row_line(
        [" ".join(_words(one) for one in cell.iter(_PARAGRAPH) if not _is_unseen(one, cell)) for cell in cells]
    )


def _owner(element: Any, tag: str) -> Any:
    """The nearest element above with a tag."""
    above = element.getparent()
    while above.tag != tag:
        above = above.getparent()
    return above


def _is_unseen(element: Any, root: Any) -> bool:
    above = element.getparent()
    while above is not root:
        if above.tag in _UNSEEN:
            return True
        above = above.getparent()
    return False


def _words(paragraph: Any) -> str:
    """The characters of a paragraph, without those of paragraphs in it and without deleted ones."""
    parts: list[str] = []
    waiting = [iter(paragraph)]
    while waiting:
        element = next(waiting[-1], None)
        if element is None:
            waiting.pop()
        elif element.tag == _TEXT:
            parts.append(element.text or "")
        elif element.tag in _CHARACTERS:
            parts.append(_CHARACTERS[element.tag])
        elif element.tag not in _UNSEEN and element.tag not in (_PARAGRAPH, _TABLE):
            waiting.append(iter(element))
    return "".join(parts).replace("\xa0", " ").replace("\xad", "")
