"""What a node, a run or a batch has used, and how much it may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BadValueError


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts and time. Usages of several nodes add up with `+` or `Usage.total`.

    prompt_tokens: all tokens before what was generated, counted anew for each operation.
    cached_tokens: of those, the ones whose computation was reused; computed_tokens: the others.
    forced_tokens: of the generated ones, those that a grammar left no choice for.
    operations: gens and selects that ran. seconds: from appending a node to its result; added up, so that
    nodes that run at the same time count each for itself.
    unknown: which of cached and forced tokens a backend did not tell, as servers of plain protocols; what they count
    is then the least that it can be, 0 if nobody told.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    forced_tokens: int = 0
    generated_tokens: int = 0
    operations: int = 0
    seconds: float = 0.0
    unknown: frozenset[str] = frozenset()

    @classmethod
    def of(cls, meta_info: Mapping[str, Any], seconds: float) -> Usage:
        """Of one operation, from its meta_info (what the backend does not tell counts as 0, and is `unknown`)."""
        prompt, cached = meta_info.get("prompt_tokens") or 0, meta_info.get("cached_tokens") or 0
        among = {"cached_tokens": "prompt_tokens", "forced_tokens": "completion_tokens"}
        unknown = (name for name, whole in among.items() if meta_info.get(whole) and meta_info.get(name) is None)
        return cls(
            prompt,
            cached,
            max(0, prompt - cached),
            meta_info.get("forced_tokens") or 0,
            meta_info.get("completion_tokens") or 0,
            1,
            seconds,
            frozenset(unknown),
        )

    @classmethod
    def total(cls, usages: Iterable[Usage]) -> Usage:
        return sum(usages, cls())

    @property
    def total_tokens(self) -> int:
        """Tokens that cost work: computed and generated ones."""
        return self.computed_tokens + self.generated_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.computed_tokens + other.computed_tokens,
            self.forced_tokens + other.forced_tokens,
            self.generated_tokens + other.generated_tokens,
            self.operations + other.operations,
            self.seconds + other.seconds,
            self.unknown | other.unknown,
        )

    def _told(self, name: str) -> str:
        """A count with how sure it is."""
        count, word = getattr(self, name), name.removesuffix("_tokens")
        if name not in self.unknown:
            return f"{count} {word}"
        return f"at least {count} {word}" if count else f"{word} unknown"

    def __str__(self) -> str:
        computed = "" if "cached_tokens" in self.unknown else f", {self.computed_tokens} computed"
        return (
            f"{self.operations} operations, {self.prompt_tokens} prompt tokens ({self._told('cached_tokens')}{computed}), "
            f"{self.generated_tokens} generated ({self._told('forced_tokens')}), {self.seconds:.2f} s in operations"
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may use; whatever is None is not limited. The run stops soon after a limit is passed.

    tokens: computed and generated ones. generated_tokens: generated ones only. operations: gens and selects.
    """

    tokens: int | None = None
    generated_tokens: int | None = None
    operations: int | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "generated_tokens", "operations"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise BadValueError(f"the budget's {name} is {value!r}; give a whole number from 0, or None")

    def excess(self, usage: Usage) -> str | None:
        """What was passed, as a sentence; None as long as the usage fits."""
        used = {
            "tokens": usage.total_tokens,
            "generated_tokens": usage.generated_tokens,
            "operations": usage.operations,
        }
        for name, value in used.items():
            limit = getattr(self, name)
            if limit is not None and value > limit:
                return f"the run has used {value} {name.replace('_', ' ')}, its budget is {limit}"
        return None
