"""Counters of one engine."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..parallel.ep.expert_placement import balance

if TYPE_CHECKING:
    from ..cache import PrefixCache
    from ..sequences.running_generation import RunningGeneration

# seconds: `Stats.step_counts` counts the steps that took at most so long and longer than the bound before
STEP_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


def _no_steps() -> list[int]:
    return [0] * (len(STEP_BOUNDS) + 1)


@dataclass(slots=True)
class Stats:
    """Totals since the engine was opened. Subtract two of them to measure a piece of work."""

    steps: int = 0
    step_seconds: float = 0.0
    step_counts: list[int] = field(default_factory=_no_steps)  # by STEP_BOUNDS, the longest last
    model_seconds: float = 0.0
    compile_seconds: float = 0.0  # of the steps, while people waited for kernels that were not compiled ahead
    capture_seconds: float = 0.0  # the same for CUDA graphs
    computed_tokens: int = 0  # went through the model
    cached_tokens: int = 0  # taken from the prefix cache or a fork's parent instead
    generated_tokens: int = 0  # of the results: sampled and forced
    forced_tokens: int = 0  # appended because the grammar left no choice
    drafted_tokens: int = 0  # drafted ahead, see `speculation`; computed_tokens has those that were chosen
    accepted_tokens: int = 0  # of these, which were chosen
    draft_seconds: float = 0.0  # of the steps, that a draft model took to draft
    draft_computed_tokens: int = 0  # went through the draft model
    draft_pages_total: int = 0  # of its keys and values
    draft_pages_free: int = 0
    generations: int = 0
    preemptions: int = 0
    aborts: int = 0
    timeouts: int = 0  # sequences that were not done by their deadline
    running: int = 0
    waiting: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_cached: int = 0  # held by the tree alone, evictable
    pages_pinned: int = 0  # held by `Engine.pin`
    prompt_budget: int = 0  # tokens of prompts in a step in which others stream, see `prompt_seconds`
    window_pages_total: int = 0  # of layers that see a window only, of models where these keep no more than they see
    window_pages_free: int = 0
    window_pages_held: int = 0  # by who runs, is idle or is pinned; the others may be taken, and are matched until then
    window_given_back: int = 0  # tokens that fell out of the window of the layers that computed them
    window_missed: int = 0  # tokens that were cached in the other layers, and computed again for want of a window
    window_saved: float = 0.0  # share of the tokens that are in the KV pool for which these layers keep nothing
    states_total: int = 0  # of models that keep some
    states_free: int = 0
    states_cached: int = 0  # snapshots: held by the tree, some of them by sequences too
    states_missed: int = 0  # tokens whose keys and values were cached, and that were computed again for want of a state
    host_tokens: int = 0  # whose keys and values are kept in main memory
    host_hits: int = 0  # tokens brought back from there; counted in cached_tokens too
    # of each layer, how often its experts were chosen, see `Decoder`
    expert_counts: list[list[int]] = field(default_factory=list)
    # with expert_parallel: of each layer with experts, the rows of experts that each rank computed
    rank_rows: list[list[int]] = field(default_factory=list)
    # of layers whose experts are placed alike, which each rank holds
    expert_places: dict[str, list[str]] = field(default_factory=dict)
    rebalances: int = 0  # see `Engine.rebalance_experts`
    moved_experts: int = 0  # that went to another place in them
    # what the last one did, see `parallel.expert_balance.RebalanceResult`
    rebalanced: dict[str, Any] = field(default_factory=dict)
    late_masks: int = 0  # tokens that waited for what grammar workers compute long for
    reread_tokens: int = 0  # computed again as forks took another adapter
    # their present state, see `AdapterManager`
    adapters: dict[str, Any] = field(default_factory=dict)
    # of each stage of a pipeline, that it computed, as it said last
    stage_seconds: list[float] = field(default_factory=list)
    pipeline_seconds: float = 0.0  # of the steps, that they took in the pipeline
    micro_batches: int = 0  # that these were cut into
    expert_bytes: int = 0  # of experts in main memory that went to the device, see `stacked_experts`

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that came from the cache."""
        prompt = self.computed_tokens + self.cached_tokens
        return self.cached_tokens / prompt if prompt else 0.0

    @property
    def bubble(self) -> float:
        """Share of the steps' time in which stages of a pipeline did not compute, on average."""
        return (
            max(0.0, 1 - sum(self.stage_seconds) / (len(self.stage_seconds) * self.pipeline_seconds))
            if self.pipeline_seconds and self.stage_seconds
            else 0.0
        )

    @property
    def rank_balance(self) -> float:
        """Rows of experts of a rank, relative to the busiest one of each layer, on average: 1.0 is the best."""
        return balance(self.rank_rows)

    def stepped(self, seconds: float) -> None:
        self.steps += 1
        self.step_seconds += seconds
        self.step_counts[bisect_left(STEP_BOUNDS, seconds)] += 1

    def generated(self, decoding: RunningGeneration) -> None:
        self.generations += 1
        self.generated_tokens += len(decoding.output)
        self.forced_tokens += decoding.forced
        self.drafted_tokens += decoding.drafted
        self.accepted_tokens += decoding.accepted

    def __sub__(self, other: Stats) -> Stats:
        gauges = {
            "adapters",
            "expert_places",
            "rebalanced",
            "running",
            "waiting",
            "pages_total",
            "pages_free",
            "pages_cached",
            "pages_pinned",
            "prompt_budget",
            "host_tokens",
            "window_pages_total",
            "window_pages_free",
            "window_pages_held",
            "window_saved",
            "draft_pages_total",
            "draft_pages_free",
            "states_total",
            "states_free",
            "states_cached",
        }
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Stats(**{n: v if n in gauges else _without(v, getattr(other, n)) for n, v in values.items()})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"hit_rate": self.hit_rate, "bubble": self.bubble, "rank_balance": self.rank_balance}


def window_stats(cache: PrefixCache) -> dict[str, Any]:
    windows, used = cache.windows, cache.pool.total - cache.pool.free
    if windows is None:
        return {}
    return {
        "window_pages_total": windows.total,
        "window_pages_free": windows.free,
        "window_pages_held": windows.held,
        "window_given_back": windows.given_back,
        "window_missed": cache.lost,
        "window_saved": 1 - (windows.held + windows.loose) / used if used else 0.0,
    }


def _without(mine: Any, theirs: Any) -> Any:
    if not isinstance(mine, list):
        return mine - theirs
    return [_without(a, b) for a, b in zip(mine, theirs, strict=True)] if len(mine) == len(theirs) else mine
