"""Layers of a step of batch size one: its products by the kernels of `gemv`, with as much as possible fused into
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from ...kernels.activation_kernels import activate
from ...kernels.comm.all_reduce import AllReduceBuffers, add_norm_of_posted, sum_of_posted
from ...kernels.gemv import gemv, gemv_qk_norm
from ...kernels.gemv.gemv_all_reduce import post_linear
from ...kernels.gemv.gemv_lora import GemvLora
from ...kernels.launch.programmatic_launch import overlaps
from ...kernels.packed.packed_weight import PackedWeight
from ...kernels.residual_norm import NormWeights
from ...layers.linear_layers import Linear
from ...quantization import Fp8Linear, GpuQuantizedLinear
from ..reference.reference_block import ReferenceBlock
from ..reference.reference_experts import ReferenceExperts
from ..reference.reference_feedforward import ReferenceGatedFFN, ReferencePlainFFN
from ..reference.tensor_parallel_linear import AllReduceLinear, PartialSum, TensorParallelLinear, local_product
from .gpu_latent_attention import FusedLatentLayer
from .gpu_layer_executor import GpuStep, LayerExecutor
from .gpu_layers import FusedLayer, FusedRecurrentLayer, ReferenceLayer, ReferenceMixerLayer
from .gpu_residual_norm import Pending, ResidualRmsNorm
from .lora_gemv_linear import LoraGemvLinear

KINDS = (Linear, Fp8Linear)  # of products; not of a subclass
LONG = 32 * 2**20  # bytes of a weight; attention that starts under the product of a larger one costs more than it gains
Read = tuple[Tensor | PackedWeight, Tensor | None]


@dataclass(frozen=True, slots=True)
class GemvLayer:
    """The products one by one, additions and norms between them. See `FusedLayer`."""

    layer: Foldable

    @property
    def block(self) -> ReferenceBlock:
        return self.layer.block

    def run(self, x: Tensor, delta: Pending, step: GpuStep, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        layer, block, overlap = self.layer, self.layer.block, overlaps(x.device)
        y = layer.entry(x, delta, overlap)
        mixed = posted_product(output_of(layer), _mixed(layer, y, None, step), not block.layer.norms.parallel)
        if block.layer.norms.parallel:
            return x, (mixed, _fed(layer, layer.middle(x, None, overlap), step))
        return x, _fed(layer, layer.middle(x, mixed, overlap), step)

    def write(self, x: Tensor, delta: Pending, step: GpuStep) -> None:
        self.layer.write(x, delta, step)


@dataclass(frozen=True, slots=True)
class FullyFusedLayer:
    """The usual layer: its RMS norms are fused into the products that follow, its additions into those before."""

    layer: Foldable
    before_mixer: NormWeights
    before_ffn: NormWeights

    @property
    def block(self) -> ReferenceBlock:
        return self.layer.block

    def run(self, x: Tensor, delta: Pending, step: GpuStep, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        """Afterwards x includes all that the layer adds."""
        layer, block = self.layer, self.layer.block
        if delta is not None:
            layer.settle(x, delta)
        mixed = _mixed(layer, x, self.before_mixer, step)
        _add(x, output_of(layer), mixed)
        if layer.experts is not None:
            return layer.experts.add(x, self.before_ffn, step.batch.slots, overlaps(x.device)), None
        _add(x, block.dense.down, _inner(block.dense, x, self.before_ffn))
        return x, None

    def write(self, x: Tensor, delta: Pending, step: GpuStep) -> None:
        self.layer.write(x, delta, step)


Foldable = FusedLayer | FusedRecurrentLayer  # latent attention computes batches of one itself
AnyFused = Foldable | FusedLatentLayer
GpuLayer = AnyFused | ReferenceMixerLayer | ReferenceLayer


def gemv_layer_for(layer: GpuLayer) -> LayerExecutor:
    """What computes the layer for a batch of one."""
    if not isinstance(layer, Foldable) or not _supports_gemv(layer):
        return layer
    entry, middle = layer.entry, layer.middle
    if can_fully_fuse(layer):
        return FullyFusedLayer(layer, cast(ResidualRmsNorm, entry).before, cast(ResidualRmsNorm, middle).before)
    return GemvLayer(layer)


def _supports_gemv(layer: Foldable) -> bool:
    """Experts have separate kernels for it."""
    mixer, block = layer.block.mixer, layer.block
    assert mixer is not None
    products = mixer.products() if layer.experts else block.products()
    return all(can_run_gemv(getattr(*place)) for place in products) and not (layer.experts and layer.experts.fixed)


def can_fully_fuse(layer: Foldable) -> bool:
    """Whether only RMS norms, additions and an activation with a gate stand between its products."""
    part, block = layer.block.layer, layer.block
    if isinstance(output_of(layer), AllReduceLinear):  # its output is complete only after the all-reduce
        return False
    post_processed = block.after_mixer or block.after_ffn or part.norms.parallel or part.branch != 1 or part.scalar
    return (
        isinstance(layer.entry, ResidualRmsNorm)
        and isinstance(layer.middle, ResidualRmsNorm)
        and isinstance(block.ffn, ReferenceGatedFFN | ReferenceExperts)
        and not post_processed
    )


def _fed(layer: Foldable, y: Tensor, step: GpuStep) -> Tensor | PartialSum:
    """The feedforward network's output, of y [1, hidden], normed."""
    if layer.experts is not None:
        return layer.experts(y, step.batch.slots, overlap=overlaps(y.device))
    return posted_product(
        layer.block.dense.down, _inner(layer.block.dense, y, None), not layer.block.layer.norms.parallel
    )


def output_of(layer: Foldable) -> Linear:
    """The last product of its mixer."""
    assert layer.block.mixer is not None and layer.block.mixer.output is not None
    return layer.block.mixer.output


def can_run_gemv(product: Linear) -> bool:
    """Whether there is a gemv kernel for this product."""
    product = local_product(product)
    if isinstance(product, LoraGemvLinear):
        return product.adds_in_kernel and can_run_gemv(product.inner) and isinstance(read(product)[0], Tensor)
    return type(product) in KINDS or (
        isinstance(product, GpuQuantizedLinear) and product.folds and gemv.supports_weight(product.packed)
    )


@dataclass(frozen=True, slots=True)
class PostedPartialSum(PartialSum):
    """Partial sums that all ranks' products have sent to all; `part` is where the sum goes, or its norm.

    It must be consumed before ranks all-reduce anything else.
    """

    rooms: AllReduceBuffers

    def sum(self) -> Tensor:
        return sum_of_posted(self.part, self.rooms)

    def joined(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return add_norm_of_posted(x, self.part, weight, eps, self.rooms)


def posted_product(product: Linear, y: Tensor, next_sum: bool) -> Tensor | PartialSum:
    """y [1, in] -> [1, out], see `over_ranks.pending`. next_sum: this is the ranks' next all-reduce."""
    if not isinstance(product, AllReduceLinear):
        return multiply(product, y)
    weight, scale = read(product.inner)
    if next_sum and isinstance(weight, Tensor):
        out = y.new_empty(1, len(weight))
        if (rooms := product.ranks.rooms(out)) is not None:
            post_linear(y, weight, rooms, product.inner.bias, weight_scale=scale, pair=_pair(product.inner, y))
            return PostedPartialSum(out, product.ranks, rooms)
    return PartialSum(multiply(product.inner, y), product.ranks)


def multiply(product: Linear, y: Tensor, norm: NormWeights | None = None) -> Tensor:
    """norm(y) [1, in] -> [1, out]"""
    if isinstance(product, TensorParallelLinear):
        return product.whole(multiply(product.inner, y, norm))
    (weight, scale), pair = read(product), _pair(product, y, norm)
    if norm is None:
        return gemv.linear(y, weight, product.bias, weight_scale=scale, pair=pair)
    return gemv.norm_linear(y, norm.weight, norm.eps, weight, product.bias, weight_scale=scale, pair=pair)


def weight_bytes(product: Linear) -> int:
    return sum(tensor.nbytes for tensor in local_product(product).tensors())


def read(product: Linear) -> Read:
    """The weight as the kernels read it, and its scales, if any."""
    if isinstance(product, LoraGemvLinear):
        return read(product.inner)
    if not isinstance(product, GpuQuantizedLinear):
        return product.weight, product.scale
    packed = product.packed
    return (packed.words, packed.outer) if gemv.numbers(packed) else (packed, None)


def _pair(product: Linear, x: Tensor, norm: NormWeights | None = None) -> GemvLora | None:
    """What an adapter adds to the product of norm(x) [1, in]."""
    return product.pair(x, norm) if isinstance(product, LoraGemvLinear) else None


def _add(x: Tensor, product: Linear, y: Tensor) -> None:
    weight, scale = read(product)
    gemv.linear_add(y, weight, x, product.bias, weight_scale=scale, pair=_pair(product, y))


def _mixed(layer: Foldable, x: Tensor, norm: NormWeights | None, step: GpuStep) -> Tensor:
    """The input of the mixer's last product, of the norm of x, [1, query heads * head_dim]."""
    if isinstance(layer, FusedRecurrentLayer):
        return layer.mixer.alone(x, norm, step, multiply)
    qkv, q = _query(layer, x, norm, step)
    step.batch.waits = weight_bytes(layer.block.attention.qkv) > LONG
    mixed = step.attention.attend(
        q, q, q, layer.block.index, step.batch, *layer.sinks
    )  # a batch of one reads the pool only
    return layer.gated(mixed.view(1, -1), qkv, overlaps(x.device))


def _query(layer: FusedLayer, x: Tensor, norm: NormWeights | None, step: GpuStep) -> tuple[Tensor, Tensor]:
    """Writes x's keys and values. Returns all heads as they were projected, if these have gates, and the queries."""
    mixer, batch, index = layer.block.attention, step.batch, layer.block.index
    qkv, part = mixer.qkv, mixer.part
    weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    stored, scale = read(qkv)
    unknown = layer.head_norm is not None and (
        isinstance(stored, PackedWeight) or not gemv_qk_norm.supports(layer.head_norm)
    )
    by_itself = unknown or part.clip or part.temperature or part.value_norm_eps is not None or not mixer.heads[1]
    if by_itself or layer.table is None or part.gates:
        heads = multiply(qkv, x, norm)
        return heads, layer.rotate(heads, step, overlap=overlaps(x.device))
    k_scale, v_scale = step.scales[index]
    places: dict[str, Any] = {
        "angles_table": layer.table,
        "positions": batch.positions,
        "slots": step.attention.slots(index, batch),
        "k_pool": step.keys[index],
        "v_pool": step.values[index],
        "k_scale": k_scale,
        "v_scale": v_scale,
        "weight_scale": scale,
        "pair": _pair(qkv, x, norm),
    }
    if layer.head_norm is None:
        q = gemv.qkv_rope_store(x, weight, eps, stored, qkv.bias, *mixer.heads, **places)
        return q, q
    assert isinstance(stored, Tensor)
    q = gemv_qk_norm.qkv_norm_rope_store(x, weight, eps, stored, qkv.bias, *mixer.heads, layer.head_norm, **places)
    return q, q


def _inner(ffn: ReferenceGatedFFN | ReferencePlainFFN, x: Tensor, norm: NormWeights | None) -> Tensor:
    """norm(x) [1, hidden] -> [1, inner], what `down` takes; a plain network has no norm here."""
    if isinstance(ffn, ReferencePlainFFN):
        return activate(multiply(ffn.up, x), ffn.part.activation)
    gate_up, weight, eps = ffn.gate_up, None if norm is None else norm.weight, 0.0 if norm is None else norm.eps
    stored, scale = read(gate_up)
    return gemv.gate_up(
        x, weight, eps, stored, gate_up.bias, weight_scale=scale, name=ffn.part.activation, pair=_pair(gate_up, x, norm)
    )
