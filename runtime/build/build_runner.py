"""Builds the runner of a model on its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..attention import AttentionBackend
from ..cache import WindowPages
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..executor.device_choice import DeviceChoice
from ..executor.eager_runner import EagerRunner
from ..executor.runner_protocol import Runner
from ..models.decoder import Decoder
from ..models.transformers_backend import AnyDecoder
from .engine_config import DeviceDefaults

if TYPE_CHECKING:
    from ..executor.cuda_runner import CudaRunner
    from .build_ranks import RanksBuilder


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
    if choice.device.type == "cuda":
        watched = isinstance(model, Decoder) and model.capture is not None  # each step leaves states in its own memory
        return _cuda_runner(
            model,
            attention,
            choice,
            side,
            context=context,
            page_size=config.page_size,
            max_running=config.max_running,
            graphs=config.graphs and isinstance(model, Decoder) and model.capturable and not watched,
            memory=states,
            windows=windows,
        )
    if side is not None:
        assert isinstance(model, Decoder)
        return _eager_rank_zero(model, attention, config, choice, states, side)
    rows = config.max_running if config.run_ahead else None
    return EagerRunner(model, attention, choice.device, rows, states, windows)


def _eager_rank_zero(
    model: Decoder,
    attention: AttentionBackend,
    config: DeviceDefaults,
    choice: DeviceChoice,
    states: RecurrentStateMemory | None,
    side: RanksBuilder,
) -> EagerRunner:
    from ..executor.ranks.micro_batches import FIXED
    from ..executor.ranks.rank_steps import BroadcastSteps, EagerMessage
    from ..executor.ranks.stage_steps import PipelineTimer, StageSteps
    from .build_stages import StagesBuilder

    if isinstance(side, StagesBuilder):
        stage = StageSteps(EagerRunner.compute, model, side.links, FIXED, gathers=True)
        runner = EagerRunner(model, attention, choice.device, memory=states, enter=stage.enter)
        runner.steps = runner.pipeline = PipelineTimer(stage, side.team, side.layers)
    else:
        runner = EagerRunner(model, attention, choice.device, memory=states)
    runner.steps = BroadcastSteps(runner.steps, side.team, EagerMessage(config.max_running))
    runner.team, runner.experts = side.team, side.experts
    return runner


def _cuda_runner(
    model: AnyDecoder, attention: AttentionBackend, choice: DeviceChoice, side: RanksBuilder | None, **options: Any
) -> CudaRunner:
    from ..executor.cuda_runner import CudaRunner

    if side is None or side.ranks is None:
        return CudaRunner(model, attention, choice.device, **options)
    from ..executor.ranks.cuda_rank_runner import cuda_rank_runner
    from ..executor.ranks.rank_steps import BroadcastSteps, cuda_message
    from .build_stages import StagesBuilder

    assert isinstance(model, Decoder)
    links = side.links if isinstance(side, StagesBuilder) else None
    runner = cuda_rank_runner(
        model, attention, choice.device, ranks=side.ranks, progress=side.progress, links=links, gathers=True, **options
    )
    runner.steps = BroadcastSteps(runner.steps, side.team, cuda_message)
    runner.team, runner.experts = side.team, side.experts
    return runner
