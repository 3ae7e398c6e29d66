"""The dialect of a `response_template` (tokenizer_config.json): the checkpoint's own fields, marks and forms of its
answers.

transformers 5.23 reads answers by it (`tokenizer.parse_response`); here the same marks make the grammar of calls, too.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from sgl.grammars.structural.parameter_styles import ParameterStyle

from ..framed_tool_dialect import FramedObjectToolDialect, FramedToolDialect, ToolCallFrame
from ..parsing.framed_tool_call_parser import JSON
from ..parsing.json_tool_call_parser import ARGUMENTS, NAMES
from ..reasoning_marks import ReasoningMarks
from ..tool_dialect import Dialect
from ..tool_types import DialectToolCall
from .common_affixes import squeezed

THOUGHTS, CALLS, SAID = ("thinking", "reasoning_content", "reasoning"), "tool_calls", "content"
_KNOWN = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_FIELD = {
    "open",
    "open_pattern",
    "close",
    "close_pattern",
    "content",
    "content_args",
    "repeats",
    "join",
    "optional",
    "transform",
    "transform_each",
}
_EXAMPLE = DialectToolCall("name", {"key": "value", "other": 3})
_PLACE = re.compile(r"\{(\w+(?:\.\w+)*)\}")
# not in the stubs: mypy says so with a cold cache and not with a warm one, or the other way round
parser: Any = import_module("re._parser")
kinds: Any = import_module("re._constants")
LONGEST = 1000


class TemplateNotUnderstood(Exception):
    """A part of a response_template that no dialect can be made of."""


def response_template_dialect(dialect: Dialect, given: Any, known: Iterable[Dialect] = ()) -> Dialect:
    """The dialect that a response_template describes.

    `dialect` was found by other means: where it writes calls as the response_template says, it is the one, since that
    leaves open how white space stands. So it is where a part is not understood, and then its `note` says which. `known`
    are those of which one is taken where the response_template names a form that only one of them has.
    """
    try:
        fields = _fields(given)
        found = _calls(fields[CALLS], dialect, known) if CALLS in fields else dialect
        marks = _thoughts(fields)
    except (TemplateNotUnderstood, NotLiteralPattern) as error:
        return _noted(
            dialect,
            f"response_template of tokenizer_config.json: {error}; calls and thoughts are read as its chat template "
            "writes them",
        )
    found = _noted(found, "")
    found.single = dialect.single
    return found.thinking(_opened(marks, dialect.reasoning) if marks else dialect.reasoning)


def _noted(dialect: Dialect, note: str) -> Dialect:
    found = copy.copy(dialect)
    found.note = note
    return found


def _opened(marks: ReasoningMarks, before: ReasoningMarks | None) -> ReasoningMarks:
    """With what the chat template shows of the same marks: whether it begins the thought itself, and what stands around
    all else.
    """
    if before is not None and (before.begin, before.end) == (marks.begin, marks.end):
        return before._replace(silent=tuple(dict.fromkeys((*before.silent, *marks.silent))))
    return marks._replace(open=not marks.begin)


def _fields(given: Any) -> dict[str, Mapping[str, Any]]:
    if not isinstance(given, Mapping) or not isinstance(given.get("fields"), Mapping):
        raise TemplateNotUnderstood("it has no fields")
    if given.get("version", 1) != 1 or given.keys() - _KNOWN:
        raise TemplateNotUnderstood(
            f"version {given.get('version', 1)!r} with {sorted(given.keys() - _KNOWN)} is not known"
        )
    for name, field in given["fields"].items():
        if not isinstance(field, Mapping) or field.keys() - _FIELD:
            raise TemplateNotUnderstood(f"the field {name!r} is {field!r:.200}, which is not known")
    return dict(given["fields"])


# --- thoughts --------------------------------------------------------------------------------------------------


def _thoughts(fields: Mapping[str, Mapping[str, Any]]) -> ReasoningMarks | None:
    field = next((fields[name] for name in THOUGHTS if name in fields), None)
    if field is None:
        return None
    begin, end = _literal(field, "open"), _literal(field, "close")
    if not end:
        raise TemplateNotUnderstood("thoughts without a mark after them are not known")
    said = fields.get(SAID, {})
    around = (_literal(said, "open"), _literal(said, "close")) if _literal(said, "open") else ()
    return ReasoningMarks(begin, end, silent=tuple(mark for mark in around if mark.strip()))


def _literal(field: Mapping[str, Any], which: str) -> str:
    """The first text of an anchor; empty where the field has none."""
    found = list(_anchors(field, which))
    if not found:
        return ""
    (text, *more) = found[0]
    if any(more):
        raise TemplateNotUnderstood(f"{which}_pattern {field.get(f'{which}_pattern')!r:.200} is no plain text")
    return text


def _anchors(field: Mapping[str, Any], which: str) -> Iterator[list[str]]:
    """The pieces of each form of an anchor: texts at even places, names of groups at odd ones."""
    given, pattern = field.get(which), field.get(f"{which}_pattern")
    if isinstance(pattern, str):
        yield pieces_of(pattern)
    for text in [given] if isinstance(given, str) else given or ():
        yield [str(text)]


# --- calls -----------------------------------------------------------------------------------------------------


class _Shape(NamedTuple):
    """Where a call's name and arguments come from: a group of the mark (no dot), or a member of the content; "content":
    all of it.
    """

    name: str
    arguments: str


def _calls(field: Mapping[str, Any], dialect: Dialect, known: Iterable[Dialect]) -> Dialect:
    openings, close = list(_anchors(field, "open")), _literal(field, "close")
    if not openings:
        raise TemplateNotUnderstood("calls without a mark before them are not known")
    if any(_agrees(dialect, opening, close) for opening in openings):
        return dialect
    try:
        return _call(openings[0], close, _shape(field), field)
    except TemplateNotUnderstood:
        found = next((one for one in known if _agrees(one, openings[0], close)), None)
        if found is None:
            raise
        return found


def _agrees(dialect: Dialect, opening: list[str], close: str) -> bool:
    """Whether the dialect's calls begin and end with these marks."""
    written, at = squeezed(dialect.write("", [_EXAMPLE])), 0
    for place, text in enumerate(_texts(opening)):
        start = written.find(text, at)
        if start < 0 or (place == 0 and start):
            return False
        at = start + len(text)
    return written.endswith(squeezed(close))


def _texts(opening: list[str]) -> list[str]:
    """The texts of a mark with the example's name in it, between which any text may stand."""
    found = [""]
    for place, piece in enumerate(opening):
        if place % 2 and piece != "name":
            found.append("")
        else:
            found[-1] += squeezed(_EXAMPLE.name if place % 2 else piece)
    return found


def _shape(field: Mapping[str, Any]) -> _Shape:
    transform = field.get("transform", {"type": "function", "function": "{content}"})
    about = transform.get("function") if isinstance(transform, Mapping) else None
    listed = bool(field.get("transform_each"))
    if about == "{content}":
        return _Shape("content.name", "content.arguments")
    given = (
        [_PLACE.fullmatch(str(about.get(key))) for key in ("name", "arguments")]
        if isinstance(about, Mapping)
        else [None]
    )
    if not all(given):
        raise TemplateNotUnderstood(f"the transform of its calls is {transform!r:.200}, which is not known")
    name, arguments = (found[1] for found in given if found)
    return _Shape(*(f"content.{one}" if listed and "." not in one else one for one in (name, arguments)))


def _call(opening: list[str], close: str, shape: _Shape, field: Mapping[str, Any]) -> FramedToolDialect:
    content, arguments = field.get("content", "text"), field.get("content_args") or {}
    if content == "json" and not arguments and len(opening) == 1 and shape.name.startswith("content."):
        return _object(opening[0], close, shape, bool(field.get("transform_each")))
    if len(opening) != 3 or opening[1] != shape.name or shape.arguments != "content":
        raise TemplateNotUnderstood(f"calls with the marks {opening!r:.200} and {content!r} between them are not known")
    if not isinstance(arguments, Mapping):
        raise TemplateNotUnderstood(f"the content_args {arguments!r:.200} are not known")
    if content == "json" and not arguments:
        return FramedToolDialect("response_template", ToolCallFrame(opening[0], opening[2], close, style=JSON))
    if content == "xml-inline" and isinstance(arguments.get("tag_pattern"), str):
        return FramedToolDialect(
            "response_template", ToolCallFrame(opening[0], opening[2], close, style=_style(arguments["tag_pattern"]))
        )
    raise TemplateNotUnderstood(f"calls of {content!r} with {arguments!r:.200} are not known")


def _object(opening: str, close: str, shape: _Shape, listed: bool) -> FramedToolDialect:
    name, arguments = (one.removeprefix("content.") for one in shape)
    head, link = f'{{"{name}": "', f'", "{arguments}": '
    line = "" if opening.endswith("|>") else "\n"
    frame = ToolCallFrame(f"{opening}{line}", link, f"}}{line}{close}", head, separator=line)
    if listed:
        frame = ToolCallFrame(f"{opening}[", link, "}", head, f"]{close}", ", ")
    kind = FramedObjectToolDialect if name in NAMES and arguments in ARGUMENTS else FramedToolDialect
    return kind("response_template", frame)


def _style(pattern: str) -> ParameterStyle:
    pieces = pieces_of(pattern)
    if len(pieces) != 5 or pieces[1::2] != ["key", "value"] or not pieces[0] or not pieces[2] or not pieces[4]:
        raise TemplateNotUnderstood(f"the tag_pattern {pattern!r:.200} is not known")
    return ParameterStyle(pieces[0], (pieces[2],), pieces[4], padded=True)


class NotLiteralPattern(Exception):
    """An expression that may stand for many texts outside of its groups."""


def pieces_of(pattern: str) -> list[str]:
    """Texts at even places; at odd ones the names of groups, or empty for any text (`.*?`, `[^<]*`).

    What may be left out counts as left out, of alternatives the longest counts; any text at the beginning says nothing.

    Raises:
        NotLiteralPattern: it is more than that, longer than any known, or no expression.
    """
    if len(pattern) > LONGEST:
        raise NotLiteralPattern(f"a pattern of {len(pattern)} characters is not read")
    try:
        parsed = parser.parse(pattern, re.DOTALL)
        found = _Pieces({number: name for name, number in parsed.state.groupdict.items()}).of(parsed)
    except (re.error, RecursionError, OverflowError) as error:
        raise NotLiteralPattern(f"the pattern {pattern!r:.200} is no regular expression: {error}") from None
    except NotLiteralPattern:
        raise NotLiteralPattern(f"the pattern {pattern!r:.200} is no plain text with named groups") from None
    return found[2:] if found[:2] == ["", ""] else found


class _Pieces:
    def __init__(self, names: dict[int, str]) -> None:
        self._names = names

    def of(self, parsed: Any) -> list[str]:
        found = [""]
        for kind, value in parsed:
            first, *more = self._one(kind, value)
            found[-1] += first
            found += more
        return found

    def _one(self, kind: Any, value: Any) -> list[str]:
        if kind is kinds.LITERAL:
            return [chr(value)]
        if kind is kinds.AT:
            return [""]
        if kind is kinds.SUBPATTERN:
            return ["", self._names[value[0]], ""] if value[0] in self._names else self.of(value[3])
        if kind is kinds.BRANCH:
            return max((self.of(branch) for branch in value[1]), key=lambda pieces: len("".join(pieces)))
        if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT) and value[0] == 0:
            return ["", "", ""] if _is_free(value[1], value[2]) else [""]
        raise NotLiteralPattern


def _is_free(most: Any, repeated: Any) -> bool:
    """Whether it is any number of characters that are not only white space."""
    ((kind, value), *more) = repeated
    negated = kind is kinds.IN and value[0][0] is kinds.NEGATE
    return most is kinds.MAXREPEAT and not more and (kind is kinds.ANY or negated)
