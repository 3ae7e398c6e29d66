"""A decoder as data: a family's function makes a `ModelSpec` of its config.json, everything else reads it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from ...attention.attention_layout import AttentionLayout, LayerAttention
from ...cache.recurrent_state_shape import RecurrentStateShape
from ...layers.rope_parameters import RopeParameters
from ...step.rank_row_share import RankRowShare
from .latent_attention_spec import LatentAttentionSpec
from .layer_part_specs import Activation as Activation
from .layer_part_specs import NormSpec as NormSpec
from .layer_part_specs import QkNormSpec as QkNormSpec
from .layer_part_specs import QueryTemperature as QueryTemperature
from .recurrent_spec import DeltaNetSpec, Mamba1Spec, Mamba2Spec
from .sparse_attention_spec import SparseAttentionSpec
from .tensor_names import TensorNames


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Softmax attention of `heads` query heads over `kv_heads` heads of keys and values.

    scale: of the scores.  bias: of q, k and v; out_bias: of the output projection.  rope: None for no rotation.
    norm: of queries and keys; value_norm_eps: each head of values is divided by its root mean square.  value_scale:
        factor of values.  clip: queries, keys and values stay within it.
    window, chunk, softcap, alibi: see `LayerAttention`.  sinks: a learned logit of each head without a value.
    value_is_key: the values are the keys' projection, before norm and rotation.
    source: the layer whose keys and values are read; this one projects queries only.
    gate: a head's output is multiplied by the sigmoids of as many numbers, projected together with its query.
    """

    heads: int
    kv_heads: int
    dim: int
    scale: float
    value_dim: int = 0  # 0: dim
    rope: RopeParameters | None = None
    bias: bool = False
    out_bias: bool = False
    norm: QkNormSpec | None = None
    value_norm_eps: float | None = None
    clip: float | None = None
    temperature: QueryTemperature | None = None
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    alibi: tuple[float, ...] | None = None
    sinks: bool = False
    value_is_key: bool = False
    source: int | None = None
    gate: bool = False
    value_scale: float = 1.0

    @property
    def values(self) -> int:
        """Width of a head of values."""
        return self.value_dim or self.dim

    @property
    def rows(self) -> tuple[int, int, int]:
        """Outputs of the merged projection: of queries, keys, values."""
        own = 0 if self.source is not None else self.kv_heads
        return self.heads * self.dim, own * self.dim, own * self.values

    @property
    def gates(self) -> int:
        """Outputs of the same projection after those, for the gate."""
        return self.heads * self.dim if self.gate else 0


@dataclass(frozen=True, slots=True)
class GatedFFNSpec:
    """down(activation(gate(x)) * up(x)).

    limit: gate is at most that, up within it on both sides, and 1 is added to up (gpt-oss).
    scale, out_scale: factors of the gate, and of the output.
    """

    inner: int
    activation: Activation = "silu"
    bias: bool = False
    limit: float | None = None
    scale: float = 1.0
    out_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class PlainFFNSpec:
    """down(activation(up(x)))."""

    inner: int
    activation: Activation
    bias: bool = False


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """Which experts a token goes to and with which weights; see `routing.routed` for the order of the operations.

    score: of the logits; "mixer": PhiMoE's two rounds, see `routing.sparse_mixer`, with `jitter`.
    best_first: the experts of the best logits are chosen, and only these logits are scored.
    bias: of the logits.  correction: a learned number of each expert is added to its score, for the choice only.
    groups, kept_groups: the experts of so many groups are left, the others' scores are set to `outside`.
    group_score: the largest of a group's scores, or the sum of the two largest.
    normalise: weights are divided by their sum, of at least `floor`.  scale: factor of the weights.
    """

    score: Literal["softmax", "sigmoid", "mixer"] = "softmax"
    best_first: bool = False
    bias: bool = False
    correction: bool = False
    groups: int = 1
    kept_groups: int = 1
    group_score: Literal["largest", "two"] = "two"
    outside: float = -math.inf
    normalise: bool = False
    floor: float = 0.0
    scale: float = 1.0
    jitter: float = 0.0


class ExpertShare(NamedTuple):
    """Which experts of a mixture each rank holds whole, initially. rank: this one.  experts: of each rank's places.

    ordered: expert outputs are added in the order of choice, wherever they are stored.  nodes, groups: as in
        `parallel.placement.place`.
    """

    rank: int
    experts: tuple[tuple[int, ...], ...]
    ordered: bool = False
    nodes: int = 1
    groups: int = 1

    @property
    def here(self) -> tuple[int, ...]:
        return self.experts[self.rank]


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A mixture: of `count` networks a token goes through `top_k`, whose outputs are added times the router's weights.

    weighs_input: the weight is applied to an expert's input instead of its output.
    latent: experts see that many numbers: a projection in front, and another one after their sum. None: the token
        itself.
    shared: a network that every token goes through in addition.  switched: its weight is the sigmoid of a product with
        the token.
    held: which of the networks are here; None: all of them, or a part of each.
    """

    count: int
    top_k: int
    expert: GatedFFNSpec | PlainFFNSpec
    router: RouterSpec = RouterSpec()
    weighs_input: bool = False
    shared: GatedFFNSpec | PlainFFNSpec | None = None
    switched: bool = False
    latent: int | None = None
    latent_bias: bool = False
    held: ExpertShare | None = None

    @property
    def here(self) -> tuple[int, ...]:
        """The numbers of the networks that are here."""
        return tuple(range(self.count)) if self.held is None else self.held.here


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """A gated convolution over the last `width` tokens of each channel: out(C * conv(B * x)), B, C and x projected
    (LFM2).

    bias: of both projections and of the convolution.
    """

    channels: int
    width: int
    bias: bool = False

    @property
    def state(self) -> tuple[RecurrentStateShape, ...]:
        """The last inputs of the convolution, oldest first."""
        return (RecurrentStateShape((self.width - 1, self.channels)),)


@dataclass(frozen=True, slots=True)
class ParallelMixersSpec:
    """Mixers with the same input whose outputs are added.

    inputs, scales: factors of each one's input and output.
    """

    mixers: tuple[AttentionSpec | ShortConvSpec | DeltaNetSpec | Mamba1Spec | Mamba2Spec, ...]
    inputs: tuple[float, ...]
    scales: tuple[float, ...]

    @property
    def state(self) -> tuple[RecurrentStateShape, ...]:
        return tuple(state for mixer in self.mixers for state in states_of(mixer))


Mixer = (
    AttentionSpec
    | LatentAttentionSpec
    | SparseAttentionSpec
    | ShortConvSpec
    | DeltaNetSpec
    | Mamba1Spec
    | Mamba2Spec
    | ParallelMixersSpec
)
Feedforward = GatedFFNSpec | PlainFFNSpec | ExpertsSpec


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """Where norms are in a layer; a layer with only a mixer or only an FFN has the norms of that one.

    before_*: of the input of the mixer or the FFN; after_*: of the output, before it is added.
    parallel: both read the layer's input, the FFN after `before_mixer` if it has no norm itself.
    of_sum: the output norms are applied after the addition.
    """

    before_mixer: NormSpec | None = None
    after_mixer: NormSpec | None = None
    before_ffn: NormSpec | None = None
    after_ffn: NormSpec | None = None
    parallel: bool = False
    of_sum: bool = False

    @classmethod
    def pre(cls, norm: NormSpec) -> LayerNorms:
        return cls(before_mixer=norm, before_ffn=norm)

    @classmethod
    def post(cls, norm: NormSpec) -> LayerNorms:
        return cls(after_mixer=norm, after_ffn=norm)

    @classmethod
    def both(cls, norm: NormSpec) -> LayerNorms:
        return cls(norm, norm, norm, norm)

    @classmethod
    def parallel_branches(cls, norm: NormSpec, own: bool = False) -> LayerNorms:
        """Mixer and FFN in parallel, after one norm, or each after a separate norm."""
        return cls(before_mixer=norm, before_ffn=norm if own else None, parallel=True)


@dataclass(frozen=True, slots=True)
class PerLayerEmbeddingsSpec:
    """Per-layer embeddings (Gemma 4): a table of `width` numbers a token and layer, gated into the residual."""

    width: int
    vocab_size: int
    activation: Activation
    norm: NormSpec


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """mixer, ffn: None if a layer has only the other.  branch: factor of both outputs.  scalar: learned factor of the
    output.
    """

    norms: LayerNorms
    mixer: Mixer | None
    ffn: Feedforward | None
    branch: float = 1.0
    scalar: bool = False

    @property
    def attention(self) -> AttentionSpec:
        """The mixer of a layer whose mixer is softmax attention over heads."""
        assert isinstance(self.mixer, AttentionSpec)
        return self.mixer


@dataclass(frozen=True, slots=True)
class LearnedPositions:
    """A table of `count` positions, added to the embeddings; position p is in row p + offset."""

    count: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class SinusoidalPositions:
    """A computed table of `count` positions, added to the embeddings: row p + offset has the sines of as many angles as
    half its width, then the cosines; angles are the row times 1 to 1e-4.
    """

    count: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class PipelineShare:
    """Which part of a model's layers is here.

    first: the number of the first one.  begins: the embedding is here; ends: the head is.
    """

    first: int = 0
    begins: bool = True
    ends: bool = True


@dataclass(frozen=True)
class ModelSpec:
    """A decoder. Checkpoint names of its parts are in `names`.

    norm: the last one.  tied: the head is the embedding.  head_unit: the head's rows are normalized to length 1.
    head_rows: the tokens whose logits this rank computes, first and end (exclusive); None: all.
    stage: which part of the layers these are, which the checkpoint counts from `stage.first`; otherwise all.
    embed_scale: of the embeddings, rounded to the model's type; embed_norm: of them; embed_size: their width, if
        projections lead to `hidden_size` and back.  logit_scale, logit_softcap: of the logits.
    dtype: of the saved checkpoint, if it says so.  notes: parts of the checkpoint that are ignored, for people.
    stray: ignored keys of its config.json, which transformers' class does not have.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    max_position: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec | None
    tied: bool
    names: TensorNames = field(default_factory=TensorNames)
    embed_scale: float = 1.0
    embed_norm: NormSpec | None = None
    embed_size: int | None = None
    positions: LearnedPositions | SinusoidalPositions | None = None
    per_layer: PerLayerEmbeddingsSpec | None = None
    head_bias: bool = False
    head_unit: bool = False
    head_rows: tuple[int, int] | None = None
    stage: PipelineShare = PipelineShare()
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    dtype: str | None = None
    notes: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()

    @property
    def head_tokens(self) -> range:
        """The tokens that the head here has rows of."""
        return range(*(self.head_rows or (0, self.vocab_size)))

    @property
    def is_share(self) -> bool:
        """Whether other ranks hold the rest of it."""
        return self.head_rows is not None or not (self.stage.begins and self.stage.ends)

    @property
    def has_table(self) -> bool:
        """Whether the embedding's table is here, for input tokens or for a tied head."""
        return self.stage.begins or (self.stage.ends and self.tied)

    @cached_property
    def attention(self) -> AttentionLayout:
        """The layers' requirements of attention."""
        return AttentionLayout.of([layer_attention_of(layer.mixer) for layer in self.layers])

    @cached_property
    def share(self) -> RankRowShare | None:
        """The rows of a step that its latent attention is for; None: all."""
        parts = [attention_of(layer.mixer) for layer in self.layers]
        return next((part.share for part in parts if isinstance(part, LatentAttentionSpec)), None)

    @cached_property
    def states(self) -> dict[int, tuple[RecurrentStateShape, ...]]:
        """The layers' state per sequence in addition to keys and values, by layer, of those that have some."""
        return {index: states for index, layer in enumerate(self.layers) if (states := states_of(layer.mixer))}

    @cached_property
    def ropes(self) -> tuple[RopeParameters, ...]:
        """The different rotations of the layers."""
        return tuple(dict.fromkeys(rope for layer in self.layers for rope in ropes_of(layer.mixer)))


def ropes_of(mixer: Mixer | None) -> Iterator[RopeParameters]:
    """The rotations of a mixer: its own heads, and its indexer's."""
    part = attention_of(mixer)
    for each in (part, part.indexer if isinstance(part, LatentAttentionSpec) else None):
        if each is not None and each.rope is not None:
            yield each.rope


def attention_of(mixer: Mixer | None) -> AttentionSpec | LatentAttentionSpec | SparseAttentionSpec | None:
    """The softmax attention in a mixer; there is one at most."""
    if isinstance(mixer, ParallelMixersSpec):
        return next((found for each in mixer.mixers if (found := attention_of(each))), None)
    return mixer if isinstance(mixer, AttentionSpec | LatentAttentionSpec | SparseAttentionSpec) else None


def states_of(mixer: Mixer | None) -> tuple[RecurrentStateShape, ...]:
    """A mixer's state per sequence in addition to keys and values."""
    return (
        ()
        if mixer is None or isinstance(mixer, AttentionSpec | LatentAttentionSpec | SparseAttentionSpec)
        else mixer.state
    )


def layer_attention_of(mixer: Mixer | None) -> LayerAttention | None:
    """None if it does not attend."""
    part = attention_of(mixer)
    if part is None or isinstance(part, LatentAttentionSpec | SparseAttentionSpec):
        return None if part is None else part.layer_attention
    return LayerAttention(
        part.heads,
        part.kv_heads,
        part.dim,
        part.values,
        part.scale,
        part.window,
        part.chunk,
        part.softcap,
        part.alibi,
        part.source,
    )
