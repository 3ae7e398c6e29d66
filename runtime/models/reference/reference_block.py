"""A layer in torch: mixer and feedforward network, with the family's norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...layers.activation_functions import add_scaled
from ...layers.linear_layers import Linear
from ...layers.norm_layers import RMSNorm
from ..spec.model_spec import ExpertsSpec, Feedforward, LayerSpec, PerLayerEmbeddingsSpec
from ..spec.tensor_names import TensorNames
from ..spec.weight_targets import WeightTarget, norm_for, norm_places
from .reference_attention import ReferenceAttention
from .reference_experts import ReferenceExperts
from .reference_feedforward import PerLayerEmbeddingGate, ReferenceGatedFFN, ReferencePlainFFN, network_for
from .reference_mixer import ReferenceMixer, ReferenceStep
from .reference_mixer_factory import mixer_for
from .reference_module import ReferenceModule

Transform = Callable[[str, Linear], Linear]  # a projection's name and the loaded layer -> the one to compute with
NORMS = ("before_mixer", "after_mixer", "before_ffn", "after_ffn")


class ReferenceBlock(ReferenceModule):
    """Layer `index` of a model, which the checkpoint counts from `first`; `layer` is its spec.

    `x` is [T, hidden] throughout; it may be written into.
    """

    def __init__(
        self,
        layer: LayerSpec,
        names: TensorNames,
        index: int,
        hidden: int,
        dtype: torch.dtype,
        device: torch.device,
        per_layer: PerLayerEmbeddingsSpec | None = None,
        first: int = 0,
    ) -> None:
        self.layer, self.index, self._names, self._first = layer, index, names, first
        norms = layer.norms
        self.before_mixer, self.after_mixer = (
            norm_for(norms.before_mixer, hidden, device),
            norm_for(norms.after_mixer, hidden, device),
        )
        self.before_ffn, self.after_ffn = (
            norm_for(norms.before_ffn, hidden, device),
            norm_for(norms.after_ffn, hidden, device),
        )
        self.mixer = None if layer.mixer is None else mixer_for(layer.mixer, names, index, hidden, dtype, device)
        self.ffn = None if layer.ffn is None else feedforward_for(layer.ffn, names, hidden, dtype, device)
        self.scalar = torch.ones(1, dtype=torch.float32, device=device) if layer.scalar else None
        self.gate = None if per_layer is None else PerLayerEmbeddingGate(per_layer, hidden, dtype, device)

    @property
    def attention(self) -> ReferenceAttention:
        """The mixer of a layer whose mixer is softmax attention over heads."""
        assert isinstance(self.mixer, ReferenceAttention)
        return self.mixer

    @property
    def dense(self) -> ReferenceGatedFFN | ReferencePlainFFN:
        """The feedforward network of a layer without experts."""
        assert isinstance(self.ffn, ReferenceGatedFFN | ReferencePlainFFN)
        return self.ffn

    @property
    def branches(self) -> Iterator[ReferenceMixer | ReferenceGatedFFN | ReferencePlainFFN | ReferenceExperts]:
        """Mixer and feedforward network, or the only one of them."""
        yield from (part for part in (self.mixer, self.ffn) if part is not None)

    def places(self) -> Iterator[WeightTarget]:
        prefix = self._names.layer.format(self._first + self.index)
        for name in NORMS:
            yield from norm_places(
                prefix + getattr(self._names, name), getattr(self.layer.norms, name), getattr(self, name)
            )
        for branch in self.branches:
            yield from branch.places(prefix)
        if self.scalar is not None:
            yield WeightTarget(prefix + self._names.scalar, self.scalar)
        if self.gate is not None:
            yield from self.gate.places(prefix)

    def seal(self, small: bool, transform: Transform | None) -> None:
        for product, order in self.orders():
            product.take_rows(torch.from_numpy(order))
        self.finish_loading()
        for holder, name in self.products():
            setattr(holder, name, sealed(name, getattr(holder, name), transform))
        if isinstance(self.ffn, ReferenceExperts):
            self.ffn.store_experts()

    def forward(self, x: Tensor, step: ReferenceStep, rows: Tensor | None = None, own: Tensor | None = None) -> Tensor:
        """rows: continue with these rows only, once their keys and values are written.  own: see
        `PerLayerEmbeddingGate`.
        """
        x, y = self._mix(x, step, rows)
        if self.ffn is not None:
            inner = self.ffn.inner(normed(self.before_ffn, x) if y is None else y)
            x = self._added(x, self.ffn.down, inner, self.after_ffn)
        if self.gate is not None and own is not None:
            x = self.gate.forward(x, own if rows is None else own.index_select(0, rows))
        return x if self.scalar is None else x.mul_(self.scalar)

    def _mix(self, x: Tensor, step: ReferenceStep, rows: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x plus the mixer's output, and the input of a parallel feedforward network; None: the network is
        sequential.
        """
        if self.mixer is None:
            return (x if rows is None else x.index_select(0, rows)), None
        y = normed(self.before_mixer, x)
        mixed = self.mixer.attend(y, step)
        if rows is not None:
            x, y, mixed = (part.index_select(0, rows) for part in (x, y, mixed))
        if not self.layer.norms.parallel:
            return self._added(x, self.mixer.output, mixed, self.after_mixer), None
        y = normed(self.before_ffn, x) if self.before_ffn else y
        return self._added(x, self.mixer.output, mixed, self.after_mixer), y

    def store(self, x: Tensor, step: ReferenceStep) -> None:
        """Write only what later tokens need of these."""
        if self.mixer is not None:
            self.mixer.attend(normed(self.before_mixer, x), step)

    def _added(self, x: Tensor, product: Linear | None, y: Tensor, after: RMSNorm | None) -> Tensor:
        """x plus a branch's output for y. product: None: y is the output already."""
        if self.layer.norms.of_sum:
            return normed(after, x.add_(y) if product is None else product.added_to(x, y))
        if after is None and self.layer.branch == 1:
            return x.add_(y) if product is None else product.added_to(x, y)
        return add_scaled(x, normed(after, y if product is None else product(y)), self.layer.branch)


def feedforward_for(
    part: Feedforward, names: TensorNames, hidden: int, dtype: torch.dtype, device: torch.device
) -> ReferenceGatedFFN | ReferencePlainFFN | ReferenceExperts:
    if isinstance(part, ExpertsSpec):
        return ReferenceExperts(part, names, hidden, dtype, device)
    return network_for(part, names, hidden, dtype, device)


def normed(norm: RMSNorm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


def sealed(name: str, loaded: Linear, transform: Transform | None) -> Linear:
    given = transform(name, loaded) if transform else loaded
    return loaded.seal() if given is loaded else given
