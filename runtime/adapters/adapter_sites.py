"""Where a model takes adapters: its products, and which rows of them each module of the checkpoint has."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypeGuard

import numpy as np
import torch

from ..layers.linear_layers import Linear
from ..models.decoder import Decoder
from ..models.reference.reference_attention import ReferenceAttention
from ..models.reference.reference_block import ReferenceBlock
from ..models.reference.reference_delta_net import ReferenceDeltaNet
from ..models.reference.reference_feedforward import ReferenceGatedFFN, ReferencePlainFFN
from ..models.reference.reference_latent_attention import ReferenceLatentAttention
from ..models.reference.reference_mamba1 import ReferenceMamba1
from ..models.reference.reference_mamba2 import ReferenceMamba2
from ..models.reference.reference_mixer import ReferenceMixer
from ..models.reference.reference_module import ReferenceModule
from ..models.reference.reference_short_conv import ReferenceShortConv
from ..models.spec.model_spec import ModelSpec
from ..models.spec.weight_targets import WeightTarget

WEIGHT = ".weight"


class OutputRowRange(NamedTuple):
    """Outputs `start` to `stop` of a product belong to its piece `piece`, in any order."""

    piece: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class AdapterSite:
    """A product that adapters add to.

    layer, holder, name: the product is the attribute `name` of the layer's `holder` ("mixer" or "ffn").
    modules: the checkpoint's modules whose outputs these are, the pieces.  sizes: outputs of each.
    piece_of, row_of: int64 [outputs], the piece of each output and its row there.
    runs: the outputs by piece, in order.
    by_reference: nothing else adds to it.
    """

    number: int
    layer: int
    holder: str
    name: str
    inputs: int
    outputs: int
    modules: tuple[str, ...]
    sizes: tuple[int, ...]
    piece_of: np.ndarray
    row_of: np.ndarray
    runs: tuple[OutputRowRange, ...]
    by_reference: bool = False


@lru_cache(maxsize=4)
def sites_of(model: ModelSpec, by_reference: bool = False) -> tuple[AdapterSite, ...]:
    """In the order of the step. No weights are needed. by_reference: also those that only the reference adds to."""
    shape = Decoder(model, torch.float32, "meta")
    found: list[AdapterSite] = []
    for block in shape.layers:
        places = list(block.places())
        for holder, name in _products(block, by_reference):
            if (site := _site(len(found), block, places, holder, name)) is not None:
                found.append(site)
    return tuple(found)


def _products(block: ReferenceBlock, by_reference: bool) -> Iterator[tuple[str, str]]:
    """Of the parts whose products are plain ones of what the checkpoint's module is given."""
    if isinstance(block.mixer, ReferenceAttention) or (by_reference and _is_plain(block.mixer)):
        yield from (("mixer", name) for holder, name in block.mixer.products() if holder is block.mixer)
    if isinstance(block.ffn, ReferenceGatedFFN | ReferencePlainFFN):
        yield from (("ffn", name) for _, name in block.ffn.products())


def _is_plain(mixer: object) -> TypeGuard[ReferenceMixer]:
    """Whether the reference computes its products one by one, from the modules' inputs, with their rows unchanged."""
    if isinstance(mixer, ReferenceMamba2):
        return not mixer.part.scales
    return isinstance(mixer, ReferenceLatentAttention | ReferenceDeltaNet | ReferenceMamba1 | ReferenceShortConv)


def _site(number: int, block: ReferenceBlock, places: list[WeightTarget], holder: str, name: str) -> AdapterSite | None:
    """places: of the block.  None: its rows are no module's of the checkpoint."""
    part = getattr(block, holder)
    product: Linear = getattr(part, name)
    loaded = [
        (place.name.removesuffix(WEIGHT), place.start, _rows(place.target.shape, product))
        for place in places
        if place.layer is product
    ]
    outputs, inputs = product.weight.shape
    if sum(rows for *_, rows in loaded) != outputs:
        return None
    piece_of, row_of = np.zeros(outputs, np.int64), np.zeros(outputs, np.int64)
    for piece, (_, start, rows) in enumerate(loaded):
        piece_of[start : start + rows], row_of[start : start + rows] = piece, np.arange(rows)
    order = _order(part, product)
    piece_of, row_of = piece_of[order], row_of[order]
    modules, sizes = tuple(module for module, *_ in loaded), tuple(rows for *_, rows in loaded)
    return AdapterSite(
        number,
        block.index,
        holder,
        name,
        inputs,
        len(order),
        modules,
        sizes,
        piece_of,
        row_of,
        tuple(_runs(piece_of)),
        _is_plain(part),
    )


def _rows(shape: torch.Size, product: Linear) -> int:
    """Rows of a place, whose memory may be transposed."""
    return shape[0] if product.weight.is_contiguous() else shape[1]


def _order(part: ReferenceModule, product: Linear) -> np.ndarray:
    """Which of the loaded rows each output is, int64."""
    orders = (rows for other, rows in part.orders() if other is product)
    return next(orders, np.arange(product.weight.shape[0]))


def _runs(piece_of: np.ndarray) -> Iterator[OutputRowRange]:
    borders = [0, *(np.flatnonzero(np.diff(piece_of)) + 1).tolist(), len(piece_of)]
    for start, stop in itertools.pairwise(borders):
        yield OutputRowRange(int(piece_of[start]), start, stop)
