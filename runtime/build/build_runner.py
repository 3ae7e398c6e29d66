"""Builds the runner of a model on its device."""

from __future__ import annotations

from typing import Any

from ..attention import AttentionBackend
from ..cache import WindowPages
from ..cache.states import StateMemory
from ..executor.device import DeviceChoice
from ..executor.head_runner import WatchedRunner
from ..executor.pipeline_runner import PipelineRunner
from ..executor.runner import Runner
from ..executor.team_runner import TeamRunner, WatchedTeamRunner
from ..models.decoder import Decoder
from ..models.generic import AnyDecoder
from .config import Resolved
from .ranks_side import RanksSide
from .stages_side import StagesSide


def make_runner(
    model: AnyDecoder, attention: AttentionBackend, config: Resolved, choice: DeviceChoice, context: int,
    states: StateMemory | None = None, windows: WindowPages | None = None, side: RanksSide | None = None,
) -> Any:  # fmt: skip
    if side is not None and side.ranks is not None:
        return _on_cards(model, attention, config, choice, context, states, windows, side)
    if isinstance(side, StagesSide):
        assert isinstance(model, Decoder)
        return PipelineRunner(
            model, attention, choice.device, None, states, pipeline=side.pipeline, layers=side.layers, team=side.team, most=config.max_running
        )  # fmt: skip
    watched = isinstance(model, Decoder) and model.capture is not None
    if side is not None:
        return (WatchedTeamRunner if watched else TeamRunner)(model, attention, choice.device, None, states, team=side.team, most=config.max_running, experts=side.experts)
    if choice.device.type != "cuda":
        kind = WatchedRunner if watched else Runner
        return kind(model, attention, choice.device, config.max_running if config.run_ahead else None, states, windows)
    from ..executor.watched_cuda_runner import CudaRunner, WatchedCudaRunner

    return (WatchedCudaRunner if watched else CudaRunner)(
        model, attention, choice.device, context=context, page_size=config.page_size,
        max_running=config.max_running,
        graphs=config.graphs and isinstance(model, Decoder) and model.capturable and not watched, memory=states, windows=windows,
    )  # fmt: skip


def _on_cards(model: AnyDecoder, attention: AttentionBackend, config: Resolved, choice: DeviceChoice, context: int, states: StateMemory | None, windows: WindowPages | None, side: RanksSide) -> Any:
    """Rank 0's, of ranks on GPUs."""
    from ..executor.stage_cuda_runner import StagedTeamRunner
    from ..executor.team_cuda_runner import TeamCudaRunner, WatchedTeamCudaRunner

    assert isinstance(model, Decoder)
    more = {"links": side.links} if isinstance(side, StagesSide) else {}
    watched = model.capture is not None
    return (StagedTeamRunner if more else WatchedTeamCudaRunner if watched else TeamCudaRunner)(
        model, attention, choice.device, context=context, page_size=config.page_size, max_running=config.max_running,
        graphs=config.graphs and model.capturable and not watched, memory=states, windows=windows, ranks=side.ranks, team=side.team, experts=side.experts, **more,
    )  # fmt: skip
