"""The independent engines, and which kinds of grammars each reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sgl.grammars.second_opinion.lark_earley import earley_recogniser
from sgl.grammars.second_opinion.outlines_index import index_recogniser, schema_recogniser
from sgl.grammars.second_opinion.regex_engines import automaton_recogniser, re_recogniser

Recogniser = Callable[[str], bool]  # whether a text is accepted; raises NoVerdictError


def _of_choices(regex: Callable[[str], Recogniser]) -> Callable[[tuple[str, ...]], Recogniser]:
    return lambda choices: regex("|".join(map(re.escape, choices)))


def _regexes(regex: Callable[[str], Recogniser]) -> dict[str, Callable[[Any], Recogniser]]:
    return {"regex": regex, "choices": _of_choices(regex)}


ENGINES: dict[str, dict[str, Callable[[Any], Recogniser]]] = {  # by the kind and the source of a recipe
    "lark": {"ebnf": lambda source: earley_recogniser(*source)},
    "re": _regexes(re_recogniser),
    "interegular": _regexes(automaton_recogniser),
    "outlines-core": {**_regexes(index_recogniser), "JSON schema": lambda source: schema_recogniser(*source)},
}
