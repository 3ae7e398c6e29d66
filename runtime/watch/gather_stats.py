"""What an engine has counted, and its state at the moment."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..adapters.adapter_manager import AdapterManager
from ..cache import PrefixCache
from ..executor.runner_protocol import Runner
from ..scheduling.scheduler import Scheduler
from .engine_stats import Stats, window_stats


def gather_stats(
    stats: Stats,
    cache: PrefixCache,
    scheduler: Scheduler,
    runner: Runner | None,
    adapters: AdapterManager | None = None,
    experts: dict[str, Any] | None = None,
) -> Stats:
    """stats: the totals.

    runner: None after the end.  adapters: None where the engine takes none. experts: see `expert_stats`; None: they can
    be asked now.
    """
    pool, host, trails = cache.pool, cache.host, cache.trails
    return dataclasses.replace(
        stats,
        step_counts=list(stats.step_counts),
        cached_tokens=scheduler.reused_tokens,
        preemptions=scheduler.preemptions,
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        pages_total=pool.total,
        pages_free=pool.free,
        pages_cached=cache.tree.evictable,
        pages_pinned=scheduler.pinned_pages(),
        prompt_budget=scheduler.prompt_budget,
        states_total=trails.slots.total if trails else 0,
        states_free=trails.slots.free if trails else 0,
        states_cached=len(trails.nodes) if trails else 0,
        states_missed=cache.lost if trails else 0,
        **window_stats(cache),
        host_tokens=host.tokens if host else 0,
        host_hits=host.loaded if host else 0,
        **_pipeline(runner),
        **(expert_stats(runner) if experts is None else experts),
        adapters={} if adapters is None else adapters.describe(),
    )


def expert_stats(runner: Runner | None) -> dict[str, Any]:
    """What was counted where experts are computed, on a GPU in its memory, and where they are."""
    return {"expert_counts": _expert_counts(runner), "expert_bytes": _brought(runner), **_experts(runner)}


def _expert_counts(runner: Runner | None) -> list[list[int]]:
    if runner is None:
        return []
    return (runner.pipeline or runner.model).expert_counts()


def _pipeline(runner: Runner | None) -> dict[str, Any]:
    return {} if runner is None or runner.pipeline is None else runner.pipeline.times()._asdict()


def _experts(runner: Runner | None) -> dict[str, Any]:
    """Where experts are whole on ranks."""
    experts = None if runner is None else runner.experts
    if experts is None:
        return {}
    return {
        "rank_rows": experts.rows(),
        "expert_places": experts.places(),
        "rebalances": experts.count,
        "moved_experts": experts.moved,
        "rebalanced": experts.last._asdict() if experts.count else {},
    }


def _brought(runner: Runner | None) -> int:
    """Waits for the steps that are under way, where experts are in main memory."""
    places = None if runner is None else runner.model.expert_places
    return places.brought() if places else 0
