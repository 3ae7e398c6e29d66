"""What a node, a run or a batch has used, and how much it may use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BadValueError
from ..sampling.token_prices import Prices


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts and time. Add the usages of several nodes with `+` or `Usage.total`.

    prompt_tokens: all tokens before the generated ones, counted again for each operation.
    cached_tokens: the prompt tokens that were reused from the cache.
    computed_tokens: the prompt tokens that were computed.
    generated_tokens: the tokens that gens added.
    forced_tokens: the generated tokens that a grammar determined.
    drafted_tokens, accepted_tokens: tokens that the engine drafted, and those of them that it accepted.
    reread_tokens: the computed tokens that another adapter had computed before the state was forked.
    operations: the gens and selects that ran.
    wall_seconds: from appending the first of them to the last result.
    seconds: from appending each of them to its result, summed; operations that run in parallel each count in full.
    computing_seconds: the part of `seconds` in the engine's batch.
    waiting_seconds: the rest of `seconds`: waiting for the text before the operation and for a place in the batch. This
    and computing_seconds are None if the backend did not report them for every operation.
    cost: what the operations cost at the backend's prices, in their currency; None if the backend of one has none.
    unknown: which of cached_tokens and forced_tokens the backend did not report; their counts are then lower bounds.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    forced_tokens: int = 0
    generated_tokens: int = 0
    operations: int = 0
    seconds: float = 0.0
    unknown: frozenset[str] = frozenset()
    computing_seconds: float | None = 0.0
    span: tuple[float, float] | None = None  # first and last moment, of time.perf_counter()
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    reread_tokens: int = 0
    cost: float | None = 0.0

    @classmethod
    def of(
        cls, meta_info: Mapping[str, Any], seconds: float, end: float | None = None, prices: Prices | None = None
    ) -> Usage:
        """The usage of one operation that took `seconds` and ended at `end`, a time of time.perf_counter().

        meta_info: what the backend reports about it. Counts that it does not report are 0 and `unknown`.
        """
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
            computing_seconds(meta_info, seconds),
            None if end is None else (end - seconds, end),
            meta_info.get("drafted_tokens") or 0,
            meta_info.get("accepted_tokens") or 0,
            meta_info.get("reread_tokens") or 0,
            prices.cost(prompt, cached, meta_info.get("completion_tokens") or 0) if prices else None,
        )

    @classmethod
    def total(cls, usages: Iterable[Usage]) -> Usage:
        return sum(usages, cls())

    @property
    def total_tokens(self) -> int:
        """Computed plus generated tokens: those that cost work."""
        return self.computed_tokens + self.generated_tokens

    @property
    def wall_seconds(self) -> float:
        return self.span[1] - self.span[0] if self.span else 0.0

    @property
    def waiting_seconds(self) -> float | None:
        return None if self.computing_seconds is None else self.seconds - self.computing_seconds

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
            _sum(self.computing_seconds, other.computing_seconds),
            _around(self.span, other.span),
            self.drafted_tokens + other.drafted_tokens,
            self.accepted_tokens + other.accepted_tokens,
            self.reread_tokens + other.reread_tokens,
            _sum(self.cost, other.cost),
        )

    def _amount(self, name: str) -> str:
        """A count with how sure it is."""
        count, word = getattr(self, name), name.removesuffix("_tokens")
        if name not in self.unknown:
            return f"{count} {word}"
        return f"at least {count} {word}" if count else f"{word} unknown"

    def __str__(self) -> str:
        guessed = f", {self.accepted_tokens} of {self.drafted_tokens} guesses kept" if self.drafted_tokens else ""
        again = f", {self.reread_tokens} of them again under another adapter" if self.reread_tokens else ""
        computed = "" if "cached_tokens" in self.unknown else f", {self.computed_tokens} computed{again}"
        return (
            f"{self.operations} operation{'' if self.operations == 1 else 's'}, {self.prompt_tokens} prompt tokens "
            f"({self._amount('cached_tokens')}{computed}), "
            f"{self.generated_tokens} generated ({self._amount('forced_tokens')}{guessed}), {self._times()}"
            f"{f', cost {self.cost:.4g}' if self.cost else ''}"
        )

    def _times(self) -> str:
        wall, count = f"{self.wall_seconds:.2f} s wall clock", max(self.operations, 1)
        if self.computing_seconds is None or self.waiting_seconds is None:
            return wall
        waiting, computing = self.waiting_seconds / count, self.computing_seconds / count
        return f"{wall}, per operation {waiting:.2f} s waiting and {computing:.2f} s computing"


def computing_seconds(meta_info: Mapping[str, Any], seconds: float) -> float | None:
    """How much of an operation's seconds the engine computed; None if its backend does not report it."""
    whole, queued = meta_info.get("e2e_latency"), meta_info.get("queue_seconds")
    return None if whole is None or queued is None else min(max(0.0, whole - queued), seconds)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _around(one: tuple[float, float] | None, other: tuple[float, float] | None) -> tuple[float, float] | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a run; None means no limit. The run stops soon after it exceeds one.

    tokens: computed plus generated tokens. generated_tokens: generated tokens alone. operations: gens and selects.
    cost: what they cost at the backend's prices, in their currency.
    """

    tokens: int | None = None
    generated_tokens: int | None = None
    operations: int | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        if self.cost is not None and (isinstance(self.cost, bool) or not 0 <= self.cost < math.inf):
            raise BadValueError(f"the budget's cost is {self.cost!r}; give a number from 0, or None")
        for name in ("tokens", "generated_tokens", "operations"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise BadValueError(f"the budget's {name} is {value!r}; give a whole number from 0, or None")

    def excess(self, usage: Usage) -> str | None:
        """Return a sentence that names the exceeded limit, or None while the usage is within the budget."""
        used = {
            "tokens": usage.total_tokens,
            "generated_tokens": usage.generated_tokens,
            "operations": usage.operations,
        }
        for name, value in used.items():
            limit = getattr(self, name)
            if limit is not None and value > limit:
                return f"the run has used {value} {name.replace('_', ' ')}, its budget is {limit}"
        if self.cost is not None and usage.cost is not None and usage.cost > self.cost:
            return f"the run has cost {usage.cost:.4g}, its budget is {self.cost:g}"
        return None
