"""The engine: one model and one scheduler thread, without a port, in this process or (on request) in its own."""

from __future__ import annotations

import dataclasses
import difflib
import gc
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

import sgl.grammars
from sgl.grammars.compile_client import grammar_compile_policy
from sgl.grammars.compile_client.grammar_compile_policy import CompileProcessUse

from .adapters.files.tensor_adapters import TensorAdapters
from .build.build_engine import BuiltEngine, build_engine
from .build.engine_config import EngineArguments, EngineConfig
from .build.engine_options import takes
from .build.serving_core import ServingCore
from .calibration import RecordedText, described, given
from .calibration.tensors_on_disk import TensorsOnDisk
from .common.garbage_collection import collector_off
from .errors import ConfigError, EngineClosed, RuntimeFailure
from .loading import resolve_model
from .loading.model_files.locate_model import BUNDLED
from .loading.tensor_files.memory_source import tensors_as_source
from .sampling.sampling_params import SamplingParams, accepted_names
from .sequences.generation import Chunk, Generation
from .sequences.grammar_argument import compile_grammar_argument
from .sequences.ops.embed_op import Floats, normalized
from .sequences.prefix_pin import PrefixPin
from .sequences.sequence import Sequence
from .sequences.sequence_options import SequenceOptions
from .watch.engine_stats import Stats
from .watch.step_trace import StepRecord

if TYPE_CHECKING:
    from .adapters.adapter_api import AdapterApi
    from .cache.view.cache_tree import CacheTree

NANO = BUNDLED
log = logging.getLogger("sgl")


class Engine:
    """A loaded model that runs programs, in this process or in its own. `Engine()` loads the bundled sgl-nano.

        engine = sgl.Engine("Qwen/Qwen3-0.6B")       # a hub id, a directory in Hugging Face's format, a GGUF file, a
        URL
        sgl.set_default_backend(engine)
        with sgl.Engine() as engine:                 # closes the engine at the end
            print(engine.generate("The capital of France is", max_tokens=8, temperature=0).text)

    `sgl.runtime.build.engine_config.EngineConfig` explains the options. Call `close()` or use a `with` block; dropping
    the last reference also closes the engine. All methods are thread-safe. Raises ConfigError or CheckpointError, which
    say what to change.
    """

    @takes(EngineArguments)
    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        started = time.perf_counter()
        config = EngineConfig.from_options(options)
        path = resolve_model(NANO if model is None else model, not config.dummy, config.load_format)
        if config.calibration is not None:
            config = dataclasses.replace(config, calibration=given(config.calibration, partial(recorded, path, config)))
        with collector_off():
            parts = _opened(path, config)
        self.config, self.model_path = _without_texts(parts.config, options.get("calibration")), str(path)
        self.tokenizer, self.vocabulary = parts.tokenizer, parts.vocabulary
        self._core, self._info = parts.core, parts.info
        self._owner, self._trained, self._laid = os.getpid(), TensorAdapters(), TensorsOnDisk()
        self._finalizer = weakref.finalize(
            self, _stop, parts.core, self._owner, grammar_compile_policy.use(parts.config.grammar_process)
        )
        if self.config.process:  # no loop of this process is ever idle
            grammar_compile_policy.start_early()
        self._info["startup_seconds"] = time.perf_counter() - started
        for line in self._info["slower"]:
            log.warning("%s: %s", path.name, line)

    # sequences and text

    def open(
        self,
        priority: int = 0,
        *,
        tenant: str = "",
        namespace: str = "",
        timeout: float | None = None,
        adapter: str | None = None,
    ) -> Sequence:
        """Return a new, empty sequence. Higher priorities are computed first and may preempt lower ones.

        Tenants of equal priority share the engine fairly. Cached prefixes are shared only within a `namespace`.
        Work that is not done `timeout` seconds from now fails with DeadlineExceeded. Forks inherit all of these.
        adapter: the name of a loaded one (`engine.adapters`) that computes the sequence; None: the base does. Cached
        prefixes are shared only by sequences of the same adapter, by its contents. Raises ConfigError for a name that
        is not loaded.
        """
        self._check_open()
        digest = "" if adapter is None else self._core.adapter_digest(adapter)
        return Sequence(
            self._core,
            self._core.new_state(SequenceOptions.with_deadline_now(priority, tenant, namespace, timeout, digest)),
        )

    @property
    def adapters(self) -> AdapterApi:
        """The adapters (LoRA) that are loaded: `load`, `update`, `unload`, `list`, `get`, `pin`. See
        docs/adapters.md."""
        from .adapters.adapter_api import AdapterApi

        return AdapterApi(self._adapt, self._trained)

    def generate(
        self,
        prompt: str | list[str],
        params: SamplingParams | None = None,
        *,
        grammar: Any = None,
        on_chunk: Callable[[Chunk], None] | None = None,
        adapter: str | None = None,
        **options: Any,
    ) -> Any:
        """Complete a text, or each text of a list, and wait. `options` are fields of SamplingParams; `max_tokens` and
        `min_tokens` can also be spelled `max_new_tokens` and `min_new_tokens`.

        grammar: constrains the output. A type (pydantic model, dataclass, Literal, list[int], ...) or a JSON schema
            (dict)
        for JSON; or a grammar that `sgl.grammars` compiled for `engine.vocabulary`.
        adapter: see `open`.

        Returns a Generation; for a list, a list of them. If some fail, the first error is raised after all have ended.
        Where waiting is interrupted (by Ctrl-C), all are aborted.
        """
        params = _with_options(params or SamplingParams(), options)
        grammar = compile_grammar_argument(grammar, self.vocabulary, self.config.json_options)
        single = isinstance(prompt, str)
        if not isinstance(prompt, str | Iterable):
            raise ConfigError(f"generate({prompt!r:.60}): give a text, or a list of texts")
        futures, aborts = list[Future[Generation]](), list[partial[None]]()
        with _aborting(aborts):
            for text in [prompt] if isinstance(prompt, str) else prompt:
                sequence = self.open(adapter=adapter)
                aborts.append(partial(self._core.abort, sequence._state))  # the sequence is closed once it is done
                sequence.extend(self.tokenizer.encode(text, special_prefix=True))
                futures.append(sequence.generate(params, grammar, on_chunk))
            for future in futures:
                future.exception()
        results = [future.result() for future in futures]
        return results[0] if single else results

    def embed(self, texts: str | list[str], normalize: bool = False, adapter: str | None = None) -> Floats:
        """Compute a vector for each text and wait: float32 [n, hidden], [1, hidden] for one text.

        A vector is the mean of the model's last hidden states over the text's tokens. Generative models are not
        trained to make such vectors comparable. normalize: scale to length 1. adapter: see `open`. Raises ConfigError
        for an empty list or
        a text without tokens.
        """
        futures, aborts = list[Future[Floats]](), list[partial[None]]()
        with _aborting(aborts):
            for text in [texts] if isinstance(texts, str) else texts:
                sequence = self.open(adapter=adapter)
                aborts.append(partial(self._core.abort, sequence._state))
                sequence.extend(self.tokenizer.encode(text, special_prefix=True))
                futures.append(sequence.embed())
            if not futures:
                raise ConfigError("embed() got no texts; give at least one")
            vectors: Floats = np.stack([future.result() for future in futures])
        return normalized(vectors) if normalize else vectors

    # the cache

    def pin(self, prefix: str | ArrayLike, namespace: str = "", adapter: str | None = None) -> PrefixPin:
        """Compute a text, or token ids, and keep it cached until the Pin is released or dropped. Blocks.

        Whole pages are kept. After `sleep` and `wake` they are computed again. The last token of a text may be
        tokenized differently when the text continues. Raises OutOfPages if more than half of the pool would be pinned.
        """
        tokens = self.tokenizer.encode(prefix, special_prefix=True) if isinstance(prefix, str) else prefix
        sequence = self.open(namespace=namespace, adapter=adapter)
        sequence.extend(tokens)
        return PrefixPin(sequence)

    def flush_cache(self) -> int:
        """Drop every cached prefix that no sequence uses, also in main memory. Returns the number of pages freed."""
        return self._ask("flush")

    def cache_tree(self) -> CacheTree:
        """Return a copy of the prefix cache's tree, taken between two steps. Notebooks display it as a picture.

        It does not include prefixes kept in main memory (`host_kv`).
        """
        from .cache.view.cache_tree import CacheTree

        return CacheTree.of(self._ask("tree"), partial(self.tokenizer.decode, skip_special_tokens=False))

    def check(self) -> None:
        """Check that tree, pages and sequences agree. Raises RuntimeError if they do not."""
        self._ask("check")

    # what is going on

    def stats(self) -> Stats:
        """Return a copy of the counters, taken between two steps."""
        return self._ask("snapshot")

    def glance(self) -> Stats:
        """Return the counters at once, even during a step: some may lag one step."""
        return self._core.snapshot()

    @contextmanager
    def trace_steps(self) -> Iterator[list[StepRecord]]:
        """Record each step while the `with` block runs. The block gets a list that is filled when it ends.

        It covers all work of the engine, not only this thread's. The records take memory until the block ends. Raises
        EngineDied if the engine's process died meanwhile, EngineClosed; an error of the block itself takes precedence.
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

    @contextmanager
    def record(self) -> Iterator[list[RecordedText]]:
        """Record the texts of all sequences while the `with` block runs. The block gets a list that is filled when it
        ends.

        Each has `tokens`, its ids, and `answers`, where in it they were generated: (start, stop). What is still to come
        of a text when the block ends is not in it, so wait for programs within (`state.sync()`). What other
        texts begin with is left out. They can be given to `Engine(calibration=...)`, after a look at what
        `engine.tokenizer.decode` makes of the tokens. Raises EngineDied if the engine's process died meanwhile,
        EngineClosed.
        """
        texts: list[RecordedText] = []
        number = self._ask("begin_recording")
        try:
            yield texts
        finally:
            with suppress(RuntimeFailure) if sys.exception() else nullcontext():
                texts += self._ask("end_recording", number)

    @property
    def up(self) -> bool:
        """True unless the engine is closed, has failed or is being restarted."""
        return not self.closed and self._core.up

    @property
    def fixed_info(self) -> dict[str, Any]:
        """Of `info()` what needs no question to the engine: all but what changes while it runs."""
        return self._info

    def info(self) -> dict[str, Any]:
        """Describe what runs, on what device, and why.

        `memory` is in bytes, `startup` in seconds per part of the start. Of the memory taken for keys, values and
        states (`kv`, `states`), `touched` is what the system has given by now; on a GPU all, of rank 0's part.
        `loading`: bytes of weights that were read, in how many seconds, and `peak_bytes`, the most that weights took at
        a time, counted; of rank 0's part where there are several; on a CPU `cache`, what became of the cache of packed
        weights. None for random weights.
        `layers`: which code computes which layers (see `models.describe.explain_executors.LayerGroup`); `slower`: one
        line for each reason why a layer does not use the machine's fastest path, empty if all do.
        `grammars`: the core of their masks, and which process compiles them.
        `pid` is the computing process; `restarts` counts how often it died and was restarted.
        `expert_offload_plan`, with `expert_parallel`: which rank holds which experts now, of layers with equal
        placement.
        """
        found = {"memory": self._info["memory"] | {"touched": self._core.touched()}}
        if self.config.expert_parallel:
            found["expert_places"] = self.glance().expert_places
        grammars = {"core": sgl.grammars.core_name(), "compiled": grammar_compile_policy.describe()}
        return self._info | found | {"grammars": grammars}

    # giving the device's memory away for a while

    def sleep(self) -> int:
        """Free the KV pool and other device memory; move the weights to main memory. Returns the number of bytes freed,
        of all ranks.

        Running requests are interrupted and computed again after `wake`; new ones wait; none fails. Cached prefixes
        move to main memory if `host_kv` has room, otherwise they are dropped. On the CPU the weights stay in place.
        Returns 0 if the engine is already asleep. GPUs get memory back in blocks of 2 MB and more: for a model of a few
        MB it may be 0 too.
        """
        return self._ask("sleep")

    def wake(self) -> None:
        """Allocate the memory again and continue. If there is no room, raises RuntimeFailure and stays asleep."""
        self._ask("wake")

    @property
    def asleep(self) -> bool:
        return self._core.asleep

    # other weights

    def update_weights(self, origin: str | Path | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> int:
        """Load other weights for the same model, between two steps. Returns the number of bytes read.

        origin: a model directory, or its tensors by their names in the checkpoint (of any float dtype, on any device):
            a mapping,
        or pairs of name and tensor, of which all are taken before anything changes. With `process`, several ranks or
        replicas they are written to a
        temporary folder first. They are quantised as the engine's `weights` option says. Cached prefixes are dropped;
        running requests keep their text,
        which is computed again. Files and tensors are checked first, so a CheckpointError changes nothing. After an
        error
        during loading, the old weights are loaded again from their files.
        """
        self._check_open()
        if isinstance(origin, str | os.PathLike):
            path = str(resolve_model(origin, load_format=self.config.load_format).absolute())
            size = self._updated(path)
            self.model_path = self._info["model_path"] = path
            return size
        tensors = tensors_as_source(origin)
        if not self.config.process:
            return self._updated(tensors)
        with self._laid.written(Path(self.model_path), tensors) as folder:
            return self._updated(str(folder))

    # experts that are stored whole on ranks

    def rebalance_experts(self) -> dict[str, Any]:
        """Move experts between ranks so that all have about equal loads, by the routing since the last call. Blocks.

        A few move between two steps; running sequences go on. All-reduced sums may have other last bits then, with
        `deterministic=True` none.

        Returns what was done: `layers`, `experts` and `bytes` that moved, `seconds` that it took between steps,
        `balance_before` of the ranks and `balance_expected` (1.0: all are equally busy); with replicas one such dict
        for each in `replicas`. Raises ConfigError without `expert_parallel`, EngineDied if a rank ends meanwhile.
        """
        if not self.config.expert_parallel:
            raise ConfigError(
                "rebalance_experts() is for experts that are stored whole on ranks: Engine(tensor_parallel=..., "
                "expert_parallel=True)"
            )
        found: dict[str, Any] | None = self._ask("rebalance", True)
        while found is None:
            found = self._ask("rebalance", False)
        return found

    # the end

    def close(self) -> None:
        """Fail waiting requests with EngineClosed, end the thread and free the memory. Safe to call twice."""
        if self.closed:
            return
        self._finalizer()
        self._core.forget()
        self._trained.close()
        self._laid.close()
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
                "the engine belongs to the process that this one was forked from; open one here with "
                "Engine(process=True)"
            )

    def _adapt(self, name: str, *args: Any) -> Any:
        self._check_open()
        return self._core.adapt(name, *args)

    def _updated(self, origin: str | Mapping[str, Tensor]) -> int:
        size: int
        size, changed = self._ask("update", origin)
        self._info |= changed
        return size

    def _ask(self, name: str, *args: Any) -> Any:
        self._check_open()
        return self._core.ask(name, *args)


def _opened(path: Path, config: EngineConfig) -> BuiltEngine[ServingCore]:
    if config.replicas > 1:
        from .replicas.replicas_core import connect_replicas

        return connect_replicas(path, config)
    if config.process:
        from .process.remote_core import connect

        return connect(path, config)
    return build_engine(path, config)


def recorded(path: Path, config: EngineConfig, function: Callable[[Engine], object]) -> list[RecordedText]:
    """What a function has an engine compute that has the options of `config`, but the weights as they are."""
    plain = dataclasses.replace(config, weights="auto", activations="dynamic", calibration=None, strict=False)
    options = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    with Engine(path, **options) as engine, engine.record() as texts:
        _wait_for(function(engine))
    return texts


@contextmanager
def _aborting(aborts: list[partial[None]]) -> Iterator[None]:
    """What is begun within is aborted where the block ends early, as by Ctrl-C."""
    try:
        yield
    except BaseException:
        for abort in aborts:
            abort()
        raise


def _wait_for(found: object) -> None:
    """Wait for the state of a program that goes on after the call that began it, or for several."""
    for state in found if isinstance(found, list | tuple) else [found]:
        if callable(sync := getattr(state, "sync", None)):
            sync()


def _without_texts(config: EngineConfig, calibration: Any) -> EngineConfig:
    """For reports: options are shown as they were given, the texts are not."""
    return (
        config
        if config.calibration is None
        else dataclasses.replace(config, calibration=described(calibration, config.calibration))
    )


def _stop(core: ServingCore, owner: int, compiling: CompileProcessUse | None) -> None:
    """A fork of the process that opened the engine has none of its threads, and leaves it alone."""
    if os.getpid() == owner:
        core.stop()
        if compiling is not None:
            compiling.leave()


def _with_options(params: SamplingParams, options: dict[str, Any]) -> SamplingParams:
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    options = accepted_names(options)
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known ones: {', '.join(names)}"
            raise ConfigError(f"there is no sampling option {name!r}; {hint}")
    return dataclasses.replace(params, **options)
