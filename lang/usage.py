"""What a node, a run or a batch has used, and how much it may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import BadValueError


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts and time. Usages of several nodes add up with `+` or `Usage.total`.

    prompt_tokens: all tokens before what was generated, counted anew for each operation.
    cached_tokens: of those, the ones whose computation was reused; computed_tokens: the others.
    forced_tokens: of the generated ones, those that a grammar left no choice for.
    operations: gens and selects that ran. seconds: from appending a node to its result; added up, so that
    nodes that run at the same time count each for itself.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    forced_tokens: int = 0
    generated_tokens: int = 0
    operations: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, meta_info: Mapping[str, Any], seconds: float) -> Usage:
        """Of one operation, from its meta_info (what the backend does not tell counts as 0)."""
        prompt, cached = meta_info.get("prompt_tokens") or 0, meta_info.get("cached_tokens") or 0
        return cls(
            prompt,
            cached,
            max(0, prompt - cached),
            meta_info.get("forced_tokens") or 0,
            meta_info.get("completion_tokens") or 0,
            1,
            seconds,
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
        )

    def __str__(self) -> str:
        return (
            f"{self.operations} operations, {self.prompt_tokens} prompt tokens ({self.cached_tokens} cached, "
            f"{self.computed_tokens} computed), {self.generated_tokens} generated ({self.forced_tokens} "
            f"forced), {self.seconds:.2f} s in operations"
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
