"""The process of a rank above 0 on its own GPU. See `parallel.rank_worker`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...attention import AttentionBackend, attention_backend
from ...cache.host_kv_pages import HostKVPages
from ...cache.recurrent_state_memory import RecurrentStateMemory
from ...cache.window_pages import WindowPageTable
from ...models.decoder import Decoder
from ...models.describe.explain_executors import layers_of
from ...models.hidden_state_capture import HiddenStateCapture
from ...models.kv_cache_scales import take_scales
from ...parallel.cuda_collectives import CudaCollectives, set_environment
from ...parallel.ep.expert_migration import ExpertMigrator
from ...parallel.pp.cuda_pipeline_links import CudaPipelineLinks
from ...parallel.workers import rank_worker
from ...parallel.workers.rank_adapters import RankAdapters
from ...parallel.workers.rank_host_pages import calls_of
from ...parallel.workers.rank_weights import RankWeights
from ...parallel.workers.worker_channel import (
    ASK,
    COMPILE,
    POOL,
    REHEARSE,
    SLEEP,
    STEP,
    TELL,
    WAKE,
    RankKVOptions,
    RankStart,
)
from ...quantization import transform_for
from ..warmup import compile_all
from ..weight_offload import OffloadedWeights, collect_garbage, tensors_of
from .rank_cuda_runner import RankWorkerCudaRunner
from .stage_cuda_runner import StageWorkerCudaRunner
from .step_plan_message import SequenceMirrors


class GPURankWorker:
    """part: what the rank holds.  model: that, joined with the others'. free: bytes of the GPU before it was loaded.

    mover: where experts are whole on ranks.
    """

    def __init__(
        self, part: RankWeights, model: Decoder, ranks: CudaCollectives, free: int, mover: ExpertMigrator | None = None
    ) -> None:
        self.part, self.model, self.ranks, self._free = part, model, ranks, free
        self._layout = model.config.attention
        self._asleep: OffloadedWeights | None = None
        self._memory: RecurrentStateMemory | None = None
        self._runner: RankWorkerCudaRunner | None = None
        self._takes = {COMPILE: self.compile, REHEARSE: self.warm_up, SLEEP: self.sleep, WAKE: self.wake}
        self._adapters = RankAdapters(part, model)
        calls: list[Callable[..., Any]] = [
            self.allocate_host_pages,
            self.plan,
            self.let_go,
            self.fill,
            self.set_aside,
            self.held,
        ]
        self._called = {call.__name__: call for call in calls} | self._adapters.calls
        if mover is not None:
            self._called |= {"move": mover.take, "review": mover.review, "drop": mover.drop}

    def ready(self) -> bytes:
        """What rank 0 shares out memory by: bytes that were free, and what the weights take."""
        return pickle.dumps((self._free, torch.cuda.memory_allocated(self.model.device)))

    def heartbeat(self) -> bytes:
        return b"" if self._runner is None else pickle.dumps(self._runner.progress.moved())

    def take(self, kind: int, payload: bytes) -> bytes:
        if kind == STEP:
            self.step(payload)
        elif kind == POOL:
            return self.make_room(pickle.loads(payload))
        elif kind == TELL:
            self.call(*pickle.loads(payload))
        elif kind == ASK:
            return rank_worker.answered(self.call, *pickle.loads(payload))
        else:
            self._takes[kind]()
        return b""

    def make_room(self, room: RankKVOptions) -> bytes:
        layout = self.model.config.attention
        self._layout = layout.apart(room.context) if room.window_slots else layout
        windows = (
            WindowPageTable(room.slots // room.page_size, room.page_size, self._layout.reach)
            if room.window_slots
            else None
        )
        self._room, self._mirrors = room, SequenceMirrors(room.max_running, windows)
        self._pool = self._layout.pool(room.slots, room.dtype, self.model.device, room.window_slots)
        self._scale()
        self._memory = (
            RecurrentStateMemory(self.model.config.states, room.states, self.model.dtype, self.model.device)
            if room.states
            else None
        )
        if room.captured is not None:  # as rank 0 does, for the sums' sake
            self.model.capture = HiddenStateCapture(room.captured)
        attention, options = self._attention(), {}
        if self.ranks.place.stages > 1:
            options["links"] = CudaPipelineLinks(self.ranks, self.model, room.tokens)
        self._runner = (StageWorkerCudaRunner if options else RankWorkerCudaRunner)(
            self.model,
            attention,
            self.model.device,
            context=room.context,
            page_size=room.page_size,
            max_running=room.max_running,
            graphs=room.graphs and self.model.capturable,
            memory=self._memory,
            windows=windows,
            ranks=self.ranks,
            mirrors=self._mirrors,
            **options,
        )
        return pickle.dumps(layers_of(self.model, attention))

    def _scale(self) -> None:
        take_scales(self._pool, self.model, self._layout)

    def _attention(self) -> AttentionBackend:
        room = self._room
        return attention_backend(
            room.attention,
            self._pool,
            self._layout,
            page_size=room.page_size,
            max_running=room.max_running,
            context=room.context,
            deterministic=room.deterministic,
            dtype=self.model.dtype,
        )

    @property
    def runner(self) -> RankWorkerCudaRunner:
        assert self._runner is not None
        return self._runner

    def step(self, words: bytes) -> None:
        with self.runner.on_device():
            self.runner.forward(self._mirrors.work(words))

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """A method of the rank's; what it queues on the GPU follows the steps that were sent before."""
        with self.runner.on_device():
            return self._called[name](*arguments)

    def allocate_host_pages(self, page_size: int, places: int) -> None:
        """Lock main memory for pages that rank 0 says are to be saved."""
        self._called |= calls_of(HostKVPages(self._pool, page_size, places))

    def plan(self, path: Path) -> int:
        """See `RankWeights.plan`. Bytes that it will read."""
        return self.part.plan(self.model, self.part.opened(path)).bytes

    def held(self) -> int:
        """Bytes that this process takes of its GPU."""
        collect_garbage()
        return torch.cuda.memory_reserved(self.model.device)

    def let_go(self) -> None:
        """Other weights are going to be loaded: graphs and buffers go, until `wake`."""
        self.runner.release()
        collect_garbage()

    def fill(self) -> None:
        self.part.fill(self.model)
        self._scale()

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
        self.runner.release()
        self._pool.release()
        if self._memory is not None:
            self._memory.release()
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
