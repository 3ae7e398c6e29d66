"""The embedded runtime's front: one model, one scheduler thread, no other process, no port."""

from __future__ import annotations

import dataclasses
import difflib
import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch

from .assemble import assemble
from .config import EngineConfig
from .core import EngineCore
from .errors import ConfigError, EngineClosed
from .loading import resolve_model
from .metrics import Stats
from .ops import Chunk, Generation
from .sampling.params import SamplingParams
from .sequence import Sequence

NANO = Path(__file__).parent / "nano"


class Engine:
    """A model in this process, ready to run programs. `Engine()` is the bundled sgl-nano.

    `model` is a directory in Hugging Face format, or a hub id; the options are those of `EngineConfig`.
    Raises ConfigError or CheckpointError saying what to change. Use it as a context manager or call
    `close()`; dropping the last reference does the same. All methods are thread-safe.

        with sgl.Engine() as engine:
            print(engine.generate("The capital of France is", max_tokens=8, temperature=0).text)
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        started = time.perf_counter()
        path = resolve_model(NANO if model is None else model)
        parts = assemble(path, EngineConfig.from_options(options))
        self.config, self.model_path = parts.config, str(path)
        self.tokenizer, self.vocabulary = parts.tokenizer, parts.vocabulary
        self._core, self._sleeper, self._info = parts.core, parts.sleeper, parts.info
        self._core.start()
        self._finalizer = weakref.finalize(self, EngineCore.stop, self._core)
        self._info["startup_seconds"] = time.perf_counter() - started

    # sequences and text

    def open(self, priority: int = 0) -> Sequence:
        """A new, empty sequence. Higher priorities are computed first."""
        self._check_open()
        return Sequence(self._core, self._core.life.new_state(priority))

    def generate(
        self,
        prompt: str | list[str],
        params: SamplingParams | None = None,
        *,
        grammar: Any = None,
        on_chunk: Callable[[Chunk], None] | None = None,
        **options: Any,
    ) -> Any:
        """Complete a text, or each text of a list; blocks. `options` are fields of SamplingParams.

        Returns a Generation, or a list of them for a list. The first error is raised after all have ended.
        """
        params = _with_options(params or SamplingParams(), options)
        single = isinstance(prompt, str)
        futures = []
        for text in [prompt] if isinstance(prompt, str) else prompt:
            sequence = self.open()
            sequence.extend(self.tokenizer.encode(text, special_prefix=True))
            futures.append(sequence.generate(params, grammar, on_chunk))
        results: list[Generation] = [future.result() for future in futures]
        return results[0] if single else results

    # the cache

    def flush_cache(self) -> int:
        """Forget every cached prefix that no sequence holds; returns the pages freed."""
        return self._call(self._core.flush)

    def check(self) -> None:
        """Walk tree, pages and sequences; raise RuntimeError where they disagree."""
        self._call(self._core.check)

    # what is going on

    def stats(self) -> Stats:
        """A copy of the counters, taken between two steps."""
        return self._call(self._core.snapshot)

    def info(self) -> dict[str, Any]:
        """What runs, on what, and why. `memory` in bytes; `startup`: seconds of each part of the start."""
        return dict(self._info)

    # giving the device's memory away for a while

    def sleep(self) -> int:
        """Free the KV pool and what the device needs beside; weights wait in main memory. Returns the bytes freed.

        What runs is interrupted and computed again after `wake`; what is asked for meanwhile waits. Nothing fails.
        Prefixes in the cache are forgotten. On the CPU the weights stay where they are. Asleep already: 0.
        """
        return self._call(self._sleeper.sleep)

    def wake(self) -> None:
        """Take the memory again and go on. Raises RuntimeFailure, still asleep, where there is no room."""
        self._call(self._sleeper.wake)

    @property
    def asleep(self) -> bool:
        return self._sleeper.asleep

    # the end

    def close(self) -> None:
        """Fail what still waits with EngineClosed, end the thread, give the memory back. Idempotent."""
        if self.closed:
            return
        self._finalizer()
        self._sleeper.forget()
        if self._info["device"].startswith("cuda"):
            gc.collect()  # a cycle through a failed step's traceback would hold the weights
            torch.cuda.empty_cache()

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # inside

    def _check_open(self) -> None:
        if self.closed:
            raise EngineClosed("the engine is closed; open a new one")

    def _call(self, task: Callable[[], Any]) -> Any:
        self._check_open()
        return self._core.call(task)


def _with_options(params: SamplingParams, options: dict[str, Any]) -> SamplingParams:
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known ones: {', '.join(names)}"
            raise ConfigError(f"there is no sampling option {name!r}; {hint}")
    return dataclasses.replace(params, **options)
