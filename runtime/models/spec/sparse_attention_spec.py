"""Sparse attention of three branches as data; a part of `spec`."""

from __future__ import annotations

from dataclasses import dataclass

from ...attention.attention_layout import LayerAttention
from ...errors import ConfigError
from ...layers.rotary_embedding import RopeParameters


@dataclass(frozen=True, slots=True)
class SparseAttentionSpec:
    """Softmax attention in three branches, each with keys and values of its own, which learned gates add up (NSA, arXiv
    2502.11089):
    to blocks of tokens that are compressed into one; to tokens of the blocks that these rate highest; to a window of
    the latest tokens.

    heads, kv_heads, dim: of each branch; the queries are the same in all.  scale: of the scores.
    rope: of the latter two branches. Compressed keys know places within their block alone.
    length, stride: tokens of a compressed block, and from the beginning of one to that of the next.  inner: of the
        networks that compress.
    block, most: tokens of a block that is chosen, and how many of them are: the `first` ones, the `latest` ones, and
        the best of the others.
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
    def asked(self) -> LayerAttention:
        """KV heads are those of chosen blocks, then the window's, then those that are compressed."""
        chosen = max(self.most * self.block, self.window)
        return LayerAttention(3 * self.heads, 3 * self.kv_heads, self.dim, self.dim, self.scale, chosen=chosen)
