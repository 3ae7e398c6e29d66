"""From a loaded model to an entry of the cache, and back: each sealed projection as it is computed with, and all other
tensors as they were loaded.

Their names are those of a sharded state: packed.PART.NUMBER.NAME for projections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from ...errors import CheckpointError
from ...layers.float8_reference import KVScaleFactors
from ...layers.linear_layers import Linear
from ...models.decoder import Decoder
from ...models.load_statistics import LoadStatistics
from ...models.reference.reference_embedding import TokenEmbedding
from ...models.spec.weight_targets import LoadedPart, WeightTarget
from ...quantization.device_weight import DeviceWeight, check, sealed_weight_of
from ...quantization.quantized_transform import QuantizedLayerCount, Transform
from ...quantization.readers import TensorHeader
from ..load_plan import targets_of
from ..sharded_state import PREFIX
from ..tensor_files.memory_source import NAMES
from .entry_file import CachedEntry, EntryContents, PlacedTensors

SMALL = 2**16  # numbers of a tensor that sealing may write into
BLOCKS = "blocks"  # how the names of tensors end that a product reads as a whole


class LoadRecorder:
    """Sees the parts of a model before and after they are sealed, and keeps what is no sealed projection.

    why: what cannot be stored, for people.
    """

    def __init__(self) -> None:
        self.why: str | None = None
        self._plain: dict[str, Tensor] = {}
        self._products: list[int] = []
        self._placed: set[int] = set()  # of them, those that have tensors of the checkpoint

    def loaded(self, part: LoadedPart) -> None:
        """Its tensors are there, and not sealed yet."""
        self._products = [id(getattr(*place)) for place in part.products()]
        self._placed = {id(place.layer) for place in part.places() if id(place.layer) in self._products}
        for place in part.places():
            if id(place.layer) not in self._placed and self.why is None:
                small = place.target.numel() <= SMALL
                self._plain[place.name] = place.target.clone() if small else place.target

    def sealed(self, part: LoadedPart) -> None:
        """The same part."""
        for before, place in zip(self._products, part.products(), strict=True):
            layer: Linear = getattr(*place)
            shared = type(layer) is Linear and before not in self._placed  # a head that is the embedding's table
            if not shared and sealed_weight_of(layer) is None:
                self.why = self.why or f"a projection is computed by {type(layer).__name__}, which is not stored"
                self._plain.clear()

    def contents(self, model: Decoder, origin: str, written: float) -> EntryContents:
        """What is to be written of the loaded model. The weights must not change until that is done."""
        packed, blocks, rest = {}, dict[str, Tensor](), dict[str, Tensor]()
        for key, weight in _sealed(model):
            packed[key] = {"kind": weight.kind, "numbers": weight.numbers}
            for name, tensor in weight.tensors.items():
                (blocks if name.endswith(BLOCKS) else rest)[f"{PREFIX}{key}.{name}"] = tensor
        assert model.loaded is not None
        summary = {
            "origin": origin,
            "written": written,
            "packed": packed,
            "read": model.loaded.bytes,
            "few_bits": [(kept.count, kept.format, kept.by, kept.why) for kept in model.few_bits],
            "kv_scales": [[*each] if isinstance(each, KVScaleFactors) else each for each in model.kv_scales],
        }
        return EntryContents(summary, PlacedTensors.of(blocks), PlacedTensors.of(rest | self._plain))


def _sealed(model: Decoder) -> Iterator[tuple[str, DeviceWeight]]:
    for index, part in enumerate(model.parts):
        for number, place in enumerate(part.products()):
            if (weight := sealed_weight_of(getattr(*place))) is not None:
                yield f"{index}.{number}", weight


class CachedWeights:
    """The weights of an entry. bytes: see `ModelWeights`."""

    ahead = False

    def __init__(self, entry: CachedEntry) -> None:
        self.bytes = entry.bytes
        self._tensors = entry.tensors
        self._packed: dict[str, Any] = {PREFIX + key: value for key, value in entry.summary["packed"].items()}
        self._parts: dict[str, dict[str, Tensor]] = {name: {} for name in self._packed}
        for name, tensor in entry.tensors.items():
            if name.startswith(PREFIX):
                whole, _, rest = name.rpartition(".")
                self._parts[whole][rest] = tensor

    def fetch(self, index: int, part: LoadedPart) -> CachedPart:
        """Raises CheckpointError for what does not belong to the model."""
        table = part.table if isinstance(part, TokenEmbedding) else None
        for place in targets_of(part, index, self._packed):
            if place.name in self._packed:
                self._load_projection(place)
            elif (tensor := self._tensors.get(place.name)) is None or tensor.shape != place.target.shape:
                raise CheckpointError(f"{place.name} is not there, or has another shape")
            elif place.target is table and tensor.dtype == table.dtype:
                table.set_(tensor)  # type: ignore[call-overload]
            else:
                place.target.copy_(tensor)
        return CachedPart()

    def _load_projection(self, place: WeightTarget) -> None:
        entry, tensors, (outputs, inputs) = self._packed[place.name], self._parts[place.name], place.sizes
        headers = {name: TensorHeader(NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}
        check(entry["kind"], entry["numbers"], headers, (outputs, inputs))
        assert place.layer is not None
        place.layer.load(DeviceWeight(entry["kind"], entry["numbers"], tensors, place.name))


class CachedPart(NamedTuple):
    """It is there at once."""

    bytes: int = 0

    def wait(self) -> None: ...


def load_cached(model: Decoder, entry: CachedEntry, transform: Transform | None) -> None:
    """Load and seal all parts, with the statistics of the load that was stored. Raises CheckpointError."""
    model.load(CachedWeights(entry), transform)
    summary = entry.summary
    model.few_bits = tuple(QuantizedLayerCount(*kept) for kept in summary["few_bits"])
    scales = summary["kv_scales"]
    model.kv_scales = tuple(KVScaleFactors(*each) if isinstance(each, list) else each for each in scales)
    assert isinstance(model.loaded, LoadStatistics)
