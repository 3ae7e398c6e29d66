"""Invoices in, objects out: `sgl.extract`, with how sure the model is of each field.

python examples/invoices.py              # the three below
python examples/invoices.py FILE.txt...  # your own
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import sgl

TEXTS = [
    "Invoice number: A-1207\nCustomer: Weber & Sons\nDate: 2026-03-04\nTotal: 80.50",
    "Dear Ms. Rossi, the total of invoice B-77 is 1200. It is due on 2026-05-01.",
    "Thank you for your visit! We hope to see you again.",
]


@dataclass
class Invoice:
    number: str | None = None
    customer: str | None = None
    total: float | None = None

    def __post_init__(self) -> None:
        if self.total is not None and self.total <= 0:
            raise ValueError("the total is above 0")


texts = [Path(path).read_text(encoding="utf-8") for path in sys.argv[1:]] or TEXTS
for found in sgl.extract.batch(Invoice, texts, retries=1, details=True):
    print(found.value, {name: round(one.whole, 2) for name, one in (found.confidence or {}).items()})
