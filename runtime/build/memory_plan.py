"""How the memory is shared out: what is measured, what is set aside, and the KV pool takes the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..attention.backend_protocols import AttentionLayout
from ..attention.topk_attention import TopKSelection
from ..cache.host_kv_pages import STAGING
from ..cache.kv_pool import PAD_SLOT
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..cache.recurrent_state_slots import FIRST_SLOT, SCRAP_SLOT
from ..errors import ConfigError
from ..layers.float8_reference import KVScaleFactors
from ..memory.memory_sizes import free_memory, parse_memory
from ..step.step_batch import DeviceBatch, StepBatch
from .engine_config import DeviceDefaults

if TYPE_CHECKING:
    from ..models.transformers_backend import AnyDecoder

CPU_SHARE = 0.25  # of the free memory goes to KV on the CPU, where nothing is asked for
CPU_TOKENS = 131_072
GPU_TOKENS = 2**22  # a small model on a large GPU: more than this is never used, and its tables cost main memory
ATTENTION = 512 * 2**20  # bytes set aside for the workspaces of an attention backend
GRAPHS = 256 * 2**20  # bytes that the nodes of all graphs may take
SAMPLER_COPIES = 4  # float32 copies of the logits that sampling may hold at a time


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of the device's memory (on the CPU: of the main memory).

    total, free: before anything was loaded; weights, activations: measured (activations on a GPU only);
    reserved: set aside for graphs, attention and sampling; kv: the pool; states: of layers that keep some; adapters:
        their slots, on a CPU those of all ranks.
    """

    total: int
    free: int
    weights: int = 0
    activations: int = 0
    reserved: int = 0
    kv: int = 0
    states: int = 0
    adapters: int = 0

    @property
    def taken(self) -> int:
        return self.weights + self.activations + self.reserved + self.states + self.adapters

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "activations": self.activations,
            "graphs and workspaces": self.reserved,
            "KV": self.kv,
            **({"states": self.states} if self.states else {}),
            **({"adapters": self.adapters} if self.adapters else {}),
            "others": self.total - self.free,
        }
        listed = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in parts.items())
        return f"{listed}; {self.free / 1e9:.2f} of {self.total / 1e9:.2f} GB were free"


def plan_before_loading(device: torch.device) -> MemoryPlan:
    """What is free now, what this process has cached but does not use included."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return MemoryPlan(total, free)
    free = free_memory()
    return MemoryPlan(max(free, _main_memory()), free)


def _main_memory() -> int:
    with open("/proc/meminfo") as lines:
        return int(next(lines).split()[1]) * 1024


def plan_after_loading(
    plan: MemoryPlan, model: AnyDecoder, config: DeviceDefaults, context: int, allocated: int
) -> MemoryPlan:
    """The plan with what the model takes. allocated: bytes that the device held before the weights came."""
    if model.device.type != "cuda":
        return replace(plan, weights=model.weight_bytes)
    weights = torch.cuda.memory_allocated(model.device) - allocated
    activations = activation_peak(model, config, context)
    table = 4 * (config.max_running + 1) * -(-context // config.page_size)
    reserved = ATTENTION + table + SAMPLER_COPIES * 4 * config.max_running * model.config.vocab_size
    if config.host_kv:
        reserved += STAGING
    if config.graphs:
        reserved += GRAPHS + 2 * activations * min(config.max_running, config.step_tokens) // config.step_tokens
    return replace(plan, weights=weights, activations=activations, reserved=reserved)


def plan_with_kv(plan: MemoryPlan, config: DeviceDefaults, bytes_per_token: int, device: torch.device) -> MemoryPlan:
    """The plan with the KV pool: as large as asked for, or what the share `memory` leaves. Whole pages.

    On the CPU, where weights and states are taken already, the rest must be free now: the pool takes it token by token.
    Raises ConfigError, with the whole plan in it, where not one page has room.
    """
    tokens = _tokens(plan, config, bytes_per_token, device)
    plan = replace(plan, kv=max(0, tokens) // config.page_size * config.page_size * bytes_per_token)
    if tokens < config.page_size:
        raise ConfigError(
            f"a KV cache of {max(0, tokens) * bytes_per_token / 1e9:.3f} GB holds {max(0, tokens)} tokens of "
            f"{bytes_per_token} bytes ({plan}): {_advice(config)}"
        )
    if not (plan.taken + plan.kv <= plan.free if device.type == "cuda" else plan.adapters + plan.kv <= free_memory()):
        raise ConfigError(f"a KV cache of {plan.kv / 1e9:.2f} GB has no room ({plan}): {_advice(config)}")
    return plan


def _tokens(plan: MemoryPlan, config: DeviceDefaults, bytes_per_token: int, device: torch.device) -> int:
    if config.kv_tokens is not None:
        return config.kv_tokens
    if config.kv_memory is not None:
        return (parse_memory(config.kv_memory) - plan.states) // bytes_per_token
    if config.memory is not None:
        tokens = int(config.memory * plan.free - plan.taken) // bytes_per_token
        return min(GPU_TOKENS, tokens) if device.type == "cuda" else tokens
    return min(CPU_TOKENS, (int(CPU_SHARE * (free_memory() - plan.adapters)) - plan.states) // bytes_per_token)


def tokens_without_keys(config: DeviceDefaults, device: torch.device) -> int:
    """How many tokens the pages count where no layer stores keys."""
    return config.kv_tokens or (GPU_TOKENS if device.type == "cuda" else CPU_TOKENS)


def _advice(config: DeviceDefaults) -> str:
    if config.kv_tokens is not None:
        return f"set kv_tokens, now {config.kv_tokens}, to what fits"
    if config.kv_memory is not None:
        return f"set kv_memory, now {config.kv_memory!r}, to what fits"
    return "set kv_memory or kv_tokens" if config.memory is None else f"raise memory, now {config.memory:g}"


def stored_dtype(config: DeviceDefaults, dtype: torch.dtype) -> torch.dtype:
    """Of keys and values, where the model computes in `dtype`."""
    return torch.float8_e4m3fn if config.kv_dtype == "fp8" else dtype


def activation_peak(model: AnyDecoder, config: DeviceDefaults, context: int) -> int:
    """Bytes that one step of `step_tokens` tokens holds at its peak in addition to weights and KV, on a CUDA device."""
    from ..executor.warmup import compile_step  # no start on a CPU needs it

    device = model.device
    compile_step(device, lambda: dummy_step(model, config, context))
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    dummy_step(model, config, context)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return peak


@torch.inference_mode()
def dummy_step(model: AnyDecoder, config: DeviceDefaults, context: int) -> Tensor:
    """The largest step through the model with an attention that stores nothing; logits [max_running, vocabulary]."""
    attention = _DummyAttention(
        model.config.attention, 2 * config.page_size, stored_dtype(config, model.dtype), model.device
    )
    batch, states = dummy_batch(config, context, model.device), model.config.states
    batch.state_read = batch.state_write = torch.full((len(batch.query_lens),), SCRAP_SLOT, device=model.device)
    return model.forward(
        batch, attention, *([RecurrentStateMemory(states, FIRST_SLOT, model.dtype, model.device)] if states else [])
    )


def dummy_batch(config: DeviceDefaults, context: int, device: torch.device) -> StepBatch:
    """A prefill of `step_tokens` tokens in sequences no longer than the context, none with its own slot."""
    tokens = config.step_tokens
    lengths = [min(context, tokens - start) for start in range(0, tokens, context)]
    ints = _ints(device)
    rows = ints(np.arange(min(config.max_running, tokens)))
    return StepBatch(
        token_ids=ints(np.zeros(tokens)),
        positions=ints(np.arange(tokens) % context),
        slots=ints(np.full(tokens, PAD_SLOT)),
        query_lens=lengths,
        context_lens=list(lengths),
        context_slots=[np.full(length, PAD_SLOT, np.int32) for length in lengths],
        logit_rows=rows,
        device=_device_batch(lengths, config.page_size, ints) if device.type == "cuda" else None,
    )


def _device_batch(lengths: list[int], page_size: int, ints: Callable[[ArrayLike], Tensor]) -> DeviceBatch:
    count = len(lengths)
    return DeviceBatch(
        rows=ints(np.arange(count)),
        token_rows=ints(np.repeat(np.arange(count), lengths)),
        starts=ints([0, *accumulate(lengths)]),
        contexts=ints(lengths),
        table=ints(np.zeros((count, -(-max(lengths) // page_size)))),
        page_size=page_size,
        last=ints(np.zeros(count)),
    )


def _ints(device: torch.device) -> Callable[[ArrayLike], Tensor]:
    kind = np.int64 if device.type == "cpu" else np.int32
    return lambda values: torch.from_numpy(np.asarray(values).astype(kind)).to(device)


class _DummyAttention:
    """An `AttentionBackend` whose answer has the size of a real one."""

    name, reason = "none", "measures the activations"
    capturable = False

    def __init__(self, layout: AttentionLayout, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self._layout, self.pool = layout, layout.pool(slots, dtype, device)

    def plan(self, batch: StepBatch) -> None: ...

    def store(self, k: Tensor, v: Tensor, layer: int, batch: StepBatch) -> None: ...

    def attend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        return q.new_zeros(*q.shape[:2], self._layout.layer(layer).value_dim)

    def stored(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._layout.stored(self.pool, layer)

    def scales(self, layer: int) -> KVScaleFactors:
        return self._layout.scales(self.pool, layer)

    def slots(self, layer: int, batch: StepBatch) -> Tensor:
        return batch.slots

    def reasons(self, layer: int) -> tuple[str, str | None]:
        return self.name, None

    def store_index(self, keys: Tensor, layer: int, batch: StepBatch) -> None: ...

    def choose(self, queries: Tensor, shares: Tensor, layer: int, batch: StepBatch) -> TopKSelection:
        most = self._layout.layer(layer).chosen
        assert most is not None
        none = torch.zeros(len(queries), 1, most, dtype=torch.int32, device=queries.device)
        return TopKSelection(none, none[..., 0])

    def attend_topk(
        self, q: Tensor, chosen: TopKSelection, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        return self.attend(q, None, None, layer, batch)

    def seen(self, layer: int, batch: StepBatch) -> tuple[int, int, int, int] | None:
        return None
