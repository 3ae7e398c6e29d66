"""What `Engine(speculation=...)` may say, checked by name and by value."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import Any

from ..common.argument_checks import shown
from ..errors import ConfigError

DRAFTERS = ("forced", "states", "suffix", "named")
WORDS = ("auto", "exact")
LONGEST = 64  # tokens that a draft may be asked to have


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """How an engine drafts.

    drafters: what drafts, of DRAFTERS.
    most: tokens of a draft.
    learn: finished texts are remembered, and what followed in the states of their grammars.
    control: a step takes as many draft tokens as are expected to pay; without, all of them.
    exact: the text is that of sampling every token, bit for bit: nothing that a grammar forces is appended without it.
    """

    drafters: tuple[str, ...] = DRAFTERS
    most: int = 16
    learn: bool = True
    control: bool = True
    exact: bool = False


def parse_speculation(value: Any) -> SpeculationOptions | None:
    """None: no drafts. Raises ConfigError naming what it cannot be."""
    if value is False:
        return None
    if isinstance(value, str) and value in WORDS:
        return SpeculationOptions(exact=value == "exact")
    if isinstance(value, dict):
        return _checked(value)
    raise ConfigError(
        f"Engine(speculation={shown(value)}): must be 'auto', 'exact', False or a dict such as {{'most': 8}}"
    )


def _checked(given: dict[Any, Any]) -> SpeculationOptions:
    names = [field.name for field in fields(SpeculationOptions)]
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(names)}"
            raise ConfigError(f"Engine(speculation={{{shown(name)}: ...}}): no such key; {hint}")
    for name in ("learn", "control", "exact"):
        if not isinstance(value := given.get(name, True), bool):
            raise ConfigError(f"Engine(speculation={{{name!r}: {shown(value)}}}): must be True or False")
    most = given.get("most", 16)
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= LONGEST:
        raise ConfigError(f"Engine(speculation={{'most': {shown(most)}}}): must be a whole number from 1 to {LONGEST}")
    return SpeculationOptions(**{**given, "drafters": _drafters(given.get("drafters", DRAFTERS))})


def _drafters(value: Any) -> tuple[str, ...]:
    given = tuple(value) if isinstance(value, list | tuple) else ()
    if not given or any(name not in DRAFTERS for name in given):
        raise ConfigError(
            f"Engine(speculation={{'drafters': {shown(value)}}}): must be a list of {', '.join(DRAFTERS)}, of one at "
            "least"
        )
    return tuple(name for name in DRAFTERS if name in given)
