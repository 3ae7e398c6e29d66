"""Latent attention as data; a part of `spec`."""

from __future__ import annotations

from dataclasses import dataclass

from ...attention.attention_layout import LayerAttention
from ...layers.rope_parameters import RopeParameters
from ...step.rank_row_share import RankRowShare
from .layer_part_specs import NormSpec, QueryTemperature


@dataclass(frozen=True, slots=True)
class IndexerSpec:
    """Chooses the `most` tokens that a query attends to (DSA, of DeepSeek V3.2); with fewer tokens it attends to all.

    The chosen ones have the largest sums over `heads` of weight * relu(query * key).
    dim: of a head; its key, which all heads share, has a norm.  rope: of `dim` numbers.
    shared: it reuses the choice of the layer before it, and has no weights.
    """

    heads: int
    dim: int
    most: int
    norm: NormSpec
    rope: RopeParameters
    shared: bool = False


@dataclass(frozen=True, slots=True)
class LatentAttentionSpec:
    """Softmax attention whose keys and values are projected from `rank` numbers of a token, the latent (MLA).

    See arXiv 2405.04434.
    dim: numbers of a head's query and key that come from latents.  turned: the rotated ones that follow, whose key all
        heads share.
    value_dim: of a head.  scale: of the scores.  rope: of `turned` numbers, None for no rotation.
    norm: of the latent, and of the queries' of `query_rank` numbers; None: queries are projected directly.
    bias: of the projections to latents; out_bias: of the output projection.
    share: of a rank that stores the rows of all tokens of a step but attends, with all heads, for some of them only.
        None: for all.
    """

    heads: int
    rank: int
    dim: int
    turned: int
    value_dim: int
    scale: float
    norm: NormSpec
    rope: RopeParameters | None = None
    query_rank: int | None = None
    bias: bool = False
    out_bias: bool = False
    temperature: QueryTemperature | None = None
    indexer: IndexerSpec | None = None
    share: RankRowShare | None = None

    @property
    def own_indexer(self) -> IndexerSpec | None:
        """The indexer, unless it is shared."""
        return None if self.indexer is None or self.indexer.shared else self.indexer

    @property
    def layer_attention(self) -> LayerAttention:
        """A token's row is the latent and the rotated key; the heads' output is of latents."""
        own, chooses = self.own_indexer, self.indexer
        return LayerAttention(
            self.heads,
            1,
            self.rank + self.turned,
            self.rank,
            self.scale,
            latent=True,
            index_dim=0 if own is None else own.dim,
            chosen=None if chooses is None else chooses.most,
        )
