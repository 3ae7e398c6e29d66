"""A program of nested types, as an editor sees it. Checked by mypy, and by pyright where there is one; never run."""

from __future__ import annotations

from typing import assert_type

from pydantic import BaseModel

import sgl


class Line(BaseModel):
    article: str
    pieces: int
    price: float | None


class Invoice(BaseModel):
    seller: str
    lines: list[Line]


@sgl.function
def read(s: sgl.State, text: str) -> Invoice:
    invoice = sgl.gen("invoice", Invoice, max_tokens=300)
    s += sgl.system("You read invoices.") + sgl.user(text) + sgl.assistant(invoice)
    assert_type(s.get(invoice), Invoice)
    return s.get(invoice)


def totals(texts: list[str]) -> list[float]:
    with sgl.Engine(context=2048, process=True, kv_memory="1GB") as engine:
        states = read.run_batch([(text,) for text in texts], backend=engine, temperature=0)
        assert_type(states, list[sgl.ProgramState[Invoice]])
        return [
            sum(line.pieces * (line.price or 0) for line in state.get("invoice", Invoice).lines) for state in states
        ]


sgl.Engine(contxt=2048)  # type: ignore[call-arg]
sgl.Engine(context="2048")  # type: ignore[arg-type]
read.run(text=3)  # error
print(read.run("an invoice").ret_value.lins)  # error
