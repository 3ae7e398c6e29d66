"""The runner of one of several ranks on GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...models.decoder import Decoder
from ..cuda_runner import CudaRunner
from .micro_batches import FIXED_ON_GPUS
from .rank_steps import GPURankSteps
from .stage_steps import StageSteps

if TYPE_CHECKING:
    import torch

    from ...attention.backend_protocols import AttentionBackend
    from ...parallel.cuda_collectives import CudaCollectives
    from ...parallel.pp.pipeline_links import StageLinks
    from ...parallel.workers.gpu_progress import GpuProgress


def cuda_rank_runner(
    model: Decoder,
    attention: AttentionBackend,
    device: torch.device,
    *,
    ranks: CudaCollectives,
    progress: GpuProgress,
    links: StageLinks | None = None,
    gathers: bool = False,
    **options: Any,
) -> CudaRunner:
    """ranks, progress: see `GPURankSteps`.  links, gathers: see `StageSteps`; None: the model is in one stage.

    options: of `CudaRunner`.
    """
    stage = None if links is None else StageSteps(CudaRunner.compute, model, links, FIXED_ON_GPUS, gathers)
    enter = None if stage is None else stage.enter
    runner = CudaRunner(model, attention, device, shared=True, enter=enter, **options)
    runner.steps = GPURankSteps(stage or runner.steps, ranks, progress)
    return runner
