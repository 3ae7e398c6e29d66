"""A checkpoint of dense weights to one of few bits, layer by layer: what `sgl quantize` does."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError
from ..layers.linear_layers import Linear
from ..loading.checkpoint import OpenCheckpoint, open_checkpoint
from ..loading.gguf_files.gguf_model import is_gguf
from ..loading.load_plan import WEIGHT, LoadPlan, plan_for
from ..loading.load_weights import weights_of
from ..loading.model_files.model_directory import quantization_of, read_json
from ..loading.raw_weight import RawTensor
from ..loading.sharded_state import has_sharded_state
from ..loading.tensor_files.stacked_expert_source import split_stacked_experts
from ..loading.tensor_files.torch_dtypes import DTYPES
from ..models.decoder import Decoder
from ..models.reference.reference_block import ReferenceBlock
from ..models.spec.weight_targets import WeightTarget
from ..quantization.calibration_statistics import InputHessian
from ..quantization.quantized_weight import QuantizedWeight, stacked
from ..quantization.weight_forms import GROUP
from .calibration_texts import CalibrationTextPiece
from .calibration_transform import CalibrationTransform
from .compressed_tensors_format import configuration
from .quantized_layouts import quantized_layout_for
from .shard_writer import ShardWriter


@dataclass(frozen=True)
class QuantizeReport:
    """weights: of projections that were quantised, and how many bits one has with scales and zeros counted.

    bytes: of all tensors before and after.  calibrated: tokens.  losses: None: there were no texts to measure them on;
        answers: those of tokens that a model had generated.
    """

    projections: int
    weights: int
    bits: float
    bytes_before: int
    bytes: int
    calibrated: int
    losses: QuantizationLoss | None
    answers: QuantizationLoss | None
    seconds: float


def quantize(
    origin: Path,
    out: Path,
    weights: str,
    *,
    group: int = GROUP,
    calibration: Sequence[np.ndarray] = (),
    held_out: Sequence[CalibrationTextPiece] = (),
    device: torch.device | str = "cpu",
) -> QuantizeReport:
    """Write the model directory `origin` anew as `out`, in compressed-tensors' layout.

    weights: one of `layouts.KINDS`; "int4" and "int4_gptq" are in groups of `group` inputs. The embedding and the head
    stay as they are. calibration: token ids to find the inputs of projections by, for "int4_gptq".
    held_out: texts to compare the distributions of both models by. Computed in float32; of the layers one is in memory.
    Raises ConfigError for what is no directory of dense weights and for sizes that do not go together, CheckpointError
    for damaged files.
    """
    started = time.perf_counter()
    work = _CheckpointQuantizer(origin, weights, group, torch.device(device), calibration, held_out)
    with ShardWriter(out) as shards:
        work.write(shards)
    return work.report(shards, time.perf_counter() - started)


class _CheckpointQuantizer:
    def __init__(
        self,
        origin: Path,
        weights: str,
        group: int,
        device: torch.device,
        calibration: Sequence[np.ndarray],
        held_out: Sequence[CalibrationTextPiece],
    ) -> None:
        self.layout = quantized_layout_for(weights, group)
        if self.layout.calibrated and not len(calibration):
            raise ConfigError(f"weights {weights!r} need texts to calibrate by: give some (--calibration FILE)")
        self.origin = origin
        checkpoint = _opened(origin)
        self.sources = [split_stacked_experts(source, checkpoint.model) for source in checkpoint.sources]
        self.model = Decoder(checkpoint.model, torch.float32, device)
        self.plan: LoadPlan = plan_for(self.model, checkpoint.sources, checkpoint.readers, checkpoint.where)
        if formats := [*self.plan.quantized.values()]:
            raise ConfigError(f"{origin} is quantised already ({formats[0]}); take the checkpoint that it was made of")
        self._check_sizes()
        texts = list(calibration) if self.layout.calibrated else []
        self.held_out = held_out
        self.flows = CalibrationTransform(self._quantised, lambda: texts, [piece.ids for piece in held_out])
        self.tokens = sum(map(len, texts))
        self._places: dict[int, list[WeightTarget]] = {}
        self._orders: dict[int, Tensor] = {}
        self._found: dict[int, QuantizedWeight] = {}
        self._written: set[str] = set()
        self.counts = [0, 0, 0]  # projections, weights, bits
        self.comparison = LossComparison()

    @torch.no_grad()
    def write(self, shards: ShardWriter) -> None:
        with weights_of(self.plan, self.model.device, "quantising") as weights:
            for index in self.model.loaded_parts(weights):
                self._write_part(index, self.model.parts[index], shards)
        self._compare()
        self._copy(shards)

    def _write_part(self, index: int, part: object, shards: ShardWriter) -> None:
        if not isinstance(part, ReferenceBlock):
            self.model.seal_part(index, self.flows)
            return
        places = [place for place in part.places() if place.layer is not None]
        for place in places:
            self._places.setdefault(id(place.layer), []).append(place)
        self._orders.update((id(product), torch.from_numpy(order)) for product, order in part.orders())
        self.model.seal_part(index, self.flows)
        shards.add(self._packed(places))
        self._forget(index)

    def _forget(self, index: int) -> None:
        self.model.release(index)
        for held in (self._found, self._places, self._orders):
            held.clear()

    def report(self, shards: ShardWriter, seconds: float) -> QuantizeReport:
        projections, weights, bits = self.counts
        before = sum(stored.stop - stored.start for source in self.sources for stored in source.tensors)
        return QuantizeReport(
            projections,
            weights,
            bits / weights,
            before,
            shards.bytes,
            self.tokens,
            self.comparison.losses(),
            self.comparison.losses(answers=True),
            seconds,
        )

    def _check_sizes(self) -> None:
        multiple = self.layout.multiple
        for place in (place for part in self.model.layers for place in part.places() if place.layer is not None):
            if place.layer is not None and not place.layer.weight.is_contiguous():
                raise ConfigError(
                    f"{place.name} is stored as [in, out], which compressed-tensors has no module for; such models are "
                    "quantised while loading: Engine(weights='int4')"
                )
            if place.target.shape[1] % multiple:
                raise ConfigError(
                    f"{place.name} has {place.target.shape[1]} inputs, which are no whole groups of {multiple}: take "
                    "smaller ones"
                )

    def _stored_as(self, place: str) -> torch.dtype:
        """Scales are kept in the dtype that the model is stored in, as engines read them."""
        stored = DTYPES[self.plan.weights[place].first.stored.dtype]
        return torch.float32 if stored == torch.float64 else stored

    def _quantised(self, name: str, layer: Linear, seen: InputHessian | None) -> Linear:
        places = self._places.get(id(layer))
        if places is None:
            return layer
        order = self._orders.get(id(layer))
        weight = layer.weight if order is None else layer.weight[_inverse(order)]
        found = self._found[id(layer)] = self._rounded(weight, places, seen)
        dense = found.dense(weight.dtype)
        return Linear(dense if order is None else dense[order], layer.bias)

    def _rounded(self, weight: Tensor, places: list[WeightTarget], seen: InputHessian | None) -> QuantizedWeight:
        """weight: its rows as the files have them."""
        scales = self._stored_as(places[0].name)
        if not self.layout.by_tensor:
            return self.layout.rounded(weight, seen, scales)
        rows = [
            slice(place.start, place.start + len(place.target))
            for place in sorted(places, key=lambda place: place.start)
        ]
        found = stacked([self.layout.rounded(weight[part], seen, scales) for part in rows])
        assert found is not None
        return found

    def _packed(self, places: Iterable[WeightTarget]) -> dict[str, Tensor]:
        """The tensors of a layer, under the names of its weights."""
        packed = {}
        for place in places:
            piece = self._found[id(place.layer)].take(slice(place.start, place.start + len(place.target)))
            name = self.plan.weights[place.name].first.stored.name
            tensors = {
                f"{name.removesuffix(WEIGHT)}.{suffix}": tensor.cpu()
                for suffix, tensor in self.layout.tensors(piece).items()
            }
            packed.update(tensors)
            bits = 8 * sum(tensor.nbytes for name, tensor in tensors.items() if not name.endswith("weight_shape"))
            self.counts = [
                count + more for count, more in zip(self.counts, (1, piece.codes.numel(), bits), strict=True)
            ]
            self._written.add(name)
        return packed

    def _compare(self) -> None:
        for piece, before, after in zip(
            self.held_out, self.flows.before.logits(), self.flows.after.logits(), strict=True
        ):
            self.comparison.add(piece.ids, before, after, piece.answered)

    def _copy(self, shards: ShardWriter) -> None:
        """Everything else as it is."""
        dense = []
        for source in self.sources:
            for stored in source.tensors:
                if stored.name in self._written:
                    continue
                if stored.dtype not in DTYPES:
                    raise ConfigError(
                        f"{source.name}: {stored.name} is {stored.dtype}, which is not known; take another checkpoint"
                    )
                shards.add({stored.name: RawTensor(source, stored).read()})
                if len(stored.shape) == 2 and stored.name.endswith(WEIGHT):
                    dense.append(stored.name.removesuffix(WEIGHT))
        config = read_json(self.origin / "config.json")
        ignored = sorted({self.model.config.names.head, *dense})
        said = configuration(self.layout.format, self.layout.weights, self.layout.activations, ignored)
        shards.index()
        shards.finish(self.origin, {**config, "quantization_config": said})


def _opened(origin: Path) -> OpenCheckpoint:
    if is_gguf(origin):
        raise ConfigError(
            f"{origin} is a GGUF file, whose weights are in few bits or have lost their config.json; take the "
            "model's directory"
        )
    if has_sharded_state(origin):
        raise ConfigError(f"{origin} is a sharded state, whose weights are packed; take the model that it was made of")
    if (said := quantization_of(origin)[0]) is not None:
        raise ConfigError(
            f"{origin} is quantised already ({said.get('quant_method', 'quantization_config')}); take the checkpoint "
            "that it was made of"
        )
    return open_checkpoint(origin)


def _inverse(order: Tensor) -> Tensor:
    """The row of the weight for each row of the file. order: the row of the file for each of the weight."""
    return torch.zeros(int(order.max()) + 1, dtype=torch.int64).index_copy_(0, order, torch.arange(len(order)))


@dataclass(frozen=True)
class QuantizationLoss:
    """How next-token distributions differ from those of the original weights, over predicted tokens.

    divergence: mean KL in nats, and its 99th percentile.  same_top: share of equal top tokens.  perplexities: of the
    texts, before and after.
    """

    tokens: int
    divergence: float
    divergence_99: float
    same_top: float
    perplexity_before: float
    perplexity: float


class LossComparison:
    """Adds up texts."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._answered: list[np.ndarray] = []

    def add(self, ids: np.ndarray, before: Tensor, after: Tensor, answered: np.ndarray) -> None:
        """ids: [T]; logits: float32 [T, vocabulary]; answered: bool [T], of those that a model has generated."""
        self._answered.append(answered[1:])
        old, new = before[:-1].log_softmax(-1), after[:-1].log_softmax(-1)
        following = torch.from_numpy(ids[1:].astype(np.int64))[:, None].to(old.device)
        divergence = (old.exp() * (old - new)).sum(-1)
        same = (old.argmax(-1) == new.argmax(-1)).float()
        self._parts.append(
            torch.stack((divergence, same, -old.gather(1, following)[:, 0], -new.gather(1, following)[:, 0])).cpu()
        )

    def losses(self, answers: bool = False) -> QuantizationLoss | None:
        """Of all tokens, or of those that were generated; None: none was predicted."""
        parts = torch.cat(self._parts, 1) if self._parts else torch.empty(4, 0)
        if answers and self._parts:
            parts = parts[:, torch.from_numpy(np.concatenate(self._answered))]
        divergence, same, old, new = parts
        if not len(same):
            return None
        high = float(np.quantile(divergence.numpy(), 0.99))
        return QuantizationLoss(
            len(same),
            float(divergence.mean()),
            high,
            float(same.mean()),
            float(old.mean().exp()),
            float(new.mean().exp()),
        )
