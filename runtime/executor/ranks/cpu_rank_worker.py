"""What a rank above 0 does on a CPU: it loads its share of the model, and computes the steps that rank 0 sends."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...adapters.adapter import Adapter
from ...attention import AttentionBackend, attention_backend
from ...cache.host_kv_pages import HostKVPages
from ...cache.recurrent_state_memory import RecurrentStateMemory
from ...cache.window_pages import WindowPageTable
from ...layers import cpu_kernels
from ...models.decoder import Decoder
from ...models.describe.explain_executors import layers_of
from ...models.hidden_state_capture import HiddenStateCapture
from ...models.kv_cache_scales import take_scales
from ...parallel.ep.expert_migration import ExpertMigrator
from ...parallel.pp.pipeline_links import PipelineLinks, StageRankGroup
from ...parallel.rank_collectives import RankCollectives
from ...parallel.workers import rank_worker
from ...parallel.workers.rank_adapters import RankAdapters
from ...parallel.workers.rank_host_pages import calls_of
from ...parallel.workers.rank_weights import RankWeights
from ...parallel.workers.worker_channel import ASK, POOL, SLEEP, STEP, TELL, WAKE, RankKVOptions, RankStart
from ...quantization import transform_for
from ..eager_runner import EagerRunner
from .micro_batches import FIXED
from .stage_steps import StageSteps
from .step_plan_message import SequenceMirrors

if TYPE_CHECKING:
    from ..cuda_runner import CudaRunner


class RankWorker:
    """On a CPU; `GPURankWorker` is one on a GPU.

    part: what the rank holds.  model: that, joined with the others'.  links: of a pipeline's stage.  mover: where
    experts are whole on ranks.
    """

    runner: EagerRunner | CudaRunner  # once there is room

    def __init__(
        self, part: RankWeights, model: Decoder, links: PipelineLinks | None = None, mover: ExpertMigrator | None = None
    ) -> None:
        self.part, self.model = part, model
        self._layout = model.config.attention
        self._stage = (
            None if links is None else StageSteps(EagerRunner.compute, model, links, fixed=FIXED, gathers=False)
        )
        self._memory: RecurrentStateMemory | None = None
        self._adapters = RankAdapters(part, model)
        self._takes: dict[int, Callable[[], None]] = {SLEEP: self.sleep, WAKE: self.wake}
        calls: list[Callable[..., Any]] = [self.allocate_host_pages, self.plan, self.fill, self.held]
        self._called = {call.__name__: call for call in calls} | self._adapters.calls | {"place": self.place}
        if mover is not None:
            self._called |= {"move": mover.take, "review": mover.review, "drop": mover.drop}

    def ready(self) -> bytes:
        """Bytes of its weights."""
        return pickle.dumps(self.model.weight_bytes)

    def heartbeat(self) -> bytes:
        return b"" if self._stage is None else pickle.dumps(self._stage.done())

    def take(self, kind: int, payload: bytes) -> bytes:
        """What it answers."""
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
        """Memory for keys and values. Returns what computes the layers, pickled."""
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
        if room.captured is not None and (self.model.fused or not room.captured):
            # as rank 0 does, for the sums' sake: of all tokens, and in the same spans on a GPU
            self.model.capture = HiddenStateCapture(room.captured)
        attention = self._attention()
        self.runner = self._make_runner(attention, windows)
        return pickle.dumps(layers_of(self.model, attention))

    def _make_runner(self, attention: AttentionBackend, windows: WindowPageTable | None) -> EagerRunner | CudaRunner:
        enter = None if self._stage is None else self._stage.enter
        runner = EagerRunner(self.model, attention, self.model.device, memory=self._memory, enter=enter)
        runner.steps = self._stage or runner.steps
        return runner

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

    def step(self, words: bytes) -> None:
        with self.runner.on_device():
            self.runner.forward(self._mirrors.work(words))

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """A method of the rank's; what it queues on a GPU follows the steps that were sent before."""
        with self.runner.on_device():
            return self._called[name](*arguments)

    def allocate_host_pages(self, page_size: int, places: int) -> None:
        """Main memory for pages that rank 0 says are to be saved."""
        self._called |= calls_of(HostKVPages(self._pool, page_size, places))

    def plan(self, path: Path) -> int:
        """See `RankWeights.plan`. Bytes that it will read."""
        return self.part.plan(self.model, self.part.opened(path)).bytes

    def held(self) -> int:
        """Bytes of keys, values and states."""
        return self._pool.bytes + (0 if self._memory is None else self._memory.bytes)

    def fill(self) -> None:
        self.part.fill(self.model)
        self._scale()

    def place(self, ranks: list[int], number: int, adapter: Adapter) -> None:
        """See `RankAdapters.place`."""
        self._adapters.place(ranks, number, adapter)
        self.runner.adapters = self._adapters.of_step

    def sleep(self) -> None:
        self.runner.release()
        self._pool.release()
        if self._memory is not None:
            self._memory.release()

    def wake(self) -> None:
        self._pool.restore()
        if self._memory is not None:
            self._memory.restore()
        self.runner.restore(self._attention())


def begun(begin: RankStart) -> RankWorker:
    torch.set_num_threads(begin.threads)
    cpu_kernels.set_threads(begin.threads)
    if begin.deterministic and begin.device.type == "cpu":
        cpu_kernels.cover_all_sizes()
    part = RankWeights(begin, transform_for(begin.weights, begin.deterministic, begin.device))
    model = part.load()
    if begin.stages == 1:
        part.sums = RankCollectives(begin.rank, begin.ranks, Path(begin.meeting))
        part.join(model)
        return RankWorker(
            part, model, mover=None if begin.whole is None else ExpertMigrator(model, begin.rank, begin.ranks)
        )
    ranks = StageRankGroup(begin.rank, begin.ranks, Path(begin.meeting), begin.stages)
    part.sums = ranks if ranks.ranks > 1 else None
    return RankWorker(part, part.join(model), PipelineLinks(ranks, model))
