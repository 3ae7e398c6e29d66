"""Tensors that hold the rows of all experts, cut into those of each, without reading them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from ..models.names import Names
from ..models.spec import Experts, Model
from .header import Stored
from .source import Source


class _Cut(NamedTuple):
    """offset: of its first byte in the whole tensor."""

    whole: Stored
    offset: int


class CutSource:
    """A source whose stacked tensors are there as the parts of each expert, under these parts' names."""

    def __init__(self, source: Source, tensors: list[Stored], cuts: dict[str, _Cut]) -> None:
        self.name, self.tensors, self.bytes = source.name, tensors, source.bytes
        self._source, self._cuts = source, cuts

    def read(self, stored: Stored, offset: int, part: Tensor) -> None:
        cut = self._cuts.get(stored.name)
        if cut is None:
            self._source.read(stored, offset, part)
        else:
            self._source.read(cut.whole, cut.offset + offset, part)


def cut(source: Source, model: Model) -> Source:
    """The source itself where it holds no stacked tensors of the model's experts."""
    known, tensors, cuts = _known(model), list[Stored](), dict[str, _Cut]()
    for stored in source.tensors:
        found = known.get(_renamed(stored.name, model.names))
        if found is None or stored.shape[:1] != [found[1]]:
            tensors.append(stored)
            continue
        for piece, offset in _pieces(stored, *found):
            tensors.append(piece)
            cuts[piece.name] = _Cut(stored, offset)
    return CutSource(source, tensors, cuts) if cuts else source


def with_stacks_as_stored(model: Model, sources: Iterable[Source]) -> Model:
    """The model with its experts' matrices as [out, in] where its files hold them so, though the first files of its kind did not.

    transformers 5 writes the experts of Qwen3-VL-MoE so. Raises nothing: shapes that fit neither way are seen by who plans.
    """
    names, part = model.names.experts, next((layer.ffn for layer in model.layers if isinstance(layer.ffn, Experts)), None)
    if part is None or not names.transposed:
        return model
    known = _known(model)
    stored = [each for source in sources for each in source.tensors if _renamed(each.name, model.names) in known and len(each.shape) == 3]
    down = {tuple(each.shape[1:]) for each in stored if "down" in each.name}
    turned = (model.hidden_size, part.expert.inner)
    if down != {turned} or turned[0] == turned[1]:
        return model
    return replace(model, names=replace(model.names, experts=replace(names, transposed=False)))


def _known(model: Model) -> dict[str, tuple[tuple[str, ...], int]]:
    """By the name of a stacked tensor what its parts are called, {} for the expert's number, and how many experts it has."""
    return {
        f"{prefix}{stack.name}": (tuple(prefix + part for part in stack.parts), layer.ffn.count)
        for index, layer in enumerate(model.layers)
        if isinstance(layer.ffn, Experts)
        for prefix in [model.names.layer.format(model.stage.first + index)]
        for stack in model.names.experts.all_stacks()
    }


def _pieces(stored: Stored, names: tuple[str, ...], count: int) -> Iterator[tuple[Stored, int]]:
    """The parts of each expert, and where each begins in the tensor. Rows that cannot be shared out stay whole."""
    inner = stored.shape[1:]
    share = len(names) if inner and inner[0] % len(names) == 0 else 1
    shape = [inner[0] // share, *inner[1:]] if inner else []
    size = (stored.stop - stored.start) // (count * share)
    for number in range(count * share):
        name, offset = names[number % share].format(number // share), number * size
        yield Stored(name, stored.dtype, shape, stored.start + offset, stored.start + offset + size), offset


def _renamed(name: str, names: Names) -> str:
    begin = next(((old, new) for old, new in names.prefixes if name.startswith(old)), None)
    return name if begin is None else begin[1] + name.removeprefix(begin[0])
