"""The weights that a `ModelSpec` asks for, by arithmetic: tensors of the checkpoint, and products. No memory, no torch.

The reference modules have the same tensors in the same order (`Decoder.places`), where they can be loaded into.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .latent_attention_spec import IndexerSpec, LatentAttentionSpec
from .layer_part_specs import NormSpec
from .model_spec import (
    AttentionSpec,
    ExpertsSpec,
    Feedforward,
    GatedFFNSpec,
    LayerSpec,
    LearnedPositions,
    ModelSpec,
    ParallelMixersSpec,
    PerLayerEmbeddingsSpec,
    PlainFFNSpec,
    QkNormSpec,
    ShortConvSpec,
)
from .recurrent_spec import DeltaNetSpec, Mamba1Spec, Mamba2Spec
from .sparse_attention_spec import SparseAttentionSpec
from .tensor_names import TensorNames, expert_names, shared_expert_names

NORMS = ("before_mixer", "after_mixer", "before_ffn", "after_ffn")
XIELU = {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}  # shapes of the numbers that it learns


class WeightShape(NamedTuple):
    """A tensor of the checkpoint. turned: it is a projection's weight, all of which is stored as [in, out]."""

    name: str
    shape: tuple[int, ...]
    turned: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """[out, in], whatever the layout of its memory."""
        return self.shape[::-1] if self.turned else self.shape


class ProductShape(NamedTuple):
    """A projection as it is computed, maybe of several tensors."""

    outputs: int
    inputs: int

    @property
    def numbers(self) -> int:
        return self.outputs * self.inputs


@dataclass
class WeightShapes:
    """Of a part of a model, or of all of it. products: of layers."""

    tensors: list[WeightShape] = field(default_factory=list)
    products: list[ProductShape] = field(default_factory=list)

    @property
    def parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    def tensor(self, name: str, *shape: int) -> None:
        self.tensors.append(WeightShape(name, shape))

    def product(self, outputs: int, inputs: int) -> None:
        self.products.append(ProductShape(outputs, inputs))

    def rows(self, name: str, outputs: int, inputs: int, bias: bool, turned: bool = False) -> None:
        """A tensor that holds some rows of a product."""
        self.tensors.append(WeightShape(f"{name}.weight", (outputs, inputs), turned))
        if bias:
            self.tensor(f"{name}.bias", outputs)

    def whole(self, name: str, outputs: int, inputs: int, bias: bool = False, turned: bool = False) -> None:
        """A tensor that holds all rows of one."""
        self.tensors.append(WeightShape(f"{name}.weight", (inputs, outputs) if turned else (outputs, inputs), turned))
        if bias:
            self.tensor(f"{name}.bias", outputs)

    def weight(self, name: str, outputs: int, inputs: int, bias: bool = False, turned: bool = False) -> None:
        """A product of a layer that has a separate tensor."""
        self.product(outputs, inputs)
        self.whole(name, outputs, inputs, bias, turned)

    def norm(self, name: str, part: NormSpec | None, size: int) -> None:
        if part is None:
            return
        if part.weight:
            self.tensor(f"{name}.weight", size)
        if part.bias and part.kind == "layer":
            self.tensor(f"{name}.bias", size)


def weight_shapes(model: ModelSpec) -> WeightShapes:
    """In the order in which parts are loaded: the embedding, the layers, the head."""
    found = WeightShapes()
    _embedding(found, model)
    for index, layer in enumerate(model.layers):
        _layer(found, model, layer, model.names.layer.format(model.stage.first + index))
    _head(found, model)
    return found


def _embedding(found: WeightShapes, model: ModelSpec) -> None:
    names, width, hidden = model.names, model.embed_size or model.hidden_size, model.hidden_size
    begins = model.stage.begins
    if model.has_table:
        found.tensor(f"{names.embedding}.weight", model.vocab_size, width)
    if begins:
        found.norm(names.embed_norm, model.embed_norm, hidden)
    if isinstance(model.positions, LearnedPositions) and begins:
        found.tensor(f"{names.positions}.weight", model.positions.count + model.positions.offset, hidden)
    if model.embed_size and begins:
        found.whole(names.project_in, hidden, width)
    if model.per_layer is not None:
        each = len(model.layers) * model.per_layer.width
        found.tensor("model.embed_tokens_per_layer.weight", model.per_layer.vocab_size, each)
        found.whole("model.per_layer_model_projection", each, hidden)
        found.norm("model.per_layer_projection_norm", model.per_layer.norm, model.per_layer.width)


def _head(found: WeightShapes, model: ModelSpec) -> None:
    names, width, rows = model.names, model.embed_size or model.hidden_size, len(model.head_tokens)
    if not model.stage.ends:
        return
    found.norm(names.norm, model.norm, model.hidden_size)
    if model.embed_size:
        found.whole(names.project_out, width, model.hidden_size)
    if not model.tied:
        found.tensor(f"{names.head}.weight", rows, width)
    if model.head_bias:
        found.tensor(f"{names.head}.bias", rows)


def _layer(found: WeightShapes, model: ModelSpec, layer: LayerSpec, prefix: str) -> None:
    names, hidden = model.names, model.hidden_size
    for name in NORMS:
        found.norm(prefix + getattr(names, name), getattr(layer.norms, name), hidden)
    if layer.mixer is not None:
        _mixer(found, layer.mixer, names, prefix, hidden)
    if layer.ffn is not None:
        _feedforward(found, layer.ffn, names, prefix, hidden)
    if layer.scalar:
        found.tensor(prefix + names.scalar, 1)
    if model.per_layer is not None:
        _gate(found, model.per_layer, prefix, hidden)


def _gate(found: WeightShapes, part: PerLayerEmbeddingsSpec, prefix: str, hidden: int) -> None:
    found.weight(f"{prefix}per_layer_input_gate", part.width, hidden)
    found.weight(f"{prefix}per_layer_projection", hidden, part.width)
    found.norm(f"{prefix}post_per_layer_input_norm", part.norm, hidden)


# feedforward networks


def _feedforward(found: WeightShapes, part: Feedforward, names: TensorNames, prefix: str, hidden: int) -> None:
    if isinstance(part, ExpertsSpec):
        _experts(found, part, names, prefix, hidden)
    elif isinstance(part, GatedFFNSpec):
        _gated(found, part, names, prefix, hidden)
    else:
        _plain(found, part, names, prefix, hidden)


def _gated(found: WeightShapes, part: GatedFFNSpec, names: TensorNames, prefix: str, hidden: int) -> None:
    of, inner = (hidden, part.bias, names.transposed), part.inner
    if names.gate_up is not None:
        found.weight(prefix + names.gate_up.name, 2 * inner, *of)
    else:
        found.product(2 * inner, hidden)
        found.rows(prefix + names.gate, inner, *of)
        found.rows(prefix + names.up, inner, *of)
    found.weight(prefix + names.down, hidden, inner, part.bias, names.transposed)


def _plain(found: WeightShapes, part: PlainFFNSpec, names: TensorNames, prefix: str, hidden: int) -> None:
    found.weight(prefix + names.up, part.inner, hidden, part.bias, names.transposed)
    found.weight(prefix + names.down, hidden, part.inner, part.bias, names.transposed)
    if part.activation == "xielu":
        for name, shape in XIELU.items():
            found.tensor(f"{prefix}{names.activation}.{name}", *shape)


def _experts(found: WeightShapes, part: ExpertsSpec, names: TensorNames, prefix: str, hidden: int) -> None:
    own = names.experts
    found.weight(prefix + own.router, part.count, hidden, part.router.bias)
    if part.router.correction:
        found.tensor(prefix + own.correction, *((1, part.count) if own.correction_row else (part.count,)))
    for index in part.here:
        _feedforward(found, part.expert, expert_names(names, index), prefix, part.latent or hidden)
    if part.shared is not None:
        _feedforward(found, part.shared, shared_expert_names(names), prefix, hidden)
    if part.switched:
        found.weight(prefix + own.switch, 1, hidden)
    if part.latent:
        found.weight(prefix + own.narrow, part.latent, hidden, part.latent_bias)
        found.weight(prefix + own.widen, hidden, part.latent, part.latent_bias)


# mixers


def _mixer(found: WeightShapes, part: Any, names: TensorNames, prefix: str, hidden: int) -> None:
    MIXERS[type(part)](found, part, names, prefix, hidden)


def _attention(found: WeightShapes, part: AttentionSpec, names: TensorNames, prefix: str, hidden: int) -> None:
    queries, keys, values = part.rows
    if names.qkv is not None:
        found.weight(prefix + names.qkv.name, sum(part.rows) + part.gates, hidden, part.bias, names.transposed)
    else:
        found.product(sum(part.rows) + part.gates, hidden)
        apart = ((names.q, queries + part.gates), (names.k, keys), (names.v, 0 if part.value_is_key else values))
        for name, rows in apart:
            if rows:
                found.rows(prefix + name, rows, hidden, part.bias, names.transposed)
    found.weight(prefix + names.output, hidden, part.heads * part.values, part.out_bias, names.transposed)
    if part.norm is not None:
        _qk_norm(found, part.norm, part, (prefix + names.q_norm, prefix + names.k_norm))
    if part.sinks:
        found.tensor(prefix + names.sinks, part.heads)


def _qk_norm(found: WeightShapes, norm: QkNormSpec, part: AttentionSpec, names: tuple[str, str]) -> None:
    counts = (part.heads, 0 if part.source is not None else part.kv_heads)
    endings = [*([".weight"] if norm.norm.weight else []), *([".bias"] if norm.norm.bias else [])]
    for ending in endings:
        for name, count in zip(names, counts, strict=True):
            found.tensors += _of_heads(name, ending, norm, count, part.dim)


def _of_heads(name: str, ending: str, norm: QkNormSpec, count: int, dim: int) -> Iterator[WeightShape]:
    """A name with {} in it means a tensor of each head."""
    if "{}" in name:
        yield from (WeightShape(name.format(head) + ending, (dim,)) for head in range(count))
    elif count:
        yield WeightShape(name + ending, {"head": (dim,), "each": (count, dim), "all": (count * dim,)}[norm.over])


def _latent(found: WeightShapes, part: LatentAttentionSpec, names: TensorNames, prefix: str, hidden: int) -> None:
    own, few, width = names.latent, part.query_rank, part.heads * (part.dim + part.turned)
    if few is not None:
        found.weight(prefix + own.query_down, few, hidden, part.bias)
        found.tensor(f"{prefix}{own.query_norm}.weight", few)
    found.weight(prefix + (names.q if few is None else own.query_up), width, few or hidden)
    found.weight(prefix + own.down, part.rank + part.turned, hidden, part.bias)
    found.tensor(f"{prefix}{own.norm}.weight", part.rank)
    for name, shape in zip(own.halves or (own.up,), latent_ups(part, names), strict=True):
        found.tensor(f"{prefix}{name}.weight", *shape)
    found.weight(prefix + names.output, hidden, part.heads * part.value_dim, part.out_bias)
    if part.own_indexer is not None:
        _indexer(found, part.own_indexer, prefix + own.index, hidden, few or hidden)


def latent_ups(part: LatentAttentionSpec, names: TensorNames) -> list[tuple[int, int]]:
    """Of the projections from the latent, as the files hold them."""
    if names.latent.halves is None:
        return [(part.heads * (part.dim + part.value_dim), part.rank)]
    return [(part.heads * part.rank, part.dim), (part.heads * part.value_dim, part.rank)]


def _indexer(found: WeightShapes, part: IndexerSpec, begin: str, hidden: int, rank: int) -> None:
    found.weight(f"{begin}wq_b", part.heads * part.dim, rank)
    found.weight(f"{begin}wk", part.dim, hidden)
    found.weight(f"{begin}weights_proj", part.heads, hidden)
    found.norm(f"{begin}k_norm", part.norm, part.dim)


def _sparse(found: WeightShapes, part: SparseAttentionSpec, names: TensorNames, prefix: str, hidden: int) -> None:
    queries, keys = part.heads * part.dim, 3 * part.kv_heads * part.dim
    found.weight(prefix + names.q, queries, hidden)
    found.weight(prefix + names.k, keys, hidden)
    found.weight(prefix + names.v, keys, hidden)
    found.weight(prefix + names.output, hidden, queries)
    found.weight(f"{prefix}self_attn.gate", 3 * part.heads, hidden)
    for name in ("compress_keys", "compress_values"):
        begin = f"{prefix}self_attn.{name}"
        found.tensor(f"{begin}.places", part.length, part.dim)
        found.weight(f"{begin}.up", part.inner, part.length * part.dim, True)
        found.weight(f"{begin}.down", part.dim, part.inner, True)


def _short_conv(found: WeightShapes, part: ShortConvSpec, names: TensorNames, prefix: str, hidden: int) -> None:
    own = names.conv
    found.weight(prefix + own.into, 3 * part.channels, hidden, part.bias)
    found.weight(prefix + own.output, hidden, part.channels, part.bias)
    _convolution(found, prefix + own.kernel, part.channels, part.width, part.bias)


def _convolution(found: WeightShapes, name: str, channels: int, width: int, bias: bool) -> None:
    found.tensor(f"{name}.weight", channels, 1, width)
    if bias:
        found.tensor(f"{name}.bias", channels)


def _delta_net(found: WeightShapes, part: DeltaNetSpec, names: TensorNames, prefix: str, hidden: int) -> None:
    own, begin = names.delta, prefix + names.delta.prefix
    keys, values, few = part.key_heads * part.dim, part.heads * part.value_dim, part.rank
    rows = {"q": keys, "k": keys, "v": values, "z": few or values, "b": part.heads, "a": few or part.heads}
    for tensors, letters in ((own.inputs, "qkvz"), (own.rates, "ba")):
        found.product(sum(rows[letter] for letter in letters), hidden)
        for name, held in tensors:
            found.rows(begin + name, sum(rows[letter] for letter in held), hidden, False)
    whole = len(own.convolution) == 1
    for name, channels in zip(own.convolution, [part.channels] if whole else [keys, keys, values], strict=True):
        _convolution(found, begin + name, channels, part.width, False)
    found.tensor(f"{begin}A_log", *((part.heads,) if few is None else (1, 1, part.heads, 1)))
    found.tensor(f"{begin}dt_bias", part.heads * (1 if few is None else part.dim))
    found.tensor(f"{begin}{own.norm}.weight", part.value_dim)
    if few is not None:
        found.weight(begin + own.decay, part.heads * part.dim, few)
        found.weight(begin + own.gate, values, few)
    found.weight(begin + own.output, hidden, values)


def _mamba2(found: WeightShapes, part: Mamba2Spec, names: TensorNames, prefix: str, hidden: int) -> None:
    begin = prefix + names.mamba
    found.weight(f"{begin}in_proj", part.inner + part.channels + part.heads, hidden, part.bias)
    found.weight(f"{begin}out_proj", hidden, part.inner, part.out_bias)
    _convolution(found, f"{begin}conv1d", part.channels, part.width, part.conv_bias)
    for name in ("A_log", "D", "dt_bias"):
        found.tensor(begin + name, part.heads)
    if part.eps is not None:
        found.tensor(f"{begin}norm.weight", part.inner)


def _mamba1(found: WeightShapes, part: Mamba1Spec, names: TensorNames, prefix: str, hidden: int) -> None:
    begin, sizes = prefix + names.mamba, {"dt_layernorm": part.rank, "b_layernorm": part.size, "c_layernorm": part.size}
    found.weight(f"{begin}in_proj", 2 * part.inner, hidden, part.bias)
    found.weight(f"{begin}x_proj", part.rank + 2 * part.size, part.inner)
    found.weight(f"{begin}out_proj", hidden, part.inner, part.bias)
    found.weight(f"{begin}dt_proj", part.inner, part.rank, True)
    _convolution(found, f"{begin}conv1d", part.inner, part.width, part.conv_bias)
    found.tensor(f"{begin}A_log", part.inner, part.size)
    found.tensor(f"{begin}D", part.inner)
    for name, size in sizes.items():
        found.norm(begin + name, part.norm, size)


def _parallel(found: WeightShapes, part: ParallelMixersSpec, names: TensorNames, prefix: str, hidden: int) -> None:
    for each in part.mixers:
        _mixer(found, each, names, prefix, hidden)


MIXERS: dict[type, Callable[[WeightShapes, Any, TensorNames, str, int], None]] = {
    AttentionSpec: _attention,
    LatentAttentionSpec: _latent,
    SparseAttentionSpec: _sparse,
    ShortConvSpec: _short_conv,
    DeltaNetSpec: _delta_net,
    Mamba1Spec: _mamba1,
    Mamba2Spec: _mamba2,
    ParallelMixersSpec: _parallel,
}
