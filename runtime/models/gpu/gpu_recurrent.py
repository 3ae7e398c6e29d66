"""Mixers with states on a GPU: their products, one kernel for the convolution, and one for the state and all around
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from ...kernels.gemv.gemv_conv import ConvWeights, gemv_conv
from ...kernels.launch.programmatic_launch import overlaps
from ...kernels.recurrent.causal_conv import convolve
from ...kernels.recurrent.chunked_kda import advance_kda_by_chunks
from ...kernels.recurrent.chunked_linear_attention import advance_by_chunks, decays_per_channel, supports
from ...kernels.recurrent.linear_attention_scan import FEW, NARROW, PART, HeadNormGate, LinearAttentionInputs, advance
from ...kernels.recurrent.output_gates import gated
from ...kernels.residual_norm import NormWeights
from ...layers.linear_layers import Linear
from ...quantization import DeterministicLinear, Fp8Linear, RowwiseFp8Linear
from ...quantization.gpu_quantized_linear import DeterministicGpuQuantizedLinear
from ..reference.reference_block import ReferenceBlock
from ..reference.reference_delta_net import UNIT_EPS, ReferenceDeltaNet
from ..reference.reference_mamba2 import ReferenceMamba2
from ..reference.reference_mixer import ReferenceMixer
from ..reference.reference_recurrence import ReferenceConvolution
from ..reference.reference_short_conv import ReferenceShortConv
from ..spec.recurrent_spec import DeltaNetSpec
from .gpu_layer_executor import GpuStep

KINDS = (Linear, Fp8Linear)  # of products, not of a subclass, that fuse a convolution for a batch of one
FIXED = (DeterministicLinear, RowwiseFp8Linear, DeterministicGpuQuantizedLinear)
Times = Callable[..., Tensor]  # a product, x, and maybe the norm to apply to x -> the product's output


class FusedRecurrentMixer(Protocol):
    """The part between the norm before a mixer and the mixer's last product."""

    def __call__(self, y: Tensor, step: GpuStep) -> Tensor:
        """y [T, hidden], normed -> [T, inputs of the last product]; the states after the step's tokens are stored."""

    def alone(self, x: Tensor, norm: NormWeights | None, step: GpuStep, times: Times) -> Tensor:
        """The same for a batch of one to which the norm, if there is one, is still to be applied.

        times: multiplies one row by products.
        """


class StepStateSlots(NamedTuple):
    """Where a step's sequences read and write states.

    starts: int [S + 1], where they begin.  longest: their most tokens.
    ones: how many sequences of one token come first.
    """

    read: Tensor
    write: Tensor
    starts: Tensor
    longest: int
    ones: int

    @property
    def overlap(self) -> bool:
        """Whether kernels start during the tail of the previous one: in decode steps."""
        return self.longest == 1 and overlaps(self.read.device)

    @classmethod
    def of(cls, step: GpuStep) -> StepStateSlots:
        batch = step.batch
        assert batch.state_read is not None and batch.state_write is not None and batch.device is not None
        lens = batch.query_lens
        ones = sum(1 for _ in takewhile(lambda count: count == 1, lens))
        return cls(batch.state_read, batch.state_write, batch.device.starts, max(lens, default=0), ones)


@dataclass(frozen=True, slots=True)
class ProjectionAndConv:
    """The products in front of a mixer, of the same input, and the convolution of `channels` outputs of the first
    product.

    These channels begin at output `first`.
    merged: all products as one, if their weights are plain; None: they stay apart.
    """

    products: tuple[Linear, ...]
    merged: Linear | None
    convolution: ReferenceConvolution
    index: int
    first: int = 0

    @classmethod
    def of(
        cls, products: tuple[Linear, ...], convolution: ReferenceConvolution, index: int, first: int = 0
    ) -> ProjectionAndConv:
        return cls(products, merged_products(products), convolution, index, first)

    @property
    def taps(self) -> ConvWeights:
        found = self.convolution
        return ConvWeights(found.weight, found.bias, found.activation, self.first)

    def __call__(self, y: Tensor, step: GpuStep, slots: StepStateSlots, memory: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output of the convolution, float32 [T, channels], and the other outputs.

        These are the first product's before and after the channels, then those of the other products.
        """
        found = [self.merged(y)] if self.merged is not None else [product(y) for product in self.products]
        return self._convolved(found, slots, memory, slots.overlap)

    def alone(
        self, x: Tensor, norm: NormWeights | None, slots: StepStateSlots, memory: Tensor, times: Times
    ) -> tuple[Tensor, list[Tensor]]:
        """The same for a batch of one. times: multiplies it by products that no convolution follows."""
        first = self.merged or self.products[0]
        others = [] if self.merged is not None else [times(product, x, norm) for product in self.products[1:]]
        if type(first) not in KINDS:
            return self._convolved([times(first, x, norm), *others], slots, memory, overlaps(x.device))
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        mixed, rest = gemv_conv(
            x,
            weight,
            eps,
            first.weight,
            first.bias,
            self.taps,
            memory,
            slots.read,
            slots.write,
            weight_scale=first.scale,
        )
        return mixed, [*self._cut(rest, self.first), *others]

    def _convolved(
        self, found: list[Tensor], slots: StepStateSlots, memory: Tensor, overlap: bool
    ) -> tuple[Tensor, list[Tensor]]:
        taps = self.taps
        before, y, *rest = self._cut(found[0], self.first, taps.weight.shape[1])
        mixed = convolve(
            y, taps.weight, taps.bias, taps.name, memory, slots.read, slots.write, slots.starts, slots.longest, overlap
        )
        return mixed, [before, *rest, *found[1:]]

    def _cut(self, y: Tensor, *begin: int) -> tuple[Tensor, ...]:
        """y of these sizes, then the rest of the first product, then each that is merged into it."""
        others = [product.weight.shape[0] for product in self.products[1:]] if self.merged is not None else []
        return y.split_with_sizes([*begin, y.shape[1] - sum(begin) - sum(others), *others], 1)


def merged_products(products: tuple[Linear, ...]) -> Linear | None:
    """Products as one whose weight has their rows, which become views of it; None: they are not plain, or have
    biases.
    """
    if any(
        type(product) is not Linear or product.bias is not None or product.weight.dtype != products[0].weight.dtype
        for product in products
    ):
        return None
    if len(products) == 1:
        return products[0]
    counts, weights = [len(product.weight) for product in products], [product.weight for product in products]
    if not _side_by_side(weights):
        whole = torch.cat(weights)
        for product, rows in zip(products, whole.split(counts), strict=True):
            product.weight = rows
    first = products[0].weight
    return Linear(first.as_strided((sum(counts), first.shape[1]), first.stride()))


def _side_by_side(weights: list[Tensor]) -> bool:
    """Whether each begins where the one before ends, in the same memory."""
    same = all(weight.untyped_storage().data_ptr() == weights[0].untyped_storage().data_ptr() for weight in weights)
    return same and all(one.data_ptr() + one.nbytes == other.data_ptr() for one, other in pairwise(weights))


@dataclass(frozen=True, slots=True)
class FusedDeltaNet:
    """A gated delta net or KDA. fixed: bits of a token do not depend on where a prompt is cut."""

    mixer: ReferenceDeltaNet
    front: ProjectionAndConv
    fixed: bool = False

    @classmethod
    def of(cls, mixer: ReferenceDeltaNet) -> FusedDeltaNet:
        return cls(
            mixer, ProjectionAndConv.of((mixer.input, mixer.rates), mixer.convolution, mixer.index), fixed_sums(mixer)
        )

    def __call__(self, y: Tensor, step: GpuStep) -> Tensor:
        slots, (windows, states) = StepStateSlots.of(step), memory_of(step, self.mixer.index)
        mixed, rest = self.front(y, step, slots, windows)
        return self._after_conv(mixed, rest, states, slots, lambda product, few: product(few), slots.overlap)

    def alone(self, x: Tensor, norm: NormWeights | None, step: GpuStep, times: Times) -> Tensor:
        slots, (windows, states) = StepStateSlots.of(step), memory_of(step, self.mixer.index)
        mixed, rest = self.front.alone(x, norm, slots, windows, times)
        return self._after_conv(mixed, rest, states, slots, times, overlaps(x.device))

    def _after_conv(
        self, mixed: Tensor, rest: list[Tensor], states: Tensor, slots: StepStateSlots, times: Times, overlap: bool
    ) -> Tensor:
        mixer, part = self.mixer, self.mixer.part
        _, z, rates = rest
        b, a = rates.split_with_sizes((part.heads, part.rank or part.heads), 1)
        if mixer.spread is not None and mixer.gate is not None:
            a, z = times(mixer.spread, a.contiguous()), times(mixer.gate, z.contiguous())
        gate = HeadNormGate(z, mixer.norm, part.eps, part.gate)
        return mixed_by_state(
            linear_attention_inputs(part, mixer, mixed, a, b), gate, states, slots, self.fixed, overlap
        )


def linear_attention_inputs(
    part: DeltaNetSpec, mixer: ReferenceDeltaNet, mixed: Tensor, a: Tensor, b: Tensor
) -> LinearAttentionInputs:
    """mixed: float32 [T, channels], queries, keys and values of all heads."""
    keys, values = part.key_heads * part.dim, part.heads * part.value_dim
    q, k, v = mixed.split_with_sizes((keys, keys, values), 1)
    q, k = (each.unflatten(1, (part.key_heads, part.dim)) for each in (q, k))
    return LinearAttentionInputs(
        q,
        k,
        v.unflatten(1, (part.heads, part.value_dim)),
        a,
        b,
        mixer.bias,
        mixer.rate,
        UNIT_EPS,
        part.dim**-0.5,
        part.reach,
        tiled=part.tiled,
    )


@dataclass(frozen=True, slots=True)
class FusedMamba2:
    """State space duality. fixed: see `FusedDeltaNet`."""

    mixer: ReferenceMamba2
    front: ProjectionAndConv
    fixed: bool = False

    @classmethod
    def of(cls, mixer: ReferenceMamba2) -> FusedMamba2:
        return cls(
            mixer,
            ProjectionAndConv.of((mixer.input,), mixer.convolution, mixer.index, mixer.part.inner),
            fixed_sums(mixer),
        )

    def __call__(self, y: Tensor, step: GpuStep) -> Tensor:
        slots, (windows, states) = StepStateSlots.of(step), memory_of(step, self.mixer.index)
        return self._after_conv(*self.front(y, step, slots, windows), states, slots, slots.overlap)

    def alone(self, x: Tensor, norm: NormWeights | None, step: GpuStep, times: Times) -> Tensor:
        slots, (windows, states) = StepStateSlots.of(step), memory_of(step, self.mixer.index)
        return self._after_conv(*self.front.alone(x, norm, slots, windows, times), states, slots, overlaps(x.device))

    def _after_conv(
        self, mixed: Tensor, rest: list[Tensor], states: Tensor, slots: StepStateSlots, overlap: bool
    ) -> Tensor:
        part, (z, steps) = self.mixer.part, rest
        out = by_tokens_or_chunks(self._scan_inputs(mixed, steps), states, slots, self.fixed, overlap)
        spans = out.view(len(out), part.groups, -1)
        return gated(spans, z, self.mixer.norm, part.eps, "silu", not part.norm_first, overlap)

    def _scan_inputs(self, mixed: Tensor, steps: Tensor) -> LinearAttentionInputs:
        """mixed: float32 [T, channels], x, B and C.  steps: [T, heads]."""
        mixer, part = self.mixer, self.mixer.part
        each = part.groups * part.size
        x, b, c = mixed.split_with_sizes((part.inner, each, each), 1)
        b, c = (y.unflatten(1, (part.groups, part.size)) for y in (b, c))
        return LinearAttentionInputs(
            c,
            b,
            x.unflatten(1, (part.heads, part.dim)),
            steps,
            None,
            mixer.bias,
            mixer.rate,
            least=part.least,
            most=part.most,
            times=True,
            skip=mixer.skip,
        )


@dataclass(frozen=True, slots=True)
class FusedShortConv:
    """A short convolution between two gates."""

    mixer: ReferenceShortConv

    def __call__(self, y: Tensor, step: GpuStep) -> Tensor:
        return self._convolved(self.mixer.into(y), step, False)

    def alone(self, x: Tensor, norm: NormWeights | None, step: GpuStep, times: Times) -> Tensor:
        return self._convolved(times(self.mixer.into, x, norm), step, overlaps(x.device))

    def _convolved(self, y: Tensor, step: GpuStep, overlap: bool) -> Tensor:
        slots, (memory,), taps = StepStateSlots.of(step), memory_of(step, self.mixer.index), self.mixer.convolution
        first, last, x = y.chunk(3, 1)
        return convolve(x, taps.weight, taps.bias, None, memory, *slots[:4], overlap, (first, last))


def mixed_by_state(
    inputs: LinearAttentionInputs, gate: HeadNormGate, states: Tensor, slots: StepStateSlots, fixed: bool, overlap: bool
) -> Tensor:
    """The gated outputs of all heads [T, heads * value]."""
    if fixed or (slots.longest == 1 and len(slots.read) * inputs.v.shape[1] <= FEW):
        return advance(inputs, gate, states, *slots[:3], None, overlap).flatten(1)
    out = by_tokens_or_chunks(inputs, states, slots, fixed, overlap)
    return gated(out, gate.z, gate.weight, gate.eps, gate.name)


def by_tokens_or_chunks(
    inputs: LinearAttentionInputs, states: Tensor, slots: StepStateSlots, fixed: bool, overlap: bool
) -> Tensor:
    """The outputs of all heads, [T, heads, value] float32.

    Prompts go by chunks where that is faster and bits may depend on where they are cut.
    """
    if fixed:
        return advance(inputs, None, states, *slots[:3])
    if not supports(inputs, slots.longest):
        return advance(inputs, None, states, *slots[:3], PART if slots.longest == 1 else NARROW, overlap)
    ones, (read, write, starts) = slots.ones, slots[:3]
    out = torch.empty(inputs.v.shape, dtype=torch.float32, device=inputs.v.device)
    advance(inputs, None, states, read[:ones], write[:ones], starts[: ones + 1], PART, out=out)
    by_chunks = advance_kda_by_chunks if decays_per_channel(inputs) else advance_by_chunks
    by_chunks(inputs, states, read[ones:], write[ones:], starts[ones:], slots.longest, out)
    return out


def memory_of(step: GpuStep, layer: int) -> tuple[Tensor, ...]:
    assert step.memory is not None
    return step.memory.of(layer)


def fixed_sums(mixer: ReferenceMixer) -> bool:
    """Whether the mixer's products have fixed sums, so that a row's bits do not depend on other rows; its states then
    too.
    """
    return any(isinstance(getattr(*place), FIXED) for place in mixer.products())


def mixer_of(block: ReferenceBlock) -> FusedRecurrentMixer:
    """What computes the mixer of a supported layer."""
    mixer = block.mixer
    if isinstance(mixer, ReferenceShortConv):
        return FusedShortConv(mixer)
    return (
        FusedMamba2.of(mixer)
        if isinstance(mixer, ReferenceMamba2)
        else FusedDeltaNet.of(cast(ReferenceDeltaNet, mixer))
    )
