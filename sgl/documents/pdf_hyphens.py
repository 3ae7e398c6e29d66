"""Words that a PDF hyphenates at the end of a line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .pdf_lines import HYPHEN, Glyph

_COMPOUND = re.compile(r"\w+(?:-\w+)+")


def join_hyphens(pages: list[list[Glyph]]) -> list[list[Glyph]]:
    """Pages without marks of hyphens at line ends: the two parts are one word.

    The hyphen stays where the document has the same word with a hyphen within a line, where the second part begins
    with a capital letter or a digit, and where no letter follows it.
    """
    texts = ["".join(glyph[0] for glyph in page) for page in pages]
    known = {word for text in texts for word in _COMPOUND.findall(text.lower())}
    return [list(_joined(page, text, known)) for page, text in zip(pages, texts, strict=True)]


def _joined(page: list[Glyph], text: str, known: set[str]) -> Iterator[Glyph]:
    for i, glyph in enumerate(page):
        if glyph[0] != HYPHEN:
            yield glyph
        elif _keeps(text, i, known):
            yield ("-", *glyph[1:])


def _keeps(text: str, at: int, known: set[str]) -> bool:
    before = re.search(r"\w*$", text[max(0, at - 40) : at])
    after = re.match(r"\w*", text[at + 1 : at + 41])
    first, second = before[0] if before else "", after[0] if after else ""
    return not second[:1].islower() or f"{first}-{second}".lower() in known
