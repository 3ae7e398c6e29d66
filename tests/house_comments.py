"""The prose of product code: docstrings, comments and messages hold none of the words that guides may not use.

`house_prose.py` has the words. Code spans are exempt, and strings without a space, which are no prose.
Run alone it prints each place: `python tests/house_comments.py runtime/cache`; without names, of all floors.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from house_imports import FLOORS, parsed
from house_prose import CODE, FORBIDDEN, forbidden

ROOT = Path(__file__).parent.parent
# words still there, by floor: only ever lower
LEFT = {"sgl": 0, "lang": 14, "runtime": 165, "grammars": 24, "common": 0}
ANY = re.compile("|".join(FORBIDDEN), re.IGNORECASE)
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
Prose = Iterator[tuple[int, str]]  # first line, text


def _python(text: str) -> Prose:
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    after_marks = " ".join(line.partition("#")[2].strip("# ") for line in text.splitlines())
    if ANY.search(after_marks):  # few files: a tokenizer takes longer than all else
        yield from _python_comments(text)


def _python_comments(text: str) -> Prose:
    """Comments; those on lines that follow each other are one text."""
    begun, last, gathered = 0, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if line != last + 1:
                if gathered:
                    yield begun, gathered
                begun, gathered = line, ""
            last, gathered = line, f"{gathered} {token.string.lstrip('#').strip()}"
    if gathered:
        yield begun, gathered


def _c(text: str) -> Prose:
    for match in C_COMMENT.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, re.sub(r"\n\s*\*?", " ", match[0])


def found(root: Path, under: str) -> list[str]:
    """Each word below a folder, or in a file, with its place and what to write instead."""
    base = root / under
    places = []
    for path in [base] if base.is_file() else sorted(base.rglob("*")):
        short = str(path.relative_to(root))
        if path.suffix not in (".py", ".c", ".h"):
            continue
        text = path.read_text(encoding="utf-8")
        for line, prose in sorted(_python(text) if path.suffix == ".py" else _c(text)):
            plain = CODE.sub("\ue000", " ".join(prose.split()))
            if ANY.search(plain):
                places += [f"{short}:{line}: {word}" for word in forbidden(plain)]
    return places


def problems(root: Path, left: dict[str, int] = LEFT) -> Iterator[str]:
    """Floors with more such words than are left, with each place; prints the counts of all floors."""
    places = {floor: found(root, floor) for floor in FLOORS}
    counted = ", ".join(f"{floor} {len(those)} (at most {left.get(floor, 0)})" for floor, those in places.items())
    print(f"words in docstrings, comments and messages that prose may not use: {counted}")
    for floor, those in places.items():
        if len(those) > left.get(floor, 0):
            yield f"{floor}: {len(those)} words that prose may not use, at most {left.get(floor, 0)}:"
            yield from (f"    {place}" for place in those)


if __name__ == "__main__":
    listed = [place for under in sys.argv[1:] or FLOORS for place in found(ROOT, under)]
    print("\n".join(listed) or "no words that prose may not use")
    sys.exit(bool(listed))
