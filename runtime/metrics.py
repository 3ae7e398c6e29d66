"""Counters of one engine."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decoding import Decoding


@dataclass(slots=True)
class Stats:
    """Totals since the engine was opened; subtract two of them to measure a stretch of work."""

    steps: int = 0
    step_seconds: float = 0.0
    model_seconds: float = 0.0
    computed_tokens: int = 0  # went through the model
    cached_tokens: int = 0  # taken from the prefix cache or a fork's parent instead
    generated_tokens: int = 0  # of the results: sampled and forced
    forced_tokens: int = 0  # appended because the grammar left no choice
    generations: int = 0
    preemptions: int = 0
    aborts: int = 0
    running: int = 0
    waiting: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_cached: int = 0  # held by the tree alone, evictable

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that did not have to be computed."""
        prompt = self.computed_tokens + self.cached_tokens
        return self.cached_tokens / prompt if prompt else 0.0

    def generated(self, decoding: Decoding) -> None:
        self.generations += 1
        self.generated_tokens += len(decoding.output)
        self.forced_tokens += decoding.forced

    def __sub__(self, other: Stats) -> Stats:
        gauges = {"running", "waiting", "pages_total", "pages_free", "pages_cached"}
        mine, theirs = asdict(self), asdict(other)
        return Stats(**{f.name: mine[f.name] - (0 if f.name in gauges else theirs[f.name]) for f in fields(self)})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"hit_rate": self.hit_rate}
