"""Structural tags of calls, as requests spell them in JSON."""

from __future__ import annotations

import json
from typing import Any

Format = dict[str, Any]


def tag(begin: str, schema: Any, end: str) -> Format:
    """A structural part: a text, JSON of a schema, a text."""
    return {"type": "tag", "begin": begin, "content": {"type": "json_schema", "json_schema": schema}, "end": end}


def const(text: str) -> Format:
    return {"type": "const_string", "value": text}


def sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def several(tags: list[Format], separator: str, once: bool) -> Format:
    """One tag or more, or exactly one."""
    return {
        "type": "tags_with_separator", "tags": tags, "separator": separator, "at_least_one": True, "stop_after_first": once,
    }  # fmt: skip


def triggered(tags: list[Format], triggers: list[str], once: bool) -> Format:
    """Free text in which a trigger begins a tag; with `once` the text ends behind the first."""
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, "stop_after_first": once}


def structural(format: Format) -> str:
    """A format as the structural tag of a gen."""
    return json.dumps({"type": "structural_tag", "format": format}, ensure_ascii=False)
