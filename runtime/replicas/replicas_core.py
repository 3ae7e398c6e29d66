"""The cores of several engines in separate processes, as one engine sees them."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from sgl.grammars import Vocabulary

from ..build.build_engine import BuiltEngine
from ..build.build_tokenizer import load_tokenizer
from ..build.engine_config import DeviceDefaults, EngineConfig
from ..errors import ConfigError, EngineClosed, RuntimeFailure
from ..executor.device_choice import choose_device
from ..process.remote_core import RemoteCore, RemoteSequenceState
from ..sequences.generation import Generation
from ..sequences.ops.sequence_ops import Close, Extend, Fork
from ..sequences.sequence_options import SequenceOptions
from ..sequences.sequence_state import SequenceOp, SequenceState, SequenceStatus
from ..watch.engine_stats import Stats
from . import merge_replica_reports
from .replica_routing import HashedTokenBlocks, ReplicaRouter


def connect_replicas(path: Path, options: EngineConfig) -> BuiltEngine[ReplicasCore]:
    """What `build_engine` returns, over so many engines. Raises what is raised in any of them."""
    core = ReplicasCore(path, replica_options(options))
    try:
        with ThreadPoolExecutor(1, "sgl-tokenizer") as pool:
            text = pool.submit(load_tokenizer, path, options)
            config = core.started()
            tokenizer = text.result()
        core.use(Vocabulary.from_tokenizer(tokenizer))
    except BaseException:
        core.stop()
        raise
    return BuiltEngine(
        replace(config, process=True, replicas=options.replicas, device=options.device),
        tokenizer,
        core.vocabulary,
        core,
        core.info,
    )


def replica_options(options: EngineConfig) -> list[EngineConfig]:
    """The options of each replica. Raises ConfigError for more than there are GPUs for, one for each of its ranks."""
    count, one = options.replicas, replace(options, replicas=1)
    if options.device not in ("auto", "cuda", "cpu"):
        raise ConfigError(
            f"Engine(replicas={count}, device={options.device!r}): all of them would be on that one; take "
            "device='cuda', of which each gets one, or 'cpu'"
        )
    if options.device != "cpu" and torch.cuda.is_available():
        if count * options.ranks > (there := torch.cuda.device_count()):
            each = "" if options.ranks == 1 else f", where each replica takes {options.ranks}"
            raise ConfigError(
                f"Engine(replicas={count}): torch sees {there} CUDA devices{each}; take {there // options.ranks} "
                "replicas at most, or device='cpu'"
            )
        return [replace(one, device="cuda")] * count
    if count > (most := max(8, os.cpu_count() or 1)):
        raise ConfigError(
            f"Engine(replicas={count}): each is a process with the whole model; by the CPUs of this machine take "
            f"{most} at most"
        )
    if options.threads is not None:
        return [one] * count
    threads = choose_device(options.device, options.dtype).threads
    return [replace(one, threads=max(1, threads // (count * options.ranks)))] * count


def replica_gpus(options: Sequence[EngineConfig]) -> list[dict[str, str]]:
    """Of each replica, the environment of its process: of the GPUs that this process sees, one for each of its ranks.

    Empty on a CPU.
    """
    if options[0].device != "cuda":
        return [{}] * len(options)
    seen, width = os.environ.get("CUDA_VISIBLE_DEVICES"), options[0].ranks
    names = (
        [str(number) for number in range(width * len(options))]
        if seen is None
        else [name.strip() for name in seen.split(",")]
    )
    return [{"CUDA_VISIBLE_DEVICES": ",".join(names[at : at + width])} for at in range(0, width * len(options), width)]


class ReplicaSequenceState:
    """A sequence. Where it goes is decided when it is to be computed: until then it holds what it was extended by.

    text: for its children's sake, and for what is remembered of where it is.  closed: before it went anywhere.
    """

    __slots__ = ("closed", "held", "id", "place", "remote", "terms", "text")

    def __init__(self, id: int, terms: SequenceOptions) -> None:
        self.id, self.terms, self.place, self.text = id, terms, -1, HashedTokenBlocks(terms.space)
        self.remote: RemoteSequenceState | None = None
        self.held: list[Extend] = []
        self.closed = False


def _refused(op: SequenceOp) -> Future[Any]:
    """Of a closed sequence. Its children are closed too."""
    for child in cast("list[ReplicaSequenceState]", op.children) if isinstance(op, Fork) else []:
        child.closed = True
    if isinstance(op, Close):
        op.resolve()
    else:
        op.fail(EngineClosed("the sequence is closed; open or fork a new one"))
    return op.future


class ReplicasCore:
    """Represents several EngineCores. All methods are thread-safe. options: of each."""

    def __init__(self, path: Path, options: Sequence[EngineConfig]) -> None:
        self.vocabulary: Vocabulary
        self.info: dict[str, Any] = {}
        self._path, self._ids, self._lock = path, itertools.count(1), threading.RLock()
        self._adapting, self._updating = threading.Lock(), threading.Lock()
        self._router = ReplicaRouter([1] * len(options))
        self._restarts = [0] * len(options)
        self._cores: list[RemoteCore] = []
        seen = replica_gpus(options)
        width = options[0].ranks
        self._devices = [
            ", ".join(f"cuda:{number * width + rank}" for rank in range(width))
            for number, environment in enumerate(seen)
            if environment
        ]
        for number, (each, environment) in enumerate(zip(options, seen, strict=True)):
            self._cores.append(RemoteCore(path, each, partial(self._noted, number), environment))

    def started(self) -> DeviceDefaults:
        """The settled options of the first, once all run."""
        ready = [core.started.result() for core in self._cores]
        self._router = ReplicaRouter([core.info["kv_tokens"] for core in self._cores])
        self._tell()
        return ready[0].config

    def use(self, vocabulary: Vocabulary) -> None:
        """What grammars are of."""
        self.vocabulary = vocabulary
        for core in self._cores:
            core.vocabulary = vocabulary

    def _noted(self, number: int) -> None:
        """A process is ready: one that was started again has nothing cached."""
        restarts = self._cores[number].info["restarts"] if number < len(self._cores) else 0
        if restarts != self._restarts[number]:
            self._restarts[number] = restarts
            self._router.forget(number)
            self._tell()

    def _tell(self) -> None:
        self.info.update(
            merge_replica_reports.merged_infos([core.info for core in self._cores])
            | ({"devices": self._devices} if self._devices else {})
        )

    # what a sequence asks

    def new_state(self, terms: SequenceOptions, status: SequenceStatus = SequenceStatus.IDLE) -> ReplicaSequenceState:
        return ReplicaSequenceState(next(self._ids), terms)

    def submit(self, state: ReplicaSequenceState, op: SequenceOp) -> Future[Any]:
        with self._lock:
            if state.closed:
                return _refused(op)
            if isinstance(op, Extend):
                state.text.extend(op.new, op.drop)
            if state.remote is None:
                if isinstance(op, Extend):
                    state.held.append(op)
                    return op.future
                if isinstance(op, Close):
                    state.closed, state.held = True, []
                    return _refused(op)
                self._place(state, op)
            elif not isinstance(op, Extend | Close):
                self._count(state, op, 0)
            return self._send(state, op)

    def _place(self, state: ReplicaSequenceState, op: SequenceOp) -> None:
        """Choose where it is computed, and send there what it holds."""
        text = state.text
        state.place, missing = self._router.choose(text.keys, len(text.tokens), [core.up for core in self._cores])
        state.remote = self._cores[state.place].new_state(state.terms, number=state.id)
        for held in state.held:
            self._cores[state.place].submit(state.remote, held)
        state.held = []
        self._count(state, op, missing)

    def _count(self, state: ReplicaSequenceState, op: SequenceOp, waiting: int) -> None:
        self._router.began(state.place)
        op.future.add_done_callback(partial(self._ended, state, state.place, waiting))

    def _ended(self, state: ReplicaSequenceState, place: int, waiting: int, future: Future[Any]) -> None:
        self._router.ended(place, waiting)
        if future.cancelled() or future.exception() is not None or not isinstance(made := future.result(), Generation):
            return
        with self._lock:
            state.text.extend(np.asarray(made.token_ids, np.int32))
            self._router.learn(place, state.text.keys)

    def _send(self, state: ReplicaSequenceState, op: SequenceOp) -> Future[Any]:
        core = self._cores[state.place]
        if isinstance(op, Fork):
            op.children = cast(
                "list[SequenceState]",
                [self._born(core, state, child) for child in cast("list[ReplicaSequenceState]", op.children)],
            )
        assert state.remote is not None
        return core.submit(state.remote, op)

    def _born(self, core: RemoteCore, parent: ReplicaSequenceState, child: ReplicaSequenceState) -> RemoteSequenceState:
        child.place, child.text = parent.place, HashedTokenBlocks(child.terms.space, parent.text.tokens.array)
        child.remote = core.new_state(child.terms, SequenceStatus.CHILD_PENDING, child.id)
        return child.remote

    def abort(self, state: ReplicaSequenceState) -> None:
        if state.remote is not None:
            self._cores[state.place].abort(state.remote)

    # what an engine asks

    def ask(self, name: str, *args: Any) -> Any:
        """What all of them answer, see `merge_replica_reports`. Raises the first error, once all have answered."""
        if name == "update":
            return self._update(*args)
        each = [(number,) for number in args[0]] if name.startswith("end_") else [args] * len(self._cores)
        if name == "flush":
            for number in range(len(self._cores)):
                self._router.forget(number)
        return merge_replica_reports.TOGETHER[name](
            self._all([partial(core.ask, name, *own) for core, own in zip(self._cores, each, strict=True)])
        )

    def _update(self, path: str) -> tuple[int, dict[str, Any]]:
        """All get other weights, each between two of its steps.

        Where one cannot, the others get those of before again, and its error is raised.
        """
        with self._updating:
            answers = self._outcomes([partial(core.ask, "update", path) for core in self._cores])
            wrong = [answer for answer in answers if isinstance(answer, Exception)]
            if wrong:
                changed = [
                    core for core, answer in zip(self._cores, answers, strict=True) if not isinstance(answer, Exception)
                ]
                back = self._outcomes([partial(core.ask, "update", str(self._path)) for core in changed])
                for lost in (answer for answer in back if isinstance(answer, Exception)):
                    words = (
                        f"replicas have different weights now: some could not load {path} ({wrong[0]}), others "
                        f"not {self._path} again ({lost}); close the engine"
                    )
                    raise RuntimeFailure(words) from wrong[0]
            for number in range(len(self._cores)):
                self._router.forget(number)
            if wrong:
                raise wrong[0]
            self._path = Path(path)
            return merge_replica_reports.TOGETHER["update"](answers)

    def adapt(self, name: str, *args: Any) -> Any:
        """All of them load, pin and unload alike, in one order; the first one's answer."""
        if name not in ("load", "unload", "pin"):
            return self._up.adapt(name, *args)
        with self._adapting:
            return self._all([partial(core.adapt, name, *args) for core in self._cores])[0]

    def adapter_digest(self, name: str) -> str:
        return self._up.adapter_digest(name)

    @property
    def _up(self) -> RemoteCore:
        """One that runs, if any does."""
        return next((core for core in self._cores if core.up), self._cores[0])

    def _all(self, calls: Sequence[partial[Any]]) -> list[Any]:
        answers = self._outcomes(calls)
        for error in (answer for answer in answers if isinstance(answer, Exception)):
            raise error
        return answers

    def _outcomes(self, calls: Sequence[partial[Any]]) -> list[Any]:
        """What each returns or raises, once all have ended."""
        with ThreadPoolExecutor(max(1, len(calls)), "sgl-replicas") as pool:
            futures = [pool.submit(call) for call in calls]
        return [future.exception() or future.result() for future in futures]

    @property
    def up(self) -> bool:
        """Whether any takes operations."""
        return any(core.up for core in self._cores)

    @property
    def asleep(self) -> bool:
        return all(core.asleep for core in self._cores)

    def snapshot(self) -> Stats:
        return merge_replica_reports.merged_stats([core.snapshot() for core in self._cores])

    def touched(self) -> int:
        """Of the first, as `info["memory"]` is."""
        return self._cores[0].touched()

    def stop(self) -> None:
        """All end at the same time. Without new threads: at the end of the interpreter none can be started."""
        for core in self._cores:
            core.leave()
        for core in self._cores:
            core.stop()

    def forget(self) -> None:
        """Nothing here holds the models' memory."""
