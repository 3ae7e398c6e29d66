"""What stages on GPUs hand each other: hidden states into the next stage's memory, logits to rank 0 by NCCL."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import ConfigError
from ...kernels.comm.gpu_p2p import P2PChannel
from ...kernels.launch.compile_ahead import is_compiling
from ...models.decoder import Decoder
from ..cuda_collectives import CudaCollectives

MOST_PARTS = 64  # micro-batches of a step


class CudaPipelineLinks:
    """See `StageLinks`. model: the stage.  tokens: of a step, at most.

    Made by all ranks at the same time: they exchange addresses.
    """

    stays_on_device = True

    def __init__(self, ranks: CudaCollectives, model: Decoder, tokens: int) -> None:
        if ranks.why:
            raise ConfigError(
                f"Engine(pipeline_parallel={ranks.place.stages}): {ranks.why}, which stages need; take device='cpu'"
            )
        self.place, self._device, self.model = ranks.place, ranks.device, model
        self.stages = ranks.place.stages
        each = ranks.place.split.ranks
        self.first_of_last = (self.stages - 1) * each
        own = ranks.place.stage * each + ranks.place.split.rank
        numbers = tokens * model.config.hidden_size * model.dtype.itemsize // 4 + 4 * MOST_PARTS
        with torch.cuda.device(self._device):
            self._memory, addresses = ranks.share(2 * P2PChannel.bytes_for(numbers, MOST_PARTS))
        half = P2PChannel.bytes_for(numbers, MOST_PARTS)
        into, out = self._memory[:half].view(torch.int32), self._memory[half:].view(torch.int32)
        self._before = (
            None
            if model.config.stage.begins
            else P2PChannel(
                into, addresses[own : own + 1], addresses[own - each : own - each + 1] + half, numbers, MOST_PARTS
            )
        )
        self._next = (
            None
            if model.config.stage.ends
            else P2PChannel(
                out, addresses[own : own + 1] + half, addresses[own + each : own + each + 1], numbers, MOST_PARTS
            )
        )

    def begin(self) -> None:
        for end in (self._before, self._next):
            if end is not None:
                end.begin()

    def take(self, out: Tensor) -> None:
        if self._before is not None and not is_compiling():
            self._before.take(out)

    def end(self) -> None:
        if self._before is not None:
            self._before.read()

    def post(self, x: Tensor) -> None:
        if is_compiling() or not len(x):
            return
        if self._next is not None:
            self._next.post(x.contiguous())
        elif self.place.split.rank == 0:
            dist.send(x.contiguous(), 0)

    def result(self, rows: int, pools: int) -> tuple[Tensor, Tensor | None]:
        config, device = self.model.config, self._device
        logits = torch.empty(rows, config.vocab_size, dtype=self.model.dtype, device=device)
        sums = torch.empty(pools, config.hidden_size, dtype=torch.float64, device=device) if pools else None
        for found in (logits, sums):
            if found is not None and len(found):
                dist.recv(found, self.first_of_last)
        return logits, sums
