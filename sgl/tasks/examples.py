"""Examples in prompts: what a user might say, and the right answer to it, as turns."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sgl.lang.errors import BadValueError, shown
from sgl.lang.nodes.ir import SglExprList
from sgl.lang.nodes.primitives import assistant, user
from sgl.lang.typed.typed_text_writing import text_of_value


def examples(pairs: Iterable[tuple[str, Any]], type: Any = None) -> SglExprList:
    """Pairs of a text and its right answer, as turns of the user and the assistant: an expression for the prompt.

        s += sgl.system(sgl.fields(Invoice))
        s += sgl.examples([("2 chairs, 80 EUR", Invoice(total=80)), ("Hello!", Invoice())])
        s += sgl.user(text)
        s += sgl.assistant(sgl.gen("invoice", Invoice))

    An answer is written as a gen of its type would write it: a text as it is, a member of an Enum as its value, an
    object as JSON. Its copied fields (`sgl.Quote`) are pieces of the text. `type`: the type of the answers, by default
    the class of each; a text that it reads is taken too.
    Raises BadValueError for what is no such pair, and for an answer that its type does not allow.
    """
    turns: list[Any] = []
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)):
            raise BadValueError(f"examples: {shown(pair)} is no example; give pairs of a text and its answer")
        turns += [user(pair[0]), assistant(_answer(*pair, type))]
    return SglExprList(turns)


def _answer(text: str, value: Any, type: Any) -> str:
    if type is not None:
        return text_of_value(type, value, text)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return value if isinstance(value, str) else text_of_value(value.__class__, value, text)
