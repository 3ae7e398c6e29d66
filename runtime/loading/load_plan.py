"""Which tensor of a checkpoint goes where, and in what form: settled by the headers, before memory is taken."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ..errors import CheckpointError
from ..models.spec.json_fields import shown
from ..models.spec.model_spec import ModelSpec
from ..models.spec.weight_shapes import WeightShape, weight_shapes
from ..quantization.readers.kv_scale_reader import SUFFIXES
from ..quantization.readers.weight_reader_match import TensorHeader, WeightReader
from .raw_weight import RawTensor, RawWeight
from .sharded_state import MANIFEST, PREFIX, PackedProjectionEntry
from .tensor_files.safetensors_header import FLOATS, StoredTensor
from .tensor_files.stacked_expert_source import split_stacked_experts
from .tensor_files.tensor_source import WeightSource, bytes_of

if TYPE_CHECKING:
    from ..layers.linear_layers import Linear
    from ..models.decoder import Decoder
    from ..models.spec.weight_targets import LoadedPart, WeightTarget

Place: TypeAlias = "WeightTarget | WeightShape"

COMPARED = 2**24  # bytes of two tensors that are compared at a time
WEIGHT = ".weight"
ZERO_POINTS = ("k_zero_point", "v_zero_point")  # of keys and values in whole numbers, which are not stored so here
BUFFERS = (
    r".*rotary_emb\.(inv_freq|cos_cached|sin_cached)",
    r".*\.attn\.(masked_)?bias",
    r".*\.position_ids",
    r".*\.attn(ention)?\.([kv]|kv|k_cache|v_cache)[._]scale",
)  # saved, but no weights


@dataclass
class LoadPlan:
    """weights: by target, those of packed projections see `targets_of`.  kv: of each layer that has them, what holds
    the scales of keys and values, by the suffix of its attention's name.
    """

    weights: dict[str, RawWeight] = field(default_factory=dict)
    kv: dict[int, dict[str, RawTensor]] = field(default_factory=dict)
    other_kv: str | None = None

    @property
    def bytes(self) -> int:
        """That will be read."""
        return sum(piece.bytes for weight in self.weights.values() for piece in weight.pieces.values())

    @property
    def quantized(self) -> dict[str, str]:
        """The formats of the weights that are no floats."""
        return {name: weight.format for name, weight in self.weights.items() if weight.reader is not None}

    @property
    def changes(self) -> bool:
        """Whether a weight arrives in another form than the one that is kept or computed with."""
        return any(isinstance(weight.reader, WeightReader) for weight in self.weights.values())

    @property
    def packed(self) -> set[str]:
        """The kinds of packed projections."""
        readers = [weight.reader for weight in self.weights.values()]
        return {reader.kind for reader in readers if isinstance(reader, PackedProjectionEntry)}


class FindsWeightReader(Protocol):
    """See `quantization.readers.Readers`."""

    other_kv: str | None

    def claim(self, module: str, siblings: Mapping[str, TensorHeader]) -> WeightReader | None: ...


def plan_for(
    model: Decoder,
    sources: list[WeightSource],
    readers: FindsWeightReader,
    where: str,
    packed: Mapping[str, PackedProjectionEntry] | None = None,
) -> LoadPlan:
    """model: one whose tensors need no memory yet.  where: for errors.  packed: see `OpenCheckpoint`.

    Raises CheckpointError for a tensor that is missing, has another shape, or has no place and is none of those that
    may be left aside.
    """
    names = {PREFIX + key for key in packed or {}}
    places = [place for index, part in enumerate(model.parts) for place in targets_of(part, index, names)]
    return _LoadPlanner(model.config, places, sources, readers, where, packed or {}).plan()


def check_weights(model: ModelSpec, sources: list[WeightSource], readers: FindsWeightReader, where: str) -> None:
    """Raises CheckpointError where `plan_for` would, of a model that is only described."""
    _LoadPlanner(model, weight_shapes(model).tensors, sources, readers, where, {}).plan()


def with_own_head(config: ModelSpec, sources: Iterable[WeightSource]) -> ModelSpec:
    """The model untied if its files hold a head that is not the embedding, whatever config.json says, as transformers
    does.

    Fine-tuned wrappers often say that they are tied and are not.
    """
    if not config.tied:
        return config
    begin = renamed(f"{config.names.head}.", config, ())
    found = [
        (renamed(stored.name, config, ()), RawTensor(source, stored)) for source in sources for stored in source.tensors
    ]
    head = [piece for name, piece in found if name.startswith(begin) and name != f"{begin}bias"]
    table = [piece for name, piece in found if name == f"{config.names.embedding}{WEIGHT}"]
    if not head or (len(head) == 1 and (not table or _same(head[0], table[0]))):
        return config
    note = "config.json ties the head to the embedding, but the files hold another head: that one is used"
    return replace(config, tied=False, notes=(*config.notes, note))


def _same(one: RawTensor, other: RawTensor) -> bool:
    """Whether two tensors of files hold the same bytes."""
    if (one.stored.dtype, one.stored.shape) != (other.stored.dtype, other.stored.shape):
        return False
    parts = [(start, min(COMPARED, one.bytes - start)) for start in range(0, one.bytes, COMPARED)]
    return all((bytes_of(*one[:2], *part) == bytes_of(*other[:2], *part)).all() for part in parts)


class _LoadPlanner:
    def __init__(
        self,
        config: ModelSpec,
        places: Iterable[Place],
        sources: list[WeightSource],
        readers: FindsWeightReader,
        where: str,
        packed: Mapping[str, PackedProjectionEntry],
    ) -> None:
        self.config, self.readers, self.where, self.packed = config, readers, where, packed
        self.sources = [split_stacked_experts(source, config) for source in sources]
        self.places = {place.name: place for place in places}
        # of each place that is a weight; "weight" is the plain one
        self.siblings: dict[str, dict[str, RawTensor]] = {PREFIX + key: {} for key in packed}
        self.modules: dict[str, str] = {}  # of such a place, what the files call the module
        self.found = LoadPlan(other_kv=readers.other_kv)

    def plan(self) -> LoadPlan:
        self._check_layers()
        for source in self.sources:
            for stored in source.tensors:
                self._sort(source, stored)
        for name, pieces in self.siblings.items():
            self._settle(name, pieces)
        self._require_all()
        return self.found

    def _sort(self, source: WeightSource, stored: StoredTensor) -> None:
        """One tensor to its place, or to the others of its weight."""
        name = renamed(stored.name, self.config, self.places)
        piece = RawTensor(source, stored)
        if name.startswith(PREFIX):
            whole, _, suffix = name.rpartition(".")
            if whole not in self.siblings:
                raise _unexpected(piece, self.places)
            self._once(self.siblings[whole], suffix, piece)
        elif (scale := scale_of_kv(name, self.config)) is not None:
            layer, suffix = scale
            self._once(self.found.kv.setdefault(layer, {}), suffix, piece)
        elif name in self.places and not name.endswith(WEIGHT):
            self._once(self.siblings.setdefault(name, {}), "weight", piece)
        elif (module := self._module(stored.name)) is not None:
            place, suffix = module
            if suffix in ZERO_POINTS:
                return
            self.modules[place] = stored.name.removesuffix(f".{suffix}")
            self._once(self.siblings.setdefault(place, {}), suffix, piece)
        elif not is_ignored(stored.name, self.config):
            raise _unexpected(piece, self.places)
        elif self.config.tied and name == f"{self.config.names.head}{WEIGHT}":
            _check(piece, self.places[f"{self.config.names.embedding}{WEIGHT}"])

    def _once(self, found: dict[str, RawTensor], key: str, piece: RawTensor) -> None:
        if key in found:
            other = found[key]
            raise CheckpointError(
                f"{piece.source.name}: tensor {shown(piece.stored.name)} is there twice, also as "
                f"{shown(other.stored.name)} in {other.source.name}"
            )
        found[key] = piece

    def _module(self, name: str) -> tuple[str, str] | None:
        """The place of the weight that a tensor belongs to, and what follows the module's name."""
        parts = name.split(".")
        for count in range(1, min(len(parts), 5)):
            module, suffix = ".".join(parts[:-count]), ".".join(parts[-count:])
            place = renamed(module + WEIGHT, self.config, self.places)
            if place in self.places:
                return place, suffix
        return None

    def _settle(self, name: str, pieces: dict[str, RawTensor]) -> None:
        """Whether a weight is plain, quantized or packed."""
        if name.startswith(PREFIX):
            self.found.weights[name] = self._packed(name.removeprefix(PREFIX), pieces)
            return
        place, plain = self.places[name], pieces.get("weight")
        if name not in self.modules and plain is not None:
            self.found.weights[name] = RawWeight({"weight": _check(plain, place)})
            return
        if set(pieces) <= {"weight", "bias"} and plain is not None and plain.stored.dtype in FLOATS:
            self.found.weights[name] = RawWeight({"weight": _check(plain, place)})
            if "bias" in pieces:
                raise _unexpected(pieces["bias"], self.places)
            return
        claim = self._claim(name, pieces)
        if claim is None:
            strange = next((piece for suffix, piece in pieces.items() if suffix != "weight"), plain)
            assert strange is not None
            raise _unexpected(strange, self.places) if strange is not plain else _unread(strange)
        if claim.shape != (1, math.prod(place.shape)):  # flat ones know no shape
            turned = place.sizes != place.shape
            shape = list(claim.shape)[::-1] if turned else list(claim.shape)
            _check_shape(pieces[claim.names[0]], shape, place)
        for suffix, piece in pieces.items():
            if suffix not in claim.names and suffix not in claim.unused and not _is_zero_bias(suffix, piece):
                raise _unexpected(piece, self.places)
        self.found.weights[name] = RawWeight({suffix: pieces[suffix] for suffix in claim.names}, claim)

    def _packed(self, key: str, pieces: dict[str, RawTensor]) -> RawWeight:
        if PREFIX + key not in self.places:
            raise CheckpointError(
                f"{self.where}: {MANIFEST} has a packed projection {shown(key)}, the model that config.json "
                "describes has none of that number"
            )
        entry, (outputs, inputs) = self.packed[key], self.places[PREFIX + key].sizes
        headers = {suffix: piece.header for suffix, piece in pieces.items()}
        from ..quantization.device_weight import check

        try:
            check(entry.kind, entry.numbers, headers, (outputs, inputs))
        except CheckpointError as error:
            raise CheckpointError(
                f"{self.where}: packed projection {key} [{outputs}, {inputs}]: {error}; write the state again"
            ) from error
        return RawWeight(pieces, entry)

    def _claim(self, name: str, pieces: dict[str, RawTensor]) -> WeightReader | None:
        try:
            return self.readers.claim(self.modules[name], {suffix: piece.header for suffix, piece in pieces.items()})
        except CheckpointError as error:
            raise CheckpointError(f"{next(iter(pieces.values())).source.name}: {error}") from error

    def _check_layers(self) -> None:
        """A model of more layers than the files have tensors is none of theirs."""
        tensors = sum(len(source.tensors) for source in self.sources)
        if len(self.config.layers) > tensors:
            raise CheckpointError(
                f"{self.where}: num_hidden_layers of config.json gives {len(self.config.layers)} layers, the files "
                f"hold {tensors} tensors; they do not belong together"
            )

    def _require_all(self) -> None:
        waiting = sorted(set(self.places) - set(self.found.weights))
        if waiting:
            some = ", ".join(waiting[:5])
            raise CheckpointError(
                f"{self.where} lacks {len(waiting)} of {len(self.places)} tensors: "
                f"{some}{' ...' if len(waiting) > 5 else ''}; "
                "config.json asks for them: the weights do not belong to it or are incomplete"
            )


def targets_of(part: LoadedPart, index: int, weights: Container[str]) -> Iterator[WeightTarget]:
    """Where the tensors of a part go. A projection that is packed among the weights is one target, under its name in
    a sharded state.
    """
    from ..models.spec.weight_targets import whole_weight

    whole = set()
    for number, place in enumerate(part.products()):
        if (name := f"{PREFIX}{index}.{number}") in weights:
            layer: Linear = getattr(*place)
            whole.add(id(layer))
            yield whole_weight(name, layer)
    yield from (place for place in part.places() if id(place.layer) not in whole)


def renamed(name: str, config: ModelSpec, places: Iterable[str]) -> str:
    """What a tensor is called in the model."""
    for begin, instead in config.names.prefixes:
        if name not in places and name.startswith(begin):
            return instead + name.removeprefix(begin)
    return name


def _check(piece: RawTensor, place: Place) -> RawTensor:
    _check_shape(piece, piece.stored.shape, place)
    if piece.stored.dtype not in FLOATS:
        raise _unread(piece)
    return piece


def _check_shape(piece: RawTensor, shape: list[int], place: Place) -> None:
    asked = list(place.shape)
    if shape != asked:
        raise CheckpointError(
            f"{piece.source.name}: tensor {shown(piece.stored.name)} has shape {shown(shape)}, config.json asks for "
            f"{asked}"
        )


def _unread(piece: RawTensor) -> CheckpointError:
    return CheckpointError(
        f"{piece.source.name}: tensor {shown(piece.stored.name)} holds {shown(piece.stored.dtype)[1:-1]}, supported "
        f"are {', '.join(FLOATS)}, and the formats that docs/loading.md lists with the numbers that belong to them; "
        "use the checkpoint before its quantisation"
    )


def _is_zero_bias(suffix: str, piece: RawTensor) -> bool:
    """Some writers give every projection a bias; of a model that has none it must be zero."""
    return suffix == "bias" and not bytes_of(piece.source, piece.stored, 0, piece.bytes).any()


def scale_of_kv(name: str, config: ModelSpec) -> tuple[int, str] | None:
    """Whose keys or values a tensor scales, by its name in the model: the layer, and what follows the name of its
    attention.
    """
    begin, end = config.names.layer.split("{}")
    layer, _, rest = name.removeprefix(begin).partition(end)
    suffix = rest.partition(".")[2]
    if not name.startswith(begin) or suffix not in SUFFIXES or not layer.isdecimal():
        return None
    index = int(layer) - config.stage.first
    return (index, suffix) if 0 <= index < len(config.layers) else None


def is_ignored(name: str, config: ModelSpec) -> bool:
    """Whether a checkpoint may hold the tensor without a place here: a tied head's copy, saved tables, a wrapper's
    towers.
    """
    copies = [re.escape(f"{config.names.head}{WEIGHT}")] if config.tied else []
    return any(re.fullmatch(pattern, name) for pattern in (*BUFFERS, *config.names.ignored, *copies))


def _unexpected(piece: RawTensor, places: Iterable[str]) -> CheckpointError:
    near = difflib.get_close_matches(piece.stored.name, places, 1)
    hint = f"; nearest expected name: {near[0]!r}" if near else ""
    return CheckpointError(
        f"{piece.source.name}: tensor {shown(piece.stored.name)} has no place in the model that config.json "
        f"describes{hint}"
    )
