"""A layer in torch: mixer and feedforward network with the norms where the family has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..layers.activation import activated, add_scaled
from ..layers.linear import BlockedLinear, Linear
from ..layers.norm import RMSNorm
from .attention import AttentionPart, Step
from .experts import ExpertsPart
from .feedforward import GatedPart, PlainPart
from .names import Names
from .places import Place, matrix, norm_for, norm_places, weight_of
from .spec import Experts, Feedforward, Gated, Layer, PerLayer

Transform = Callable[[str, Linear], Linear]  # a projection's name and the loaded layer -> the one to compute with
NORMS = ("before_mixer", "after_mixer", "before_ffn", "after_ffn")


class Block:
    """Layer `index` of a model; `layer` says what it is. `x` is [T, hidden] throughout; it may be written into."""

    def __init__(
        self, layer: Layer, names: Names, index: int, hidden: int, dtype: torch.dtype, device: torch.device,
        per_layer: PerLayer | None = None,
    ) -> None:  # fmt: skip
        self.layer, self.index, self._names = layer, index, names
        norms = layer.norms
        self.before_mixer, self.after_mixer = norm_for(norms.before_mixer, hidden, device), norm_for(norms.after_mixer, hidden, device)
        self.before_ffn, self.after_ffn = norm_for(norms.before_ffn, hidden, device), norm_for(norms.after_ffn, hidden, device)
        self.mixer = AttentionPart(layer.mixer, names, index, hidden, dtype, device)
        self.ffn = feedforward_for(layer.ffn, names, hidden, dtype, device)
        self.scalar = torch.ones(1, dtype=torch.float32, device=device) if layer.scalar else None
        self.gate = None if per_layer is None else PerLayerGate(per_layer, hidden, dtype, device)

    @property
    def dense(self) -> GatedPart | PlainPart:
        """The feedforward network of a layer that has no experts."""
        assert not isinstance(self.ffn, ExpertsPart)
        return self.ffn

    def places(self) -> Iterator[Place]:
        prefix = self._names.layer.format(self.index)
        for name in NORMS:
            yield from norm_places(prefix + getattr(self._names, name), getattr(self.layer.norms, name), getattr(self, name))
        yield from self.mixer.places(prefix)
        yield from self.ffn.places(prefix)
        if self.scalar is not None:
            yield Place(prefix + self._names.scalar, self.scalar)
        if self.gate is not None:
            yield from self.gate.places(prefix)

    def products(self) -> Iterator[tuple[object, str]]:
        """Who holds each projection, and under which name."""
        yield from ((self.mixer, "qkv"), (self.mixer, "output"))
        yield from self.ffn.products()
        if self.gate is not None:
            yield from ((self.gate, "down"), (self.gate, "up"))

    def norms(self) -> Iterator[RMSNorm]:
        yield from (norm for name in NORMS if (norm := getattr(self, name)) is not None)
        if self.gate is not None:
            yield self.gate.norm

    def seal(self, keep_plain: bool, transform: Transform | None) -> None:
        self.mixer.seal()
        self.ffn.seal()
        for norm in self.norms():
            norm.seal()
        for holder, name in self.products():
            setattr(holder, name, sealed(name, getattr(holder, name), keep_plain, transform))
        if not keep_plain:  # small models are laid together as a whole
            BlockedLinear.lay_together(getattr(*place) for place in self.products())
        if isinstance(self.ffn, ExpertsPart):
            self.ffn.finish()

    def forward(self, x: Tensor, step: Step, rows: Tensor | None = None, own: Tensor | None = None) -> Tensor:
        """rows: go on with these rows only once their keys and values are written.  own: see `PerLayerGate`."""
        y = normed(self.before_mixer, x)
        mixed = self.mixer.attend(y, step)
        if rows is not None:
            x, y, mixed = (part.index_select(0, rows) for part in (x, y, mixed))
        if self.layer.norms.parallel:
            y = self.ffn.inner(normed(self.before_ffn, x) if self.before_ffn else y)
            x = self._added(x, self.mixer.output, mixed, self.after_mixer)
        else:
            x = self._added(x, self.mixer.output, mixed, self.after_mixer)
            y = self.ffn.inner(normed(self.before_ffn, x))
        x = self._added(x, self.ffn.down, y, self.after_ffn)
        if self.gate is not None and own is not None:
            x = self.gate.forward(x, own if rows is None else own.index_select(0, rows))
        return x if self.scalar is None else x.mul_(self.scalar)

    def _added(self, x: Tensor, product: Linear | None, y: Tensor, after: RMSNorm | None) -> Tensor:
        """x plus what a branch gives of y. product: None: y is what it gives."""
        if self.layer.norms.of_sum:
            return normed(after, x.add_(y) if product is None else product.added_to(x, y))
        if after is None and self.layer.branch == 1:
            return x.add_(y) if product is None else product.added_to(x, y)
        return add_scaled(x, normed(after, y if product is None else product(y)), self.layer.branch)


class PerLayerGate:
    """x + norm(up(activation(down(x)) * own)), `own` [T, width] the layer's embeddings of the tokens (Gemma 4)."""

    def __init__(self, part: PerLayer, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self.part = part
        self.down = matrix(part.width, hidden, False, False, dtype, device)
        self.up = matrix(hidden, part.width, False, False, dtype, device)
        norm = norm_for(part.norm, hidden, device)
        assert norm is not None
        self.norm = norm

    def places(self, prefix: str) -> Iterator[Place]:
        yield from weight_of(f"{prefix}per_layer_input_gate", self.down)
        yield from weight_of(f"{prefix}per_layer_projection", self.up)
        yield from norm_places(f"{prefix}post_per_layer_input_norm", self.part.norm, self.norm)

    def forward(self, x: Tensor, own: Tensor) -> Tensor:
        y = activated(self.part.activation, self.down(x)).mul_(own)
        return x.add_(self.norm(self.up(y)))


def feedforward_for(
    part: Feedforward, names: Names, hidden: int, dtype: torch.dtype, device: torch.device
) -> GatedPart | PlainPart | ExpertsPart:
    if isinstance(part, Experts):
        return ExpertsPart(part, names, hidden, dtype, device)
    if isinstance(part, Gated):
        return GatedPart(part, names, hidden, dtype, device)
    return PlainPart(part, names, hidden, dtype, device)


def normed(norm: RMSNorm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


def sealed(name: str, loaded: Linear, keep_plain: bool, transform: Transform | None) -> Linear:
    given = transform(name, loaded) if transform else loaded
    return loaded.seal(keep_plain) if given is loaded else given
