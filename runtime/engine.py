"""The embedded runtime's front: one model, one scheduler thread, no port, and no other process unless asked for."""

from __future__ import annotations

import dataclasses
import difflib
import gc
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .cache.tree import CacheTree
from .errors import ConfigError, EngineClosed, RuntimeFailure
from .loading import resolve_model
from .loop.assemble import assemble
from .loop.config import EngineConfig
from .loop.metrics import Stats
from .loop.options import EngineOptions, shows_options
from .loop.step_trace import StepRecord
from .process.remote import connect
from .sampling.params import SamplingParams, own_names
from .sequences.asked import grammar_of
from .sequences.embedding import Floats, normalized
from .sequences.ops import Chunk, Generation
from .sequences.pinning import Pin
from .sequences.sequence import Sequence
from .sequences.terms import Terms

NANO = Path(__file__).parent / "nano"
log = logging.getLogger("sgl")


class Engine:
    """A model ready to run programs, in this process or one of its own. `Engine()` is the bundled sgl-nano.

    `model` is a directory in Hugging Face format, or a hub id; the options are those of `EngineConfig`.
    Raises ConfigError or CheckpointError saying what to change. Use it as a context manager or call
    `close()`; dropping the last reference does the same. All methods are thread-safe.

        with sgl.Engine() as engine:
            print(engine.generate("The capital of France is", max_tokens=8, temperature=0).text)
    """

    @shows_options
    def __init__(self, model: str | Path | None = None, **options: Unpack[EngineOptions]) -> None:
        started = time.perf_counter()
        path = resolve_model(NANO if model is None else model)
        config = EngineConfig.from_options({**options})
        parts = connect(path, config) if config.process else assemble(path, config)
        self.config, self.model_path = parts.config, str(path)
        self.tokenizer, self.vocabulary = parts.tokenizer, parts.vocabulary
        self._core, self._info = parts.core, parts.info
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _stop, parts.core, self._owner)
        self._info["startup_seconds"] = time.perf_counter() - started
        for line in self._info["slower"]:
            log.warning("%s: %s", path.name, line)

    # sequences and text

    def open(
        self, priority: int = 0, *, tenant: str = "", namespace: str = "", timeout: float | None = None
    ) -> Sequence:
        """A new, empty sequence. Higher priorities are computed first and may take the place of lower ones.

        Tenants of equal priority share the engine fairly. Cached prefixes are matched within `namespace` alone.
        What is not done `timeout` seconds from now fails with DeadlineExceeded. Forks inherit all of it.
        """
        self._check_open()
        return Sequence(self._core, self._core.new_state(Terms.starting_now(priority, tenant, namespace, timeout)))

    def generate(
        self,
        prompt: str | list[str],
        params: SamplingParams | None = None,
        *,
        grammar: Any = None,
        on_chunk: Callable[[Chunk], None] | None = None,
        **options: Any,
    ) -> Any:
        """Complete a text, or each text of a list; blocks. `options` are fields of SamplingParams;
        `max_new_tokens` is another name of `max_tokens`, `min_new_tokens` of `min_tokens`.

        grammar: a type (pydantic model, dataclass, Literal, list[int] ...) or JSON schema (dict), for JSON of it; or
        what `sgl.grammars` compiled for `engine.vocabulary`.

        Returns a Generation, or a list of them for a list. The first error is raised after all have ended.
        """
        params = _with_options(params or SamplingParams(), options)
        grammar = grammar_of(grammar, self.vocabulary, self.config.json_options)
        single = isinstance(prompt, str)
        futures = []
        for text in [prompt] if isinstance(prompt, str) else prompt:
            sequence = self.open()
            sequence.extend(self.tokenizer.encode(text, special_prefix=True))
            futures.append(sequence.generate(params, grammar, on_chunk))
        results: list[Generation] = [future.result() for future in futures]
        return results[0] if single else results

    def embed(self, texts: str | list[str], normalize: bool = False) -> Floats:
        """A vector for each text, float32 [n, hidden]; blocks. Of one text it is [1, hidden].

        It is the mean of the model's last hidden states over the text's tokens: a generative model was not trained to
        make them comparable. normalize: at length 1. Raises ConfigError for no text, or one without tokens.
        """
        futures = []
        for text in [texts] if isinstance(texts, str) else texts:
            sequence = self.open()
            sequence.extend(self.tokenizer.encode(text, special_prefix=True))
            futures.append(sequence.embed())
        if not futures:
            raise ConfigError("embed() got no texts; give at least one")
        vectors: Floats = np.stack([future.result() for future in futures])
        return normalized(vectors) if normalize else vectors

    # the cache

    def pin(self, prefix: str | ArrayLike, namespace: str = "") -> Pin:
        """Compute a text, or token ids, and keep it cached until the Pin is released or dropped; blocks.

        Whole pages are kept, also through a sleep: they are computed again after `wake`. The last token of a text may
        be another one where the text goes on. Raises OutOfPages when more than half of the pool would be pinned.
        """
        tokens = self.tokenizer.encode(prefix, special_prefix=True) if isinstance(prefix, str) else prefix
        sequence = self.open(namespace=namespace)
        sequence.extend(tokens)
        return Pin(sequence)

    def flush_cache(self) -> int:
        """Forget every cached prefix that no sequence holds, in main memory too; returns the pages freed."""
        return self._ask("flush")

    def cache_tree(self) -> CacheTree:
        """A copy of the prefix cache's tree, taken between two steps; a notebook shows it as a picture.

        Prefixes that are kept in main memory (`host_kv`) are not in it.
        """
        return CacheTree.of(self._ask("tree"), partial(self.tokenizer.decode, skip_special_tokens=False))

    def check(self) -> None:
        """Walk tree, pages and sequences; raise RuntimeError where they disagree."""
        self._ask("check")

    # what is going on

    def stats(self) -> Stats:
        """A copy of the counters, taken between two steps."""
        return self._ask("snapshot")

    def glance(self) -> Stats:
        """The counters as they stand, at once, in the middle of a step too: some may be a step behind the others."""
        return self._core.snapshot()

    @contextmanager
    def trace_steps(self) -> Iterator[list[StepRecord]]:
        """What is computed in each step while the `with` block runs: a list that is filled when the block ends.

        Of all that the engine does meanwhile, whoever asked for it. Until then the records take memory in the engine.
        Raises EngineDied if its process was lost meanwhile, EngineClosed; an error of the block itself goes before.
        """
        records: list[StepRecord] = []
        number = self._ask("begin_trace")
        try:
            yield records
        except BaseException:
            with suppress(RuntimeFailure):
                records += self._ask("end_trace", number)
            raise
        records += self._ask("end_trace", number)

    @property
    def up(self) -> bool:
        """Whether it computes now: it is neither closed, nor failed, nor being started again."""
        return not self.closed and self._core.up

    def info(self) -> dict[str, Any]:
        """What runs, on what, and why. `memory` in bytes; `startup`: seconds of each part of the start.

        `layers`: who computes which layers, and why not faster (see `models.explain.Layers`); `slower`: a line for each
        such reason, empty where all run by the fastest that the machine has.
        `pid` is the process that computes, `restarts` counts how often one died and was started anew.
        """
        return dict(self._info)

    # giving the device's memory away for a while

    def sleep(self) -> int:
        """Free the KV pool and what the device needs beside; weights wait in main memory. Returns the bytes freed.

        What runs is interrupted and computed again after `wake`; what is asked for meanwhile waits. Nothing fails.
        Prefixes in the cache go to main memory as far as `host_kv` has room, else they are forgotten. On the CPU the weights stay where they are. Asleep already: 0.
        """
        return self._ask("sleep")

    def wake(self) -> None:
        """Take the memory again and go on. Raises RuntimeFailure, still asleep, where there is no room."""
        self._ask("wake")

    @property
    def asleep(self) -> bool:
        return self._core.asleep

    # other weights

    def update_weights(self, origin: str | Path | Mapping[str, Tensor]) -> int:
        """Take other weights of the same model, between two steps; returns the bytes that were read.

        origin: a model directory, or its tensors by the names that the checkpoint gives them (of any float dtype, on any
        device). They are quantised as the engine's `weights` asks. Cached prefixes are forgotten; what runs goes on with the
        text that it has, computed again. Files and tensors are checked first: CheckpointError leaves everything as it was. An
        error while they are read brings the weights of before back from their files.
        """
        if self.config.process and isinstance(origin, Mapping):
            raise ConfigError("update_weights of tensors with process=True: they are in another process; give a model directory")
        size: int = self._ask("update", origin if isinstance(origin, Mapping) else os.path.abspath(origin))
        if not isinstance(origin, Mapping):
            self.model_path = self._info["model_path"] = os.path.abspath(origin)
        return size

    # the end

    def close(self) -> None:
        """Fail what still waits with EngineClosed, end the thread, give the memory back. Idempotent."""
        if self.closed:
            return
        self._finalizer()
        self._core.forget()
        if self._info["device"].startswith("cuda") and not self.config.process:
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
        if self._owner != os.getpid():
            raise EngineClosed(
                "the engine belongs to the process that this one is a fork of; open one here with Engine(process=True)"
            )

    def _ask(self, name: str, *args: Any) -> Any:
        self._check_open()
        return self._core.ask(name, *args)


def _stop(core: Any, owner: int) -> None:
    """A fork of the process that opened the engine has none of its threads, and leaves it alone."""
    if os.getpid() == owner:
        core.stop()


def _with_options(params: SamplingParams, options: dict[str, Any]) -> SamplingParams:
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    options = own_names(options)
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known ones: {', '.join(names)}"
            raise ConfigError(f"there is no sampling option {name!r}; {hint}")
    return dataclasses.replace(params, **options)
