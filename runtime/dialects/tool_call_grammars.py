"""Structural tags of calls, as requests spell them in JSON."""

from __future__ import annotations

import json
from typing import Any

from .reasoning_marks import ReasoningMarks

Format = dict[str, Any]


def tag(begin: str, schema: Any, end: str, style: str | Format = "json") -> Format:
    """A structural part: a text, JSON of a schema (or its properties in another style, see `style_of`), a text."""
    content: Format = {"type": "json_schema", "json_schema": schema}
    if style != "json":
        content["style"] = style
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def const(text: str) -> Format:
    return {"type": "const_string", "value": text}


def sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def several(tags: list[Format], separator: str, once: bool) -> Format:
    """One tag or more, or exactly one."""
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": once,
    }


def triggered(tags: list[Format], triggers: list[str], once: bool) -> Format:
    """Free text in which a trigger begins a tag; with `once` the text ends after the first."""
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, "stop_after_first": once}


def members(named: list[tuple[Format, bool]], separator: str) -> list[Format]:
    """Members in order, of which those that need not be there may be left out; nothing where there are none."""

    def later(value: Format, must: bool) -> Format:
        more = sequence(const(separator), value)
        return more if must else {"type": "optional", "content": more}

    firsts: list[Format] = []
    for i, (value, must) in enumerate(named):
        firsts.append(sequence(value, *(later(*one) for one in named[i + 1 :])))
        if must:
            break
    one: Format = {"type": "or", "elements": firsts}
    return [one if any(must for _, must in named) else {"type": "optional", "content": one}] if firsts else []


def structural(format: Format) -> str:
    """A format as the structural tag of a gen."""
    return json.dumps({"type": "structural_tag", "format": format}, ensure_ascii=False)


def thinking_first(source: str, marks: ReasoningMarks | None) -> str:
    """The structural tag of free text with calls, where a thought may come first in which nothing is a call."""
    if marks is None or not marks.begin.strip() or marks.silent:
        return source
    free: Format = json.loads(source)["format"]
    thought: Format = {"type": "tag", "begin": marks.begin, "content": {"type": "any_text"}, "end": marks.end}
    return structural({"type": "or", "elements": [sequence(thought, free), free]})
