"""Mails in, labels out: `sgl.classify`, with the probability of the label."""

from __future__ import annotations

import sgl

MAILS = [
    "The invoice of last month is wrong, please send a new one.",
    "The app crashes when I open it.",
    "I would like to book a room in Rome for two nights.",
]
LABELS = {
    "billing": "invoices, payments and refunds",
    "technical": "something does not work",
    "booking": "reserve a room or a table",
}

for mail, found in zip(MAILS, sgl.classify.batch(MAILS, LABELS), strict=True):
    print(f"{found.label:10} {found.probs[found.label]:4.0%}  {mail}")
