"""The marks of parameters, read off a call whose arguments are no JSON: a mark, the key, marks, the value, a mark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from sgl.grammars.structural.parameter_styles import ParameterStyle

from ..framed_tool_dialect import json_type
from .common_affixes import common_end

_FAR = 200  # characters between two parts of a call


class RenderedParameters(NamedTuple):
    """`start` and `end`: of all parameters in the text, gaps not counted."""

    style: ParameterStyle
    start: int
    end: int
    gap: str
    pad: str


class _Parameter(NamedTuple):
    key: int
    named: str  # between key and value
    value: Any
    written: str
    end: int


def read_parameters(
    text: str, at: int, arguments: Mapping[str, Any], style: ParameterStyle | None = None
) -> RenderedParameters | None:
    """Those of a call whose name ends at `at`; None where they do not stand there one by one.

    `style`: theirs, where it is known. Without it there must be two or more.
    """
    found: list[_Parameter] = []
    for key, value in arguments.items():
        one = _parameter(text, found[-1].end if found else at, key, value)
        if one is None:
            return None
        found.append(one)
    between = text[found[0].end : found[1].key] if len(found) > 1 else ""
    style = style or _style(
        found,
        [
            text[start:end]
            for start, end in zip([at, *(one.end for one in found)], (one.key for one in found), strict=False)
        ],
    )
    if style is None:
        return None
    last = text.find(style.closing, found[-1].end)
    if last < 0 or text[: found[0].key].endswith(style.opening) is False:
        return None
    gap = between.removesuffix(style.opening)
    return RenderedParameters(
        style,
        found[0].key - len(style.opening),
        last + len(style.closing),
        "\n" * gap.endswith("\n"),
        "\n" * style.padded,
    )


def _parameter(text: str, at: int, key: str, value: Any) -> _Parameter | None:
    place = text.find(key, at, at + _FAR)
    if place < 0:
        return None
    after = place + len(key)
    places = [(text.find(one, after, after + _FAR), one) for one in _spellings(value)]
    start, written = min(((start, one) for start, one in places if start >= 0), default=(-1, ""))
    return None if start < 0 else _Parameter(place, text[after:start], value, written, start + len(written))


def _spellings(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [json.dumps(value), repr(value)]


def _style(found: list[_Parameter], befores: list[str]) -> ParameterStyle | None:
    """The marks that the parameters have in common; `befores` is what stands before each key."""
    common = common_end(*befores)
    opening = common[max(common.rfind("<"), 0) :].lstrip()
    closing = befores[-1].removesuffix(opening).strip()
    texts = {one.named for one in found if isinstance(one.value, str)}
    others = {one.named for one in found if not isinstance(one.value, str)}
    if len(others) > 1:
        others = {one.named.replace(json_type(one.value), "{}") for one in found if not isinstance(one.value, str)}
    if len(found) < 2 or len(texts) != 1 or len(others) > 1 or not opening or not closing:
        return None
    padded = "".join(texts).endswith("\n")
    naming, typed = (tuple(piece for piece in "".join(named).split("\n") if piece) for named in (texts, others))
    python = any(one.written != json.dumps(one.value) for one in found if not isinstance(one.value, str))
    return (
        ParameterStyle(
            opening, naming, closing, typed if typed not in ((), naming) else None, padded=padded, python=python
        )
        if naming
        else None
    )
