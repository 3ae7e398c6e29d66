"""Streams a checkpoint into a decoder, part by part: each tensor to its place, converted, restored or kept in few bits
on the way.
"""

from __future__ import annotations

import math
import sys
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointError, ConfigError
from ..layers.linear_layers import Linear
from ..models.decoder import Decoder
from ..models.load_statistics import LoadMemoryCounter
from ..models.placement.expert_offload_plan import ExpertOffloadPlan
from ..models.spec.model_spec import ExpertsSpec, ModelSpec
from ..models.spec.weight_targets import WeightTarget
from ..quantization.device_weight import DeviceWeight, SealedProjection, require_here
from ..quantization.fused_quantized_weight import FusedQuantizedWeight, QuantizedPiece
from ..quantization.quantized_transform import KeepQuantizedTransform, LayerTransform, Transform
from ..quantization.quantized_weight import QuantizedWeight
from .checkpoint import OpenCheckpoint, open_checkpoint
from .load_plan import LoadPlan, PlannedQuantizedWeight, PlannedTensor, plan_for, products_of_part
from .stored_kv_scales import read_scales
from .tensor_files.safetensors_header import DTYPES
from .tensor_files.tensor_transfer import TransferChunk, TransferJob, TransferThreads, chunks

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
) -> Decoder:
    """The decoder of a model directory or GGUF file, its weights converted to `dtype` on `device`.

    Reads local files only. With `dummy_seed` nothing but the configuration is read and the weights are random.
    `transform` is given to `Decoder.seal_part`, which applies it to each matrix. context: see `read_model`.
    load_format: see
    `open_checkpoint`. expert_places: see `Decoder`. Memory: the weights that are kept, and at most two parts (layers,
        embedding, head) as they are stored, or
    one where weights change. Raises CheckpointError for files and tensors that are absent, unexpected, damaged or
    wrongly shaped, before memory is taken for them, and ConfigError for a configuration that is not supported.
    """
    checkpoint = open_checkpoint(Path(path), context, dummy_seed is None, load_format)
    if dummy_seed is not None:
        return dummy_model(checkpoint.model, dtype, device, dummy_seed, transform, expert_places)
    return load_checkpoint(checkpoint, dtype, device, transform, expert_places)


def load_checkpoint(
    checkpoint: OpenCheckpoint,
    dtype: torch.dtype,
    device: torch.device | str,
    transform: Transform | None = None,
    expert_places: ExpertOffloadPlan | None = None,
) -> Decoder:
    model = Decoder(checkpoint.model, dtype, device, allocate=False, expert_places=expert_places)
    return fill(
        model, plan_for(model, checkpoint.sources, checkpoint.readers, checkpoint.where, checkpoint.packed), transform
    )


def plan_of(model: Decoder, checkpoint: OpenCheckpoint) -> LoadPlan:
    """What of a checkpoint goes where in a model that may be sealed already."""
    empty = Decoder(checkpoint.model, model.dtype, "meta")
    return plan_for(empty, checkpoint.sources, checkpoint.readers, checkpoint.where, checkpoint.packed)


def fill(model: Decoder, plan: LoadPlan, transform: Transform | None = None) -> Decoder:
    """Load all parts anew, whatever they hold now, and seal them."""
    require(plan, model, transform)
    keeping, held = KeepQuantizedTransform(transform), LoadMemoryCounter()
    with torch.no_grad():
        for index in filled(
            model,
            plan,
            not (plan.coded or transform),
            "calibrating" if isinstance(transform, LayerTransform) else "weights",
            held,
        ):
            model.seal_part(index, keeping)
            held.sealed(model.tensors_of(index))
    model.loaded = held.loaded(plan.bytes)
    model.few_bits, model.kv_scales = keeping.layer_counts(), read_scales(plan, model.config)
    return model.finish()


def require(plan: LoadPlan, model: Decoder, transform: Transform | None) -> None:
    """Raises ConfigError for what `fill` would not load, where the headers tell."""
    require_here({each.entry.kind for each in plan.packed.values()}, model.device, model.dtype)
    require_packed_matches(plan, transform is not None)


def require_packed_matches(plan: LoadPlan, changes: bool) -> None:
    """Raises ConfigError for what is packed where projections are to become others than they were loaded as."""
    if plan.packed and changes:
        raise ConfigError(
            "a sharded state has its weights packed as they were written: leave weights at 'auto' and deterministic "
            "at False, or open the model that it was made of"
        )


@torch.no_grad()
def dummy_model(
    config: ModelSpec,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
    transform: Transform | None = None,
    expert_places: ExpertOffloadPlan | None = None,
) -> Decoder:
    """A decoder with random weights, the same for the same seed and kind of device; norms are one, biases small.

    Where experts are spread over several ranks, tensors of one name are the same on all ranks that have it.
    """
    model = Decoder(config, dtype, device, allocate=False, expert_places=expert_places)
    generator = torch.Generator(model.device).manual_seed(seed)
    by_name = any(isinstance(layer.ffn, ExpertsSpec) and layer.ffn.held is not None for layer in config.layers)
    for index in range(len(model.parts)):
        model.allocate(index)
        for place in model.parts[index].places():
            if by_name:
                generator.manual_seed((seed + zlib.crc32(place.name.encode())) % 2**63)
            draw(place, generator, dtype)
        model.seal_part(index, transform)
    return model.finish()


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


class _LoadingPart(NamedTuple):
    """A part that is being loaded.

    bytes: what it takes so.  codes: the tensors of each weight that comes in few bits.  packed: projections that come
    as they are kept.
    """

    number: int
    bytes: int
    load: TransferJob
    codes: list[tuple[WeightTarget, PlannedQuantizedWeight, dict[str, Tensor]]]
    packed: list[tuple[Linear, DeviceWeight]]


def filled(
    model: Decoder, plan: LoadPlan, ahead: bool, doing: str = "weights", held: LoadMemoryCounter | None = None
) -> Iterator[int]:
    """The parts one after the other, each when its tensors are there.

    ahead: the next one is fetched meanwhile.  doing: for the bar.  held: counts what comes.
    """
    coming: deque[_LoadingPart] = deque()
    with _progress(plan.bytes, doing) as done, TransferThreads(model.device, done) as readers:
        for index in range(len(model.parts)):
            model.allocate(index)
            coming.append(_fetch(model, index, plan, readers))
            if held is not None:
                held.comes(coming[-1].bytes)
            if len(coming) > ahead:
                yield _arrived(coming.popleft())
        while coming:
            yield _arrived(coming.popleft())


def _fetch(model: Decoder, index: int, plan: LoadPlan, readers: TransferThreads) -> _LoadingPart:
    work: list[TransferChunk] = []
    codes = []
    packed = [(layer, plan.packed[key]) for key, layer in products_of_part(model, index) if key in plan.packed]
    whole = {id(layer) for layer, _ in packed}
    for place in model.parts[index].places():
        if id(place.layer) in whole:
            continue
        if (few := plan.coded.get(place.name)) is None:
            work += _chunks(plan.plain[place.name], place.target)
            continue
        tensors = {suffix: _room(piece, model.device) for suffix, piece in few.pieces.items()}
        work += (chunk for suffix, piece in few.pieces.items() for chunk in _chunks(piece, tensors[suffix]))
        codes.append((place, few, tensors))
    taken = []
    for layer, (entry, pieces) in packed:
        tensors = {suffix: _room(piece, model.device) for suffix, piece in pieces.items()}
        work += (chunk for suffix, piece in pieces.items() for chunk in _chunks(piece, tensors[suffix]))
        where = next(iter(pieces.values()))
        taken.append(
            (
                layer,
                DeviceWeight(
                    f"{where.source.name}: {where.stored.name}", SealedProjection(entry.kind, entry.numbers, tensors)
                ),
            )
        )
    room = sum(chunk.target.numel() * chunk.target.itemsize for chunk in work)
    if model.device.type == "cuda":  # elsewhere memory that is not written takes none
        room += sum(place.target.numel() * place.target.itemsize for place, _, _ in codes)
    return _LoadingPart(index, room, readers.fetch(work), codes, taken)


def _room(piece: PlannedTensor, device: torch.device) -> Tensor:
    """Memory for a tensor as it is stored; of kinds that torch has not, the bytes of each row."""
    dtype, shape = DTYPES.get(piece.stored.dtype), piece.stored.shape
    if dtype is None:
        dtype, shape = torch.uint8, [*shape[:-1], piece.bytes // math.prod(shape[:-1])]
    return torch.empty(shape, dtype=dtype, device=device)


def _chunks(piece: PlannedTensor, target: Tensor) -> Iterator[TransferChunk]:
    return chunks(piece.reader, DTYPES.get(piece.stored.dtype, torch.uint8), target)


def _arrived(part: _LoadingPart) -> int:
    """Wait for it; what came in few bits goes to its layer, or restored to its place where that is no projection's."""
    part.load.wait()
    for product, packed in part.packed:
        product.coded, product.weight = packed, product.weight.to("meta")
    layers: dict[int, list[tuple[WeightTarget, PlannedQuantizedWeight, dict[str, Tensor]]]] = {}
    for code in part.codes:
        layers.setdefault(id(code[0].layer or code[0].target), []).append(code)
    for pieces in layers.values():
        layer = pieces[0][0].layer
        if layer is None:
            for place, few, tensors in pieces:
                place.target.copy_(_read(place, few, tensors).dense(place.target.dtype))
            continue
        coded = [
            QuantizedPiece(place.start, few.claim.format, _read(place, few, tensors)) for place, few, tensors in pieces
        ]
        layer.coded, layer.weight = FusedQuantizedWeight.with_dense(coded, layer.weight), layer.weight.to("meta")
    return part.number


def _read(place: WeightTarget, few: PlannedQuantizedWeight, tensors: dict[str, Tensor]) -> QuantizedWeight:
    """Raises CheckpointError where the sizes, which some formats keep in a tensor, are not the place's."""
    weight, asked = few.claim.read(tensors), _sizes(place)
    if weight.shape != asked:
        piece = next(iter(few.pieces.values()))
        raise CheckpointError(
            f"{piece.source.name}: {place.name} is {list(weight.shape)} by its {few.claim.format}, config.json asks "
            f"for {list(asked)}"
        )
    return weight


def _sizes(place: WeightTarget) -> tuple[int, ...]:
    """[out, in], whatever the layout of the place."""
    sizes = tuple(place.target.shape)
    return sizes if place.layer is None or place.layer.weight.is_contiguous() else sizes[::-1]


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
