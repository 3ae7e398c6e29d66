"""Builds the runner of a model on its device."""

from __future__ import annotations

from ..attention import AttentionBackend
from ..cache import WindowPages
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..executor.device_choice import DeviceChoice
from ..executor.draft_head_runner import HiddenStatesRunner
from ..executor.eager_runner import EagerRunner
from ..executor.ranks.pipeline_runner import PipelineRunner
from ..executor.ranks.rank_runner import HiddenStatesRankZeroRunner, RankZeroRunner
from ..executor.runner_protocol import Runner
from ..models.decoder import Decoder
from ..models.transformers_backend import AnyDecoder
from .build_ranks import RanksBuilder
from .build_stages import StagesBuilder
from .engine_config import DeviceDefaults


def make_runner(
    model: AnyDecoder,
    attention: AttentionBackend,
    config: DeviceDefaults,
    choice: DeviceChoice,
    context: int,
    states: RecurrentStateMemory | None = None,
    windows: WindowPages | None = None,
    side: RanksBuilder | None = None,
) -> Runner:
    if side is not None and side.ranks is not None:
        return _make_gpu_runner(model, attention, config, choice, context, states, windows, side)
    if isinstance(side, StagesBuilder):
        assert isinstance(model, Decoder)
        return PipelineRunner(
            model,
            attention,
            choice.device,
            None,
            states,
            pipeline=side.pipeline,
            layers=side.layers,
            team=side.team,
            most=config.max_running,
        )
    watched = isinstance(model, Decoder) and model.capture is not None
    if side is not None:
        return (HiddenStatesRankZeroRunner if watched else RankZeroRunner)(
            model, attention, choice.device, None, states, team=side.team, most=config.max_running, experts=side.experts
        )
    if choice.device.type != "cuda":
        kind = HiddenStatesRunner if watched else EagerRunner
        return kind(model, attention, choice.device, config.max_running if config.run_ahead else None, states, windows)
    from ..executor.hidden_states_cuda_runner import CudaRunner, HiddenStatesCudaRunner

    return (HiddenStatesCudaRunner if watched else CudaRunner)(
        model,
        attention,
        choice.device,
        context=context,
        page_size=config.page_size,
        max_running=config.max_running,
        graphs=config.graphs and isinstance(model, Decoder) and model.capturable and not watched,
        memory=states,
        windows=windows,
    )


def _make_gpu_runner(
    model: AnyDecoder,
    attention: AttentionBackend,
    config: DeviceDefaults,
    choice: DeviceChoice,
    context: int,
    states: RecurrentStateMemory | None,
    windows: WindowPages | None,
    side: RanksBuilder,
) -> Runner:
    """Rank 0's, of ranks on GPUs."""
    from ..executor.ranks.rank_cuda_runner import HiddenStatesRankZeroCudaRunner, RankZeroCudaRunner
    from ..executor.ranks.stage_cuda_runner import FirstStageCudaRunner

    assert isinstance(model, Decoder)
    more = {"links": side.links} if isinstance(side, StagesBuilder) else {}
    watched = model.capture is not None
    return (FirstStageCudaRunner if more else HiddenStatesRankZeroCudaRunner if watched else RankZeroCudaRunner)(
        model,
        attention,
        choice.device,
        context=context,
        page_size=config.page_size,
        max_running=config.max_running,
        graphs=config.graphs and model.capturable and not watched,
        memory=states,
        windows=windows,
        ranks=side.ranks,
        team=side.team,
        experts=side.experts,
        **more,
    )
