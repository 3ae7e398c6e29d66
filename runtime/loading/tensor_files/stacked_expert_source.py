"""Tensors that hold the rows of all experts, cut into those of each, without reading them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...models.spec.model_spec import ExpertsSpec, ModelSpec
from ...models.spec.tensor_names import TensorNames
from .safetensors_header import StoredTensor
from .tensor_source import WeightSource

if TYPE_CHECKING:
    from torch import Tensor


class _ExpertCut(NamedTuple):
    """offset: of its first byte in the whole tensor."""

    whole: StoredTensor
    offset: int


class StackedExpertSource:
    """A source whose stacked tensors are there as the parts of each expert, under these parts' names."""

    def __init__(self, source: WeightSource, tensors: list[StoredTensor], cuts: dict[str, _ExpertCut]) -> None:
        self.name, self.tensors, self.bytes = source.name, tensors, source.bytes
        self._source, self._cuts = source, cuts

    def read(self, stored: StoredTensor, offset: int, part: Tensor) -> None:
        cut = self._cuts.get(stored.name)
        if cut is None:
            self._source.read(stored, offset, part)
        else:
            self._source.read(cut.whole, cut.offset + offset, part)


def split_stacked_experts(source: WeightSource, model: ModelSpec) -> WeightSource:
    """The source itself where it holds no stacked tensors of the model's experts."""
    known, tensors, cuts = _known(model), list[StoredTensor](), dict[str, _ExpertCut]()
    for stored in source.tensors:
        found = known.get(_renamed(stored.name, model.names))
        if found is None or stored.shape[:1] != [found[1]]:
            tensors.append(stored)
            continue
        for piece, offset in _pieces(stored, *found):
            tensors.append(piece)
            cuts[piece.name] = _ExpertCut(stored, offset)
    return StackedExpertSource(source, tensors, cuts) if cuts else source


def with_stacks_as_stored(model: ModelSpec, sources: Iterable[WeightSource]) -> ModelSpec:
    """The model with its experts' matrices as [out, in] where its files hold them so, though the first files of its
    kind did not.

    transformers 5 writes the experts of Qwen3-VL-MoE so. Raises nothing: shapes that fit neither way are seen by who
    plans.
    """
    names, part = (
        model.names.experts,
        next((layer.ffn for layer in model.layers if isinstance(layer.ffn, ExpertsSpec)), None),
    )
    if part is None or not names.transposed:
        return model
    known = _known(model)
    stored = [
        each
        for source in sources
        for each in source.tensors
        if _renamed(each.name, model.names) in known and len(each.shape) == 3
    ]
    down = {tuple(each.shape[1:]) for each in stored if "down" in each.name}
    turned = (model.hidden_size, part.expert.inner)
    if down != {turned} or turned[0] == turned[1]:
        return model
    return replace(model, names=replace(model.names, experts=replace(names, transposed=False)))


def _known(model: ModelSpec) -> dict[str, tuple[tuple[str, ...], int]]:
    """By the name of a stacked tensor what its parts are called, {} for the expert's number, and how many experts it
    has.
    """
    return {
        f"{prefix}{stack.name}": (tuple(prefix + part for part in stack.parts), layer.ffn.count)
        for index, layer in enumerate(model.layers)
        if isinstance(layer.ffn, ExpertsSpec)
        for prefix in [model.names.layer.format(model.stage.first + index)]
        for stack in model.names.experts.all_stacks()
    }


def _pieces(stored: StoredTensor, names: tuple[str, ...], count: int) -> Iterator[tuple[StoredTensor, int]]:
    """The parts of each expert, and where each begins in the tensor. Rows that cannot be shared out stay whole."""
    inner = stored.shape[1:]
    share = len(names) if inner and inner[0] % len(names) == 0 else 1
    shape = [inner[0] // share, *inner[1:]] if inner else []
    size = (stored.stop - stored.start) // (count * share)
    for number in range(count * share):
        name, offset = names[number % share].format(number // share), number * size
        yield StoredTensor(name, stored.dtype, shape, stored.start + offset, stored.start + offset + size), offset


def _renamed(name: str, names: TensorNames) -> str:
    begin = next(((old, new) for old, new in names.prefixes if name.startswith(old)), None)
    return name if begin is None else begin[1] + name.removeprefix(begin[0])
