"""How families of models describe and call tools: the base of all formats, and the table that finds them."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from sgl.runtime.dialects import DIALECTS, Dialect, DialectToolCall, dialect_named, known_name
from sgl.runtime.dialects import Tool as Described
from sgl.runtime.dialects.tool_call_grammars import tag
from sgl.runtime.text.chat_templates.quoted_text import PRIVATE, QuotedText, quoted

from ..errors import BadValueError, nearest
from ..nodes.ir import SglConstantText, SglExpr
from .python_tool import Tool
from .tool_calls import ToolCall, ToolCalls, numbered

if TYPE_CHECKING:
    from ..backend import Backend
    from .tool_nodes import SglToolCall

__all__ = ["DialectFormat", "ToolFormat", "choose_format", "format_named", "register_format", "tag"]

log = logging.getLogger("sgl.lang")
Values = TypeVar("Values")
HARMLESS = re.compile(r"[\w\s.,;:!?'\"()#$/-]*")  # of such characters no tokenizer makes marks of turns


class ToolFormat(ABC):
    """One way to write tools. `parse(render(text, calls))` gives the same calls."""

    name: str

    @abstractmethod
    def describe(self, tools: Sequence[Tool]) -> str:
        """What the system turn says of the tools."""

    @abstractmethod
    def grammar(self, tools: Sequence[Tool], choice: str) -> str | None:
        """The structural tag of a step: free text or calls for "auto", else calls alone, one of a named tool.

        None if a step is not a single text; then `nodes` says what it is.
        """

    @abstractmethod
    def parse(self, text: str, names: Collection[str] = ()) -> ToolCalls:
        """The calls in any text. Raises nothing and loses nothing: what is not a call stays in `text`.

        `names` are those of the tools, given as a mapping to the schemas of their parameters.
        """

    @abstractmethod
    def render(self, text: str, calls: Sequence[ToolCall]) -> str:
        """The text of a step: what is said, then the calls."""

    def past(self, text: str, calls: Sequence[ToolCall]) -> list[SglExpr]:
        """The nodes of a step that was made before, inside its turn; they may end that turn and begin further ones."""
        return [as_written(self.render(text, calls))]

    def nodes(self, call: SglToolCall, backend: Backend) -> list[SglExpr] | None:
        """The nodes of a step that is more than one gen, None for one that is one gen."""
        return None


def as_written(text: str) -> SglConstantText:
    """What a format wrote, as a node: its marks are meant, but where it quotes values itself."""
    return SglConstantText(text if isinstance(text, QuotedText) else QuotedText(text))


class DialectFormat(ToolFormat):
    """The format of a dialect that the runtime knows."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.name = dialect.name

    def describe(self, tools: Sequence[Tool]) -> str:
        return written([_parts(tool.plain) for tool in tools], self._describe)

    def _describe(self, tools: list[tuple[Any, ...]]) -> str:
        return self.dialect.describe([Described(*parts) for parts in tools])

    def grammar(self, tools: Sequence[Tool], choice: str) -> str | None:
        return self.dialect.grammar([tool.plain for tool in tools], choice)

    def parse(self, text: str, names: Collection[str] = ()) -> ToolCalls:
        return numbered(*self.dialect.parse(text, names))

    def render(self, text: str, calls: Sequence[ToolCall]) -> str:
        made = written([(call.name, call.arguments, call.id) for call in calls], partial(self._write, text))
        return quoted(text, own=True) + made.ending(len(made) - len(text)) if made.startswith(text) else made

    def _write(self, text: str, calls: list[tuple[Any, ...]]) -> str:
        return self.dialect.write(text, [DialectToolCall(*parts) for parts in calls])


def _parts(tool: Described) -> tuple[Any, ...]:
    return tool.name, tool.description, tool.parameters


_KNOWN = tuple(DIALECTS)
_MADE: dict[str, Callable[[], ToolFormat]] = {}
_TEMPLATES = {
    "qwen": "hermes",
    "qwen2-vl": "hermes",
    "llama-3-instruct": "llama",
    "llama-3-instruct-llava": "llama",
    "llama-4": "pythonic",
    "mistral": "mistral",
}


def register_format(name: str, make: Callable[[], ToolFormat]) -> None:
    """Make a format of your own known by its name."""
    _MADE[name] = make


def format_named(name: str) -> ToolFormat:
    """The format of that name. Raises BadValueError."""
    if name in _MADE:
        return _MADE[name]()
    if name not in _KNOWN:
        raise BadValueError(f"there is no tool format {name!r}; {nearest(name, {*_MADE, *_KNOWN})}")
    return _known("hermes" if name == "qwen" else name)


@lru_cache(maxsize=16)
def _known(name: str) -> ToolFormat:
    return DialectFormat(dialect_named(name))


def choose_format(backend: Backend) -> ToolFormat:
    """The format of the backend's model, by its name, else by its chat template, else hermes with a note."""
    return format_named(_name_for(backend.get_model_name(), backend.get_chat_template().name))


@lru_cache(maxsize=256)
def _name_for(model: str, template: str) -> str:
    found = known_name(model) or _TEMPLATES.get(template)
    if found is None:
        log.warning(
            "the format in which %s calls tools is not known: hermes is used (<tool_call>{...}</tool_call>); "
            'choose with sgl.tools([...], format="llama"), one of %s',
            model,
            ", ".join(_KNOWN),
        )
    return found or "hermes"


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
