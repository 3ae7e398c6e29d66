"""The reference for Mamba 1, in torch: project, convolve, select, scan, gate."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...layers.recurrent import RaggedSequences, SelectiveScan
from ..spec.recurrent_spec import Mamba1Spec
from ..spec.tensor_names import TensorNames
from ..spec.weight_targets import WeightTarget, exact, matrix, norm_for, norm_places, weight_of
from .reference_mixer import ProjectedMixer, ReferenceStep
from .reference_recurrence import ReferenceConvolution, carried, gated, rates, scanned, stored_rate

NORMS = ("dt_layernorm", "b_layernorm", "c_layernorm")


class ReferenceMamba1(ProjectedMixer):
    """`input` projects x and gate; `select` the convolved x to inputs of time steps, B and C; `steps` the time steps.

    rate: float32 [inner, size], -e^A_log.  skip: float32 [inner], the direct path of x around the states.
    """

    def __init__(
        self, part: Mamba1Spec, names: TensorNames, index: int, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.part, self.index, self._names = part, index, names
        self._sizes = (part.rank, part.size, part.size)
        self.input = matrix(2 * part.inner, hidden, part.bias, False, dtype, device)
        self.select = matrix(sum(self._sizes), part.inner, False, False, dtype, device)
        self.steps = matrix(part.inner, part.rank, True, False, dtype, device)
        self.output = matrix(hidden, part.inner, part.bias, False, dtype, device)
        self.convolution = ReferenceConvolution(part.inner, part.width, part.conv_bias, part.activation, device)
        self.rate = torch.zeros(part.inner, part.size, dtype=torch.float32, device=device)
        self.skip = torch.zeros(part.inner, dtype=torch.float32, device=device)
        self.norms = [norm_for(part.norm, size, device) for size in self._sizes]

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        begin = prefix + self._names.mamba
        for name, product in (("in_proj", self.input), ("x_proj", self.select), ("out_proj", self.output)):
            yield from weight_of(begin + name, product)
        yield from exact(f"{begin}dt_proj", self.steps)
        yield from self.convolution.places(f"{begin}conv1d")
        yield from (WeightTarget(f"{begin}A_log", self.rate), WeightTarget(f"{begin}D", self.skip))
        for name, norm in zip(NORMS, self.norms, strict=True):
            yield from norm_places(begin + name, self.part.norm, norm)

    def finish_loading(self) -> None:
        super().finish_loading()
        self.rate = stored_rate(self.rate, self.part.log_rate)

    def attend(self, x: Tensor, step: ReferenceStep) -> Tensor:
        """x [T, hidden], normed -> the gated outputs of all channels, [T, inner]; states are kept for later tokens."""
        states, ragged = carried(step), RaggedSequences.of(step.batch.query_lens, x.device)
        windows, memory = states.of(self.index)
        mixed, z = self.input(x).chunk(2, 1)
        convolved = self.convolution(mixed, windows, states, ragged)
        out = scanned(self._scan_inputs(convolved, x.dtype), memory, states, ragged)
        return gated(out[:, None], z, None, None)

    def _scan_inputs(self, x: Tensor, dtype: torch.dtype) -> SelectiveScan:
        """x: float32 [T, inner]"""
        few, b, c = (part.contiguous() for part in self.select(x.to(dtype)).split_with_sizes(self._sizes, 1))
        few, b, c = (part if norm is None else norm(part) for part, norm in zip((few, b, c), self.norms, strict=True))
        steps, _ = rates(self.steps(few), None, None)
        return SelectiveScan(x, steps, self.rate, b.float(), c.float(), self.skip)
