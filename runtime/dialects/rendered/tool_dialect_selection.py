"""The dialect of a template: the one that writes and reads calls as the template writes them, known by name or made of
its marks.
"""

from __future__ import annotations

import copy
import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sgl.grammars.structural.parameter_styles import ParameterStyle

from ..families.tagged_json_tool_dialects import HermesToolDialect, LlamaToolDialect, TaggedJsonToolDialect
from ..framed_tool_dialect import FramedObjectToolDialect, FramedToolDialect
from ..parsing.framed_tool_call_parser import JSON, style_marks
from ..reasoning_marks import ReasoningMarks
from ..tool_dialect import Dialect
from ..tool_types import DialectToolCall
from .chat_template_probe import BARE, CALL, FIRST, OTHER, SAID, TOOLS, TemplateProbe, text_after_call
from .common_affixes import squeezed
from .template_call_frames import frame_dialect_of

_PIECES = re.compile(r"<[^<>\s]*>|\[[^\[\]\s]*[\[\]]|.")
_SUFFIX = re.compile(r"<tool_calls(:[\w.-]+)>")
_NAMES: Mapping[str, Any] = {tool.name: tool.parameters for tool in TOOLS}
_CALLS = {"one": [CALL], "said": [CALL], "bare": [BARE], "two": [CALL, OTHER]}
WHOLE, NAMED, MARKED = "calls", "names of calls", "marks"
TEMPLATE = "template"  # the name of a dialect that is known by its template alone


class DialectChoice(NamedTuple):
    """`seen`: what of the calls that the template wrote the dialect explains: all, their names, or only their marks."""

    dialect: Dialect
    seen: str


def choose_dialect(probe: TemplateProbe, known: Iterable[Dialect]) -> DialectChoice | None:
    """None where the template writes no calls, or calls that no dialect explains."""
    if not probe.calls:
        return None
    tries = [*known, *(other for dialect in known for other in _suffixed(dialect, probe))]
    found = _whole(probe, tries)
    if found is not None:
        return DialectChoice(_single(found, probe), WHOLE)
    named = [dialect for dialect in tries if _names_of(dialect, probe) and not _left(dialect, probe)]
    if named:
        return DialectChoice(_single(max(named, key=_length), probe), NAMED)
    marked = [dialect for dialect in tries if _marks_of(dialect, probe)]
    return DialectChoice(_single(max(marked, key=_length), probe), MARKED) if marked else None


def _whole(probe: TemplateProbe, tries: list[Dialect]) -> Dialect | None:
    """The best of the known dialects that read the calls, and of one that is made of their marks."""
    made = [
        dialect for dialect in frame_dialect_of(probe, TEMPLATE) if _reads(dialect, probe) and _writes(dialect, probe)
    ][:1]
    reading = [dialect for dialect in tries if _reads(dialect, probe)]
    if not reading and not made:
        return None
    return _fitted(max([*reading, *made], key=lambda dialect: _rank(dialect, probe)), probe)


def _rank(dialect: Dialect, probe: TemplateProbe) -> tuple[bool, bool, bool, bool, float]:
    """Special forms first, then those that explain all of the text; of these, known ones, then white space."""
    own = not isinstance(dialect, FramedToolDialect | TaggedJsonToolDialect) or type(dialect) not in (
        FramedToolDialect,
        FramedObjectToolDialect,
        HermesToolDialect,
        LlamaToolDialect,
    )
    known, writes = dialect.name != TEMPLATE, _writes(dialect, probe)
    text = next(text for text, _ in _answers(probe))
    like = difflib.SequenceMatcher(None, squeezed(_spelled(dialect)), squeezed(text), autojunk=False).ratio()
    return own, writes and not _left(dialect, probe), writes and known, _writes(dialect, probe, exactly=True), like


def _fitted(dialect: Dialect, probe: TemplateProbe) -> Dialect:
    """The dialect with white space as the template has it."""
    if not isinstance(dialect, FramedToolDialect | HermesToolDialect) or _writes(dialect, probe, exactly=True):
        return dialect
    for made in frame_dialect_of(probe, dialect.name):
        if (
            _reads(made, probe)
            and _writes(made, probe, exactly=True)
            and squeezed(_spelled(made)) == squeezed(_spelled(dialect))
        ):
            return _as(dialect, made)
    return dialect


def _as(dialect: Dialect, made: FramedToolDialect) -> Dialect:
    """The known dialect, with the white space of another."""
    if isinstance(dialect, TaggedJsonToolDialect):
        other = copy.copy(dialect)
        other.separator, other.around = made.frame.separator, (made.frame.opening, made.frame.end.removeprefix("}"))
        return other
    assert isinstance(dialect, FramedToolDialect)
    if type(dialect) not in (FramedToolDialect, FramedObjectToolDialect):
        return dialect
    kept = dialect.frame
    frame = replace(
        made.frame,
        links=kept.links,
        id_before=kept.id_before,
        also=kept.also,
        style=kept.style,
        pad=kept.pad,
        lead=made.frame.lead,
    )
    return type(dialect)(dialect.name, frame)


def _single(dialect: Dialect, probe: TemplateProbe) -> Dialect:
    found = copy.copy(dialect)
    found.single = probe.single
    return found


# --- what a dialect explains -----------------------------------------------------------------------------------


def _answers(probe: TemplateProbe) -> Iterator[tuple[str, list[DialectToolCall]]]:
    """The answers with calls that the template did write, and the calls."""
    for kind, calls in _CALLS.items():
        text = text_after_call(probe.calls.get(kind, ""))
        lost = FIRST not in text and kind == "said"  # calls are left out where there is text
        if text and not lost and not (kind == "two" and probe.single):
            yield text, calls


def _reads(dialect: Dialect, probe: TemplateProbe) -> bool:
    answers = list(_answers(probe))
    return bool(answers) and all(_same(dialect.parse(text, _NAMES)[1], calls) for text, calls in answers)


def _same(found: list[DialectToolCall], calls: list[DialectToolCall]) -> bool:
    return [(call.name, call.arguments) for call in found] == [(call.name, call.arguments) for call in calls]


def _writes(dialect: Dialect, probe: TemplateProbe, exactly: bool = False) -> bool:
    """Whether the text of the calls stands in the answer with the most; white space may differ unless `exactly`."""
    text, calls = list(_answers(probe))[-1] if not probe.single else next(_answers(probe))
    if (
        isinstance(dialect, FramedToolDialect)
        and dialect.frame.style != JSON
        and style_marks(dialect.frame.style).python
    ):
        calls = calls[-1:]  # lists and objects may stand as Python writes them: they are read so, and written as JSON
    return _within(dialect.write("", calls), text, exactly)


def _within(written: str, text: str, exactly: bool) -> bool:
    return written in text if exactly else squeezed(written) in squeezed(text)


def _left(dialect: Dialect, probe: TemplateProbe) -> bool:
    """Whether more than the end of the turn is left of the texts around the calls."""
    text, base = text_after_call(probe.calls.get("said", "")), text_after_call(probe.base)
    if SAID not in text:
        text, base = text_after_call(probe.calls.get("one", "")), base.replace(SAID, "")
    said, plain = (_PIECES.findall(squeezed(dialect.parse(one, _NAMES)[0])) for one in (text, base))
    start, end, most = 0, 0, min(len(said), len(plain))
    while start < most and said[start] == plain[start]:
        start += 1
    while end < most - start and said[-1 - end] == plain[-1 - end]:
        end += 1
    rest = said[start : len(said) - end]
    ending = set(_PIECES.findall(squeezed(base.rpartition(SAID)[2])))
    rest = list(itertools.takewhile(lambda piece: len(piece) == 1 or piece not in ending, rest))
    return len(rest) > 1 or any(len(piece) == 1 for piece in rest)


def _names_of(dialect: Dialect, probe: TemplateProbe) -> bool:
    """Whether the names of the calls are read where their arguments are not written."""
    return all(
        [call.name for call in dialect.parse(text, _NAMES)[1]] == [call.name for call in calls]
        for text, calls in _answers(probe)
    )


def _marks_of(dialect: Dialect, probe: TemplateProbe) -> bool:
    base = text_after_call(probe.base)
    return any(
        len(mark) > 2 and mark in text and mark not in base
        for mark in dialect.form.marks
        for text, _ in _answers(probe)
    )


def _length(dialect: Dialect) -> int:
    return len(squeezed(_spelled(dialect)))


def _spelled(dialect: Dialect) -> str:
    return dialect.write("", [CALL])


def _suffixed(dialect: Dialect, probe: TemplateProbe) -> Iterator[Dialect]:
    """The dialect with the ending that every mark of this template has (`<tool_calls:opensource>`)."""
    texts = "".join(text for text, _ in _answers(probe))
    for suffix in dict.fromkeys(_SUFFIX.findall(texts)):
        if (
            isinstance(dialect, FramedToolDialect)
            and dialect.form.mark == "<tool_calls>"
            and dialect.frame.style != JSON
        ):
            yield _ending_in(dialect, suffix)


def _ending_in(dialect: FramedToolDialect, suffix: str) -> Dialect:
    def ending(text: str) -> str:
        return re.sub(r"(</?\w+)>", rf"\1{suffix}>", text)

    frame, style = dialect.frame, style_marks(dialect.frame.style)
    marks = ParameterStyle(ending(style.opening), tuple(map(ending, style.naming)), ending(style.closing))
    found = FramedToolDialect(
        dialect.name,
        replace(
            frame,
            opening=ending(frame.opening),
            head=ending(frame.head),
            link=ending(frame.link),
            end=ending(frame.end),
            closing=ending(frame.closing),
            style=marks,
        ),
    )
    return found.thinking(ReasoningMarks(ending("<think>"), ending("</think>")))
