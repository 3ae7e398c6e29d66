"""The frame of a template's calls, read off its renderings: the texts before and after a name, around arguments and
between calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sgl.grammars.structural.parameter_styles import ParameterStyle

from ..framed_tool_dialect import FramedObjectToolDialect, FramedToolDialect, ToolCallFrame, json_type
from ..parsing.framed_tool_call_parser import ID, JSON, NUMBER
from .chat_template_probe import ARGUMENTS, FIRST, IDS, OTHER, SAID, SECOND, TemplateProbe, text_after_call
from .common_affixes import common_begin, common_end

_OBJECT = re.compile(r'\{\s*"(?:name|tool_name)":\s*"\Z')
_ARGUMENTS = re.compile(r'",\s*"(?:arguments|parameters)":\s*\Z')
_EDGES = re.compile(r"[<\[{>\]}\n]")
_MARKS = re.compile(r"<[^<>\s]*>")
_BEGINS = re.compile(r"[<\[{\n]")  # where a mark may begin
_NAMES = {FIRST: (ARGUMENTS, 0), SECOND: (OTHER.arguments, 1)}
_FAR = 200  # characters between two parts of a call


class RenderedCall(NamedTuple):
    """One call in a text: what stands between its name and its arguments, where it begins and ends, how arguments are
    written.
    """

    link: str
    start: int
    end: int
    style: str | ParameterStyle
    gap: str = ""
    pad: str = ""


def frame_dialect_of(probe: TemplateProbe, name: str) -> Iterator[FramedToolDialect]:
    """The dialects that may write what the template writes; each is to be tried."""
    for first in (0, 1, None):
        frame = _frame(probe, first)
        if frame is not None and (first is None or NUMBER in frame.head + frame.link):
            yield _objects(name, frame) or FramedToolDialect(name, frame)


def _frame(probe: TemplateProbe, first: int | None) -> ToolCallFrame | None:
    """`first`: the number of the first call, where calls are numbered."""
    header, _, ending = text_after_call(probe.base).partition(SAID)
    said, one = text_after_call(probe.calls.get("said", "")), _body(probe.calls.get("one", ""), header)
    if FIRST in said.rpartition(SAID)[2] and SAID in said:
        one = said.rpartition(SAID)[2]
    found = _written(one, FIRST)
    if found is None:
        return None
    before, tail = one[: found.start], _without(one[found.end :], ending)
    frame = ToolCallFrame(
        _marked(before, 0, first).lstrip(),
        _marked(found.link, 0, first),
        tail,
        style=found.style,
        gap=found.gap,
        pad=found.pad,
        lead=before[: len(before) - len(before.lstrip())] if SAID in said else "",
        first=first or 0,
    )
    return frame if probe.single else _several(frame, _body(probe.calls.get("two", ""), header), ending, first)


def _several(frame: ToolCallFrame, two: str, ending: str, first: int | None) -> ToolCallFrame | None:
    """The frame with what two calls in one message show of it."""
    one, other = _written(two, FIRST), _written(two, SECOND, frame.style)
    if one is None or other is None:
        return None
    between, tail = _marked(two[one.end : other.start], 1, first), _without(two[other.end :], ending)
    head = _shared_head(frame.opening, between)
    own = head == frame.opening
    rest = between[: len(between) - len(head)]
    end = _shared_end(rest, tail)
    if (not end and frame.style != JSON) or (not own and not frame.opening[: len(frame.opening) - len(head)].strip()):
        return None
    if own:
        return replace(frame, end=end, separator=rest[len(end) :])
    opening = frame.opening[: len(frame.opening) - len(head)]
    return replace(
        frame,
        opening=opening,
        head=head,
        end=end,
        separator=rest[len(end) :],
        closing=_closing(opening, tail[len(end) :]),
    )


def _closing(opening: str, rest: str) -> str:
    """What closes all calls: no more marks than there are in what opens them; after them the turn ends."""
    marks = list(_MARKS.finditer(rest))
    most = max(1, len(_MARKS.findall(opening)))
    return rest[: marks[most - 1].end()] if len(marks) > most else rest.rstrip()


def _body(text: str, header: str) -> str:
    """An answer without the header of its turn."""
    answer = text_after_call(text)
    common = common_begin(answer, header)
    if common != header:  # the header goes on in another way: up to the last mark that both have
        common = common[: max([0, *(found.start() + (found[0] in ">]}\n") for found in _EDGES.finditer(common))])]
    return answer[len(common) :]


def _without(tail: str, ending: str) -> str:
    """The text after the last call, without what ends every turn."""
    if ending.strip() and tail.rstrip().endswith(ending.strip()):
        return tail.rstrip()[: -len(ending.strip())].rstrip()
    return tail.rstrip()


def _written(text: str, name: str, style: str | ParameterStyle | None = None) -> RenderedCall | None:
    """The call of that name, if its arguments follow it."""
    arguments, _ = _NAMES[name]
    start = text.find(name)
    if start < 0:
        return None
    at = start + len(name)
    decoder = json.JSONDecoder()
    for place in [found.start() for found in re.finditer("{", text[at : at + 200])][:5]:
        try:
            value, end = decoder.raw_decode(text, at + place)
        except ValueError:
            continue
        if value == arguments:
            return RenderedCall(text[at : at + place], start, end, JSON)
    read = read_parameters(text, at, arguments, style if isinstance(style, ParameterStyle) else None)
    return (
        None if read is None else RenderedCall(text[at : read.start], start, read.end, read.style, read.gap, read.pad)
    )


def _marked(text: str, place: int, first: int | None) -> str:
    """The text with marks in the place of the call's id and of its number."""
    text = text.replace(IDS[place], ID)
    return text if first is None else re.sub(rf"(?<![\w.]){first + place}(?![\w.])", NUMBER, text)


def _shared_head(opening: str, between: str) -> str:
    """What both end with, from where a mark begins; all of `opening` where every call has it."""
    common = common_end(opening, between)
    if common == opening:
        return common
    begins = _BEGINS.search(common)
    return common[begins.start() :].lstrip() if begins else ""


def _shared_end(rest: str, tail: str) -> str:
    """What both begin with, up to where a mark ends."""
    common = common_begin(rest, tail)
    if common not in (rest, tail):
        common = common[: max(common.rfind(char) for char in '>]})"') + 1]
    return common.rstrip()


def _objects(name: str, frame: ToolCallFrame) -> FramedObjectToolDialect | None:
    """The dialect of JSON objects, where name and arguments are members of one."""
    found = _OBJECT.search(frame.opening + frame.head)
    if found is None or not _ARGUMENTS.match(frame.link) or not frame.end.lstrip().startswith("}"):
        return None
    opening = (frame.opening + frame.head)[: found.start()]
    if not opening.strip() or (frame.closing and opening != frame.opening):
        return None
    return FramedObjectToolDialect(name, replace(frame, opening=opening, head=found[0]))


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
