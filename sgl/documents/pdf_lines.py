"""The lines of a PDF's page: what belongs on one line, and where a paragraph begins."""

from __future__ import annotations

import ctypes
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from statistics import median_low
from typing import Any

from .document import Box, same_line

Glyph = tuple[str, float, float, float, float]  # a character, and its left, bottom, right and top; all 0 without ink
HYPHEN = "\x02"  # how PDFium marks a hyphen that ends a line
SOFT_HYPHEN = "\xad"
Line = list[Glyph]


def page_glyphs(text_page: Any) -> list[Glyph]:
    """The characters of a page in the order of the file, with line breaks, and a blank line between paragraphs."""
    lines = [line for line in _same_lines_joined(_lines(_glyphs(text_page))) if line]
    boxes = [_box(line) for line in lines]
    heights = [box.top - box.bottom for box in boxes]
    gaps = [above.bottom - below.top for above, below in pairwise(boxes)]
    usual = median_low([max(gap, 0.0) for gap in gaps if gap > -max(heights)] or [0.0])
    result: list[Glyph] = []
    for i, line in enumerate(lines):
        result += line
        if i + 1 < len(lines) and line[-1][0] != HYPHEN:
            height = max(heights[i : i + 2])
            far = gaps[i] > max(0.5 * height, 1.5 * min(usual, height))
            result += [_without_ink("\n")] * (2 if far else 1)
    return result


def _without_ink(character: str) -> Glyph:
    return character, 0.0, 0.0, 0.0, 0.0


def _glyphs(text_page: Any) -> Iterator[Glyph]:
    """The characters as PDFium has them. It splits ligatures itself; pairs of surrogates are joined here."""
    import pypdfium2.raw as raw

    rectangle, page = raw.FS_RECTF(), text_page.raw
    place, unicode_of, box_of = ctypes.byref(rectangle), raw.FPDFText_GetUnicode, raw.FPDFText_GetLooseCharBox
    high = 0
    for i in range(raw.FPDFText_CountChars(page)):
        code = unicode_of(page, i)
        if 0xD800 <= code < 0xDC00:
            high = code
            continue
        if 0xDC00 <= code < 0xE000:
            code, high = 0x10000 + ((high & 0x3FF) << 10) + (code & 0x3FF) if high else 0xFFFD, 0
        character = chr(code)
        if character in "\r\n \t" or not box_of(page, i, place):
            yield _without_ink(character)
        else:
            yield character, rectangle.left, rectangle.bottom, rectangle.right, rectangle.top


def _lines(glyphs: Iterator[Glyph]) -> Iterator[Line]:
    """Lines without white space around them and without control characters; a hyphen at an end stays marked."""
    line: Line = []
    for glyph in glyphs:
        character = glyph[0]
        if character in (HYPHEN, SOFT_HYPHEN):
            yield [*line, (HYPHEN, *glyph[1:])] if line else []
            line = []
        elif character == "\n":
            yield _trimmed(line)
            line = []
        elif character.isspace():
            if line:
                line.append(_without_ink(" "))
        elif unicodedata.category(character) != "Cc":
            line += ((one, *glyph[1:]) for one in _parts(character))
    yield _trimmed(line)


def _parts(character: str) -> str:
    """The letters of a ligature; any other character as it is."""
    return unicodedata.normalize("NFKC", character) if "\ufb00" <= character <= "\ufb06" else character


def _trimmed(line: Line) -> Line:
    while line and line[-1][0] == " ":
        line.pop()
    return line


def _same_lines_joined(lines: Iterator[Line]) -> Iterator[Line]:
    """Lines of PDFium that are parts of one, such as the line and its exponents, as one."""
    held: Line = []
    for line in lines:
        if not line:
            continue
        if held and held[-1][0] != HYPHEN and same_line(before := _box(held), after := _box(line)):
            wide = after.left - before.right > 0.15 * (after.top - after.bottom)
            held = [*held, *([_without_ink(" ")] if wide else []), *line]
            continue
        yield held
        held = line
    yield held


def _box(line: Line) -> Box:
    """The box around a line. A line without ink has one without a size."""
    inked = [glyph for glyph in line if any(glyph[1:])] or line
    return Box(
        0,
        min(glyph[1] for glyph in inked),
        min(glyph[2] for glyph in inked),
        max(glyph[3] for glyph in inked),
        max(glyph[4] for glyph in inked),
    )
