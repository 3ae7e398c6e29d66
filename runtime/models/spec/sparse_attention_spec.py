"""Sparse attention of three branches as data; a part of `spec`."""

from __future__ import annotations

from dataclasses import dataclass

from ...attention.attention_layout import LayerAttention
from ...errors import ConfigError
from ...layers.rope_parameters import RopeParameters


@dataclass(frozen=True, slots=True)
class SparseAttentionSpec:
    """Softmax attention in three branches, each with separate keys and values, added by learned gates (NSA).

    See arXiv 2502.11089. The branches attend to blocks of tokens compressed into one; to the tokens of the blocks that
    the first branch rates highest; and to a window of the latest tokens.
    heads, kv_heads, dim: of each branch; all have the same queries.  scale: of the scores.
    rope: of the latter two branches. Compressed keys only encode positions within their block.
    length, stride: tokens of a compressed block, and between the beginnings of two.  inner: of the compressing
        networks.
    block, most: tokens of a chosen block, and how many are chosen: the `first` ones, the `latest` ones, and the best of
        the others.
    """

    heads: int
    kv_heads: int
    dim: int
    scale: float
    inner: int
    rope: RopeParameters | None = None
    length: int = 32
    stride: int = 16
    block: int = 64
    most: int = 16
    first: int = 1
    latest: int = 2
    window: int = 512

    def __post_init__(self) -> None:
        if not 1 <= self.latest <= self.most - self.first or self.first < 0:
            raise ConfigError(
                f"of {self.most} chosen blocks the {self.first} first and the {self.latest} latest cannot always be "
                "some; the query's own must be"
            )
        if not 1 <= self.stride <= self.length or self.block < 1 or self.window < 1:
            raise ConfigError(
                f"compressed blocks of {self.length} tokens every {self.stride}, blocks of {self.block}, a window of "
                f"{self.window}: none may leave tokens out"
            )
        if self.rope is not None and (self.rope.order is not None or self.rope.width != self.dim):
            raise ConfigError(f"sparse attention turns the halves of whole heads of {self.dim}; {self.rope} does not")

    @property
    def layer_attention(self) -> LayerAttention:
        """KV heads are those of chosen blocks, then the window's, then the compressed ones."""
        chosen = max(self.most * self.block, self.window)
        return LayerAttention(3 * self.heads, 3 * self.kv_heads, self.dim, self.dim, self.scale, chosen=chosen)
