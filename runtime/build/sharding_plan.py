"""What of a model each of several GPUs would hold, by every way to spread it, and which way to take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import ConfigError
from ..executor.ranks.gpu_topology import list_gpus as gpus_here
from ..loading.checkpoint import open_checkpoint
from ..loading.gguf_files.gguf_model import is_gguf
from ..loading.model_files.model_directory import quantization_of
from ..loading.sharded_state import ParallelSizes, has_sharded_state, read_manifest
from ..models.spec.latent_attention_spec import LatentAttentionSpec
from ..models.spec.model_spec import ModelSpec
from ..parallel.ep.expert_parallel_split import ExpertParallelSplit, require_mixtures
from ..parallel.pp.pipeline_stages import stage_boundaries, stage_of
from ..parallel.tp.sharded_source import require
from ..parallel.tp.tensor_parallel_split import TensorParallelSplit, narrowed_model
from . import memory_plan
from .engine_config import DeviceDefaults, EngineConfig
from .memory_estimate import weights_by_kind

# numbers a token, in hidden states, that a step holds in addition to weights and KV: an estimate, an engine measures it
ACTIVATIONS = 12


@dataclass(frozen=True, slots=True)
class ShardingPlan:
    """So many engines of stages * tensor GPUs each. experts: which are whole on GPUs.

    weights: bytes on the fullest GPU.  kv_token: bytes of a token there that has most of them.  tokens: that one
        engine's pool holds.
    rows: of a step, that each GPU attends for in latent attention, which is whole there; otherwise it has some of the
        heads.
    fits: with room for a sequence of the context.  refused: why this cannot be, or is not run by the engine; then sizes
        may be 0.
    copies: of experts, that a sharded state has in each layer; sizes are without them.
    """

    replicas: int
    stages: int
    tensor: int
    weights: int = 0
    kv_token: int = 0
    tokens: int = 0
    fits: bool = False
    refused: str | None = None
    experts: bool = False
    copies: int = 0
    rows: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Of `Engine`."""
        named = {"replicas": self.replicas, "pipeline_parallel": self.stages, "tensor_parallel": self.tensor}
        copies = {"redundant_experts": self.copies} if self.copies else {}
        rows = {"latent_attention": "rows"} if self.rows else {}
        return (
            {name: value for name, value in named.items() if value > 1}
            | ({"expert_parallel": True} if self.experts else {})
            | copies
            | rows
        )


class ShardingPlans(NamedTuple):
    """cards: how many GPUs.  card: bytes of one of them.  context: tokens of the longest sequence."""

    path: str
    cards: int
    card: int
    context: int
    dtype: str
    ways: list[ShardingPlan]
    chosen: ShardingPlan | None

    def as_dict(self) -> dict[str, Any]:
        ways = [asdict(way) | {"options": way.options} for way in self.ways]
        return self._asdict() | {"ways": ways, "chosen": None if self.chosen is None else self.chosen.options}


def on_gpus(count: int, gigabytes: float | None) -> tuple[int, int]:
    """How many GPUs, and the bytes of each: as asked, or of this machine's smallest.

    Raises ConfigError for what is neither.
    """
    if not 1 <= count <= 1024:
        raise ConfigError(f"--gpus {count}: must be a number of GPUs from 1 to 1024")
    if gigabytes is not None:
        if not 0 < gigabytes < 1e6:
            raise ConfigError(f"--gpu-memory {gigabytes:g}: must be the gigabytes of one GPU")
        return count, int(gigabytes * 1e9)
    here = gpus_here()
    if len(here) < count:
        raise ConfigError(
            f"--gpus {count}: this machine has {len(here)}; say with --gpu-memory how many gigabytes each would have"
        )
    return count, min(gpu.bytes for gpu in here)


def read(path: Path, options: EngineConfig, gpus: int, gpu_bytes: int) -> ShardingPlans:
    """Raises ConfigError for a model that sgl has no parts of."""
    model = open_checkpoint(path, options.context, weights=False, load_format=options.load_format).model
    dtype = torch.bfloat16 if options.dtype == "auto" else getattr(torch, options.dtype)
    if options.ranks * options.replicas > 1:
        raise ConfigError("--gpus tries every way: leave tensor_parallel, pipeline_parallel and replicas out")
    context = options.context_for(model.max_position)
    found = sharding_plans(model, options, gpus, gpu_bytes, dtype, context)
    if is_gguf(path) or quantization_of(path)[0] is not None:
        found = [_refused_quantized(way) for way in found]
    if has_sharded_state(path):
        parts = read_manifest(path).parts
        found = [_in_state(way, parts) for way in found]
    return ShardingPlans(
        str(path), gpus, gpu_bytes, context, str(dtype).removeprefix("torch."), found, best_plan(found)
    )


def sharding_plans(
    model: ModelSpec, options: EngineConfig, gpus: int, gpu_bytes: int, dtype: torch.dtype, context: int
) -> list[ShardingPlan]:
    """Every way that uses all GPUs. gpu_bytes: of one."""
    found = [ShardingPlan(*counts) for counts in _factors(gpus)]
    if require_mixtures(model) is None:
        found += [replace(way, experts=True) for way in found if way.tensor > 1 and way.stages == 1]
    if any(isinstance(layer.mixer, LatentAttentionSpec) and layer.mixer.indexer is None for layer in model.layers):
        found += [replace(way, rows=True) for way in found if way.tensor > 1]
    return [_way(model, options, way, gpu_bytes, dtype, context) for way in found]


def _refused_quantized(way: ShardingPlan) -> ShardingPlan:
    """Of a checkpoint with quantised weights, as the engine does after reading: see `require_kernels`."""
    if not way.experts or way.refused is not None:
        return way
    return replace(
        way,
        refused=f"Engine(tensor_parallel={way.tensor}, expert_parallel=True): quantised experts are not whole on ranks "
        "of GPUs",
    )


def _in_state(way: ShardingPlan, parts: ParallelSizes) -> ShardingPlan:
    """Of a sharded state, which is for one way."""
    if way.refused is not None:
        return way
    if not way.rows and parts[:3] == (way.tensor, way.stages, way.experts):
        return replace(way, copies=parts.redundant_experts)
    return replace(way, refused=f"it is a sharded state for {parts}")


def best_plan(found: list[ShardingPlan]) -> ShardingPlan | None:
    """The most engines that still have room for a sequence of the context; None: nothing fits.

    Then stages last, whose latency is that of one GPU.
    """
    runs = [way for way in found if way.refused is None and way.tokens > 0]
    return max(runs, key=lambda way: (way.fits, way.replicas if way.fits else way.tokens, -way.stages), default=None)


def _factors(gpus: int) -> Iterator[tuple[int, int, int]]:
    for replicas in range(gpus, 0, -1):
        for stages in range(1, gpus + 1):
            if gpus % (replicas * stages) == 0:
                yield replicas, stages, gpus // (replicas * stages)


def _way(
    model: ModelSpec, options: EngineConfig, way: ShardingPlan, gpu_bytes: int, dtype: torch.dtype, context: int
) -> ShardingPlan:
    try:
        parts = _parts(model, way)
    except ConfigError as error:
        return replace(way, refused=str(error))
    refused, config = _settled(model, options, way)
    kind = options.weights if options.weights in weights_by_kind(parts[0]) else _kind(dtype)
    weights = [weights_by_kind(part)[kind] for part in parts]
    each = [part.attention.bytes_per_slot(memory_plan.stored_dtype(config, dtype)) for part in parts]
    room = int((config.memory or 0.92) * gpu_bytes) - set_aside(model, config, dtype)
    tokens = min(
        [memory_plan.GPU_TOKENS, *((room - weight) // size for weight, size in zip(weights, each, strict=True) if size)]
    )
    tokens = max(0, tokens) if max(weights) < room else 0
    return replace(
        way, weights=max(weights), kv_token=max(each), tokens=tokens, fits=tokens >= context, refused=refused
    )


def _parts(model: ModelSpec, way: ShardingPlan) -> list[ModelSpec]:
    """Of each stage what its first rank holds, which holds most."""
    whole = ExpertParallelSplit() if way.experts else None
    if way.tensor > 1:
        require(model, way.tensor, whole, way.rows)
    narrow = narrowed_model(model, TensorParallelSplit(0, way.tensor, whole, way.rows)) if way.tensor > 1 else model
    if way.stages == 1:
        return [narrow]
    cuts = stage_boundaries(model, way.stages)
    return [stage_of(narrow, cuts, number) for number, _ in enumerate(pairwise(cuts))]


def _settled(model: ModelSpec, options: EngineConfig, way: ShardingPlan) -> tuple[str | None, DeviceDefaults]:
    """Why the engine does not run it on GPUs; the options without what spreads."""
    alone = replace(options, tensor_parallel=1, pipeline_parallel=1, replicas=1).on("cuda")
    try:
        asked = replace(
            options,
            tensor_parallel=way.tensor,
            pipeline_parallel=way.stages,
            replicas=way.replicas,
            expert_parallel=way.experts,
            latent_attention="rows" if way.rows else "heads",
        )
        asked.validate()
        asked.on("cuda")
    except ConfigError as error:
        return str(error), alone
    return None, alone


def set_aside(model: ModelSpec, config: DeviceDefaults, dtype: torch.dtype) -> int:
    """Bytes of a GPU for workspaces, graphs, sampling and a step's activations."""
    sampling = memory_plan.SAMPLER_COPIES * 4 * config.max_running * model.vocab_size
    return (
        memory_plan.ATTENTION
        + memory_plan.GRAPHS
        + sampling
        + ACTIVATIONS * config.step_tokens * model.hidden_size * dtype.itemsize
    )


def _kind(dtype: torch.dtype) -> str:
    return "float32" if dtype == torch.float32 else "bfloat16"
