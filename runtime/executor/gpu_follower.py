"""The process of a rank above 0 on a GPU of its own. See `parallel.follower`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..attention import AttentionBackend, attention_backend
from ..cache.host_pages import HostPages
from ..cache.states import StateMemory
from ..cache.window_pages import WindowPlaces
from ..models.capture import Capture
from ..models.decoder import Decoder
from ..models.explain import layers_of
from ..parallel import follower
from ..parallel.cuda_links import CudaLinks
from ..parallel.cuda_ranks import CudaRanks, set_environment
from ..parallel.host_pages import calls_of
from ..parallel.line import ASK, COMPILE, POOL, REHEARSE, SLEEP, STEP, TELL, WAKE, Begin, Room
from ..parallel.moving import Mover
from ..parallel.ranks import joined
from ..parallel.share import load_share
from ..parallel.stages import Place, load_stage
from ..quantization import transform_for
from .offload import HostCopy, tensors_of
from .rehearsal import compile_all
from .stage_cuda_runner import StagedFollower
from .team_cuda_runner import FollowerRunner
from .work_words import Mirrors


class GpuFollower:
    """model: the rank's share, joined with the others'. free: bytes of the card before it was loaded.  mover: where experts lie whole on ranks."""

    def __init__(self, model: Decoder, ranks: CudaRanks, free: int, mover: Mover | None = None) -> None:
        self.model, self.ranks, self._free, self._mover = model, ranks, free, mover
        self._asleep: HostCopy | None = None
        self._memory: StateMemory | None = None
        self._runner: FollowerRunner | None = None
        self._called: dict[str, Callable[..., Any]] = {"keep_pages": self.keep_pages}
        if mover is not None:
            self._called |= {"move": mover.take, "review": mover.review}
        self._takes = {COMPILE: self.compile, REHEARSE: self.rehearse, SLEEP: self.sleep, WAKE: self.wake}

    def ready(self) -> bytes:
        """What rank 0 shares out memory by: bytes that were free, and what the weights take."""
        return pickle.dumps((self._free, torch.cuda.memory_allocated(self.model.device)))

    def told(self) -> bytes:
        return b"" if self._runner is None else pickle.dumps(self._runner.progress.moved())

    def take(self, kind: int, payload: bytes) -> bytes:
        if kind == STEP:
            self.step(payload)
        elif kind == POOL:
            return self.make_room(pickle.loads(payload))
        elif kind == TELL:
            self.call(*pickle.loads(payload))
        elif kind == ASK:
            return follower.answered(self.call, *pickle.loads(payload))
        else:
            self._takes[kind]()
        return b""

    def make_room(self, room: Room) -> bytes:
        layout = self.model.config.attention
        self._layout = layout.apart(room.context) if room.window_slots else layout
        windows = WindowPlaces(room.slots // room.page_size, room.page_size, self._layout.reach) if room.window_slots else None
        self._room, self._mirrors = room, Mirrors(room.max_running, windows)
        self._pool = self._layout.pool(room.slots, room.dtype, self.model.device, room.window_slots)
        self._memory = StateMemory(self.model.config.states, room.states, self.model.dtype, self.model.device) if room.states else None
        if room.captured is not None:  # as rank 0 does, for the sums' sake
            self.model.capture = Capture(room.captured)
        attention, options = self._attention(), {}
        if self.ranks.place.stages > 1:
            options["links"] = CudaLinks(self.ranks, self.model, room.tokens)
        self._runner = (StagedFollower if options else FollowerRunner)(
            self.model, attention, self.model.device, context=room.context, page_size=room.page_size, max_running=room.max_running,
            graphs=room.graphs and self.model.capturable, memory=self._memory, windows=windows, ranks=self.ranks, mirrors=self._mirrors, **options,
        )  # fmt: skip
        return pickle.dumps(layers_of(self.model, attention))

    def _attention(self) -> AttentionBackend:
        room = self._room
        return attention_backend(
            room.attention, self._pool, self._layout, page_size=room.page_size, max_running=room.max_running,
            context=room.context, deterministic=room.deterministic, dtype=self.model.dtype,
        )  # fmt: skip

    @property
    def runner(self) -> FollowerRunner:
        assert self._runner is not None
        return self._runner

    def step(self, words: bytes) -> None:
        with self.runner.on_device():
            self.runner.forward(self._mirrors.work(words))

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """A method of the rank's; what it queues on the card stands behind the steps that were told before."""
        with self.runner.on_device():
            return self._called[name](*arguments)

    def keep_pages(self, page_size: int, places: int) -> None:
        """Lock main memory for pages that rank 0 says are to be saved."""
        self._called |= calls_of(HostPages(self._pool, page_size, places))

    def compile(self) -> None:
        """What rank 0 has compiled; it lies in the folder of compiled kernels."""
        with self.runner.on_device():
            compile_all(self.runner, lambda: None)
        self.runner.begin_rehearsing()

    def rehearse(self) -> None:
        with self.runner.on_device():
            self.runner.rehearse()

    def sleep(self) -> None:
        torch.cuda.synchronize(self.model.device)
        self._asleep = HostCopy([tensor for tensor in tensors_of([self.model]) if tensor.device.type == "cuda"])
        self.runner.release()
        self._pool.release()
        if self._memory is not None:
            self._memory.release()
        torch.cuda.empty_cache()

    def wake(self) -> None:
        assert self._asleep is not None
        with self.runner.on_device():
            self._pool.restore()
            if self._memory is not None:
                self._memory.restore()
        self._asleep.restore()
        self._asleep = None
        self.runner.restore(self._attention())


def begin(descriptor: str) -> None:
    """descriptor: of the socket to rank 0."""
    set_environment()
    follower.main(int(descriptor), _begun)


def _begun(begin: Begin) -> GpuFollower:
    device = torch.device("cuda", begin.device.index + begin.rank)
    torch.cuda.set_device(device)
    torch.set_num_threads(begin.threads)
    free, _ = torch.cuda.mem_get_info(device)
    transform, place = transform_for(begin.weights, begin.deterministic, device), Place.of(begin.rank, begin.ranks, begin.stages, begin.whole)
    path, options = Path(begin.path), (begin.seed, transform, begin.context, begin.load_format)
    if begin.stages == 1:
        model = load_share(path, begin.dtype, device, place.split, *options)
    else:
        model = load_stage(path, begin.dtype, device, place, *options)
    ranks = CudaRanks(begin.rank, begin.ranks, Path(begin.meeting), device, model.config.hidden_size, begin.dtype, begin.deterministic, begin.stages)
    model = joined(model, ranks) if ranks.ranks > 1 else model
    return GpuFollower(model, ranks, free, None if begin.whole is None else Mover(model, begin.rank, begin.ranks))
