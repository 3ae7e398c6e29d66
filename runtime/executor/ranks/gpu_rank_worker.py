"""What a rank above 0 does on its own GPU. See `cpu_rank_worker`."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch

from ...attention import AttentionBackend
from ...cache.window_pages import WindowPageTable
from ...models.decoder import Decoder
from ...parallel.cuda_collectives import CudaCollectives, set_environment
from ...parallel.ep.expert_migration import ExpertMigrator
from ...parallel.pp.cuda_pipeline_links import CudaPipelineLinks
from ...parallel.workers.rank_weights import RankWeights
from ...parallel.workers.worker_channel import COMPILE, REHEARSE, RankStart
from ...quantization import transform_for
from ..cuda_runner import CudaRunner
from ..warmup import compile_all
from ..weight_offload import OffloadedWeights, collect_garbage, tensors_of
from .cpu_rank_worker import RankWorker
from .cuda_rank_runner import cuda_rank_runner
from .rank_steps import gpu_progress


class GPURankWorker(RankWorker):
    """ranks: with whom it computes.  free: bytes of the GPU before the model was loaded."""

    runner: CudaRunner

    def __init__(
        self, part: RankWeights, model: Decoder, ranks: CudaCollectives, free: int, mover: ExpertMigrator | None = None
    ) -> None:
        super().__init__(part, model, mover=mover)
        self.ranks, self._free = ranks, free
        self._asleep: OffloadedWeights | None = None
        self.progress = gpu_progress()
        self._takes |= {COMPILE: self.compile, REHEARSE: self.warm_up}
        self._called |= {"let_go": self.let_go, "set_aside": self.set_aside}

    def ready(self) -> bytes:
        """What rank 0 shares out memory by: bytes that were free, and what the weights take."""
        return pickle.dumps((self._free, torch.cuda.memory_allocated(self.model.device)))

    def heartbeat(self) -> bytes:
        return pickle.dumps(self.progress.moved())

    def _make_runner(self, attention: AttentionBackend, windows: WindowPageTable | None) -> CudaRunner:
        room, stages = self._room, self.ranks.place.stages
        return cuda_rank_runner(
            self.model,
            attention,
            self.model.device,
            ranks=self.ranks,
            progress=self.progress,
            links=CudaPipelineLinks(self.ranks, self.model, room.tokens) if stages > 1 else None,
            context=room.context,
            page_size=room.page_size,
            max_running=room.max_running,
            graphs=room.graphs and self.model.capturable,
            memory=self._memory,
            windows=windows,
            mirrors=self._mirrors.rows,
        )

    def held(self) -> int:
        """Bytes that this process takes of its GPU."""
        collect_garbage()
        return torch.cuda.memory_reserved(self.model.device)

    def let_go(self) -> None:
        """Other weights are going to be loaded: graphs and buffers go, until `wake`."""
        self.runner.release()
        collect_garbage()

    def set_aside(self, ranks: list[int]) -> None:
        """Slots for adapters of these ranks, as rank 0 has them."""
        self.runner.adapters = self._adapters.set_aside(ranks)

    def compile(self) -> None:
        """What rank 0 has compiled; it is in the folder of compiled kernels."""
        with self.runner.on_device():
            compile_all(self.runner, lambda: None)
        self.runner.begin_warm_up()

    def warm_up(self) -> None:
        with self.runner.on_device():
            self.runner.warm_up()

    def sleep(self) -> None:
        torch.cuda.synchronize(self.model.device)
        self._asleep = OffloadedWeights([tensor for tensor in tensors_of([self.model]) if tensor.device.type == "cuda"])
        super().sleep()
        collect_garbage()

    def wake(self) -> None:
        """From a sleep, or once other weights are there."""
        if self._asleep is not None:
            with self.runner.on_device():
                self._pool.restore()
                if self._memory is not None:
                    self._memory.restore()
            self._asleep.restore()
            self._asleep = None
        self.runner.restore(self._attention())


def begun(begin: RankStart) -> GPURankWorker:
    set_environment()
    device = torch.device("cuda", begin.device.index + begin.rank)
    torch.cuda.set_device(device)
    torch.set_num_threads(begin.threads)
    free, _ = torch.cuda.mem_get_info(device)
    part = RankWeights(begin._replace(device=device), transform_for(begin.weights, begin.deterministic, device))
    model = part.load()
    ranks = CudaCollectives(
        begin.rank,
        begin.ranks,
        Path(begin.meeting),
        device,
        model.config.hidden_size,
        begin.dtype,
        begin.deterministic,
        begin.stages,
    )
    part.sums = ranks if ranks.ranks > 1 else None
    return GPURankWorker(
        part,
        part.join(model),
        ranks,
        free,
        None if begin.whole is None else ExpertMigrator(model, begin.rank, begin.ranks),
    )
