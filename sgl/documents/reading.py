"""Files to documents."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Literal

from sgl.lang.errors import BadValueError, shown

from .document import Document
from .document_error import DocumentError

Kind = Literal["pdf", "docx", "html", "text"]
MAX_BYTES = 256 * 2**20
_KINDS: dict[str, Kind] = {
    ".pdf": "pdf",
    ".docx": "docx",
    ".docm": "docx",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".txt": "text",
    ".md": "text",
    ".rst": "text",
    ".text": "text",
    ".log": "text",
    ".csv": "text",
    ".tsv": "text",
}


def read(
    file: str | PathLike[str] | bytes,
    *,
    kind: Kind | None = None,
    source: str | None = None,
    password: str | None = None,
    encoding: str | None = None,
    on_pictures: Literal["error", "skip"] = "error",
    max_bytes: int = MAX_BYTES,
) -> Document:
    """Read a document: its text, with pages and places.

    Args:
        file: the path of a .pdf, .docx, .html, .txt or .md file, or a file's bytes.
        kind: "pdf", "docx", "html" or "text"; by default by the path's ending, of bytes by how they begin.
        source: the name of the document in errors and places; by default the path.
        password: of an encrypted PDF.
        encoding: of a text or of HTML. By default its byte order mark, what the HTML declares, or UTF-8.
        on_pictures: "skip" leaves pages of a PDF without text, scans or drawings, empty (`document.skipped_pages`).
        max_bytes: the largest file, and the largest unpacked .docx, that is read.

    Raises DocumentError, with the name of the file and the number of the page, for a file that is damaged, encrypted,
    empty, too large or of another encoding, and for pages that are pictures. Raises MissingPackageError without the
    package that reads this kind, OSError for a file that cannot be opened.
    """
    if on_pictures not in ("error", "skip"):
        raise BadValueError(f'on_pictures is {on_pictures!r}; give "error" or "skip"')
    data, name = _loaded(file, source, max_bytes)
    document = _read(data, name, _kind(file, data, name, kind), password, encoding, on_pictures, max_bytes)
    if not document.text.strip() and not document.skipped_pages:
        raise DocumentError(name, "it has no text")
    return document


def _loaded(file: str | PathLike[str] | bytes, source: str | None, max_bytes: int) -> tuple[bytes, str]:
    if not isinstance(file, str | PathLike | bytes) or file == "":
        raise BadValueError(f"read({shown(file)}): give the path of a file, or its bytes")
    if isinstance(file, bytes):
        data, name = file, source or "<bytes>"
        size = len(data)
    else:
        path = Path(file)
        if path.is_dir():
            raise DocumentError(
                source or str(path), "it is a folder; read its files, as in [read(path) for path in folder.iterdir()]"
            )
        name, size = source or str(path), path.stat().st_size
    if size > max_bytes:
        raise DocumentError(name, f"it has {size:,} bytes; read(path, max_bytes={size}) allows that")
    if not isinstance(file, bytes):
        data = path.read_bytes()
    if not data:
        raise DocumentError(name, "it is empty: it has no bytes")
    return data, name


def _kind(file: str | PathLike[str] | bytes, data: bytes, name: str, kind: Kind | None) -> Kind:
    if kind is not None:
        if kind not in _KINDS.values():
            raise BadValueError(f"kind is {kind!r}; give one of {', '.join(map(repr, dict.fromkeys(_KINDS.values())))}")
        return kind
    ending = "" if isinstance(file, bytes) else Path(file).suffix.lower()
    found = _KINDS.get(ending) or _by_content(data)
    if found is None:
        raise DocumentError(
            name,
            f"it is no PDF, .docx or HTML{f', and {ending!r} is no known ending' if ending else ''}; for a plain text "
            'write read(path, kind="text")',
        )
    return found


def _by_content(data: bytes) -> Kind | None:
    start = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"%pdf-" in start:
        return "pdf"
    if start.startswith(b"pk\x03\x04"):
        return "docx"
    return "html" if start.startswith((b"<!doctype html", b"<html", b"<head", b"<body")) else None


def _read(
    data: bytes, name: str, kind: Kind, password: str | None, encoding: str | None, on_pictures: str, max_bytes: int
) -> Document:
    if kind == "pdf":
        from .pdf_reader import read_pdf

        return read_pdf(data, name, password, on_pictures)
    if kind == "docx":
        from .docx_reader import read_docx

        return read_docx(data, name, max_bytes)
    if kind == "html":
        from .html_reader import read_html

        return read_html(data, name, encoding)
    from .plain_reader import read_plain

    return read_plain(data, name, encoding)
