"""Layers of a step of one row: its products by the kernels of `one_row`, with as much as possible folded into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from ..kernels import one_row, one_row_heads
from ..kernels.activation import activate
from ..kernels.few_bits_packed import Packed
from ..kernels.join import NormWeights
from ..kernels.one_row_adapted import RowPair
from ..kernels.one_row_ranks import post_linear
from ..kernels.over_ranks import Rooms, join_posted, sum_of_posted
from ..kernels.overlap import overlaps
from ..layers.linear import Linear
from ..quantization import FewBitsLinear, Fp8Linear
from .experts import ExpertsPart
from .feedforward import GatedPart, PlainPart
from .gpu_latent import LatentLayer
from .gpu_layers import FusedLayer, LawLayer, MixerByLaw, StateLayer, Step
from .joins import Pending, RmsJoin
from .over_ranks import OverRanks, Summed, Unsummed, here
from .paired import Paired

KINDS = (Linear, Fp8Linear)  # of products; not of a subclass
LONG = 32 * 2**20  # bytes of a weight; attention that starts under the product of a larger one takes more from it than it gains
Read = tuple[Tensor | Packed, Tensor | None]


@dataclass(frozen=True, slots=True)
class LoneLayer:
    """The products one by one, additions and norms between them. See `FusedLayer`."""

    layer: Foldable

    def run(self, x: Tensor, delta: Pending, step: Step, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        layer, block, overlap = self.layer, self.layer.block, overlaps(x.device)
        y = layer.entry(x, delta, overlap)
        mixed = waiting(output_of(layer), _mixed(layer, y, None, step), not block.layer.norms.parallel)
        if block.layer.norms.parallel:
            return x, (mixed, _fed(layer, layer.middle(x, None, overlap), step))
        return x, _fed(layer, layer.middle(x, mixed, overlap), step)

    def write(self, x: Tensor, delta: Pending, step: Step) -> None:
        self.layer.write(x, delta, step)


@dataclass(frozen=True, slots=True)
class FoldedLayer:
    """The usual layer: its RMS norms are folded into the products behind them, its additions into those before."""

    layer: Foldable
    before_mixer: NormWeights
    before_ffn: NormWeights

    def run(self, x: Tensor, delta: Pending, step: Step, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        """x has then all that the layer adds."""
        layer, block = self.layer, self.layer.block
        if delta is not None:
            layer.settle(x, delta)
        mixed = _mixed(layer, x, self.before_mixer, step)
        _add(x, output_of(layer), mixed)
        if layer.experts is not None:
            return layer.experts.add(x, self.before_ffn, step.batch.slots, overlaps(x.device)), None
        _add(x, block.dense.down, _inner(block.dense, x, self.before_ffn))
        return x, None

    def write(self, x: Tensor, delta: Pending, step: Step) -> None:
        self.layer.write(x, delta, step)


Foldable = FusedLayer | StateLayer  # latent attention computes its single rows itself
AnyFused = Foldable | LatentLayer
GpuLayer = AnyFused | MixerByLaw | LawLayer
AnyLayer = GpuLayer | LoneLayer | FoldedLayer


def alone(layer: GpuLayer) -> AnyLayer:
    """What computes a single row of the layer."""
    if not isinstance(layer, Foldable) or not _takes_one_row(layer):
        return layer
    entry, middle = layer.entry, layer.middle
    if folds(layer):
        return FoldedLayer(layer, cast(RmsJoin, entry).before, cast(RmsJoin, middle).before)
    return LoneLayer(layer)


def _takes_one_row(layer: Foldable) -> bool:
    """Experts have kernels of their own for it."""
    mixer, block = layer.block.mixer, layer.block
    assert mixer is not None
    products = mixer.products() if layer.experts else block.products()
    return all(lone(getattr(*place)) for place in products) and not (layer.experts and layer.experts.fixed)


def folds(layer: Foldable) -> bool:
    """Whether nothing but RMS norms and additions stands between its products, and an activation with a gate."""
    part, block = layer.block.layer, layer.block
    if isinstance(output_of(layer), Summed):  # what it adds is not there until the ranks have added up
        return False
    behind = block.after_mixer or block.after_ffn or part.norms.parallel or part.branch != 1 or part.scalar
    return isinstance(layer.entry, RmsJoin) and isinstance(layer.middle, RmsJoin) and isinstance(block.ffn, GatedPart | ExpertsPart) and not behind


def _fed(layer: Foldable, y: Tensor, step: Step) -> Tensor | Unsummed:
    """What the feedforward network adds, of y [1, hidden], normed."""
    if layer.experts is not None:
        return layer.experts(y, step.batch.slots, overlap=overlaps(y.device))
    return waiting(layer.block.dense.down, _inner(layer.block.dense, y, None), not layer.block.layer.norms.parallel)


def output_of(layer: Foldable) -> Linear:
    """The last product of its mixer."""
    assert layer.block.mixer is not None and layer.block.mixer.output is not None
    return layer.block.mixer.output


def lone(product: Linear) -> bool:
    """Whether there is a kernel for one row of this product."""
    product = here(product)
    if isinstance(product, Paired):
        return product.adds_in_kernel and lone(product.base) and isinstance(read(product)[0], Tensor)
    return type(product) in KINDS or (isinstance(product, FewBitsLinear) and product.folds and one_row.takes(product.packed))


@dataclass(frozen=True, slots=True)
class Posted(Unsummed):
    """What all ranks' products have sent to all; `part` is where the sum goes, or its norm. It is taken before ranks add up anything else."""

    rooms: Rooms

    def sum(self) -> Tensor:
        return sum_of_posted(self.part, self.rooms)

    def joined(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return join_posted(x, self.part, weight, eps, self.rooms)


def waiting(product: Linear, y: Tensor, next_sum: bool) -> Tensor | Unsummed:
    """y [1, in] -> [1, out], see `over_ranks.pending`. next_sum: what ranks add up next is this."""
    if not isinstance(product, Summed):
        return times(product, y)
    weight, scale = read(product.product)
    if next_sum and isinstance(weight, Tensor):
        out = y.new_empty(1, len(weight))
        if (rooms := product.ranks.rooms(out)) is not None:
            post_linear(y, weight, rooms, product.product.bias, weight_scale=scale, pair=_pair(product.product, y))
            return Posted(out, product.ranks, rooms)
    return Unsummed(times(product.product, y), product.ranks)


def times(product: Linear, y: Tensor, norm: NormWeights | None = None) -> Tensor:
    """norm(y) [1, in] -> [1, out]"""
    if isinstance(product, OverRanks):
        return product.whole(times(product.product, y, norm))
    (weight, scale), pair = read(product), _pair(product, y, norm)
    if norm is None:
        return one_row.linear(y, weight, product.bias, weight_scale=scale, pair=pair)
    return one_row.norm_linear(y, norm.weight, norm.eps, weight, product.bias, weight_scale=scale, pair=pair)


def weight_bytes(product: Linear) -> int:
    return sum(tensor.nbytes for tensor in here(product).tensors())


def read(product: Linear) -> Read:
    """The weight as the kernels read it, and the scales that it has besides."""
    if isinstance(product, Paired):
        return read(product.base)
    if not isinstance(product, FewBitsLinear):
        return product.weight, product.scale
    packed = product.packed
    return (packed.words, packed.outer) if one_row.numbers(packed) else (packed, None)


def _pair(product: Linear, x: Tensor, norm: NormWeights | None = None) -> RowPair | None:
    """What an adapter adds to the product of norm(x) [1, in]."""
    return product.pair(x, norm) if isinstance(product, Paired) else None


def _add(x: Tensor, product: Linear, y: Tensor) -> None:
    weight, scale = read(product)
    one_row.linear_add(y, weight, x, product.bias, weight_scale=scale, pair=_pair(product, y))


def _mixed(layer: Foldable, x: Tensor, norm: NormWeights | None, step: Step) -> Tensor:
    """What the mixer gives its last product of the norm of x, [1, query heads * head_dim]."""
    if isinstance(layer, StateLayer):
        return layer.mixer.alone(x, norm, step, times)
    qkv, q = _query(layer, x, norm, step)
    step.batch.waits = weight_bytes(layer.block.attention.qkv) > LONG
    mixed = step.attention.attend(q, q, q, layer.block.index, step.batch, *layer.sinks)  # one row reads the pool only
    return layer.gated(mixed.view(1, -1), qkv, overlaps(x.device))


def _query(layer: FusedLayer, x: Tensor, norm: NormWeights | None, step: Step) -> tuple[Tensor, Tensor]:
    """x's keys and values are written; all heads of x as they were projected where these have gates, and the queries."""
    mixer, batch, index = layer.block.attention, step.batch, layer.block.index
    qkv, part = mixer.qkv, mixer.part
    weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    stored, scale = read(qkv)
    unknown = layer.head_norm is not None and (isinstance(stored, Packed) or not one_row_heads.suits(layer.head_norm))
    by_itself = unknown or part.clip or part.temperature or part.value_norm_eps is not None or not mixer.heads[1]
    if by_itself or layer.table is None or part.gates:
        heads = times(qkv, x, norm)
        return heads, layer.rotate(heads, step, overlap=overlaps(x.device))
    k_scale, v_scale = step.scales[index]
    places: dict[str, Any] = {
        "angles_table": layer.table, "positions": batch.positions, "slots": step.attention.slots(index, batch), "k_pool": step.keys[index],
        "v_pool": step.values[index], "k_scale": k_scale, "v_scale": v_scale, "weight_scale": scale, "pair": _pair(qkv, x, norm),
    }  # fmt: skip
    if layer.head_norm is None:
        q = one_row.qkv_rotate_store(x, weight, eps, stored, qkv.bias, *mixer.heads, **places)
        return q, q
    assert isinstance(stored, Tensor)
    q = one_row_heads.qkv_norm_rotate_store(x, weight, eps, stored, qkv.bias, *mixer.heads, layer.head_norm, **places)
    return q, q


def _inner(ffn: GatedPart | PlainPart, x: Tensor, norm: NormWeights | None) -> Tensor:
    """norm(x) [1, hidden] -> [1, inner], what `down` takes; a plain network has no norm here."""
    if isinstance(ffn, PlainPart):
        return activate(times(ffn.up, x), ffn.part.activation)
    gate_up, weight, eps = ffn.gate_up, None if norm is None else norm.weight, 0.0 if norm is None else norm.eps
    stored, scale = read(gate_up)
    return one_row.gate_up(x, weight, eps, stored, gate_up.bias, weight_scale=scale, name=ffn.part.activation, pair=_pair(gate_up, x, norm))
