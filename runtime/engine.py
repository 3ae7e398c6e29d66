"""The embedded runtime's front: one model, one scheduler thread, no other process, no port."""

from __future__ import annotations

import dataclasses
import difflib
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch

from sgl.grammars import Vocabulary

from .attention import attention_backend
from .cache import Ints, PagePool, PrefixCache
from .config import EngineConfig, free_memory, parse_memory
from .core import EngineCore
from .errors import ConfigError, EngineClosed
from .executor.device import apply_threads, choose_device
from .executor.kv import KVPool
from .executor.runner import Runner
from .jump import JumpForward
from .lifecycle import Lifecycle, TextSide
from .loading import load_config, load_model, resolve_model
from .metrics import Stats
from .models.config import ModelConfig
from .ops import Chunk, Generation
from .sampling.params import SamplingParams
from .scheduler import Scheduler
from .sequence import Sequence
from .tokenizer import Tokenizer

NANO = Path(__file__).parent / "nano"
KV_SHARE = 0.25  # of the free memory, where neither kv_tokens nor kv_memory is given
KV_TOKENS_AUTO = 131_072


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
        self.config = EngineConfig.from_options(options)
        path = resolve_model(NANO if model is None else model)
        self.model_path = str(path)
        load_config(path)  # a directory that is no model is told as such, not as one without a tokenizer
        self.tokenizer = Tokenizer.load(path)
        self.vocabulary = Vocabulary.from_tokenizer(self.tokenizer)
        self._choice = choose_device(self.config.device, self.config.dtype, self.config.threads)
        self._core = self._build(path)
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
        """What runs, on what, and why."""
        return dict(self._info)

    # the end

    def close(self) -> None:
        """Fail what still waits with EngineClosed, end the thread, give the memory back. Idempotent."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # inside

    def _build(self, path: Path) -> EngineCore:
        config, choice = self.config, self._choice
        apply_threads(choice.threads)
        seed = (config.seed or 0) if config.dummy else None
        model = load_model(path, choice.dtype, choice.device, dummy_seed=seed)
        shape = model.config.attention_shape
        context = self._context(model.config)
        per_token = KVPool.bytes_per_slot(model.config.num_layers, shape.kv_heads, shape.head_dim, choice.dtype)
        pages = self._pages(per_token, context)
        slots = (pages + 1) * config.page_size
        pool = KVPool(model.config.num_layers, slots, shape.kv_heads, shape.head_dim, choice.dtype, choice.device)
        attention = attention_backend(config.attention, pool, shape)
        self._info: dict[str, Any] = {
            "model_path": self.model_path,
            "architecture": model.config.architecture.name,
            "parameters": model.parameter_count,
            "device": str(choice.device),
            "dtype": str(choice.dtype).removeprefix("torch."),
            "threads": choice.threads,
            "why": list(choice.reasons),
            "attention": type(attention).__name__,
            "context": context,
            "page_size": config.page_size,
            "kv_tokens": pages * config.page_size,
            "kv_bytes": slots * per_token,
        }
        on_free = _poison(pool, config.page_size) if config.poison_freed else None
        cache = PrefixCache(PagePool(pages + 1, config.page_size, on_free))
        text = TextSide(self.tokenizer, self.vocabulary, JumpForward(self.tokenizer) if config.jump_forward else None)
        scheduler = Scheduler(cache, config.step_tokens, config.max_running)
        life = Lifecycle(cache, scheduler, text, model.config.vocab_size, context, config.seed)
        return EngineCore(Runner(model, attention, choice.device), life)

    def _context(self, model: ModelConfig) -> int:
        asked = self.config.context
        if asked is not None and asked > model.max_position:
            raise ConfigError(f"context={asked} is beyond the {model.max_position} positions of the model; ask for less")
        return asked or model.max_position

    def _pages(self, bytes_per_token: int, context: int) -> int:
        config = self.config
        if config.kv_tokens is not None:
            tokens = config.kv_tokens
        elif config.kv_memory is not None:
            tokens = parse_memory(config.kv_memory) // bytes_per_token
        else:
            tokens = min(KV_TOKENS_AUTO, int(KV_SHARE * self._free_memory()) // bytes_per_token)
        if tokens < config.page_size:
            raise ConfigError(
                f"a KV cache of {tokens * bytes_per_token / 1e9:.3f} GB holds {tokens} tokens of {bytes_per_token} bytes; "
                f"{self._free_memory() / 1e9:.2f} GB are free: set kv_memory or kv_tokens"
            )
        return tokens // config.page_size

    def _free_memory(self) -> int:
        if self._choice.device.type == "cuda":
            return torch.cuda.mem_get_info(self._choice.device)[0]
        return free_memory()

    def _check_open(self) -> None:
        if self.closed:
            raise EngineClosed("the engine is closed; open a new one")

    def _call(self, task: Callable[[], Any]) -> Any:
        self._check_open()
        return self._core.call(task)


def _poison(pool: KVPool, page_size: int) -> Callable[[Ints], None]:
    def fill(pages: Ints) -> None:
        first = torch.from_numpy(pages.astype("int64")) * page_size
        pool.fill_nan((first[:, None] + torch.arange(page_size)).flatten())

    return fill


def _with_options(params: SamplingParams, options: dict[str, Any]) -> SamplingParams:
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known ones: {', '.join(names)}"
            raise ConfigError(f"there is no sampling option {name!r}; {hint}")
    return dataclasses.replace(params, **options)
