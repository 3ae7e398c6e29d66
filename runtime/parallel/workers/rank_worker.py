"""The process of a rank above 0, started by its group, which it does not outlive.

It decides nothing: it loads its share of the model, computes the steps that it receives, and ends with rank 0.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import torch

from sgl.common.child_process.message_channel import MessageChannel
from sgl.common.child_process.serialized_error import SerializedError

from ...attention import AttentionBackend, attention_backend
from ...cache.host_kv_pages import HostKVPages
from ...cache.recurrent_state_memory import RecurrentStateMemory
from ...errors import RuntimeFailure
from ...layers import cpu_kernels
from ...models.decoder import Decoder
from ...models.describe.explain_executors import layers_of
from ...models.kv_cache_scales import take_scales
from ...quantization import transform_for
from ..ep.expert_migration import ExpertMigrator
from ..pp.pipeline_links import PipelineLinks, PipelineStage, StageRankGroup
from ..rank_collectives import RankCollectives
from ..step_batch_message import MirroredSlots
from .rank_adapters import RankAdapters
from .rank_host_pages import calls_of
from .rank_weights import RankWeights
from .worker_channel import ASK, POOL, READY, SLEEP, STEP, TELL, UNANSWERED, WAKE, WHERE, RankKVOptions, RankStart

ON_GPUS = "sgl.runtime.executor.ranks.gpu_rank_worker"  # whose `begun` a rank takes there


class RankCommands(Protocol):
    """What a rank above 0 does."""

    def heartbeat(self) -> bytes:
        """With each sign of life."""

    def ready(self) -> bytes:
        """What it says once it has loaded."""

    def take(self, kind: int, payload: bytes) -> bytes:
        """Do what rank 0 says; what it answers."""


class RankWorker:
    """part: what the rank holds.

    model: that, joined with the others'.  pipeline: of a stage's layers.  mover: where experts are whole on ranks.
    """

    def __init__(
        self,
        part: RankWeights,
        model: Decoder,
        pipeline: PipelineStage | None = None,
        mover: ExpertMigrator | None = None,
    ) -> None:
        self.part, self.model, self.pipeline, self._rows = part, model, pipeline, MirroredSlots(0)
        self._called: dict[str, Callable[..., Any]] = {
            "plan": self.plan,
            "fill": self.fill,
            "allocate_host_pages": self.allocate_host_pages,
            "held": self.held,
        }
        self._called |= RankAdapters(part, model).calls
        if mover is not None:
            self._called |= {"move": mover.take, "review": mover.review, "drop": mover.drop}
        self._memory: RecurrentStateMemory | None = None
        self._room: RankKVOptions | None = None
        self._attention: AttentionBackend | None = None

    def ready(self) -> bytes:
        """Bytes of its weights."""
        return pickle.dumps(self.model.weight_bytes)

    def heartbeat(self) -> bytes:
        return b"" if self.pipeline is None else pickle.dumps(self.pipeline.done())

    def take(self, kind: int, payload: bytes) -> bytes:
        """What it answers."""
        if kind == STEP:
            self.step(payload)
        elif kind == POOL:
            return self.make_room(pickle.loads(payload))
        elif kind in (SLEEP, WAKE):
            self.sleep() if kind == SLEEP else self.wake()
        elif kind == ASK:
            return answered(self.call, *pickle.loads(payload))
        elif kind == TELL:
            self.call(*pickle.loads(payload))
        return b""

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """A method of the rank's, as rank 0 names it."""
        return self._called[name](*arguments)

    def plan(self, path: Path) -> int:
        """See `RankWeights.plan`. Bytes that it will read."""
        return self.part.plan(self.model, self.part.opened(path)).bytes

    def fill(self) -> None:
        self.part.fill(self.model)
        self._scale()

    def allocate_host_pages(self, page_size: int, places: int) -> None:
        """Make room in main memory for pages that rank 0 says are to be saved."""
        self._pages = HostKVPages(self._pool, page_size, places)
        self._called |= calls_of(self._pages)

    def held(self) -> int:
        """Bytes of keys, values and states."""
        return self._pool.bytes + (0 if self._memory is None else self._memory.bytes)

    def make_room(self, room: RankKVOptions) -> bytes:
        """Memory for keys and values; what was there is gone. Returns what computes the layers, pickled."""
        layout = self.model.config.attention
        self._pool = layout.pool(room.slots, room.dtype, self.model.device, 0)
        self._scale()
        self._memory = (
            RecurrentStateMemory(self.model.config.states, room.states, self.model.dtype, self.model.device)
            if room.states
            else None
        )
        self._room, self._rows = room, MirroredSlots(room.max_running)
        self._build()
        assert self._attention is not None
        return pickle.dumps(layers_of(self.model, self._attention))

    def _scale(self) -> None:
        take_scales(self._pool, self.model, self.model.config.attention)

    def _build(self) -> None:
        room = self._room
        assert room is not None
        self._attention = attention_backend(
            room.attention,
            self._pool,
            self.model.config.attention,
            page_size=room.page_size,
            max_running=room.max_running,
            context=room.context,
            deterministic=room.deterministic,
            dtype=self.model.dtype,
        )

    @torch.inference_mode()
    def step(self, words: bytes) -> None:
        assert self._attention is not None
        batch = self._rows.batch(words)
        self._attention.plan(batch)
        if self.pipeline is not None:
            self.pipeline.run(batch, self._attention, self._memory)
        else:
            self.model.forward(batch, self._attention, self._memory)

    def sleep(self) -> None:
        self._attention = None
        self._pool.release()
        if self._memory is not None:
            self._memory.release()

    def wake(self) -> None:
        self._pool.restore()
        if self._memory is not None:
            self._memory.restore()
        self._build()


def begin(channel: MessageChannel) -> None:
    """channel: to rank 0."""
    if torch.cuda.is_available():
        with suppress(ImportError):  # it may be for the CPU
            import_module(ON_GPUS)  # while rank 0 finds out what it wants of this one
    main(channel)


def main(channel: MessageChannel) -> None:
    faulthandler.register(WHERE)
    heard: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
    threading.Thread(target=_listen, args=(channel, heard), daemon=True).start()
    try:
        _, payload = heard.get()
        follower = _begun(pickle.loads(payload))
        channel.make_sign = follower.heartbeat
        channel.send(READY, follower.ready())
        while True:
            kind, payload = heard.get()
            answer = follower.take(kind, payload)
            if kind not in UNANSWERED:
                channel.send(READY, answer)
    except BaseException as error:
        traceback.print_exc()
        channel.send_failure(error)
        os._exit(1)


def _begun(begin: RankStart) -> RankCommands:
    """It loads the model and meets the others."""
    following: RankCommands = import_module(ON_GPUS).begun(begin) if begin.device.type == "cuda" else begun(begin)
    return following


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
    return RankWorker(part, part.join(model), PipelineStage(model, PipelineLinks(ranks)))


def answered(call: Callable[[str, tuple[Any, ...]], Any], name: str, arguments: tuple[Any, ...]) -> bytes:
    """What a method of a rank returns, or the error that it raises: rank 0 goes on with either."""
    try:
        return pickle.dumps((call(name, arguments), None))
    except Exception as error:
        return pickle.dumps((None, SerializedError.of(error, otherwise=RuntimeFailure)))


def _listen(channel: MessageChannel, heard: SimpleQueue[tuple[int, bytes]]) -> None:
    try:
        while True:
            heard.put(channel.receive())
    except (EOFError, OSError):
        os._exit(0)  # rank 0 is gone, or wants no more: whatever is computed is not used
