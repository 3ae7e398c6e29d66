"""A document in pieces: a PDF is read, each piece is asked for the fields, and each value has its page.

    python examples/long_document.py               # letters.pdf, with known answers
    python examples/long_document.py my.pdf 400    # your own document, in pieces of 400 tokens

The most that it costs is printed before anything runs. Of several values for a field the most certain one is taken.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import sgl

LETTERS = Path(__file__).parent / "data/letters.pdf"


@dataclass
class Facts:
    supplier: str | None = None
    tenant: str | None = None
    monthly_rent: str | None = None
    position: str | None = None
    conductor: str | None = None
    tracking_number: str | None = None
    driver: str | None = None
    treatment: str | None = None


KNOWN = ["Brandt Office Supply", "Omar Haddad", "$950", "data analyst", "Rita Lopes", "PX-88213", "Carlos Ruiz"]
KNOWN += ["dental cleaning"]


def main() -> None:
    path, tokens = (Path(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else (LETTERS, 120)
    document = sgl.documents.read(path)
    print(document)
    with sgl.Engine() as engine:
        limits = {"backend": engine, "tokens": tokens, "max_tokens": 100}
        print(sgl.extract_document.cost(Facts, document, **limits))
        result = sgl.extract_document(Facts, document, budget=100_000, details=True, **limits)
    print(f"{'field':16} {'page':4} {'said':4} value")
    for (name, value), known in zip(vars(result.value).items(), KNOWN, strict=True):
        pages = {place.page for place in result.places.get(name, [])}
        right = "" if value == known or path != LETTERS else f"  WRONG: {known}"
        print(f"{name:16} {min(pages, default='-'):4} {len(result.found[name]):4} {value}{right}")
    print(result.usage)


if __name__ == "__main__":
    main()
