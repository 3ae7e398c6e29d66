"""The reference for Mamba 2, in torch: project, convolve, scan, gate and norm."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...layers.recurrent import LinearAttention, RaggedSequences
from ..spec.recurrent_spec import Mamba2Spec
from ..spec.tensor_names import TensorNames
from ..spec.weight_targets import WeightTarget, matrix, weight_of
from .reference_mixer import ProjectedMixer, ReferenceStep
from .reference_recurrence import ReferenceConvolution, carried, gated, rates, scanned, stored_rate


class ReferenceMamba2(ProjectedMixer):
    """`input` projects gate, x, B, C and time steps; `output` projects the gated outputs of all heads.

    rate: float32 [heads], -e^A_log.  skip: float32 [heads], the direct path of x around the states.  scales: of each
        output of `input`.
    """

    def __init__(
        self, part: Mamba2Spec, names: TensorNames, index: int, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.part, self.index, self._names = part, index, names
        self._sizes = (part.inner, part.channels, part.heads)
        self.input = matrix(sum(self._sizes), hidden, part.bias, False, dtype, device)
        self.output = matrix(hidden, part.inner, part.out_bias, False, dtype, device)
        self.convolution = ReferenceConvolution(part.channels, part.width, part.conv_bias, part.activation, device)
        self.rate, self.skip, self.bias = (
            torch.zeros(part.heads, dtype=torch.float32, device=device) for _ in range(3)
        )
        self.norm = None if part.eps is None else torch.ones(part.inner, dtype=torch.float32, device=device)
        self.scales: Tensor | None = None

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        begin = prefix + self._names.mamba
        yield from weight_of(f"{begin}in_proj", self.input)
        yield from weight_of(f"{begin}out_proj", self.output)
        yield from self.convolution.places(f"{begin}conv1d")
        for name, target in (("A_log", self.rate), ("D", self.skip), ("dt_bias", self.bias)):
            yield WeightTarget(begin + name, target)
        if self.norm is not None:
            yield WeightTarget(f"{begin}norm.weight", self.norm)

    def finish_loading(self) -> None:
        super().finish_loading()
        part = self.part
        self.rate = stored_rate(self.rate, part.log_rate)
        if part.scales:
            counts = torch.tensor([part.inner, part.inner, *[part.groups * part.size] * 2, part.heads])
            self.scales = torch.tensor(part.scales).repeat_interleave(counts).to(self.rate.device)

    def attend(self, x: Tensor, step: ReferenceStep) -> Tensor:
        """x [T, hidden], normed -> the gated outputs of all heads, [T, inner]; states are kept for later tokens."""
        states, ragged = carried(step), RaggedSequences.of(step.batch.query_lens, x.device)
        windows, memory = states.of(self.index)
        z, mixed, dt = self._projected(x).split_with_sizes(self._sizes, 1)
        convolved = self.convolution(mixed, windows, states, ragged)
        out = scanned(self._scan_inputs(convolved, dt), memory, states, ragged)
        return gated(
            out.flatten(1).unflatten(1, (self.part.groups, -1)),
            z,
            self.norm,
            self.part.eps,
            gate_first=not self.part.norm_first,
        )

    def _projected(self, x: Tensor) -> Tensor:
        y = self.input(x if self.part.scale == 1 else x * self.part.scale)
        return y if self.scales is None else y * self.scales.to(y.dtype)

    def _scan_inputs(self, mixed: Tensor, dt: Tensor) -> LinearAttention:
        """mixed: float32 [T, channels].  dt: [T, heads]."""
        part = self.part
        each = part.groups * part.size
        x, b, c = mixed.split_with_sizes((part.inner, each, each), 1)
        steps, decay = rates(dt, self.bias, self.rate, (part.least, part.most))
        b, c = (y.unflatten(1, (part.groups, part.size)) for y in (b, c))
        return LinearAttention(
            c, b, x.unflatten(1, (part.heads, part.dim)), decay[..., None], times=steps[..., None], skip=self.skip
        )
