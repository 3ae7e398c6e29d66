"""Rows of the table of the engine's options, `EngineConfig`: the checks of values and the signature of `Engine`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import field, fields
from typing import Any, Concatenate, NamedTuple, ParamSpec

from ..common.argument_checks import WORD, check_real, check_whole, shown
from ..errors import ConfigError
from ..memory.memory_sizes import parse_memory
from .option_aliases import value_meant

P = ParamSpec("P")
SMALL = 1e-9  # the least part of a share
MUST = {"bool": "True or False", "int": "a positive whole number", "int | str": "a size such as '4GB'"}


class EngineOption(NamedTuple):
    """What is known of an option besides its type, its default and its row in the docstring of `EngineConfig`.

    choices: its words, all of them or, where sizes are also valid, those besides. range: of a number; None: from 1.
    must: what an error says a value must be. hint: what it adds to the range.
    also: its names in vLLM's LLM() and SGLang's Engine().
    """

    choices: tuple[str, ...] = ()
    range: tuple[Any, Any] | None = None
    must: str = ""
    hint: str = ""
    also: tuple[str, ...] = ()

    def check(self, name: str, kind: str, value: Any) -> None:
        """kind: the type, as it is written. Raises ConfigError for a value that cannot be."""
        bare = kind.removesuffix(" | None")
        if value is None and kind != bare:
            return
        if self.range and not self.must:
            check = check_whole if bare == "int" else check_real
            check(f"Engine({name}=...){self.hint}", value, *self.range)
        elif not self._fits(name, bare, value):
            other = value_meant(name, value)
            must = self.must or self._words() or MUST[bare]
            must = "True, False or None" if kind == "bool | None" else must
            raise ConfigError(f"Engine({name}={shown(value)}): must be {must}{f'; {other}' if other else ''}")

    def _words(self) -> str:
        return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}" if self.choices else ""

    def _fits(self, name: str, kind: str, value: Any) -> bool:
        if kind == "str":
            return value in self.choices or not (self.choices or (self.must and not isinstance(value, str)))
        if kind == "int | str":
            return value in self.choices or parse_memory(value, name) >= 0
        if kind == "bool":
            return isinstance(value, bool)
        low, high = self.range or (1, WORD - 1)
        types = {"int": int, "float": int | float}
        return kind not in types or (
            isinstance(value, types[kind]) and not isinstance(value, bool) and low <= value <= high
        )


def option(default: Any, *, choices: str = "", also: str = "", **others: Any) -> Any:
    """The field of an option. choices, also: words with blanks between them. others: of EngineOption."""
    row = EngineOption(tuple(choices.split()), also=tuple(also.split()), **others)
    return field(default=default, metadata={"option": row})


def options_of(config: Any) -> Iterator[tuple[str, str, EngineOption]]:
    """Name, type and row of each option; a field that is written without `option` has an empty row."""
    return ((each.name, str(each.type), each.metadata.get("option", EngineOption())) for each in fields(config))


def takes(arguments: Callable[P, Any]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give an `__init__` that takes any options the signature of a dataclass, for type checkers, editors and help()."""

    def with_signature(function: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        own = next(iter(inspect.signature(function).parameters.values()))
        options = inspect.signature(arguments).parameters.values()
        function.__signature__ = inspect.Signature([own, *options])  # type: ignore[attr-defined]
        return function

    return with_signature
