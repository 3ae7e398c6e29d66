"""The reference for gated short convolutions (LFM2), in torch: gate, convolve each channel over a few tokens, gate."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...layers.recurrent import RaggedSequences
from ..spec.model_spec import ShortConvSpec
from ..spec.tensor_names import TensorNames
from ..spec.weight_targets import WeightTarget, matrix, weight_of
from .reference_mixer import ProjectedMixer, ReferenceStep
from .reference_recurrence import ReferenceConvolution, carried


class ReferenceShortConv(ProjectedMixer):
    """`into` projects B, C and x of all channels, [T, 3 * channels]; `output` projects C times the convolution of B *
    x.
    """

    def __init__(
        self, part: ShortConvSpec, names: TensorNames, index: int, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.part, self.index, self._names = part, index, names.conv
        self.into = matrix(3 * part.channels, hidden, part.bias, False, dtype, device)
        self.output = matrix(hidden, part.channels, part.bias, False, dtype, device)
        self.convolution = ReferenceConvolution(part.channels, part.width, part.bias, None, device)

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        yield from weight_of(prefix + self._names.into, self.into)
        yield from weight_of(prefix + self._names.output, self.output)
        yield from self.convolution.places(prefix + self._names.kernel)

    def attend(self, x: Tensor, step: ReferenceStep) -> Tensor:
        """x [T, hidden], normed -> the input of `output`, [T, channels]; each sequence's last inputs are kept as its
        state.
        """
        states, ragged = carried(step), RaggedSequences.of(step.batch.query_lens, x.device)
        (kept,) = states.of(self.index)
        first, last, y = self.into(x).chunk(3, dim=-1)
        return last * self.convolution(first * y, kept, states, ragged).to(x.dtype)
