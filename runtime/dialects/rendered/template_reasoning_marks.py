"""The marks around a model's thoughts and around what it says, read off an answer with a thought in it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..reasoning_marks import ReasoningMarks
from .chat_template_probe import SAID, THOUGHT, TemplateProbe, text_after_call
from .common_affixes import common_begin

_MARK = re.compile(r"<\|?[^<>\s|]+(?:\|[^<>|]+)*\|?>|\[/?[A-Z][A-Z _]*\]|◁[^◁▷]+▷")
_PAIRS = (("START", "END"), ("BEGIN", "END"), ("<|open|>", "<|close|>"), ("<", "</"))


def reasoning_marks_of(probe: TemplateProbe, known: Iterable[ReasoningMarks]) -> ReasoningMarks | None:
    """Those that the template writes around a thought; None where it writes none, or none that tell it from what is
    said.
    """
    before, _, rest = text_after_call(probe.thought).partition(THOUGHT)
    if not rest:
        return None
    for marks in known:
        if before.rstrip().endswith(marks.begin.rstrip()) and rest.lstrip().startswith(marks.end):
            return _opened(marks._replace(silent=(*marks.silent, *_silent(probe, rest, marks))), probe)
    end = _MARK.match(rest.lstrip())
    if end is None:
        return None
    marks = ReasoningMarks(_begin(before, end[0], probe) or _prompted(probe), end[0])
    return _opened(marks._replace(silent=_silent(probe, rest, marks)), probe)


def opened(mark: str, probe: TemplateProbe) -> bool:
    """Whether the template begins every answer with the mark."""
    asked = [text for text in probe.generation_prompt if text]
    return bool(asked) and any(text.rstrip().endswith(mark.rstrip()) for text in asked[:1] if mark)


def _opened(marks: ReasoningMarks, probe: TemplateProbe) -> ReasoningMarks:
    return marks._replace(open=not marks.begin or opened(marks.begin, probe))


def _begin(before: str, end: str, probe: TemplateProbe) -> str:
    """The mark before a thought: one that `end` belongs to, or one that an answer without a thought does not have
    there.
    """
    found = list(_MARK.finditer(before))
    if not found or before[found[-1].end() :].strip():
        return ""
    common = len(common_begin(before, text_after_call(probe.thought_base)))
    last = found[-1]
    return last[0] if end in _closers(last[0]) or last.end() > common else ""


def _prompted(probe: TemplateProbe) -> str:
    """What prompts have after the header of an answer, where they begin its thought in words."""
    asked, header = (
        text_after_call(next(iter(probe.generation_prompt), "")),
        text_after_call(probe.base).partition(SAID)[0],
    )
    return asked[len(header) :].strip() if asked.startswith(header) else ""


def _header(between: str, probe: TemplateProbe) -> str:
    """The header of another turn of the assistant, with which `between` begins."""
    asked = text_after_call(next(iter(probe.generation_prompt), "")).rstrip()
    sizes = range(min(len(asked), len(between)), 3, -1)
    return next((between[:size] for size in sizes if asked.endswith(between[:size])), "")


def _closers(mark: str) -> list[str]:
    """What may close a mark."""
    found = [mark.replace(one, other, 1) for one, other in _PAIRS if one in mark]
    return [one for one in (*found, mark.replace("[", "[/", 1)) if one != mark]


def _silent(probe: TemplateProbe, rest: str, marks: ReasoningMarks) -> tuple[str, ...]:
    """Marks around the text, after the end of the thought."""
    between, said, after = rest.lstrip().removeprefix(marks.end).partition(SAID)
    if not said or not between.strip():
        return ()
    for mark in marks.silent:
        between = between.replace(mark, "")
    found = [header] if (header := _header(between, probe)) else []
    between = between.removeprefix("".join(found))
    for mark in _MARK.findall(between):
        found += [mark, *[closer for closer in _closers(mark) if closer in after][:1]]
    return tuple(one for one in found if one not in marks.silent)
