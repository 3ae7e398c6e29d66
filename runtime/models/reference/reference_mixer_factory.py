"""The part that computes each kind of mixer, and parallel mixers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..spec.latent_attention_spec import LatentAttentionSpec
from ..spec.model_spec import AttentionSpec, Mixer, ParallelMixersSpec, ShortConvSpec
from ..spec.recurrent_spec import DeltaNetSpec, Mamba1Spec, Mamba2Spec
from ..spec.sparse_attention_spec import SparseAttentionSpec
from ..spec.tensor_names import TensorNames
from ..spec.weight_targets import WeightTarget
from .reference_attention import ReferenceAttention
from .reference_delta_net import ReferenceDeltaNet
from .reference_latent_attention import ReferenceLatentAttention
from .reference_mamba1 import ReferenceMamba1
from .reference_mamba2 import ReferenceMamba2
from .reference_mixer import ReferenceMixer, ReferenceStep
from .reference_short_conv import ReferenceShortConv
from .reference_sparse_attention import ReferenceSparseAttention


class ReferenceParallelMixers(ReferenceMixer):
    """Mixers in parallel; the result of `attend` is added as it is. See `ParallelMixersSpec`."""

    output = None

    def __init__(
        self,
        part: ParallelMixersSpec,
        names: TensorNames,
        index: int,
        hidden: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.part, self.index = part, index
        self.mixers = [mixer_for(each, names, index, hidden, dtype, device) for each in part.mixers]
        self.capturable = all(mixer.capturable for mixer in self.mixers)

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        for mixer in self.mixers:
            yield from mixer.places(prefix)

    def attend(self, x: Tensor, step: ReferenceStep) -> Tensor:
        """[T, hidden] -> [T, hidden]"""
        y = torch.zeros_like(x)
        for mixer, taken, scale in zip(self.mixers, self.part.inputs, self.part.scales, strict=True):
            assert mixer.output is not None
            y.add_(mixer.output(mixer.attend(x if taken == 1 else x * taken, step)), alpha=scale)
        return y


PARTS: dict[type, Callable[..., ReferenceMixer]] = {
    AttentionSpec: ReferenceAttention,
    LatentAttentionSpec: ReferenceLatentAttention,
    SparseAttentionSpec: ReferenceSparseAttention,
    ShortConvSpec: ReferenceShortConv,
    DeltaNetSpec: ReferenceDeltaNet,
    Mamba1Spec: ReferenceMamba1,
    Mamba2Spec: ReferenceMamba2,
    ParallelMixersSpec: ReferenceParallelMixers,
}


def mixer_for(
    part: Mixer, names: TensorNames, index: int, hidden: int, dtype: torch.dtype, device: torch.device
) -> ReferenceMixer:
    return PARTS[type(part)](part, names, index, hidden, dtype, device)
