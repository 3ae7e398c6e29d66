"""Values in what a dialect writes: its own marks are meant, what the values spell of marks is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from sgl.runtime.text.chat_templates.quoted_text import PRIVATE, QuotedText, quoted

Values = TypeVar("Values")
HARMLESS = re.compile(r"[\w\s.,;:!?'\"()#$/-]*")  # of such characters no tokenizer makes marks of turns


def written(values: Values, write: Callable[[Values], str]) -> QuotedText:
    """What `write` makes of the values, their texts quoted; the text is the same as without that.

    `values` are texts in lists, tuples and mappings at any depth. Each text that may spell a mark is put between two
    private characters, by which it is found again in what was written.
    """
    used = {char for text in _texts(values) if not text.isascii() for char in text}
    begin, end = [char for char in map(chr, PRIVATE) if char not in used][:2]
    plain = write(values)
    try:
        made = write(_mapped(values, lambda text: text if HARMLESS.fullmatch(text) else f"{begin}{text}{end}"))
    except Exception:  # it does more with the texts than write them down
        return quoted(plain)
    passage = _between(made, begin, end)
    return passage if passage == plain else quoted(plain)


def _between(made: str, begin: str, end: str) -> QuotedText:
    """The text without the two characters, quoted from each first to the next second one."""
    text, stretches, start = "", [], 0
    for part in re.split(f"([{begin}{end}])", made):
        if part == begin:
            start = len(text)
        elif part == end:
            stretches.append((start, len(text), False))
        else:
            text += part
    return QuotedText(text, stretches)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, change) for item in value)
    return value
