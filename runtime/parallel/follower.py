"""The process of a rank above 0, started by `team` on a leash.

It decides nothing: it loads its share of the model, computes the steps that it is told, and ends with rank 0.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import traceback
from pathlib import Path
from queue import SimpleQueue

import torch

from ..attention import AttentionBackend, attention_backend
from ..cache.states import StateMemory
from ..layers import cpu
from ..models.decoder import Decoder
from ..models.explain import layers_of
from ..quantization import transform_for
from .line import ALIVE, FAILED, POOL, READY, SLEEP, STEP, WAKE, Begin, Line, Room
from .pipeline import Pipeline, StageRanks
from .ranks import Ranks, joined
from .share import load_share
from .split import Split
from .stages import Place, load_stage
from .step_words import Rows

BEAT = 0.5  # seconds between two signs of life


class Follower:
    """model: the rank's share, joined with the others'.  pipeline: of a stage's layers."""

    def __init__(self, model: Decoder, pipeline: Pipeline | None = None) -> None:
        self.model, self.pipeline, self._rows = model, pipeline, Rows(0)
        self._memory: StateMemory | None = None
        self._room: Room | None = None
        self._attention: AttentionBackend | None = None

    def take(self, kind: int, payload: bytes) -> bytes:
        """What it answers."""
        if kind == STEP:
            self.step(payload)
        elif kind == POOL:
            return self.make_room(pickle.loads(payload))
        elif kind in (SLEEP, WAKE):
            self.sleep() if kind == SLEEP else self.wake()
        return b""

    def make_room(self, room: Room) -> bytes:
        """Memory for keys and values; what lay there is gone. Who computes the layers, pickled."""
        layout = self.model.config.attention
        self._pool = layout.pool(room.slots, room.dtype, self.model.device, 0)
        self._memory = StateMemory(self.model.config.states, room.states, self.model.dtype, self.model.device) if room.states else None
        self._room, self._rows = room, Rows(room.max_running)
        self._build()
        assert self._attention is not None
        return pickle.dumps(layers_of(self.model, self._attention))

    def _build(self) -> None:
        room = self._room
        assert room is not None
        self._attention = attention_backend(
            room.attention, self._pool, self.model.config.attention, page_size=room.page_size, max_running=room.max_running,
            context=room.context, deterministic=room.deterministic, dtype=self.model.dtype,
        )  # fmt: skip

    @torch.inference_mode()
    def step(self, words: bytes) -> None:
        assert self._attention is not None
        batch = self._rows.batch(words)
        self._attention.plan(batch)
        if self.pipeline is not None:
            self.pipeline.run(batch, self._attention, self._memory)
        else:
            self.model.forward(batch, self._attention)

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


def begin(descriptor: str) -> None:
    """descriptor: of the socket to rank 0."""
    main(int(descriptor))


def main(descriptor: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0's affair
        signal.signal(number, signal.SIG_IGN)
    line = Line(socket.socket(fileno=descriptor))
    heard: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
    threading.Thread(target=_listen, args=(line, heard), daemon=True).start()
    beating: list[Pipeline | None] = [None]
    threading.Thread(target=_beat, args=(line, beating), daemon=True).start()
    try:
        _, payload = heard.get()
        follower = _begun(pickle.loads(payload))
        beating[0] = follower.pipeline
        line.send(READY)
        while True:
            kind, payload = heard.get()
            answer = follower.take(kind, payload)
            if kind != STEP:
                line.send(READY, answer)
    except BaseException as error:
        traceback.print_exc()
        line.send(FAILED, f"{type(error).__name__}: {error}".encode())
        os._exit(1)


def _begun(begin: Begin) -> Follower:
    torch.set_num_threads(begin.threads)
    cpu.set_threads(begin.threads)
    if begin.deterministic and begin.device.type == "cpu":
        cpu.take_every_size()
    transform = transform_for(begin.weights, begin.deterministic, begin.device)
    if begin.stages > 1:
        place = Place.of(begin.rank, begin.ranks, begin.stages)
        model = load_stage(Path(begin.path), begin.dtype, begin.device, place, begin.seed, transform, begin.context, begin.load_format)
        return Follower(model, Pipeline.of(model, StageRanks(begin.rank, begin.ranks, Path(begin.meeting), begin.stages)))
    split = Split(begin.rank, begin.ranks)
    model = load_share(Path(begin.path), begin.dtype, begin.device, split, begin.seed, transform, begin.context, begin.load_format)
    return Follower(joined(model, Ranks(begin.rank, begin.ranks, Path(begin.meeting))))


def _listen(line: Line, heard: SimpleQueue[tuple[int, bytes]]) -> None:
    try:
        while True:
            heard.put(line.receive())
    except (EOFError, OSError):
        os._exit(0)  # rank 0 is gone, or wants no more: whatever is computed is for nobody


def _beat(line: Line, beating: list[Pipeline | None]) -> None:
    """A sign of life, of a stage with what it has done."""
    pause = threading.Event()
    try:
        while not pause.wait(BEAT):
            line.send(ALIVE, b"" if beating[0] is None else pickle.dumps(beating[0].done()))
    except OSError:
        os._exit(0)
