"""Streams a checkpoint into a decoder, part by part: each tensor to its place, converted, restored or kept in few bits
on the way.
"""

from __future__ import annotations

import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import ConfigError
from ..layers.linear_layers import Linear
from ..models.decoder import Decoder
from ..models.placement.expert_offload_plan import ExpertOffloadPlan
from ..models.spec.model_spec import ExpertsSpec, ModelSpec
from ..models.spec.weight_targets import LoadedPart, WeightTarget
from ..quantization.device_weight import DeviceWeight, require_here
from ..quantization.fused_quantized_weight import FusedQuantizedWeight, QuantizedPiece
from ..quantization.quantized_transform import LayerTransform, Transform
from .checkpoint import OpenCheckpoint, open_checkpoint
from .load_plan import LoadPlan, plan_for, targets_of
from .packed_cache.cached_weights import LoadRecorder
from .packed_cache.packed_weights import PackedWeights
from .raw_weight import RawWeight
from .stored_kv_scales import read_scales
from .tensor_files.tensor_transfer import TransferChunk, TransferJob, TransferThreads

SHOWN = 1.0  # seconds after which a terminal sees a progress bar


def load_model(
    path: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    dummy_seed: int | None = None,
    transform: Transform | None = None,
    context: int | None = None,
    load_format: str = "auto",
    expert_places: ExpertOffloadPlan | None = None,
    packed: PackedWeights | None = None,
    reading: Callable[[], None] = lambda: None,
) -> Decoder:
    """The decoder of a model directory or GGUF file, its weights converted to `dtype` on `device`.

    Reads local files only. With `dummy_seed` nothing but the configuration is read and the weights are random.
    transform: see `Decoder.load`. context: see `read_model`.
    load_format: see `open_checkpoint`. expert_places: see `Decoder`. packed: the cache of packed weights, where it may
    be used. reading: called once it is known what is read. Memory: the weights that are kept, and at most two parts
    (layers, embedding, head) as they are stored, or one where weights change. Raises CheckpointError for files and
    tensors that are absent, unexpected, damaged or wrongly shaped, before memory is taken for them, and ConfigError for
    a configuration that is not supported.
    """
    checkpoint = open_checkpoint(Path(path), context, dummy_seed is None, load_format)
    if dummy_seed is not None:
        reading()
        return dummy_model(checkpoint.model, dtype, device, dummy_seed, transform, expert_places)
    return load_checkpoint(checkpoint, dtype, device, transform, expert_places, packed, reading)


def load_checkpoint(
    checkpoint: OpenCheckpoint,
    dtype: torch.dtype,
    device: torch.device | str,
    transform: Transform | None = None,
    expert_places: ExpertOffloadPlan | None = None,
    packed: PackedWeights | None = None,
    reading: Callable[[], None] = lambda: None,
) -> Decoder:
    model = Decoder(checkpoint.model, dtype, device, expert_places=expert_places)
    recorder = None
    if packed is not None:
        if packed.load(model, checkpoint, transform, reading):
            return model
        recorder = packed.recorder
    plan = plan_for(model, checkpoint.sources, checkpoint.readers, checkpoint.where, checkpoint.packed)
    reading()
    return fill(model, plan, transform, recorder)


def plan_of(model: Decoder, checkpoint: OpenCheckpoint) -> LoadPlan:
    """What of a checkpoint goes where in a model that may be sealed already."""
    empty = Decoder(checkpoint.model, model.dtype, "meta")
    return plan_for(empty, checkpoint.sources, checkpoint.readers, checkpoint.where, checkpoint.packed)


def fill(
    model: Decoder, plan: LoadPlan, transform: Transform | None = None, recorder: LoadRecorder | None = None
) -> Decoder:
    """Load all parts anew, whatever they hold now, and seal them."""
    require(plan, model, transform)
    with weights_of(
        plan, model.device, "calibrating" if isinstance(transform, LayerTransform) else "weights"
    ) as weights:
        model.load(weights, transform, recorder)
    model.kv_scales = read_scales(plan, model.config)
    return model


def require(plan: LoadPlan, model: Decoder, transform: Transform | None) -> None:
    """Raises ConfigError for what `fill` would not load, where the headers tell."""
    require_here(plan.packed, model.device, model.dtype)
    require_packed_matches(plan, transform is not None)


def require_packed_matches(plan: LoadPlan, changes: bool) -> None:
    """Raises ConfigError for what is packed where projections are to become others than they were loaded as."""
    if plan.packed and changes:
        raise ConfigError(
            "a sharded state has its weights packed as they were written: leave weights at 'auto' and deterministic "
            "at False, or open the model that it was made of"
        )


def dummy_model(
    config: ModelSpec,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
    transform: Transform | None = None,
    expert_places: ExpertOffloadPlan | None = None,
) -> Decoder:
    """A decoder with random weights."""
    model = Decoder(config, dtype, device, expert_places=expert_places)
    by_name = any(isinstance(layer.ffn, ExpertsSpec) and layer.ffn.held is not None for layer in config.layers)
    return model.load(RandomWeights(seed, dtype, model.device, by_name), transform)


class RandomWeights:
    """The same for the same seed and kind of device; norms are one, biases small.

    by_name: a tensor depends on its name and no others, so that those of one name are the same on all ranks.
    """

    bytes, ahead = 0, False

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device, by_name: bool = False) -> None:
        self._seed, self._dtype, self._by_name = seed, dtype, by_name
        self._generator = torch.Generator(device).manual_seed(seed)

    def fetch(self, index: int, part: LoadedPart) -> RandomWeights:
        for place in part.places():
            if self._by_name:
                self._generator.manual_seed((self._seed + zlib.crc32(place.name.encode())) % 2**63)
            draw(place, self._generator, self._dtype)
        return self

    def wait(self) -> None:
        """They are there."""


def draw(place: WeightTarget, generator: torch.Generator, dtype: torch.dtype) -> None:
    """Numbers of `dtype`, as a checkpoint has them."""
    target = place.target
    if target.dim() == 1 and place.name.endswith(("weight", "scalar")):
        target.fill_(1.0)
    elif target.is_cuda:
        target.normal_(0.0, 0.02, generator=generator)
    else:  # drawn in float32: the same values for every dtype
        target.copy_(torch.empty(target.shape).normal_(0.0, 0.02, generator=generator))
    if target.dtype != dtype and target.dim() > 1:
        target.copy_(target.to(dtype))


class PlannedWeights:
    """What a plan takes of the files."""

    def __init__(self, plan: LoadPlan, threads: TransferThreads, device: torch.device) -> None:
        self.bytes, self.ahead = plan.bytes, not plan.changes
        self._plan, self._threads, self._device = plan, threads, device

    def fetch(self, index: int, part: LoadedPart) -> LoadingPart:
        work: list[TransferChunk] = []
        coming = []
        for target in targets_of(part, index, self._plan.weights):
            weight = self._plan.weights[target.name]
            if weight.reader is None:
                work += weight.into(target.target)
                continue
            tensors = {suffix: piece.empty(self._device) for suffix, piece in weight.pieces.items()}
            work += (chunk for suffix, piece in weight.pieces.items() for chunk in piece.into(tensors[suffix]))
            coming.append(ArrivingWeight(target, weight, tensors))
        room = sum(chunk.target.nbytes for chunk in work)
        if self._device.type == "cuda":  # elsewhere memory that is not written takes none
            room += sum(each.target.target.nbytes for each in coming)
        return LoadingPart(room, self._threads.fetch(work), coming)


class ArrivingWeight(NamedTuple):
    """A weight that is not plain. tensors: as they are stored."""

    target: WeightTarget
    weight: RawWeight
    tensors: dict[str, Tensor]


class LoadingPart(NamedTuple):
    """bytes: what it takes until it is sealed."""

    bytes: int
    job: TransferJob
    coming: list[ArrivingWeight]

    def wait(self) -> None:
        """A weight that is no projection's is restored."""
        self.job.wait()
        layers: dict[int, tuple[Linear, list[QuantizedPiece]]] = {}
        for target, weight, tensors in self.coming:
            read = weight.read(tensors, target)
            if target.layer is None:
                target.target.copy_(read.dense(target.target.dtype))
            elif isinstance(read, DeviceWeight):
                target.layer.load(read)
            else:
                piece = QuantizedPiece(target.start, weight.format, read)
                layers.setdefault(id(target.layer), (target.layer, []))[1].append(piece)
        for layer, pieces in layers.values():
            layer.load(FusedQuantizedWeight.with_dense(pieces, layer.weight))


@contextmanager
def weights_of(plan: LoadPlan, device: torch.device, doing: str = "weights") -> Iterator[PlannedWeights]:
    """While it reads. doing: for a progress bar."""
    with _progress(plan.bytes, doing) as done, TransferThreads(device, done) as threads:
        yield PlannedWeights(plan, threads, device)


@contextmanager
def _progress(total: int, doing: str) -> Iterator[Callable[[int], None] | None]:
    """Counts bytes on a bar, if there is a terminal to see it and something to wait for."""
    if sys.stderr is None or not sys.stderr.isatty():  # a program may have been started without
        yield None
        return
    from tqdm import tqdm

    lock = threading.Lock()
    with tqdm(total=total, unit="B", unit_scale=True, desc=doing, delay=SHOWN) as bar:

        def done(count: int) -> None:
            with lock:
                bar.update(count)

        yield done
