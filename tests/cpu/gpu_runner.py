"""The GPU's runner on the CPU: its kernels interpreted, its graphs functions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import piecewise_checks as checks
import pytest
import torch

from sgl.runtime.attention import AttentionLayout
from sgl.runtime.attention.attention_by_layer import AttentionByLayer
from sgl.runtime.attention.torch_native_attention import TorchNativeAttention
from sgl.runtime.attention.window_slot_attention import WindowSlotAttention
from sgl.runtime.build import build_engine
from sgl.runtime.executor import cuda_runner
from sgl.runtime.models import decoder


class Attention(TorchNativeAttention):
    """torch's, which can attend from the pool into a given place."""

    capturable = True

    def attend_into(
        self, out: torch.Tensor, q: torch.Tensor, layer: int, batch: Any, sinks: torch.Tensor | None = None
    ) -> None:
        asked = SimpleNamespace(scale=self.shape.scale, softcap=self.shape.softcap, window=self.shape.windows[layer])
        checks.attend_pool(out, q, *self.stored(layer), asked, batch, sinks)


class Graphs:
    """A captured graph is what it was captured from; it writes its result where the first run left it."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def capture(self, compute: Callable[[], torch.Tensor]) -> tuple[Any, torch.Tensor]:
        result, replays = (
            compute(),
            count(),
        )  # a step is captured and replayed: both are one run here, as what comes in may be written over
        return SimpleNamespace(replay=lambda: next(replays) and result.copy_(compute())), result

    def graph_for(self, compute: Callable[[], None]) -> Callable[[], None]:
        return compute


def runner(
    model: Any, attention: Any, config: Any, choice: Any, context: int, states: Any, windows: Any, team: Any
) -> cuda_runner.CudaRunner:
    assert team is None
    return cuda_runner.CudaRunner(
        model,
        attention,
        choice.device,
        context=context,
        page_size=config.page_size,
        max_running=config.max_running,
        memory=states,
        windows=windows,
    )


def attention_of(config: Any, pool: Any, layout: AttentionLayout, context: int, dtype: torch.dtype) -> Any:
    if len(layout.groups) == 1 and None not in layout.layers and not layout.windowed:
        return Attention(pool, layout.groups[0])
    plain = [Attention(pool.parts[home], shape) for home, shape in zip(layout.homes, layout.groups, strict=True)]
    return AttentionByLayer(
        pool,
        layout,
        [WindowSlotAttention(each) if layout.is_windowed(group) else each for group, each in enumerate(plain)],
    )


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are opened on the CPU from here on run as on a GPU."""
    idle = SimpleNamespace(wait_stream=lambda stream: None, synchronize=lambda: None)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda device: idle)
    monkeypatch.setattr(cuda_runner.CudaRunner, "on_device", lambda self: torch.inference_mode())
    monkeypatch.setattr(cuda_runner, "CudaGraphPool", Graphs)
    monkeypatch.setattr(decoder, "_can_fuse", lambda device: True)
    monkeypatch.setattr(build_engine, "make_runner", runner)
    monkeypatch.setattr(build_engine, "_attention", attention_of)
