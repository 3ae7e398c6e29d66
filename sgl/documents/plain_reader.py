"""Plain texts: bytes to characters, and pages where there are form feeds."""

from __future__ import annotations

import codecs
import re

from .document import Document, Page, split_paragraphs
from .document_error import DocumentError

_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def read_plain(data: bytes, source: str, encoding: str | None) -> Document:
    """A text file. Its lines end with "\\n"; form feeds, if it has any, end its pages."""
    text = decode(data, source, encoding)
    ends = [feed.end() for feed in re.finditer("\f", text)]
    if ends and not text[ends[-1] :].strip():
        ends.pop()  # the last page ends with a form feed, too
    pages = zip([0, *ends], [*ends, len(text)], strict=True) if ends else ()
    return Document(
        text,
        source,
        "text",
        tuple(Page(number, *borders) for number, borders in enumerate(pages, 1)),
        split_paragraphs(text),
    )


def decode(data: bytes, source: str, encoding: str | None) -> str:
    """The characters of a file: by `encoding`, else by its byte order mark, else UTF-8. Lines end with "\\n".

    Raises DocumentError where the bytes are not of that encoding.
    """
    named = encoding or next((name for mark, name in _MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(named)
    except UnicodeDecodeError as error:
        raise DocumentError(
            source,
            f"it is not {named}: byte {error.start} is 0x{data[error.start]:02x}; name its encoding, as in "
            'read(path, encoding="cp1252")',
        ) from None
    except LookupError:
        raise DocumentError(source, f"{named!r} is not an encoding that Python has; give one as encoding=") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
