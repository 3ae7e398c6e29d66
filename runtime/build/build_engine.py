"""Builds what an engine is made of: the model on its device, the memory shared out, the loop around it."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import torch

from sgl.grammars import Vocabulary

from ..attention import BACKENDS, AttentionBackend, AttentionLayout, attention_backend
from ..cache import Ints
from ..cache.multi_width_kv_pools import Pool
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..cache.recurrent_state_slots import FIRST_SLOT
from ..errors import ConfigError
from ..executor.device_choice import DeviceChoice, apply_threads, choose_device, gpu_device_choice
from ..executor.runner_protocol import Runner
from ..layers import cpu_kernels
from ..loading import describe, load_json_options, load_model
from ..loading.checkpoint import open_checkpoint
from ..loading.gguf_files.kept_headers import headers_read_once
from ..loading.packed_cache.background_writer import PackedWeightsWriter
from ..loading.packed_cache.packed_weights import PackedWeights
from ..loading.remote import is_remote
from ..loop.engine_core import EngineCore
from ..loop.engine_sleep import EngineSleeper
from ..loop.sequence_lifecycle import SequenceLifecycle
from ..loop.weight_update import WeightUpdater
from ..memory.memory_sizes import free_memory, parse_memory
from ..models.chunk_invariance import require_exact
from ..models.decoder import Decoder
from ..models.describe.explain_executors import layers_of, slower
from ..models.kv_cache_scales import describe_scales
from ..models.load_statistics import describe_loading
from ..models.placement.expert_offload_plan import OPTION, ExpertOffloadPlan
from ..models.spec.json_fields import shown
from ..models.spec.model_spec import ExpertsSpec, ModelSpec
from ..models.transformers_backend import AnyDecoder, TransformersModelSpec, load_transformers_model
from ..quantization import Transform, calibrated_for, kv_dtype_for, transform_for
from ..quantization.quantized_transform import QuantizedLayerCount
from ..sampling.sampler_factory import sampler_kind
from ..scheduling.scheduler import Scheduler
from ..sequences.detokenizer_resources import DetokenizerResources
from ..sequences.jump_cache import JumpCache
from ..sequences.jump_forward import JumpForward
from ..text.tokenizer import Tokenizer
from . import memory_plan
from .build_adapters import adapters_refusal, describe_adapters, make_adapters, slot_bytes
from .build_kv_pool import make_pool
from .build_prefix_cache import make_cache, window_pages
from .build_runner import make_runner
from .build_tokenizer import load_tokenizer
from .engine_config import DeviceDefaults, EngineConfig
from .recurrent_state_plan import plan_with_states, state_places_for
from .serving_core import ServingCore
from .sliding_window_plan import SlidingWindowPlan

if TYPE_CHECKING:
    from ..executor.cuda_runner import CudaRunner
    from .build_draft import DraftBuilder
    from .build_ranks import RanksBuilder

OF_WEIGHTS = ("weights", "activations", "deterministic", "load_format")  # the options that decide what they become
MOST_TO_JUMP = 32  # running sequences on a GPU: with more, a forced token costs less as one row of a decode step


GPU_STEP = "sgl.runtime.models.gpu.gpu_step"

Core_co = TypeVar("Core_co", bound=ServingCore, covariant=True)


class BuiltEngine(NamedTuple, Generic[Core_co]):
    """core: an EngineCore, or what represents one or several. info: see `Engine.info`."""

    config: DeviceDefaults
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    core: Core_co
    info: dict[str, Any]


@headers_read_once()
def build_engine(
    path: Path, options: EngineConfig, broken: Callable[[BaseException], None] | None = None
) -> BuiltEngine[EngineCore]:
    """The parts of an engine for the model directory `path`, running.

    broken: see `RankGroup`, of an engine of several ranks.
    """
    assembly = EngineBuilder(path, options)
    if broken is not None and options.ranks > 1:
        from .build_stages import make_ranks_builder

        assembly.side = make_ranks_builder(assembly.config, assembly.choice, assembly.model, path, broken)
    with gpu_device_choice(assembly.choice.device):
        return _assembled(assembly, path, options)


def _assembled(assembly: EngineBuilder, path: Path, options: EngineConfig) -> BuiltEngine[EngineCore]:
    model, text = assembly.load()
    pool, plan = assembly.share_memory(model)
    core, attention = assembly.put_together(model, text, pool)
    info, config = assembly.info(model, attention, plan, core), assembly.config
    again = replace(config, attention=attention.name) if attention.name in BACKENDS else config
    assembly.warm_up(core)
    layout = assembly.windows.layout
    builder = _builder(again, pool, layout, assembly.context, model.dtype)
    core.sleeper = EngineSleeper(core, pool, builder, assembly.draft)
    if assembly.side is not None and assembly.side.experts is not None:
        from ..loop.expert_rebalancing import ExpertRebalancer

        on_gpu = assembly.choice.device.type == "cuda"
        core.rebalancer = ExpertRebalancer(
            assembly.side.experts, config.rebalance_every, lambda: on_gpu and core.asleep
        )
    core.updater = WeightUpdater(
        core,
        pool,
        layout,
        None if config.dummy else path,
        assembly.opening,
        assembly.transform,
        builder,
        assembly.side,
        PackedWeightsWriter.started(assembly.packed, model) if isinstance(model, Decoder) else None,
    )
    core.start()
    return BuiltEngine(config, text.tokenizer, text.vocabulary, core, info)


class EngineBuilder:
    """The steps of building an engine, in order: settle (at once), `load`, `share_memory`, `put_together`, `info`.

    seconds: what each part of the start took.
    """

    def __init__(self, path: Path, options: EngineConfig) -> None:
        self.path = path
        self.seconds: dict[str, float] = {}
        with self._phase("config"):
            self.model = describe(path, options.context, options.implementation, options.trust_remote_code)
            if options.strict and isinstance(self.model, ModelSpec):
                require_no_unknown_weights(self.model, path)
            self.context = options.context_for(self.model.max_position)
            options = options.for_model(load_json_options(path))
        with self._phase("device"):
            self.choice = _chosen(options)
            self.config = options.on(self.choice.device.type)
            apply_threads(self.choice.threads)
            self._text: Future[DetokenizerResources] = Future()
            self.transform = _arithmetic(
                self.config, self.choice, partial(_calibration, self._text, self.config.calibration, self.context)
            )
            _require_experts(self.model, self.config)
            if isinstance(self.model, TransformersModelSpec):
                _require_plain(self.model, self.config, self.transform)
            elif self.config.deterministic:
                require_exact(self.model, self.choice.device, self.choice.dtype)
            if (
                self.config.drafting is not None
                and not isinstance(self.model, TransformersModelSpec)
                and self.model.states
            ):
                raise ConfigError(
                    f"Engine(speculation={self.config.speculation!r}): {self.model.architecture} has recurrent layers, "
                    "whose state after a rejected draft token would be wrong; "
                    "leave speculation out"
                )
            self.draft = self._draft()
            self.side: RanksBuilder | None = None
            self._before = memory_plan.plan_before_loading(self.choice.device)
        self.opening = partial(
            open_checkpoint, context=self.context, load_format=options.load_format, parts=options.parts
        )
        self.packed = PackedWeights({name: getattr(self.config, name) for name in OF_WEIGHTS})
        self._allocated = _allocated(self.choice.device)

    def _draft(self) -> DraftBuilder | None:
        """Of what `Engine(draft=...)` names."""
        if self.config.draft is None:
            return None
        from .build_draft import make_draft_builder

        return make_draft_builder(self.config, self.choice, self.model, self.path)

    def load(self) -> tuple[AnyDecoder, DetokenizerResources]:
        """The model, and in parallel the tokenizer and on a GPU the modules of kernels, in threads."""
        begin = threading.Event()  # the tokenizer's library holds the GIL: weights are looked for before it
        with ThreadPoolExecutor(2, "sgl-start") as pool:
            pool.submit(_into, self._text, _text_side, self.path, self.config, begin)
            if self.choice.device.type == "cuda" and importlib.util.find_spec("triton") is not None:
                pool.submit(importlib.import_module, GPU_STEP)  # where it fails, its first use raises that again
            try:
                model = self._drafted_weights(begin)
            finally:
                begin.set()
            with self._phase("tokenizer"):  # what is left of it
                return model, self._text.result()

    def _drafted_weights(self, begin: threading.Event) -> AnyDecoder:
        if self.draft is not None:
            begin.set()
            with self._phase("draft"):
                self.draft.load(self._text.result().tokenizer, self.path)
        with self._phase("weights"):
            model = self._weights(begin.set)
            if self.draft is not None:
                self.draft.join(model)
        return model

    def _weights(self, reading: Callable[[], None]) -> AnyDecoder:
        """reading: called once weights are found, or at once."""
        seed, choice = _dummy_seed(self.config), self.choice
        if isinstance(self.model, TransformersModelSpec) or self.side is not None:
            reading()
        if isinstance(self.model, TransformersModelSpec):
            if is_remote(self.path) and seed is None:
                raise ConfigError(
                    f"{self.model.architecture} runs by transformers' own implementation, which reads files of this "
                    "machine: download the model"
                )
            return load_transformers_model(self.model, choice.dtype, choice.device, seed, self.config.load_format)
        if self.side is not None:
            return self.side.load(self.config, self.transform, self.context, seed)
        places = (
            None
            if (budget := self.config.expert_budget) is None
            else ExpertOffloadPlan(choice.device, budget, free_memory)
        )
        return load_model(
            self.path,
            choice.dtype,
            choice.device,
            seed,
            self.transform,
            self.context,
            self.config.load_format,
            places,
            self.packed,
            reading,
        )

    def share_memory(self, model: AnyDecoder) -> tuple[Pool, memory_plan.MemoryPlan]:
        with self._phase("measure"):
            with nullcontext() if self.side is None else self.side.measuring():
                plan = memory_plan.plan_after_loading(self._before, model, self.config, self.context, self._allocated)
            plan = plan if self.side is None else self.side.planned(plan)
            plan = plan if self.draft is None else self.draft.planned(plan)
            if isinstance(model, Decoder):
                plan = replace(plan, adapters=slot_bytes(model, self.config, self.side, self.path))
        with self._phase("kv"):
            plan, self.states = _states(model, self.config, self.choice, plan, self.side)
            self.config = state_places_for(self.config, self.states.slots - FIRST_SLOT if self.states else 0)
            other_bytes = 0 if self.draft is None else self.draft.per_token
            layouts = [] if self.side is None else self.side.layouts()
            if self.side is not None and not layouts:
                other_bytes += self.side.other_bytes()
            pool, plan, self.windows = make_pool(
                model, self.config, self.choice, plan, self.context, other_bytes, layouts
            )
            if self.side is not None:
                self.side.make_room(
                    self.config, pool, self.context, self.states.slots if self.states else 0, self.windows.tokens
                )
                plan = self.side.stored(plan, pool)
            return pool, plan if self.draft is None else replace(plan, kv=plan.kv + self.draft.take(pool.slots).bytes)

    def put_together(
        self, model: AnyDecoder, text: DetokenizerResources, pool: Pool
    ) -> tuple[EngineCore, AttentionBackend]:
        config, context = self.config, self.context
        with self._phase("attention"):
            attention = _attention(config, pool, self.windows.layout, context, model.dtype)
            self.layers = (
                *layers_of(model, attention),
                *(() if self.side is None else self.side.layers_on_other_stages()),
            )
            self.slower = [
                *slower(self.layers),
                *(str(kept) for kept in _quantized_layers(model) if kept.why is not None),
            ]
            if config.strict:
                require_fastest_backends(self.slower)
        with self._phase("runner"):
            windows = window_pages(config, self.windows, pool)
            runner = make_runner(model, attention, config, self.choice, context, self.states, windows, self.side)
            core = _core(runner, config, text, pool, context, self.draft, self.side)
        with self._phase("adapters"):
            self._adapt(model, core)
            return core, attention

    def _adapt(self, model: AnyDecoder, core: EngineCore) -> None:
        why, config = adapters_refusal(model, self.path, self.config), self.config
        if why is not None and (config.adapters or config.adapter_slots):
            raise ConfigError(f"Engine({'adapters' if config.adapters else 'adapter_slots'}=...): {why}")
        core.adapters = (
            why if why is not None else make_adapters(cast(Decoder, model), config, self.choice, self.side, self.path)
        )
        if not isinstance(core.adapters, str):
            core.runner.adapters = core.life.adapters = core.scheduler.adapters = core.adapters

    def warm_up(self, core: EngineCore) -> None:
        """On a GPU: compile what steps will launch."""
        if self.choice.device.type == "cuda" and isinstance(core.runner.model, Decoder):
            runner = cast("CudaRunner", core.runner)
            with self._phase("kernels"):
                runner.compile_ahead(lambda: core.stepper.sampler.warm(self.choice.dtype, runner.vocab_size))
                if self.side is not None:
                    self.side.watch_steps()

    def info(
        self, model: AnyDecoder, attention: AttentionBackend, plan: memory_plan.MemoryPlan, core: EngineCore
    ) -> dict[str, Any]:
        found = _info(model, attention, self.config, self.choice, self.context, self.windows)
        if found["loading"] is not None and self.choice.device.type == "cpu":
            self.packed.show(found["loading"])
        found |= {
            "layers": [asdict(row) for row in self.layers],
            "slower": self.slower,
            "few_bits": [str(kept) for kept in _quantized_layers(model)],
        }
        found |= {"products": _products(model)}
        found |= {"expert_memory": _describe_experts(model, self.config)}
        found |= {"notes": list(model.config.notes)} | _describe_states(self.states, self.config)
        found["adapters"] = describe_adapters(core)
        found["draft"] = None if self.draft is None else self.draft.describe()
        found |= {"tensor_parallel": 1, "pipeline_parallel": 1, "expert_parallel": False} | (
            {} if self.side is None else self.side.describe(cast(ModelSpec, self.model), found)
        )
        return {"model_path": str(self.path), **found, "memory": plan.as_dict(), "startup": self.seconds}

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Takes the time; what is queued on the device ends here, so that a phase's seconds are its own."""
        started = time.perf_counter()
        yield
        if name not in ("config", "device") and self.choice.device.type == "cuda":
            torch.cuda.synchronize(self.choice.device)
        self.seconds[name] = time.perf_counter() - started


def _products(model: AnyDecoder) -> list[dict[str, Any]]:
    """Of models that Triton's kernels run."""
    if not isinstance(model, Decoder) or not model.fused:
        return []
    from ..models.gpu.gpu_matmul_report import matmul_reports

    return [asdict(product) for product in matmul_reports(model)]


def _quantized_layers(model: AnyDecoder) -> tuple[QuantizedLayerCount, ...]:
    return model.few_bits if isinstance(model, Decoder) else ()


def require_no_unknown_weights(model: ModelSpec, path: Path) -> None:
    if model.stray:
        raise ConfigError(
            f"Engine(strict=True): {path}: transformers' own class of this model does not have the keys "
            f"{', '.join(map(shown, model.stray))} of "
            "config.json, so they are left aside; take them out, or leave strict out"
        )


def require_fastest_backends(reasons: Sequence[str]) -> None:
    """Raises ConfigError with everything that does not run by the fastest."""
    if reasons:
        raise ConfigError(
            f"Engine(strict=True): {'; '.join(reasons)}. Change the options that it names, or take another model or "
            "machine; "
            "without strict it runs, and says so"
        )


def _builder(
    config: DeviceDefaults, pool: Pool, layout: AttentionLayout, context: int, dtype: torch.dtype
) -> Callable[[], AttentionBackend]:
    """Builds the attention once more, for a pool that came back from a sleep; holds nothing else."""
    return lambda: _attention(config, pool, layout, context, dtype)


def _into(future: Future[DetokenizerResources], call: Callable[..., DetokenizerResources], *args: Any) -> None:
    """What `call` returns or raises becomes the future's."""
    try:
        future.set_result(call(*args))
    except BaseException as error:
        future.set_exception(error)


def _chosen(options: EngineConfig) -> DeviceChoice:
    """The device, with as many threads as each rank gets."""
    choice = choose_device(options.device, options.dtype, options.threads)
    if options.ranks == 1:
        return choice
    from .build_ranks import share_out_ranks

    return share_out_ranks(choice, options)


def _calibration(text: Future[DetokenizerResources], texts: Any, context: int) -> list[Ints]:
    from ..calibration import LENGTH, encoded

    return encoded(text.result().tokenizer, texts, min(LENGTH, context))


def _text_side(path: Path, config: DeviceDefaults, begin: threading.Event) -> DetokenizerResources:
    begin.wait()
    tokenizer = load_tokenizer(path, config)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    return DetokenizerResources(
        tokenizer, vocabulary, JumpCache(JumpForward(tokenizer)) if config.jump_forward else None
    )


def _require_plain(model: TransformersModelSpec, config: DeviceDefaults, transform: Transform | None) -> None:
    """Weights that transformers computes with are as they are. Raises ConfigError for what would change them."""
    if transform is not None:
        asked = "deterministic=True" if config.deterministic else f"weights={config.weights!r}"
        raise ConfigError(
            f"Engine({asked}): {model.architecture} runs by transformers' own implementation, which has none of it"
        )


def _require_experts(model: ModelSpec | TransformersModelSpec, config: DeviceDefaults) -> None:
    """Raises ConfigError where the options say where experts are stored, of a model that has none of ours."""
    if config.expert_budget is not None and (
        isinstance(model, TransformersModelSpec)
        or not any(isinstance(layer.ffn, ExpertsSpec) for layer in model.layers)
    ):
        why = (
            "runs by transformers' own implementation" if isinstance(model, TransformersModelSpec) else "has no experts"
        )
        raise ConfigError(f"{OPTION}: {model.architecture} {why}; leave the option out")


def _dummy_seed(config: DeviceDefaults) -> int | None:
    return (config.seed or 0) if config.dummy else None


def _arithmetic(
    config: DeviceDefaults, choice: DeviceChoice, texts: Callable[[], list[Ints]] = list
) -> Transform | None:
    """What becomes of each projection. texts: token ids of those to calibrate by, once they are wanted.

    Raises ConfigError for what this device, dtype and attention cannot do together.
    """
    kv_dtype_for(config.kv_dtype, choice.dtype, choice.device, config.attention)
    if config.deterministic and choice.device.type == "cpu":
        if not cpu_kernels.can_compute(choice.dtype, choice.device):
            raise ConfigError(
                f"deterministic=True on the CPU needs float32 or bfloat16 (here: {choice.dtype}) and the compiled "
                "kernels, "
                f"which are {'there' if cpu_kernels.kernels else 'not there: install a C compiler and build sgl again'}"
            )
        cpu_kernels.cover_all_sizes()
    found = calibrated_for(config.weights, config.activations, config.deterministic, choice.device)
    if found is not None:
        from ..calibration import CalibrationTransform

        return CalibrationTransform(found.quantise, texts, seen=found.seen)
    return transform_for(config.weights, config.deterministic, choice.device)


def _states(
    model: AnyDecoder,
    config: DeviceDefaults,
    choice: DeviceChoice,
    plan: memory_plan.MemoryPlan,
    side: RanksBuilder | None,
) -> tuple[memory_plan.MemoryPlan, RecurrentStateMemory | None]:
    shapes, layout = model.config.states, model.config.attention
    per_token = layout.bytes_per_slot(memory_plan.stored_dtype(config, choice.dtype)) + (
        0 if side is None else side.other_bytes()
    )
    plan, count = plan_with_states(
        plan, config, shapes if side is None else side.states(shapes), per_token, choice.device, choice.dtype
    )
    return plan, RecurrentStateMemory(shapes, count + FIRST_SLOT, choice.dtype, choice.device) if count else None


def _attention(
    config: DeviceDefaults, pool: Pool, layout: AttentionLayout, context: int, dtype: torch.dtype
) -> AttentionBackend:
    found = attention_backend(
        config.attention,
        pool,
        layout,
        page_size=config.page_size,
        max_running=config.max_running,
        context=context,
        deterministic=config.deterministic,
        dtype=dtype,
    )
    chosen = (
        found.reasons(index)[1] for index, layer in enumerate(layout.layers) if layer is not None and layer.chosen
    )
    if config.deterministic and (why := next(filter(None, chosen), None)):
        raise ConfigError(
            f"Engine(deterministic=True): {why} by sums whose bits depend on how a prompt is cut; run it without "
            "deterministic"
        )
    return found


def _core(
    runner: Runner,
    config: DeviceDefaults,
    text: DetokenizerResources,
    pool: Pool,
    context: int,
    draft: DraftBuilder | None,
    side: RanksBuilder | None,
) -> EngineCore:
    cache = make_cache(runner, config, pool, side)
    scheduler = Scheduler(
        cache, config.step_tokens, config.max_running, config.state_every, config.prompt_seconds or None
    )
    life = SequenceLifecycle(cache, scheduler, text, runner.vocab_size, context, config.seed)
    if runner.device.type == "cuda" and not config.deterministic:
        life.jump_limit = MOST_TO_JUMP
    if config.drafting is not None:
        on_cpu = runner.device.type == "cpu"
        alone = on_cpu and torch.get_num_threads() == 1
        from ..speculative.drafter_factory import make_speculation

        life.speculation = make_speculation(
            config.drafting, text.jumps or JumpCache(JumpForward(text.tokenizer)), cache, on_cpu, alone
        )
        if draft is not None:
            life.speculation.trials = None  # with a draft model no step runs ahead
            life.speculation.model = draft.drafter(
                life.speculation.control, life.stats, text.tokenizer.vocab_size, runner
            )
        scheduler.drafting = life.speculation.extend
    return EngineCore(runner, life, run_ahead=config.run_ahead)


def _info(
    model: AnyDecoder,
    attention: AttentionBackend,
    config: DeviceDefaults,
    choice: DeviceChoice,
    context: int,
    windows: SlidingWindowPlan,
) -> dict[str, Any]:
    pool = attention.pool
    return {
        "pid": os.getpid(),
        "restarts": 0,
        "architecture": model.config.architecture,
        "parameters": model.parameter_count,
        "loading": describe_loading(model),
        "hidden_size": model.config.hidden_size,
        "device": str(choice.device),
        "dtype": str(choice.dtype).removeprefix("torch."),
        "weights": config.weights,
        "activations": config.activations,
        "kv_dtype": str(pool.dtype).removeprefix("torch."),
        "kv_scales": describe_scales(pool, windows.layout),
        "threads": choice.threads,
        "why": list(choice.reasons),
        "attention": attention.name,
        "attention_reason": attention.reason,
        "sampler": sampler_kind(choice.device),
        "graphs": config.graphs,
        "run_ahead": config.run_ahead,
        "speculation": config.speculation,
        "jump_forward": config.jump_forward,
        "deterministic": config.deterministic,
        "context": context,
        "page_size": config.page_size,
        "step_tokens": config.step_tokens,
        "prompt_seconds": config.prompt_seconds,
        "max_running": config.max_running,
        "kv_tokens": pool.slots - config.page_size,
        "kv_bytes": pool.bytes,
        "window_tokens": windows.tokens,
        "windows": windows.describe(),
        "host_kv_bytes": parse_memory(config.host_kv, "host_kv"),
    }


def _describe_experts(model: AnyDecoder, config: DeviceDefaults) -> dict[str, Any]:
    """See `ExpertOffloadPlan.describe_scales`."""
    places = model.expert_places if isinstance(model, Decoder) else None
    return {"asked": config.expert_memory} | ({} if places is None else places.describe())


def _describe_states(states: RecurrentStateMemory | None, config: DeviceDefaults) -> dict[str, int]:
    if states is None:
        return {"states": 0, "state_bytes": 0}
    return {"states": states.slots - FIRST_SLOT, "state_bytes": states.bytes, "state_every": config.state_every}


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
