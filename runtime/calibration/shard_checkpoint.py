"""A model's weights written as they are computed with, by each rank its part: what `sgl shard` does."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import ConfigError
from ..layers.float8_reference import KVScaleFactors
from ..layers.linear_layers import Linear
from ..loading.checkpoint import OpenCheckpoint, open_checkpoint
from ..loading.gguf_files.gguf_model import is_gguf
from ..loading.load_plan import LoadPlan, plan_for
from ..loading.load_weights import weights_of
from ..loading.model_files.model_directory import QUANTIZATION, QUANTIZATION_FILES, load_config, read_json
from ..loading.remote import is_remote
from ..loading.sharded_state import (
    MANIFEST,
    PREFIX,
    RANK,
    WHOLE,
    PackedProjectionEntry,
    ParallelSizes,
    RankShare,
    ShardedStateManifest,
    file_name,
    has_sharded_state,
)
from ..loading.stored_kv_scales import read_scales
from ..loading.tensor_files.safetensors_header import FLOATS
from ..loading.tensor_files.torch_dtypes import DTYPES as STORED
from ..models.decoder import Decoder
from ..models.spec.model_spec import ModelSpec
from ..models.spec.weight_targets import WeightTarget
from ..parallel.pp import pipeline_stages
from ..quantization import transform_for
from ..quantization.device_weight import device_weight_of
from ..quantization.fused_quantized_weight import FusedQuantizedWeight
from ..quantization.quantized_transform import KeepQuantizedTransform
from ..quantization.quantized_weight import QuantizedWeight
from ..quantization.weight_forms import CALIBRATED
from .shard_writer import ShardWriter

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SMALL = 2**16  # numbers of a tensor that sealing may write into


@dataclass(frozen=True)
class ShardReport:
    """packed: how many projections of each kind, those of all ranks.  dense: of the
    others.  bytes: of all tensors before and after.
    """

    ranks: int
    packed: dict[str, int]
    dense: int
    bytes_before: int
    bytes: int
    seconds: float


def shard(
    origin: Path,
    out: Path,
    weights: str = "auto",
    *,
    parts: ParallelSizes = WHOLE,
    dtype: str | None = None,
    device: torch.device | str = "cpu",
) -> ShardReport:
    """Write the model directory `origin` anew as `out`, each projection as `Engine(origin, weights=weights)` computes
    with it here.

    parts: of the engine that is to load it, whose ranks are written one after the other.
    dtype: "float32", "bfloat16" or "float16", of what stays dense, and of inputs of what is quantised; None: that of
        most stored tensors.
    device: whose kernels it is packed for.

    One layer of one rank and its embedding are in memory at a time. Raises ConfigError for what cannot be split or
    packed so, CheckpointError for damaged files.
    """
    started = time.perf_counter()
    if weights in CALIBRATED:
        raise ConfigError(
            f"weights={weights!r} needs texts to calibrate by: write it with sgl quantize, and shard what that wrote"
        )
    if parts.wrong is not None:
        raise ConfigError(f"{parts.command}: {parts.wrong}")
    checkpoint = _opened(origin)
    _require_as_stored(checkpoint.model, origin)
    numbers = DTYPES[dtype] if dtype else _stored_dtype(checkpoint)
    ranks = [
        _RankShard(place, pipeline_stages.part_of(checkpoint, place), numbers, torch.device(device), weights)
        for place in pipeline_stages.RankPlace.all(parts)
    ]
    with ShardWriter(out) as shards:
        manifest = ShardedStateManifest(parts, tuple(rank.write(shards) for rank in ranks), weights)
        shards.finish(origin, _config(origin, checkpoint.model), QUANTIZATION_FILES)
        shards.json(MANIFEST, manifest.as_json())
    kinds = Counter(entry.kind for share in manifest.shares for entry in share.packed.values())
    before = sum(stored.stop - stored.start for source in checkpoint.sources for stored in source.tensors)
    return ShardReport(
        parts.ranks, dict(kinds), sum(rank.dense for rank in ranks), before, shards.bytes, time.perf_counter() - started
    )


class _RankShard:
    """What one rank loads, written once. Nothing is in memory before that, and nothing after it."""

    def __init__(
        self,
        place: pipeline_stages.RankPlace,
        checkpoint: OpenCheckpoint,
        dtype: torch.dtype,
        device: torch.device,
        weights: str,
    ) -> None:
        self.place, self.dense = place, 0
        self.doing = "weights" if place.split.ranks == place.stages == 1 else f"rank {place.rank}"
        self.model = Decoder(checkpoint.model, dtype, device)
        self.plan: LoadPlan = plan_for(self.model, checkpoint.sources, checkpoint.readers, checkpoint.where)
        self.keeping = KeepQuantizedTransform(transform_for(weights, False, device))
        self.packed: dict[str, PackedProjectionEntry] = {}

    @torch.no_grad()
    def write(self, shards: ShardWriter) -> RankShare:
        shards.metadata = shards.metadata | {RANK: str(self.place.rank)}
        self._fill(shards)
        files = shards.named(lambda count: [file_name(self.place.rank, number) for number in range(1, count + 1)])
        del self.model, self.plan
        return RankShare({name: shards.size(name) for name in files}, self.packed)

    def _fill(self, shards: ShardWriter) -> None:
        with weights_of(self.plan, self.model.device, self.doing) as weights:
            for index in self.model.loaded_parts(weights):
                self._write_part(index, shards)
                self.model.release(index)
        shards.add(_scales(self.model.config, read_scales(self.plan, self.model.config)))

    def _write_part(self, index: int, shards: ShardWriter) -> None:
        part = self.model.parts[index]
        places = [_UnsealedTensor.of(place) for place in part.places()]
        loaded = [id(getattr(*place)) for place in part.products()]
        self.model.seal_part(index, self.keeping)
        sealed = [device_weight_of(getattr(*place)) for place in part.products()]
        whole = {layer for layer, weight in zip(loaded, sealed, strict=True) if weight is not None}
        shards.add({place.name: place.dense().cpu().contiguous() for place in places if id(place.layer) not in whole})
        for key, weight in ((f"{index}.{number}", weight) for number, weight in enumerate(sealed)):
            if weight is None:
                self.dense += 1
                continue
            self.packed[key] = PackedProjectionEntry(weight.kind, weight.numbers)
            tensors = weight.tensors.items()
            shards.add({f"{PREFIX}{key}.{name}": tensor.cpu().contiguous() for name, tensor in tensors})


def _config(origin: Path, model: ModelSpec) -> dict[str, Any]:
    """config.json of a model whose formats are those of the state."""
    config = read_json(origin / "config.json")
    for values in (
        config,
        *(config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), dict)),
    ):
        for key in QUANTIZATION:
            values.pop(key, None)
        if not model.tied and values.get("tie_word_embeddings"):
            values["tie_word_embeddings"] = False
    if not model.tied:
        config["tie_word_embeddings"] = False
    return config


def _opened(origin: Path) -> OpenCheckpoint:
    if is_gguf(origin):
        raise ConfigError(
            f"{origin} is a GGUF file, which has no config.json to go with the state; take the model's directory"
        )
    if is_remote(origin):
        raise ConfigError(f"{origin} is remote; download the model first")
    if has_sharded_state(origin):
        raise ConfigError(f"{origin} is a sharded state already; take the model that it was made of")
    return open_checkpoint(origin)


def _require_as_stored(model: ModelSpec, origin: Path) -> None:
    """Raises ConfigError for what a state would bring to another form than its config.json says."""
    if model.head_unit:
        raise ConfigError(
            f"{origin}: its head is brought to length 1 while it loads, which a sharded state does not know; open "
            "the model itself"
        )
    if model.names != load_config(origin).names:
        raise ConfigError(
            f"{origin}: its experts are stored in another layout than that of its family; save it with transformers, "
            "and shard that"
        )


def _stored_dtype(checkpoint: OpenCheckpoint) -> torch.dtype:
    """Of most of the numbers that are stored as floats."""
    counts: Counter[str] = Counter()
    for stored in (stored for source in checkpoint.sources for stored in source.tensors):
        counts[stored.dtype] += stored.stop - stored.start if stored.dtype in FLOATS and len(stored.shape) == 2 else 0
    most = counts.most_common(1)[0][0]
    found = STORED.get(most, torch.float32) if most in FLOATS else torch.float32
    return torch.float32 if found == torch.float64 else found


class _UnsealedTensor(NamedTuple):
    """A tensor as it is before its part is sealed.

    weight: of a projection that came in few bits, and may be restored.
    """

    name: str
    target: Tensor
    layer: Linear | None
    weight: QuantizedWeight | Tensor | None

    @classmethod
    def of(cls, place: WeightTarget) -> _UnsealedTensor:
        codes = None if place.layer is None else place.layer.coded
        if isinstance(codes, FusedQuantizedWeight):
            return cls(
                place.name,
                place.target,
                place.layer,
                next(piece.weight for piece in codes.pieces if piece.start == place.start),
            )
        small = place.target.numel() <= SMALL  # sealing writes into no others
        return cls(place.name, place.target.clone() if small else place.target, place.layer, None)

    def dense(self) -> Tensor:
        if isinstance(self.weight, QuantizedWeight):
            return self.weight.dense(self.target.dtype)
        return self.target if self.weight is None else self.weight


def _scales(config: ModelSpec, found: tuple[KVScaleFactors | str | None, ...]) -> dict[str, Tensor]:
    """Those of keys and values, under the names that they are read by."""
    module = config.names.layer + config.names.output.rpartition(".")[0]
    pairs = {
        layer: scales for layer, scales in enumerate(found, config.stage.first) if isinstance(scales, KVScaleFactors)
    }
    return {
        f"{module.format(layer)}.{name}_scale": torch.tensor(scale)
        for layer, scales in pairs.items()
        for name, scale in scales._asdict().items()
    }
