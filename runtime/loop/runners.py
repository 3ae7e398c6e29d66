"""Builds the runner of a model on its device."""

from __future__ import annotations

from typing import Any

from ..attention import AttentionBackend
from ..cache import WindowPages
from ..cache.states import StateMemory
from ..executor.device import DeviceChoice
from ..executor.head_runner import WatchedRunner
from ..executor.runner import Runner
from ..models.decoder import Decoder
from ..models.generic import AnyDecoder
from .config import Resolved


def make_runner(
    model: AnyDecoder, attention: AttentionBackend, config: Resolved, choice: DeviceChoice, context: int,
    states: StateMemory | None = None, windows: WindowPages | None = None,
) -> Any:  # fmt: skip
    if choice.device.type != "cuda":
        kind = WatchedRunner if isinstance(model, Decoder) and model.capture is not None else Runner
        return kind(model, attention, choice.device, config.max_running if config.run_ahead else None, states, windows)
    from ..executor.cuda_runner import CudaRunner

    return CudaRunner(
        model, attention, choice.device, context=context, page_size=config.page_size,
        max_running=config.max_running,
        graphs=config.graphs and isinstance(model, Decoder) and model.capturable, memory=states,
    )  # fmt: skip
