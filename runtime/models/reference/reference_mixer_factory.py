"""The part that computes each kind of mixer, and mixers beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from ..layers.linear import Linear
from .attention import AttentionPart
from .conv import ShortConvPart
from .delta import DeltaPart
from .latent import LatentPart
from .latent_spec import Latent
from .mamba1 import Mamba1Part
from .mamba2 import Mamba2Part
from .mixer import MixerPart, Step
from .names import Names
from .places import Place
from .recurrent_spec import Delta, Mamba1, Mamba2
from .sparse import SparsePart
from .sparse_spec import Sparse
from .spec import Attention, Beside, Mixer, ShortConv


class BesideMixers:
    """Mixers beside each other; what `attend` gives is added as it is. See `Beside`."""

    output = None

    def __init__(self, part: Beside, names: Names, index: int, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self.part, self.index = part, index
        self.mixers = [mixer_for(each, names, index, hidden, dtype, device) for each in part.mixers]
        self.capturable = all(mixer.capturable for mixer in self.mixers)

    def places(self, prefix: str) -> Iterator[Place]:
        for mixer in self.mixers:
            yield from mixer.places(prefix)

    def products(self) -> Iterator[tuple[object, str]]:
        for mixer in self.mixers:
            yield from mixer.products()

    def tensors(self) -> Iterator[Tensor]:
        for mixer in self.mixers:
            yield from mixer.tensors()

    def seal(self) -> None:
        for mixer in self.mixers:
            mixer.seal()

    def orders(self) -> Iterator[tuple[Linear, np.ndarray]]:
        for mixer in self.mixers:
            yield from mixer.orders()

    def attend(self, x: Tensor, step: Step) -> Tensor:
        """[T, hidden] -> [T, hidden]"""
        y = torch.zeros_like(x)
        for mixer, taken, scale in zip(self.mixers, self.part.inputs, self.part.scales, strict=True):
            assert mixer.output is not None
            y.add_(mixer.output(mixer.attend(x if taken == 1 else x * taken, step)), alpha=scale)
        return y


PARTS: dict[type, Callable[..., MixerPart]] = {
    Attention: AttentionPart, Latent: LatentPart, Sparse: SparsePart, ShortConv: ShortConvPart, Delta: DeltaPart, Mamba1: Mamba1Part, Mamba2: Mamba2Part, Beside: BesideMixers,
}  # fmt: skip


def mixer_for(part: Mixer, names: Names, index: int, hidden: int, dtype: torch.dtype, device: torch.device) -> MixerPart:
    return PARTS[type(part)](part, names, index, hidden, dtype, device)
