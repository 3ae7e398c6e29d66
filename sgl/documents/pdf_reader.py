"""PDF by pypdfium2: characters with their boxes, lines, paragraphs and hyphenated words."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from typing import Any

from .document import Document, Page, split_paragraphs
from .document_error import DocumentError, require_reader
from .pdf_hyphens import join_hyphens
from .pdf_lines import Glyph, page_glyphs

_pdfium = threading.Lock()  # PDFium may be used by one thread at a time
_WRONG_PASSWORD = 4
GAP = "\n\n"


def read_pdf(data: bytes, source: str, password: str | None, on_pictures: str) -> Document:
    """A PDF. Raises DocumentError for a file that is damaged or encrypted, and for pages that are pictures."""
    pdfium = require_reader("pypdfium2", "PDF")
    with _pdfium:
        file = _opened(pdfium, data, source, password)
        try:
            metadata = {name.lower(): value for name, value in file.get_metadata_dict(skip_empty=True).items()}
            pages = [_page(pdfium, file, number, source) for number in range(1, len(file) + 1)]
        finally:
            file.close()
    skipped = tuple(number for number, (glyphs, _, picture) in enumerate(pages, 1) if picture and not glyphs)
    if skipped and on_pictures == "error":
        raise _is_picture(source, skipped, len(pages), pages[skipped[0] - 1][2])
    return _document(pages, source, metadata, skipped)


def _opened(pdfium: Any, data: bytes, source: str, password: str | None) -> Any:
    try:
        return pdfium.PdfDocument(data, password=password)
    except pdfium.PdfiumError as error:
        if error.err_code != _WRONG_PASSWORD:
            raise DocumentError(source, f"it is damaged, or not a PDF: {error}") from error
        what = "this password does not open it" if password else "it is encrypted"
        raise DocumentError(source, f'{what}; read it with read(path, password="...")') from error


PageParts = tuple[list[Glyph], tuple[float, float], str]


def _page(pdfium: Any, file: Any, number: int, source: str) -> PageParts:
    """The glyphs of a page, its size, and what it shows besides text: "picture", "drawing" or ""."""
    try:
        page = file[number - 1]
        glyphs = page_glyphs(page.get_textpage())
        return glyphs, page.get_size(), "" if glyphs else _shown(pdfium, page)
    except pdfium.PdfiumError as error:
        raise DocumentError(source, f"page {number} is damaged: {error}", number) from error


def _shown(pdfium: Any, page: Any) -> str:
    kinds = {item.type for item in page.get_objects()}
    if pdfium.raw.FPDF_PAGEOBJ_IMAGE in kinds:
        return "picture"
    return "drawing" if kinds - {pdfium.raw.FPDF_PAGEOBJ_FORM} else ""


def _is_picture(source: str, numbers: tuple[int, ...], count: int, shown: str) -> DocumentError:
    others = len(numbers) - 1
    more = f" ({others} of its {count} pages more have none)" if others else ""
    return DocumentError(
        source,
        f"no text on page {numbers[0]}; it is a {shown}{more}. Recognize its characters with an OCR program first, or "
        'leave such pages out with read(path, on_pictures="skip")',
        numbers[0],
    )


def _document(pages: list[PageParts], source: str, metadata: dict[str, str], skipped: tuple[int, ...]) -> Document:
    joined = join_hyphens([glyphs for glyphs, _, _ in pages])
    text, made, start = [], [], 0
    for number, (glyphs, (_, size, _)) in enumerate(zip(joined, pages, strict=True), 1):
        words = "".join(glyph[0] for glyph in glyphs)
        if glyphs and number < len(pages):
            words += GAP
        boxes = array("f", _numbers(glyphs))
        made.append(Page(number, start, start + len(words), *size, boxes))
        boxes.extend([0.0] * (4 * (len(words) - len(glyphs))))
        text.append(words)
        start += len(words)
    whole = "".join(text)
    return Document(whole, source, "pdf", tuple(made), split_paragraphs(whole), metadata, skipped)


def _numbers(glyphs: list[Glyph]) -> Iterator[float]:
    for glyph in glyphs:
        yield from glyph[1:]
