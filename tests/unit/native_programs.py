"""A program whose texts are known, and requests, for the tests of the native protocol."""

from __future__ import annotations

from typing import Any

from api_toy import write

import sgl
from sgl.lang.backend import GenRequest
from sgl.lang.sampling.options import DEFAULTS, make_options


@sgl.function
def two_gens(s: Any, question: str) -> None:
    s += "Q: " + question + "\nA: "
    s += sgl.gen("a", max_tokens=12, stop="\n")
    s += " So: "
    s += sgl.gen("b", max_tokens=5)


def expected(question: str) -> tuple[str, str, str]:
    """(a, b, whole text) of `two_gens`, straight from the toy model."""
    start = f"Q: {question}\nA: "
    a = write(start, 12, ["\n"]).text
    b = write(start + a + " So: ", 5).text
    return a, b, start + a + " So: " + b


def options(**given: Any) -> GenRequest:
    return GenRequest(make_options(**given).over(DEFAULTS))
