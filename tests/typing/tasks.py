"""Tasks, as an editor sees them: mypy and pyright report each line that ends with `error`, and no other. Never run."""
# ruff: noqa: B018

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal, assert_type

import sgl


@dataclass
class Invoice:
    number: str
    total: float | None = None


def positive(invoice: Invoice) -> None:
    if invoice.total is not None and invoice.total <= 0:
        raise ValueError("the total is above 0")


# --- a value of a type
invoice = sgl.extract(Invoice, "A-7: 80 EUR", instructions="Amounts are in euros.", retries=2, validate=positive)
assert_type(invoice, Invoice)
assert_type(sgl.extract(list[Invoice], "A-7: 80 EUR", backend=sgl.Engine(), seed=3, timeout=5), list[Invoice])
assert_type(sgl.extract(int, "80"), int)
assert_type(sgl.extract(Literal["a", "b"], "b"), Any)
invoice.totl  # error
sgl.extract(Invoice, "A-7: 80 EUR", retrys=2)  # error
sgl.extract(Invoice, "A-7: 80 EUR", retries="2")  # error
sgl.extract(Invoice, 7)  # error
sgl.extract(Invoice)  # error

# --- details
found = sgl.extract(Invoice, "A-7: 80 EUR", details=True, examples=[("Nothing.", Invoice("?"))])
assert_type(found, sgl.Extraction[Invoice])
assert_type(found.value.total, float | None)
assert_type(found.spans, dict[str, list[sgl.Span]])
if found.confidence is not None:
    assert_type(found.confidence["total"].whole, float)
    print(found.confidence["total"].hole)  # error
found.value.numbr  # error

# --- many
assert_type(sgl.extract.batch(Invoice, ["a", "b"], progress_bar=True, journal="invoices.journal"), list[Invoice])
assert_type(sgl.extract.batch(Invoice, ["a"], details=True)[0].value, Invoice)
assert_type(asyncio.run(sgl.extract.arun(Invoice, "a")), Invoice)
assert_type(asyncio.run(sgl.extract.abatch(Invoice, ["a"], num_threads=4)), list[Invoice])
sgl.extract.batch(Invoice, ["a"], progres_bar=True)  # error
sgl.extract.batch(Invoice, ["a"])[0].numbr  # error

# --- labels
label = sgl.classify("The room was dirty.", {"good": "praise", "bad": "a complaint"})
assert_type(label.confidence, float)
label.lable  # error


# --- an agent
@sgl.function
def agent(s: sgl.State, question: str) -> str | None:
    s += sgl.system("Be brief.") + sgl.user(question) + sgl.assistant(number := sgl.gen("number", int))
    assert_type(s.get(number), int)
    return s.text() if s.get(number) else None


assert_type(agent.run("How many?").ret_value, str | None)
agent.run(3)  # error
agent.run("How many?").ret_value.upper()  # error


@sgl.function
def shots(s: sgl.State, text: str) -> Invoice:
    s += sgl.examples([("A-7: 80 EUR", Invoice("A-7", 80))], Invoice) + sgl.user(text)
    s += sgl.examples(["A-7: 80 EUR"])  # error
    s += sgl.assistant(read := sgl.gen("invoice", Invoice))
    return s.get(read)
